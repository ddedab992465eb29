// SPDX-License-Identifier: MIT
// Private to optim: what the detectors of plateaus share.
#ifndef ISO_PLATEAU_IMPL_H
#define ISO_PLATEAU_IMPL_H

#include <isotherm/plateau.h>

// Takes a value and whether it is better than the best so far. Returns true if it makes a plateau.
bool iso__plateau_take(iso_plateau *plateau, double value, bool is_better);
// Initialises the detector of HeAT's DASO: min, rel, patience 2. threshold has been checked.
void iso__plateau_of_loss(iso_plateau *plateau, double threshold);

#endif
