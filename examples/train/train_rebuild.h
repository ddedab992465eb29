// SPDX-License-Identifier: MIT
// --rebuild: buckets of gradients that are built anew in the first steps of a run.
#ifndef EXAMPLES_TRAIN_REBUILD_H
#define EXAMPLES_TRAIN_REBUILD_H

#include "train_options.h"

enum {
    TRAIN_REBUILD_WARM = 10, // steps after a rebuild that are not timed: the order is planned anew
    TRAIN_REBUILD_TIMED = 10
};

// How far it is.
typedef struct train_rebuild {
    int trial;       // the sizes looked at so far; 0: not even the order is known
    int current;     // the size that is tried
    int64_t since;   // steps with the current buckets
    int64_t skipped; // steps without an update that have been seen
    double ms[TRAIN_REBUILD_TIMED];
    int best; // of the sizes
    double best_ms;
    bool over;
} train_rebuild;

struct train_run;

// Local. ISO_ERR_ARG if results would depend on the buckets, or if the buckets cannot be rebuilt.
iso_status train_rebuild_check(const train_options *options);
// Collective, after each step: rebuilds the buckets when it is time.
iso_status train_rebuild_look(struct train_run *run);

#endif
