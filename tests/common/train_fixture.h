// SPDX-License-Identifier: MIT
// For tests that call the train program's functions: a small world, and runs from lines of options.
#ifndef ISO_TEST_TRAIN_FIXTURE_H
#define ISO_TEST_TRAIN_FIXTURE_H

#include "examples/train/train.h"

// Local but for counting nodes. All ranks of comm, and generated images of 6 x 6 in 4 classes.
iso_status train_world_small(iso_comm *comm, int64_t count, train_world *out);
// Collective. A run of those options, words between blanks, with --quiet. observer may be NULL. The
// sentence of an error goes to stderr, as in the program.
bool train_line(const train_world *world, const char *line, const train_observer *observer,
                train_result *out);

// The losses of a run's evaluations.
enum { TRAIN_CURVE = 64 };
typedef struct train_curve {
    int count;
    double train_loss[TRAIN_CURVE], test_loss[TRAIN_CURVE];
} train_curve;
// A run with an eval after each update.
bool train_curve_of(const train_world *world, const char *line, train_curve *curve,
                    train_result *out);
// The largest difference between two curves; infinite if their lengths differ.
double train_curve_difference(const train_curve *a, const train_curve *b);

#endif
