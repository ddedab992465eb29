// SPDX-License-Identifier: MIT
// Batch norms with statistics over the batches of all ranks: torch.nn.SyncBatchNorm.
#ifndef ISOTHERM_SYNC_BATCHNORM_H
#define ISOTHERM_SYNC_BATCHNORM_H

#include <isotherm/comm.h>
#include <isotherm/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

// Collective over comm. Converts every batch norm of module and of the modules below it, in place.
// Parameters, buffers and their names stay. Optimizers and data_parallel wrappers may be created
// before or after. *count (may be NULL) is the number of batch norms. A batch norm that an earlier
// call converted uses the new comm from then on. ISO_ERR_MISMATCH unless all ranks have the same
// batch norms: equal names and numbers of features, in the same order.
//
// Training then uses the mean and variance of the values of all ranks; the ranks may have different
// numbers of samples, and one sample per rank is enough. Gradients of the input take all ranks into
// account. Running statistics average the unbiased variance over all ranks. Gradients of weight and
// bias are those of this rank's samples, as data_parallel expects. N ranks compute what one rank
// would compute on the N-fold batch. On one rank, results are bitwise identical to those without
// the conversion.
//
// Training forwards and backwards become collective: all ranks must make the same number of them.
// In forward each layer waits for a sum of 2 * num_features + 1 doubles, and for a second one of
// num_features if the mean of a channel is above 100 standard deviations. In backward it waits for
// one sum, unless the gradient of its input is not wanted. After a time-out these calls return
// ISO_ERR_TIMEOUT, and the message names the layer. The sums use a communicator of their own, apart
// from gradients in flight.
//
// A rank without data must keep taking part: shadow mode (isotherm/join.h) cannot replace its
// batch. Forwards in evaluation mode do not communicate. Destroying the modules is collective.
iso_status iso_sync_batchnorm_convert(iso_module *module, iso_comm *comm, int *count);

#ifdef __cplusplus
}
#endif
#endif
