// SPDX-License-Identifier: MIT
// Private to train_*.c: ranks that only serve a parameter server (--servers).
#ifndef EXAMPLES_TRAIN_SERVER_H
#define EXAMPLES_TRAIN_SERVER_H

#include "train.h"

#include <math.h>

// Local. ISO_ERR_ARG for options that would make a worker wait in every step for the ranks that
// only serve.
iso_status train_server_check(const train_options *options);
// Local. Sets run->workers. ISO_ERR_ARG on every rank if none would train.
iso_status train_server_setup(train_run *run);
// Whether this rank only serves.
static inline bool train_serves(const train_run *run) { return run->world->rank >= run->workers; }
// The divisor of mean times: infinite on a rank that only serves, so that its means are 0.
static inline double train_timed_steps(const train_run *run) {
    return train_serves(run) ? INFINITY : (double)run->timed_steps;
}
// In place of a step on such a rank: serves, and moves on with the others.
iso_status train_server_step(train_run *run);

#endif
