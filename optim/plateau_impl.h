// Private to optim: what the two detectors of plateaus share.
#ifndef ISO_PLATEAU_IMPL_H
#define ISO_PLATEAU_IMPL_H

#include <isotherm/plateau.h>

// Counts a value that is better than the best so far or not; true when it makes a plateau.
bool iso__plateau_take(iso_plateau *plateau, double value, bool is_better);

#endif
