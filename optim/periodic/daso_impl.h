// SPDX-License-Identifier: MIT
// Private to optim: the table of functions that both kinds of DASO have.
#ifndef ISO_DASO_IMPL_H
#define ISO_DASO_IMPL_H

#include "optim/periodic/periodic.h"

#include <math.h>

// The table of an optimizer whose destroy is iso__periodic_free. Its functions get that optimizer.
typedef struct iso__daso_ops {
    iso_optimizer_ops base;
    iso_status (*epoch_loss)(iso_optimizer *daso, double loss); // loss: the mean over all ranks
    iso_status (*reset)(iso_optimizer *daso);
    void (*stats)(const iso_optimizer *daso, iso_daso_stats *out);
} iso__daso_ops;

// What the tables of both kinds have in common.
#define ISO__DASO_OPS                                                                              \
    .base.zero_grad = iso__periodic_zero_grad, .base.update = iso__periodic_update,                \
    .base.destroy = iso__periodic_free, .base.inner = iso__periodic_inner,                         \
    .base.release = iso__periodic_release, .base.ranks_differ = true

#endif
