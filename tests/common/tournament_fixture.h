// SPDX-License-Identifier: MIT
// For tests of tournaments: runs, the score of a model, and what a trainer has.
#ifndef ISO_TEST_TOURNAMENT_FIXTURE_H
#define ISO_TEST_TOURNAMENT_FIXTURE_H

#include "common/daso_fixture.h"

enum {
    TOURNAMENT_STEPS = 13,
    TOURNAMENT_ROWS = 6, // held out
    TOURNAMENT_MATCHES = 64,
    TOURNAMENT_SEED = 5
};

// Samples that no step trains on. Each rank has its own, so partners may disagree.
typedef struct tournament_judge {
    iso_tensor *batch;
    iso_loss *loss;
    int32_t labels[TOURNAMENT_ROWS];
    int calls, failing;                  // the call that fails; 0: none
    iso_match match[TOURNAMENT_MATCHES]; // on rank 0, those that were told
    int matches;
} tournament_judge;

iso_status tournament_judge_open(tournament_judge *j, trainer *t);
void tournament_judge_close(tournament_judge *j);
// Loss and accuracy of a model; user is the judge.
iso_status tournament_judge_model(iso_module *model, iso_evaluation *out, void *user);

typedef struct tournament_run {
    trainer t;
    tournament_judge j;
    iso_tournament tournament;
    daso_case c;
} tournament_run;

// Of TOURNAMENT_STEPS steps. *r must not move until it is closed.
void tournament_describe(tournament_run *r, int64_t period, int64_t wait);
iso_status tournament_open(tournament_run *r);
void tournament_close(tournament_run *r);

typedef enum tournament_part {
    TOURNAMENT_PARAMETERS,
    TOURNAMENT_BUFFERS, // without counts
    TOURNAMENT_STATE    // of the optimizer
} tournament_part;
// Copies all of a part from this rank's run to `memory`, or back (in); NULL: only counts. Returns
// the bytes.
size_t tournament_copy_part(tournament_run *r, tournament_part part, char *memory, bool in);
// The same for all that moves with a model: optimizer state only if the tournament says so.
size_t tournament_copy(tournament_run *r, char *memory, bool in);
// Whether two runs have the same on this rank, to the last bit.
bool tournament_same(tournament_run *a, tournament_run *b);

#endif
