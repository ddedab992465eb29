// Private to src/parallel and optim/dp_optimizer.
#ifndef ISO_PARALLEL_IMPL_H
#define ISO_PARALLEL_IMPL_H

#include "base/base.h"

#include <isotherm/parallel.h>

// The trainable parameters, in the order of the reducer's indices; borrowed.
int iso__data_parallel_trainable(iso_module *data_parallel, iso_parameter *const **out);

#endif
