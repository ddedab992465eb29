// SPDX-License-Identifier: MIT
// For tests of uneven inputs: loops in which ranks have different numbers of batches, and a model
// with one rank and the same data.
#ifndef ISO_TEST_JOIN_FIXTURE_H
#define ISO_TEST_JOIN_FIXTURE_H

#include "common/dp_fixture.h"

#include <isotherm/join.h>

typedef struct uneven {
    int batches[4]; // of each rank
    bool ragged;    // batches of 1 to 4 rows, else of 3
    int accumulate; // backwards to an update; 0: 1
    iso_join_config join;
    trainer_config train;
} uneven;

// SGD with momentum, lazy, shadow.
uneven uneven_default(void);
// The rows of a rank's batch (0: it has run out of data), and the sum of the rows of all lower
// ranks.
int64_t uneven_rows(const uneven *u, int rank, int step);
int64_t uneven_first_row(const uneven *u, int rank, int step);
int uneven_longest(const uneven *u, int ranks);

iso_status uneven_create(trainer *t, iso_comm *comm, const uneven *u);
// Forward and backward of `rows` rows of global batch `step`, the gradient of the loss times scale.
iso_status uneven_batch(trainer *t, int step, int64_t first_row, int64_t rows, double scale);
// What this rank does in `step` of a join up to the optimizer's step: zero_grad, if the step begins
// an update, forward and backward, inside no_sync unless sync. Explicit mode: also the exchange.
iso_status uneven_backward(trainer *t, const uneven *u, int step, bool sync);
// A whole loop between begin and end; *status: how it ended, ISO_PENDING unless by an error.
// *steps: the number of this rank's steps.
iso_status uneven_loop(trainer *t, const uneven *u, iso_status *status, int *steps);
// uneven_loop that must end with ISO_PENDING.
iso_status uneven_train(trainer *t, const uneven *u);
// Trains `one`, a trainer with a single rank, on the same batches of `ranks` ranks, with gradients
// divided as iso_join_config.divisor defines.
iso_status uneven_model(trainer *one, const uneven *u, int ranks);

#endif
