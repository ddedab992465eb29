// SPDX-License-Identifier: MIT
// Private to the reducer: what makes a sum of gradients an average. Pure functions.
#ifndef ISO_FACTORS_H
#define ISO_FACTORS_H

#include <isotherm/reducer.h>

typedef struct iso__averaging {
    iso_average_mode mode;
    double split_factor;
    double weight, total; // see iso_reducer_set_weight
} iso__averaging;

// What gradients are multiplied with before the sum, and the sum after it.
typedef struct iso__factors {
    double before, after;
} iso__factors;

// ranks: over whom the sum is. divides: whatever travels is to be an average already. A rank that
// is alone sums nothing: all is left for after.
iso__factors iso__factors_of(const iso__averaging *a, int ranks, bool divides);

#endif
