// SPDX-License-Identifier: MIT
// Tournaments in which hyperparameters travel with models, and are perturbed. What each trainer has
// is compared, to the last bit, with the rule as it is written here.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tournament_fixture.h"

#include "base/base.h"
#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np2_tournament_hyper, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_tournament_hyper, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_tournament_hyper, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = TOURNAMENT_STEPS, HYPERS = 2, TRAINERS = 4 };

typedef struct hyper_run {
    tournament_run r; // first: the judge's user is r.j
    double value[HYPERS];
    iso_tournament_hyper hyper[HYPERS];
    double told[TOURNAMENT_MATCHES][HYPERS];
    int trainers, size; // ranks of a trainer
} hyper_run;

static hyper_run *telling; // the run whose matches are noted

static void note_hyper(const iso_match *match, void *user) {
    tournament_judge *j = user;
    if (j->matches == TOURNAMENT_MATCHES) return;
    memcpy(telling->told[j->matches], match->hyper, sizeof(telling->told[0]));
    cr_assert_eq(match->hyper_count, HYPERS);
    j->match[j->matches++] = *match;
}

// The first value is the learning rate, the second a number of the program.
static void describe(hyper_run *h, int ranks_per_node, int64_t wait, double perturb) {
    memset(h, 0, sizeof(*h));
    tournament_describe(&h->r, 3, wait);
    h->size = ranks_per_node;
    h->trainers = (test_size + h->size - 1) / h->size;
    h->r.c.ranks_per_node = ranks_per_node;
    h->hyper[0] = (iso_tournament_hyper){.name = "lr", .value = &h->value[0], .most = 1};
    h->hyper[1] = (iso_tournament_hyper){.name = "share", .value = &h->value[1]};
    h->r.tournament.hyper = h->hyper;
    h->r.tournament.hyper_count = HYPERS;
    h->r.tournament.perturb = perturb;
    h->r.tournament.told = note_hyper;
}

static void first_values(const hyper_run *h, int trainer, double out[HYPERS]) {
    (void)h;
    out[0] = 0.01 * (1 + 3 * trainer);
    out[1] = -1.0 / (3 + trainer);
}

static void open_run(hyper_run *h) {
    telling = h;
    first_values(h, test_rank / h->size, h->value);
    iso_assert_ok(tournament_open(&h->r));
}

static void train(hyper_run *h, int from, int to) {
    for (int step = from; step < to; step++) {
        iso_optimizer_hyper(h->r.t.optimizer)->lr = h->value[0];
        iso_assert_ok(trainer_step(&h->r.t, step, NULL));
    }
}

// ---- The rule -------------------------------------------------------------------------------------

// What all trainers have after the matches that rank 0 was told of.
static void follow_matches(hyper_run *h, double out[TRAINERS][HYPERS], int *moved) {
    iso_match *match = h->r.j.match;
    MPI_Bcast(&h->r.j.matches, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Bcast(match, (int)sizeof(h->r.j.match), MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int i = 0; i < h->trainers; i++) first_values(h, i, out[i]);
    *moved = 0;
    for (int turn = 0; turn < h->r.j.matches / h->trainers; turn++) {
        double before[TRAINERS][HYPERS];
        memcpy(before, out, sizeof(before));
        for (int i = 0; i < h->trainers; i++, match++) {
            double share = h->r.tournament.perturb;
            uint64_t bits = iso__tournament_random(h->r.tournament.seed, turn, i);
            if (!match->took) continue;
            ++*moved;
            for (int k = 0; k < HYPERS; k++) {
                out[i][k] = before[match->partner][k];
                if (share > 0) out[i][k] *= bits >> k & 1 ? 1 + share : 1 - share;
            }
            if (out[i][0] > 1) out[i][0] = 1;
        }
        if (test_rank != 0) continue;
        for (int i = 0; i < h->trainers; i++)
            cr_assert_eq(memcmp(h->told[turn * h->trainers + i], out[i], sizeof(out[i])), 0);
    }
}

static void values_follow_rule(int ranks_per_node, int64_t wait, double perturb) {
    hyper_run h;
    double expected[TRAINERS][HYPERS];
    int moved;
    describe(&h, ranks_per_node, wait, perturb);
    open_run(&h);
    train(&h, 0, STEPS - 1);
    follow_matches(&h, expected, &moved);
    const double *own = expected[test_rank / h.size];
    iso_assert_all(moved > 0 && memcmp(own, h.value, sizeof(h.value)) == 0);
    // Models under way meet at the end, before all take the best one, which leaves values alone.
    train(&h, STEPS - 1, STEPS);
    follow_matches(&h, expected, &moved);
    iso_assert_all(daso_equal(&h.r.t) && memcmp(own, h.value, sizeof(h.value)) == 0);
    tournament_close(&h.r);
}

static void all_follow_rule(int ranks_per_node) {
    values_follow_rule(ranks_per_node, 0, 0);
    values_follow_rule(ranks_per_node, 0, 0.2);
    values_follow_rule(ranks_per_node, 2, 0.5);
}
Test(np2_tournament_hyper, values_follow_the_rule) { all_follow_rule(1); }
Test(np3_tournament_hyper, values_follow_the_rule) { all_follow_rule(1); }
Test(np3_tournament_hyper, the_ranks_of_a_trainer_agree) { all_follow_rule(2); }
Test(np4_tournament_hyper, the_ranks_of_a_trainer_agree) { all_follow_rule(2); }

// Philox of another purpose would repeat the pairs. Each bit is as often set as not: of 2000 draws
// within five standard deviations (22.4) of 1000.
Test(np2_tournament_hyper, draws_are_fair_and_differ) {
    int ones[2] = {0};
    for (int i = 0; i < 2000; i++)
        for (int k = 0; k < 2; k++) ones[k] += iso__tournament_random(7, i / 2, i % 2) >> k & 1;
    iso_assert_all(abs(ones[0] - 1000) < 112 && abs(ones[1] - 1000) < 112);
    uint64_t first = iso__tournament_random(7, 0, 0);
    iso_assert_all(first == iso__tournament_random(7, 0, 0));
    iso_assert_all(first != iso__tournament_random(8, 0, 0) &&
                   first != iso__tournament_random(7, 1, 0) &&
                   first != iso__tournament_random(7, 0, 1));
    double values[] = {1, 1, 1};
    iso__tournament_perturb(0.25, 5, values, 3);
    iso_assert_all(values[0] == 1.25 && values[1] == 0.75 && values[2] == 1.25);
}

// ---- The winner's values spread -------------------------------------------------------------------

// The second value decides: the model that has it wins, and so has all trainers after a while. The
// score knows the values of all trainers from the rule.
static double known[TRAINERS];
static int scores;
static iso_status score_value(iso_module *model, iso_evaluation *out, void *user) {
    (void)model, (void)user;
    int order[TRAINERS], partner[TRAINERS];
    iso__tournament_pairs(TOURNAMENT_SEED, scores / 2, TRAINERS, order, partner);
    bool theirs = scores++ % 2;
    *out = (iso_evaluation){.loss = known[theirs ? partner[test_rank] : test_rank], .samples = 1};
    for (int i = 0; theirs && i < TRAINERS; i++)
        known[i] = known[partner[i]] = fmin(known[i], known[partner[i]]);
    return ISO_OK;
}
Test(np4_tournament_hyper, the_winners_values_spread) {
    hyper_run h;
    double best[HYPERS];
    describe(&h, 1, 0, 0);
    scores = 0;
    for (int i = 0; i < TRAINERS; i++) {
        first_values(&h, i, best);
        known[i] = best[1];
    }
    h.r.c.daso.global_skip = 1;
    h.r.tournament.score = score_value;
    open_run(&h);
    train(&h, 0, STEPS - 1);
    first_values(&h, 0, best); // the lowest
    iso_assert_all(memcmp(best, h.value, sizeof(best)) == 0);
    train(&h, STEPS - 1, STEPS);
    tournament_close(&h.r);
}

// ---- A mutation of the caller ---------------------------------------------------------------------

static int mutations, mutation_fails;
static uint64_t drawn;
static iso_status mutate(double *values, int count, uint64_t random, void *user) {
    (void)user;
    mutations++;
    drawn = random;
    ISO_CHECK(!mutation_fails, ISO_ERR_IO, "no values can be drawn");
    for (int i = 0; i < count; i++) values[i] = 1000 + 10 * test_rank + i;
    return ISO_OK;
}

static iso_status rank0_wins(iso_module *model, iso_evaluation *out, void *user) {
    (void)model;
    tournament_judge *j = user;
    bool theirs = j->calls++ % 2, first = test_rank < test_size / 2;
    *out = (iso_evaluation){.loss = first != theirs ? 1 : 2, .samples = 1};
    return ISO_OK;
}

// Called on the first rank of the trainer that took a model, and limits apply.
Test(np4_tournament_hyper, a_mutation_of_the_program) {
    hyper_run h;
    double own[HYPERS];
    describe(&h, 2, 0, 0);
    mutations = mutation_fails = 0;
    h.r.tournament.mutate = mutate;
    h.r.tournament.score = rank0_wins;
    open_run(&h);
    train(&h, 0, 3);
    first_values(&h, 0, own);
    iso_assert_all(mutations == (test_rank == 2));
    iso_assert_all(test_rank != 2 || drawn == iso__tournament_random(TOURNAMENT_SEED, 0, 1));
    iso_assert_all(test_rank >= 2 || memcmp(own, h.value, sizeof(own)) == 0);
    iso_assert_all(test_rank < 2 || (h.value[0] == 1 && h.value[1] == 1021));
    tournament_close(&h.r);
}

// All ranks are told; no model and no value changes, and the run goes on.
Test(np4_tournament_hyper, a_mutation_that_fails_changes_nothing) {
    hyper_run h;
    double own[HYPERS];
    describe(&h, 2, 0, 0);
    mutations = 0;
    mutation_fails = 1;
    h.r.tournament.mutate = mutate;
    h.r.tournament.score = rank0_wins;
    open_run(&h);
    train(&h, 0, 2);
    size_t bytes = tournament_copy_part(&h.r, TOURNAMENT_PARAMETERS, NULL, false);
    memcpy(own, h.value, sizeof(own));
    iso_status status = trainer_step(&h.r.t, 2, NULL);
    iso_assert_all(status < 0 && strstr(iso_last_error()->message, "no values can be drawn"));
    iso_assert_all(bytes > 0 && memcmp(own, h.value, sizeof(own)) == 0 && !daso_equal(&h.r.t));
    mutation_fails = 0;
    train(&h, 3, STEPS - 1);
    iso_assert_all(test_rank < 2 || h.value[1] == 1021);
    train(&h, STEPS - 1, STEPS);
    tournament_close(&h.r);
}

// ---- Saved state ----------------------------------------------------------------------------------

static uint64_t end_of(hyper_run *h, int stop, double out[HYPERS]) {
    uint64_t hash = 0;
    open_run(h);
    train(h, 0, stop);
    if (stop > 0) {
        iso_assert_ok(daso_exchange_state(&h->r.t, stop, true));
        tournament_close(&h->r);
        open_run(h);
        train(h, 0, stop % 4);
        iso_assert_ok(daso_exchange_state(&h->r.t, stop, false));
    }
    train(h, stop, STEPS - 1);
    iso_assert_ok(daso_own_hash(&h->r.t, &hash));
    memcpy(out, h->value, sizeof(h->value));
    tournament_close(&h->r);
    return hash;
}

static void goes_on(int ranks_per_node) {
    for (int wait = 0; wait < 3; wait += 2) {
        hyper_run h;
        double expected[HYPERS], own[HYPERS];
        describe(&h, ranks_per_node, wait, 0.2);
        uint64_t hash = end_of(&h, 0, expected);
        bool same = true;
        for (int stop = 5; stop < 8; stop++) {
            same = end_of(&h, stop, own) == hash && same;
            same = same && memcmp(own, expected, sizeof(own)) == 0;
        }
        iso_assert_all(same);
    }
}
Test(np2_tournament_hyper, goes_on_from_a_saved_state) { goes_on(1); }
Test(np4_tournament_hyper, goes_on_from_a_saved_state) { goes_on(2); }

// With the same seed values repeat, with another one they differ.
Test(np2_tournament_hyper, values_follow_the_seed) {
    hyper_run h;
    double first[HYPERS], again[HYPERS], other[HYPERS];
    describe(&h, 1, 0, 0.2);
    uint64_t hash = end_of(&h, 0, first);
    describe(&h, 1, 0, 0.2);
    bool same = end_of(&h, 0, again) == hash && memcmp(first, again, sizeof(first)) == 0;
    describe(&h, 1, 0, 0.2);
    h.r.tournament.seed = TOURNAMENT_SEED + 1; // two trainers: the pairs are the same
    int differs = end_of(&h, 0, other) != hash || memcmp(first, other, sizeof(first)) != 0;
    MPI_Allreduce(MPI_IN_PLACE, &differs, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    iso_assert_all(same && differs);
}

// ---- Lists ----------------------------------------------------------------------------------------

static bool is_late(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return strstr(name, "bias") != NULL;
}

Test(np2_tournament_hyper, lists_name_the_numbers_of_all_groups) {
    hyper_run h;
    iso_optimizer *sgd;
    iso_tournament_hyper list[5];
    int count = 1;
    describe(&h, 1, 0, 0);
    open_run(&h);
    iso_hyper first = iso_hyper_default(ISO_SGD), second = first;
    first.lr = 0.5, second.lr = 0.25, second.momentum = 0.75;
    iso_assert_ok(iso_optimizer_create(ISO_SGD, h.r.t.model, &first, &sgd));
    iso_assert_ok(iso_optimizer_add_group(sgd, &second, is_late, NULL, NULL));
    iso_assert_ok(iso_tournament_list_hyper(sgd, "lr,momentum", list, 5, &count));
    iso_assert_all(count == 5 && list[1].value == &iso_optimizer_hyper(sgd)->lr &&
                   *list[2].value == 0.25 && *list[4].value == 0.75 &&
                   strcmp(list[3].name, "momentum") == 0 && list[4].most == 0.999);
    iso_status full = iso_tournament_list_hyper(sgd, "lr", list, 5, &count);
    iso_assert_all(full == ISO_ERR_ARG && strstr(iso_last_error()->message, "has room for 5"));
    iso_status other = iso_tournament_list_hyper(sgd, "lr,rate", list, 5, (count = 0, &count));
    iso_assert_all(other == ISO_ERR_ARG &&
                   strstr(iso_last_error()->message, "no number \"rate\" that could travel"));
    iso_optimizer_destroy(&sgd);
    tournament_close(&h.r);
}

// What the formula of each optimizer has (isotherm/optim.h).
Test(np2_tournament_hyper, numbers_that_an_optimizer_does_not_use_are_refused) {
    static const char *const name[] = {"momentum", "beta1", "beta2", "rho", "alpha", "eps"};
    static const char *const used[] = {[ISO_SGD] = "lr momentum dampening weight_decay",
                                       [ISO_ADAM] = "lr weight_decay beta1 beta2 eps",
                                       [ISO_ADAMW] = "lr weight_decay beta1 beta2 eps",
                                       [ISO_ADADELTA] = "lr weight_decay rho eps",
                                       [ISO_ADAGRAD] = "lr weight_decay lr_decay eps",
                                       [ISO_RMSPROP] = "lr momentum weight_decay alpha eps",
                                       [ISO_LAMB] = "lr weight_decay beta1 beta2 eps",
                                       [ISO_NADAM] = "lr weight_decay beta1 beta2 eps"};
    bool right = true;
    hyper_run h;
    describe(&h, 1, 0, 0), open_run(&h);
    for (int k = ISO_SGD; k <= ISO_NADAM; k++) {
        iso_optimizer *o;
        iso_assert_ok(iso_optimizer_create((iso_optimizer_kind)k, h.r.t.model, NULL, &o));
        for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
            iso_tournament_hyper list[1];
            int count = 0;
            bool uses = strstr(used[k], name[i]) != NULL;
            bool listed = iso_tournament_list_hyper(o, name[i], list, 1, &count) == ISO_OK;
            right = right && listed == uses && count == uses &&
                    (uses || strstr(iso_last_error()->message, "does not use it"));
        }
        iso_optimizer_destroy(&o);
    }
    iso_assert_all(right);
    tournament_close(&h.r);
}

// Equal ratios from the first trainer to the last, within the limits: 1 for the first value.
static void first_values_spread(int ranks_per_node, double wanted0, double wanted1) {
    hyper_run h;
    telling = &h;
    describe(&h, ranks_per_node, 0, 0);
    h.r.tournament.spread = 4;
    h.value[0] = h.value[1] = 0.5;
    iso_assert_ok(tournament_open(&h.r));
    iso_assert_all(fabs(h.value[0] - wanted0) < 1e-15 && fabs(h.value[1] - wanted1) < 1e-15);
    tournament_close(&h.r);
}
Test(np3_tournament_hyper, first_values_spread) {
    static const double wanted0[] = {0.125, 0.5, 1}, wanted1[] = {0.125, 0.5, 2};
    first_values_spread(1, wanted0[test_rank], wanted1[test_rank]);
    first_values_spread(3, 0.5, 0.5); // one trainer
}
Test(np4_tournament_hyper, first_values_spread) {
    first_values_spread(2, test_rank < 2 ? 0.125 : 1, test_rank < 2 ? 0.125 : 2);
}

// ---- Wrong use ------------------------------------------------------------------------------------

static bool refused(hyper_run *h, iso_status status, const char *said) {
    h->r.c.daso.tournament = &h->r.tournament;
    return daso_refused(&h->r.c, status, said);
}

Test(np2_tournament_hyper, wrong_lists_are_refused) {
    static const char *const said[] = {"perturb of a tournament is 1:",
                                       "perturb of a tournament is -0.5:",
                                       "has both perturb and mutate",
                                       "no hyperparameters to change",
                                       "has a list of 65 hyperparameters",
                                       "has a list of 2 hyperparameters without the list",
                                       "hyperparameter 1 of a tournament needs a name",
                                       "hyperparameter 0 of a tournament needs a name",
                                       "has 40 characters",
                                       "spread of a tournament is -2:",
                                       "no hyperparameters to change",
                                       "with spread has a warm-up"};
    for (int i = 0; i < 12; i++) {
        hyper_run h;
        iso_tournament *t = &h.r.tournament;
        describe(&h, 1, 0, i == 0 ? 1 : i == 1 ? -0.5 : 0.2);
        if (i == 2) t->mutate = mutate;
        if (i == 3) t->hyper_count = 0;
        if (i == 4) t->hyper_count = ISO_TOURNAMENT_HYPERS + 1;
        if (i == 5) t->hyper = NULL;
        if (i == 6) h.hyper[1].value = NULL;
        if (i == 7) h.hyper[0].least = 2;
        if (i == 8) h.hyper[0].name = "0123456789012345678901234567890123456789";
        if (i >= 9) t->spread = i == 9 ? -2 : 2;
        if (i == 10) t->hyper_count = 0, t->perturb = 0;
        if (i == 11) h.r.c.daso.warmup_steps = 3;
        iso_assert_all(refused(&h, ISO_ERR_ARG, said[i]));
    }
    hyper_run h;
    describe(&h, 1, 0, 0);
    h.value[1] = test_rank == 1 ? NAN : 1;
    iso_assert_all(refused(&h, ISO_ERR_ARG, "hyperparameter \"share\" of trainer 1 is "));
    describe(&h, 1, 0, test_rank == 0 ? 0.2 : 0.3);
    iso_assert_all(refused(&h, ISO_ERR_MISMATCH, "perturb"));
    describe(&h, 2, 0, 0.2);
    h.value[0] = test_rank;
    iso_assert_all(refused(&h, ISO_ERR_MISMATCH, "give all ranks of a trainer the same value"));
}

// In a warm-up and in a cool-down all ranks train together.
Test(np2_tournament_hyper, trainers_are_equal_where_all_ranks_train_together) {
    hyper_run h;
    describe(&h, 1, 0, 0.2);
    h.r.c.daso.tournament = &h.r.tournament;
    h.r.c.daso.cooldown_steps = 4;
    iso_assert_all(daso_refused(&h.r.c, ISO_ERR_ARG, "cool-down"));
    h.r.c.daso.cooldown_steps = 0;
    h.r.c.daso.warmup_steps = 4;
    h.value[0] = 0.02 + test_rank;
    iso_assert_all(daso_refused(&h.r.c, ISO_ERR_MISMATCH, "equal hyperparameters"));
    describe(&h, 1, 0, 0.2);
    telling = &h;
    h.r.c.daso.warmup_steps = 4;
    h.value[0] = h.value[1] = 0.02;
    h.r.tournament.score = rank0_wins;
    iso_assert_ok(tournament_open(&h.r));
    train(&h, 0, STEPS);
    iso_assert_all(daso_equal(&h.r.t));
    iso_assert_all(iso_daso_reset(h.r.t.optimizer) == ISO_ERR_MISMATCH); // perturbed
    tournament_close(&h.r);
}

Test(np4_tournament_hyper, a_creation_that_fails_leaves_values) {
    hyper_run h;
    describe(&h, 2, 0, 0);
    h.r.tournament.spread = 4;
    h.value[0] = 0.125;
    h.value[1] = test_rank;
    h.r.c.daso.tournament = &h.r.tournament;
    iso_assert_all(daso_refused(&h.r.c, ISO_ERR_MISMATCH, "same value"));
    iso_assert_all(h.value[0] == 0.125);
}

Test(np2_tournament_hyper, a_list_in_another_order_is_another_list) {
    hyper_run h;
    describe(&h, 1, 0, 0);
    open_run(&h);
    train(&h, 0, 5);
    iso_assert_ok(daso_exchange_state(&h.r.t, 5, true));
    tournament_close(&h.r);
    describe(&h, 1, 0, 0);
    iso_tournament_hyper kept = h.hyper[0];
    h.hyper[0] = h.hyper[1];
    h.hyper[1] = kept;
    open_run(&h);
    iso_assert_all(daso_exchange_state(&h.r.t, 5, false) == ISO_ERR_MISMATCH);
    tournament_close(&h.r);
}

// Limits are of perturbed values.
Test(np2_tournament_hyper, a_value_that_is_not_perturbed_comes_as_it_is) {
    hyper_run h;
    describe(&h, 1, 0, 0);
    telling = &h;
    h.hyper[0].most = 0.999;
    h.value[0] = 0.9999;
    h.value[1] = 1;
    h.r.tournament.score = rank0_wins;
    h.r.c.train.hyper.lr = 0;
    iso_assert_ok(tournament_open(&h.r));
    for (int step = 0; step < 4; step++) iso_assert_ok(trainer_step(&h.r.t, step, NULL));
    iso_assert_all(h.value[0] == 0.9999);
    tournament_close(&h.r);
}

Test(np2_tournament_hyper, a_list_that_fails_appends_nothing) {
    hyper_run h;
    iso_tournament_hyper list[8];
    int count = 0;
    describe(&h, 1, 0, 0);
    open_run(&h);
    iso_assert_all(iso_tournament_list_hyper(h.r.t.optimizer, "lr,rate", list, 8, &count) ==
                       ISO_ERR_ARG &&
                   count == 0);
    tournament_close(&h.r);
}
