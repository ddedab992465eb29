// SPDX-License-Identifier: MIT
// Tournaments between models with different layers: a Choice moves with its model, is scored with
// it, and is mutated.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tournament_fixture.h"

#include "base/base.h"
#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(np2_tournament_model, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_tournament_model, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_tournament_model, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = TOURNAMENT_STEPS };

// flatten, fc1, a Choice among four functions, fc2.
static iso_status build_net(iso_device *device, bool dropout, iso_module **out) {
    static const iso_layer functions[] = {
        {.kind = ISO_TANH}, {.kind = ISO_SIGMOID}, {.kind = ISO_ELU}, {.kind = ISO_GELU}};
    const iso_layer list[] = {
        {.kind = ISO_FLATTEN},
        {.kind = ISO_LINEAR, .out = 16},
        {.kind = ISO_CHOICE, .alternatives = functions, .alternative_count = 4, .name = "act"},
        {.kind = ISO_LINEAR, .out = TRAINER_CLASSES}};
    iso_rng rng = {.seed = 9};
    (void)dropout;
    return iso_sequential_build(device, (int64_t[]){TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE},
                                list, 4, &rng, out);
}

static iso_module *choice_of(iso_module *model) {
    iso_module *out = NULL;
    iso_assert_ok(iso_module_get_submodule(model, "act", &out));
    return out;
}

static int get_choice(tournament_run *r) {
    int index = -1;
    iso_assert_ok(iso_choice_get(choice_of(r->t.model), &index));
    return index;
}

// Each trainer begins with an alternative of its own.
static void open_run(tournament_run *r) {
    iso_assert_ok(tournament_open(r));
    int trainer = test_rank / r->c.ranks_per_node;
    iso_assert_ok(iso_choice_set(choice_of(r->t.model), (trainer + 2) % 4));
}

static void describe(tournament_run *r, int ranks_per_node, int64_t wait) {
    tournament_describe(r, 3, wait);
    r->c.ranks_per_node = ranks_per_node;
    r->c.train.build = build_net;
}

static void train(tournament_run *r, int from, int to) {
    for (int step = from; step < to; step++) iso_assert_ok(trainer_step(&r->t, step, NULL));
}

// ---- What moves -----------------------------------------------------------------------------------

static int scored[2]; // the alternatives of the own model and of the partner's

// The first half of the ranks has the better models.
static iso_status first_half_wins(iso_module *model, iso_evaluation *out, void *user) {
    tournament_judge *j = user;
    int theirs = j->calls++ % 2;
    bool first = test_rank < test_size / 2;
    *out = (iso_evaluation){.loss = first != theirs ? 1 : 2, .samples = 1};
    return iso_choice_get(choice_of(model), &scored[theirs]);
}

static void choices_move(int ranks_per_node) {
    tournament_run r;
    bool winner = test_rank < test_size / 2;
    describe(&r, ranks_per_node, 0);
    r.tournament.score = first_half_wins;
    open_run(&r);
    train(&r, 0, 3);
    iso_assert_all(scored[0] == (winner ? 2 : 3) && scored[1] == (winner ? 3 : 2));
    iso_assert_all(get_choice(&r) == 2);
    tournament_close(&r);
}
Test(np2_tournament_model, choices_move_and_are_scored_with_their_models) { choices_move(1); }
Test(np4_tournament_model, choices_move_and_are_scored_with_their_models) { choices_move(2); }

// ---- Mutation -------------------------------------------------------------------------------------

static int calls, failing; // failing: the rank on which a mutation fails; -1: none
static uint64_t drawn;

static iso_status mutate(iso_module *model, uint64_t random, void *user) {
    calls++;
    drawn = random;
    ISO_TRY(iso_choice_mutate(model, random, user));
    ISO_CHECK(test_rank != failing, ISO_ERR_IO, "the layer cannot be replaced");
    return ISO_OK;
}

static void begin_mutations(tournament_run *r, int ranks_per_node, int fails_on) {
    describe(r, ranks_per_node, 0);
    calls = 0;
    failing = fails_on;
    r->tournament.score = first_half_wins;
    r->tournament.mutate_model = mutate;
    open_run(r);
}

// Every rank of the trainer that took a model does the same to it, and the winner stays as it is.
static void losers_mutate(int ranks_per_node) {
    tournament_run r;
    bool winner = test_rank < test_size / 2;
    begin_mutations(&r, ranks_per_node, -1);
    train(&r, 0, 3);
    uint64_t random = iso__tournament_random_model(TOURNAMENT_SEED, 0, 1);
    int other = (int)((random >> 32) * 3 >> 32), expected = other < 2 ? other : other + 1;
    iso_assert_all(calls == !winner && (winner || drawn == random));
    iso_assert_all(random != iso__tournament_random(TOURNAMENT_SEED, 0, 1));
    iso_assert_all(get_choice(&r) == (winner ? 2 : expected) && expected != 2);
    train(&r, 3, STEPS);
    int last = get_choice(&r), first = last;
    MPI_Bcast(&first, 1, MPI_INT, 0, MPI_COMM_WORLD);
    iso_assert_all(daso_equal(&r.t) && last == first); // the best model, with its layers
    tournament_close(&r);
}
Test(np2_tournament_model, a_trainer_that_took_a_model_mutates_it) { losers_mutate(1); }
Test(np4_tournament_model, a_trainer_that_took_a_model_mutates_it) { losers_mutate(2); }

// The last rank fails when it has changed its model already.
static void failure_changes_nothing(int ranks_per_node) {
    tournament_run r;
    bool winner = test_rank < test_size / 2;
    uint64_t before, after;
    begin_mutations(&r, ranks_per_node, test_size - 1);
    train(&r, 0, 2);
    iso_status status = trainer_step(&r.t, 2, NULL);
    iso_assert_all(status < 0 && strstr(iso_last_error()->message, "layer cannot be replaced"));
    iso_assert_all(calls == !winner && get_choice(&r) == (winner ? 2 : 3));
    iso_assert_ok(daso_own_hash(&r.t, &before));
    MPI_Bcast(memcpy(&after, &before, sizeof(after)), 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    iso_assert_all(winner || before != after); // it did not keep the winner's parameters
    failing = -1;
    train(&r, 3, STEPS - 1);
    iso_assert_all(calls == (winner ? 0 : 4));
    tournament_close(&r);
}
Test(np2_tournament_model, a_mutation_that_fails_changes_nothing) { failure_changes_nothing(1); }
Test(np4_tournament_model, a_mutation_that_fails_changes_nothing) { failure_changes_nothing(2); }

Test(np2_tournament_model, buffers_of_all_ranks_and_different_layers_are_refused) {
    tournament_run r;
    describe(&r, 1, 0);
    r.tournament.mutate_model = mutate;
    r.c.train.buffers.when = ISO_BUFFERS_BEFORE_FORWARD;
    r.c.daso.tournament = &r.tournament;
    iso_assert_all(daso_refused(&r.c, ISO_ERR_ARG, "set buffers.when"));
}

// ---- Saved state ----------------------------------------------------------------------------------

typedef struct outcome {
    uint64_t hash;
    int choice, mutations;
} outcome;

// stop > 0: saves the state after this step, and goes on from it with another run.
static outcome end_of(int ranks_per_node, int64_t wait, int stop) {
    tournament_run r;
    outcome o = {0};
    calls = 0;
    failing = -1;
    describe(&r, ranks_per_node, wait);
    r.tournament.mutate_model = mutate;
    open_run(&r);
    train(&r, 0, stop);
    if (stop > 0) {
        iso_assert_ok(daso_exchange_state(&r.t, stop, true));
        tournament_close(&r);
        open_run(&r);
        train(&r, 0, stop % 4);
        calls = 0;
        iso_assert_ok(daso_exchange_state(&r.t, stop, false));
    }
    train(&r, stop, STEPS - 1);
    iso_assert_ok(daso_own_hash(&r.t, &o.hash));
    o.choice = get_choice(&r);
    o.mutations = calls;
    tournament_close(&r);
    return o;
}

static void goes_on(int ranks_per_node) {
    for (int wait = 0; wait < 3; wait += 2) {
        outcome whole = end_of(ranks_per_node, wait, 0);
        int mutations = whole.mutations;
        bool same = true;
        for (int stop = 5; stop < 8; stop++) {
            outcome again = end_of(ranks_per_node, wait, stop);
            same = same && again.hash == whole.hash && again.choice == whole.choice;
        }
        MPI_Allreduce(MPI_IN_PLACE, &mutations, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        iso_assert_all(same && mutations > 0);
    }
}
Test(np2_tournament_model, goes_on_from_a_saved_state) { goes_on(1); }
Test(np3_tournament_model, goes_on_from_a_saved_state) { goes_on(1); }
Test(np4_tournament_model, goes_on_from_a_saved_state) { goes_on(2); }
