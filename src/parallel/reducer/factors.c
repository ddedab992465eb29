// SPDX-License-Identifier: MIT
// The factors that turn a sum of gradients into an average.
#include "parallel/reducer/factors.h"

static double before_sum(const iso__averaging *a, double total, bool divides) {
    if (divides || a->mode == ISO_AVERAGE_PRE) return a->weight / total;
    return a->mode == ISO_AVERAGE_SPLIT ? a->weight / a->split_factor : a->weight;
}

static double after_sum(const iso__averaging *a, double total, bool divides) {
    if (divides || a->mode == ISO_AVERAGE_PRE || a->mode == ISO_AVERAGE_SUM) return 1;
    return a->mode == ISO_AVERAGE_SPLIT ? a->split_factor / total : 1 / total;
}

iso__factors iso__factors_of(const iso__averaging *a, int ranks, bool divides) {
    double total = a->total > 0 ? a->total : ranks;
    bool sum = a->mode == ISO_AVERAGE_SUM;
    if (ranks == 1) return (iso__factors){1, sum ? a->weight : a->weight / total};
    return (iso__factors){before_sum(a, total, divides && !sum),
                          after_sum(a, total, divides && !sum)};
}

iso__factors iso__factors_ahead(const iso__averaging *a, int ranks, bool divides) {
    iso__factors all = iso__factors_of(a, ranks, divides);
    return (iso__factors){ranks == 1 ? 1 : all.before, 1};
}

double iso__factor_of_total(const iso__averaging *a, int ranks, bool divides, double total) {
    if (total == 0) total = 1;
    if (ranks == 1) return 1 / total;
    if (divides || a->mode == ISO_AVERAGE_PRE) return ranks / total;
    return a->mode == ISO_AVERAGE_SPLIT ? a->split_factor / total : 1 / total;
}
