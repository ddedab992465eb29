// SPDX-License-Identifier: MIT
// For tests of joins of several models: two models of different size on the same uneven batches.
#ifndef ISO_TEST_JOIN_COUPLE_H
#define ISO_TEST_JOIN_COUPLE_H

#include "common/join_fixture.h"

typedef struct couple {
    trainer model[2]; // the small CNN; one with a batch norm
    uneven u[2];      // the same batches
    int steps;        // of both optimizers
    bool looks;       // at all values, after each step of a rank with data
} couple;

// As uneven_default.
couple couple_plan(void);
// The batches of rank 0, of rank 1, and of each other rank.
void couple_set_lengths(couple *p, int first, int second, int others);
// On test_comm, the second model on `second`. Like all functions below, fails the test on an error
// unless it returns one.
void couple_create(couple *p, iso_comm *second);
void couple_destroy(couple *p);
// iso_join_begin_many with these settings and couple_step.
iso_status couple_begin(couple *p, const iso_join_config *how, iso_join **out);
// The step of both optimizers; user: the couple.
iso_status couple_step(void *user);
// Forward and backward of the first model, then of the second; the optimizers' step if sync.
iso_status couple_batch(couple *p, int step, bool sync);
// A whole loop of both models, as u[0].join says. Returns how it ended. *steps: of this rank.
iso_status couple_loop(couple *p, int *steps);
// The same batches, each model in a loop with a join of its own.
void couple_train_apart(couple *p);
// A hash over the parameters, which must be equal on all ranks, and this rank's buffers.
uint64_t couple_digest(trainer *t);

#endif
