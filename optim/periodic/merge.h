// SPDX-License-Identifier: MIT
// Private to optim: the rules that merge the mean of earlier parameters with the current ones.
// Outer optimizers (SlowMo, DiLoCo) would be further rules of this kind.
#ifndef ISO_MERGE_H
#define ISO_MERGE_H

#include "base/base.h"

#include <isotherm/daso.h>

typedef struct iso__merge_args {
    const void *sent, *mean; // f32, or f64
    int nodes;
    int64_t age; // S: batches since the send; for HeAT's DASO iso__action.weight
    bool f64;    // the type of the elements
} iso__merge_args;

// Updates now[count] by the rule. Adds |sent - mean|^2 to *distance and |mean|^2 to *norm.
void iso__merge(iso_merge rule, size_t count, void *now, const iso__merge_args *args,
                double *distance, double *norm);

// The same without merging.
void iso__merge_measure(size_t count, const iso__merge_args *args, double *distance, double *norm);

#endif
