// SPDX-License-Identifier: MIT
// Private to optim: how the mean of parameters that were sent some batches ago is merged with the
// parameters of now. Outer optimizers (SlowMo, DiLoCo) are further rules of this kind.
#ifndef ISO_MERGE_H
#define ISO_MERGE_H

#include "base/base.h"

#include <isotherm/daso.h>

typedef struct iso__merge_args {
    const float *sent, *mean;
    int nodes;
    int64_t age; // S: batches since the send, or what HeAT takes for it
} iso__merge_args;

// now[count] by the rule; *distance += |sent - mean|^2, *norm += |mean|^2.
void iso__merge(iso_merge rule, size_t count, float *now, const iso__merge_args *args,
                double *distance, double *norm);

// The same without merging.
void iso__merge_measure(size_t count, const iso__merge_args *args, double *distance, double *norm);

#endif
