// SPDX-License-Identifier: MIT
// Private to the reducer: the factors that turn a sum of gradients into an average. Pure functions.
#ifndef ISO_FACTORS_H
#define ISO_FACTORS_H

#include <isotherm/reducer.h>

typedef struct iso__averaging {
    iso_average_mode mode;
    double split_factor;
    double weight, total; // see iso_reducer_set_weight
} iso__averaging;

// Gradients are multiplied by `before` ahead of the sum, and the sum by `after`.
typedef struct iso__factors {
    double before, after;
} iso__factors;

// ranks: the number of ranks over which gradients are summed. divides: what travels must already be
// an average. A single rank sums nothing, so `after` is the whole factor.
iso__factors iso__factors_of(const iso__averaging *a, int ranks, bool divides);
// The same for sums that are divided by the total weight of the ranks. The total is not known
// before the sums are back, so `after` is 1, and the sum is later multiplied by
// iso__factor_of_total. A total of 0 counts as 1.
iso__factors iso__factors_ahead(const iso__averaging *a, int ranks, bool divides);
double iso__factor_of_total(const iso__averaging *a, int ranks, bool divides, double total);

#endif
