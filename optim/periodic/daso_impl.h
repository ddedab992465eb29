// Private to optim: what the two kinds of DASO offer to the functions that take either.
#ifndef ISO_DASO_IMPL_H
#define ISO_DASO_IMPL_H

#include "optim/periodic/periodic.h"

#include <math.h>

// The engine of an optimizer of this kind, NULL for another.
iso__periodic *iso__daso_engine(iso_optimizer *optimizer);
iso__periodic *iso__daso_heat_engine(iso_optimizer *optimizer);
// loss: the mean over all ranks.
iso_status iso__daso_epoch_loss(iso_optimizer *daso, double loss);
iso_status iso__daso_heat_epoch_loss(iso_optimizer *daso, double loss);
iso_status iso__daso_reset(iso_optimizer *daso);
iso_status iso__daso_heat_reset(iso_optimizer *daso);
void iso__daso_stats(const iso_optimizer *daso, iso_daso_stats *out);
void iso__daso_heat_stats(const iso_optimizer *daso, iso_daso_stats *out);

#endif
