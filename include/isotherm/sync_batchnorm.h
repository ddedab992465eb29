// Batch norms whose statistics are over the batches of all ranks: torch.nn.SyncBatchNorm.
#ifndef ISOTHERM_SYNC_BATCHNORM_H
#define ISOTHERM_SYNC_BATCHNORM_H

#include <isotherm/comm.h>
#include <isotherm/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

// Collective over comm. Converts every batch norm of module and below it, in place: parameters,
// buffers and their names stay, and the optimizer or data_parallel wrapper that holds them may be
// made before or after. *count (may be NULL): how many batch norms there are; one that was
// converted before now belongs to comm. ISO_ERR_MISMATCH unless ranks have equally many, of equally
// many features.
//
// In training, mean and variance are then those of the values of all ranks together, which may hold
// different numbers of samples; gradients of the input take all of them into account, and running
// statistics average the unbiased variance over all. Gradients of weight and bias are those of this
// rank's samples, as data_parallel expects them. N ranks compute what one would on the N-fold
// batch; with one rank these are the bits of the plain layer. One sample on each rank is enough.
//
// Training forwards and backwards become collective: all ranks call them equally often, for models
// that want the same gradients. Each layer waits for a sum of 2 * num_features + 1 doubles in
// forward (for a second one of num_features where a channel's mean is above 100 deviations) and for
// one in backward, unless no gradient of its input is wanted; a time-out comes out of there as
// ISO_ERR_TIMEOUT, naming the layer. The sums travel on a communicator of their own and so do not
// meet gradients that are under way. A rank that has run out of data must keep taking part:
// shadowing (isotherm/join.h) cannot replace its batch. Forwards in evaluation mode communicate
// nothing. Destroying the modules is collective.
iso_status iso_sync_batchnorm_convert(iso_module *module, iso_comm *comm, int *count);

#ifdef __cplusplus
}
#endif
#endif
