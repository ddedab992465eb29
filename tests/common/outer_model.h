// SPDX-License-Identifier: MIT
// For tests of outer optimizers: their formulas from the papers, in double precision, on the ranks
// of the serial model of periodic training.
#ifndef ISO_TEST_OUTER_MODEL_H
#define ISO_TEST_OUTER_MODEL_H

#include "common/daso_model.h"

typedef struct outer_model {
    daso_model *m; // borrowed
    iso_outer rule;
    double lr; // of the inner optimizer
    double *anchor, *momentum[MODEL_RANKS], *squares;
    double *sent[MODEL_RANKS], *mean;
    const int *part; // [count]: the fragment of each element; NULL: all are fragment 0
    // Optimizer state travels, too; age: the number of steps since the send, when it is merged.
    bool state;
    int64_t age;
    int64_t merges[ISO_DASO_FRAGMENTS], sent_at[ISO_DASO_FRAGMENTS]; // -1: not under way
} outer_model;

// The anchor is the parameters of rank 0 now.
void outer_model_create(outer_model *o, daso_model *m, const iso_outer *rule, double lr);
void outer_model_destroy(outer_model *o);
void outer_model_send(outer_model *o, int fragment, int64_t step);
void outer_model_merge(outer_model *o, int fragment);
// Every rank gets the mean of all.
void outer_model_mean(outer_model *o);

#endif
