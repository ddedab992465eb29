// SPDX-License-Identifier: MIT
// Private to optim: what the detectors of plateaus share.
#ifndef ISO_PLATEAU_IMPL_H
#define ISO_PLATEAU_IMPL_H

#include <isotherm/plateau.h>

// Counts a value that is better than the best so far or not; true when it makes a plateau.
bool iso__plateau_take(iso_plateau *plateau, double value, bool is_better);
// The detector of HeAT's DASO: min, rel, patience 2. threshold: checked.
void iso__plateau_of_loss(iso_plateau *plateau, double threshold);

#endif
