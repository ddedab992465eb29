// Private to src/parallel and optim/dp_optimizer.
#ifndef ISO_PARALLEL_IMPL_H
#define ISO_PARALLEL_IMPL_H

#include "base/base.h"

#include <isotherm/parallel.h>

// Reports gradients that are valid from earlier backwards but were not reached by the last one, so that they
// are exchanged as they are instead of counting as zero. Before step().
iso_status iso__data_parallel_close_backward(iso_module *data_parallel);
// The trainable parameters, in the order of the reducer's indices; borrowed.
int iso__data_parallel_trainable(iso_module *data_parallel, iso_parameter *const **out);

#endif
