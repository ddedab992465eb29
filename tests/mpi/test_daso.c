// SPDX-License-Identifier: MIT
// DASO against a serial model of it, step by step: waits, merges, nodes of any size, local skips,
// optimizer state; and merges whose result is known in closed form.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

TestSuite(np1_daso, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_daso, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_daso, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_daso, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_daso, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- The whole run equals the model ---------------------------------------------------------------

// 3 steps of warm-up, 15 of cycling with a skip of 4 (the last send is merged or cut short at the
// end of cycling), 4 of cool-down.
static daso_case short_run(void) {
    daso_case c = daso_case_default(22);
    c.daso.warmup_steps = 3;
    c.daso.cooldown_steps = 4;
    return c;
}

static bool stats_follow(trainer *t, const daso_model *m, int steps) {
    iso_daso_stats stats;
    return iso_daso_get_stats(t->optimizer, &stats) >= 0 && stats.steps == steps &&
           stats.pending == (m->pending > 0) && stats.syncs == m->syncs &&
           (m->syncs == 0 || stats.last_age == m->last_age);
}

// Else replicas are equal.
static bool is_cycling(const daso_case *c, int step) {
    return step >= c->daso.warmup_steps && step + 1 < c->daso.total_steps - c->daso.cooldown_steps;
}

static iso_status step_both(trainer *t, daso_model *m, const daso_case *c, int step) {
    iso_status status = trainer_step(t, step, NULL);
    return status < 0 ? status : model_daso_step(m, &c->daso, step);
}

// The ranks must have been apart, or nothing was tested.
static void equals_model(const daso_case *c, bool apart) {
    trainer t;
    daso_model m;
    double most = 0;
    char where[32];
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    iso_assert_ok(daso_model_open(&m, &t, c));
    for (int step = 0; step < (int)c->daso.total_steps; step++) {
        snprintf(where, sizeof(where), "step %d", step);
        iso_assert_ok(step_both(&t, &m, c, step));
        iso_assert_all(daso_follows(&t, &m, where) && stats_follow(&t, &m, step + 1));
        if (!is_cycling(c, step)) iso_assert_all(daso_equal(&t));
        most = fmax(most, model_spread(&m));
    }
    iso_assert_all(apart == (most > 1e-3));
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_all(daso_equal(&t));
    model_destroy(&m);
    daso_close(&t);
}

// Waits of none, less than, and as much as the skip, with both merges.
static void every_wait(int ranks_per_node) {
    static const int64_t wait[] = {0, 1, 3, 4};
    for (int i = 0; i < 8; i++) {
        daso_case c = short_run();
        c.ranks_per_node = ranks_per_node;
        c.daso.batches_to_wait = wait[i % 4];
        c.daso.merge = i < 4 ? ISO_MERGE_PROGRESS : ISO_MERGE_HEAT;
        equals_model(&c, ranks_per_node < test_size);
    }
}

Test(np2_daso, every_wait_equals_model) { every_wait(1); }
Test(np4_daso, every_wait_equals_model) { every_wait(1); }
Test(np4_daso, every_wait_equals_model_with_two_nodes) { every_wait(2); }
Test(np3_daso, every_wait_equals_model_with_unequal_nodes) { every_wait(2); }
Test(np5_daso, every_wait_equals_model_with_unequal_nodes) { every_wait(3); }
Test(np5_daso, every_wait_equals_model_with_three_nodes) { every_wait(2); }

// One node holds everybody: what is left is data parallelism, but for HeAT's formula, which goes
// back towards the rank's own past.
Test(np2_daso, one_node_equals_model) { every_wait(2); }
Test(np1_daso, one_rank_equals_model) { every_wait(1); }

static void local_skip(int ranks_per_node, int64_t skip) {
    for (int i = 0; i < 4; i++) {
        daso_case c = short_run();
        c.ranks_per_node = ranks_per_node;
        c.daso.local_skip = 3;
        c.daso.global_skip = skip;
        c.daso.batches_to_wait = i % 2 ? 2 : 0;
        c.daso.merge = i < 2 ? ISO_MERGE_PROGRESS : ISO_MERGE_HEAT;
        equals_model(&c, true);
    }
}

Test(np4_daso, local_skip_equals_model) { local_skip(2, 4); }
Test(np4_daso, local_skip_of_one_node_equals_model) { local_skip(4, 5); }
// Gradients are averaged at every step between the second send and the third, but momentum is not:
// the ranks of a node part all the same.
Test(np4_daso, local_skip_above_global_skip_equals_model) { local_skip(2, 2); }
Test(np3_daso, local_skip_equals_model_with_unequal_nodes) { local_skip(2, 5); }
Test(np5_daso, local_skip_equals_model_with_unequal_nodes) { local_skip(3, 4); }

// Every rank alone: nodes do not matter.
static void unit_rank(int ranks_per_node) {
    for (int i = 0; i < 4; i++) {
        daso_case c = short_run();
        c.ranks_per_node = ranks_per_node;
        c.daso.unit = ISO_SCOPE_RANK;
        c.daso.batches_to_wait = i % 2 ? 2 : 0;
        c.daso.merge = i < 2 ? ISO_MERGE_PROGRESS : ISO_MERGE_HEAT;
        equals_model(&c, true);
    }
}

Test(np4_daso, unit_rank_equals_model) { unit_rank(2); }
Test(np3_daso, unit_rank_equals_model) { unit_rank(2); }

// ---- Optimizer state ------------------------------------------------------------------------------

// eps keeps Adam from making large steps of gradients that are rounding errors.
static daso_case with_adam(daso_case c) {
    c.train.optimizer = ISO_ADAM;
    c.train.hyper = iso_hyper_default(ISO_ADAM);
    c.train.hyper.lr = 0.003;
    c.train.hyper.eps = 1e-4;
    return c;
}

static void every_state(int ranks_per_node, int64_t wait, int64_t local_skip) {
    for (int i = 0; i < 6; i++) {
        static const iso_state_sync state[] = {ISO_STATE_SYNC_KEEP, ISO_STATE_SYNC_AVERAGE,
                                               ISO_STATE_SYNC_RESET};
        daso_case c = short_run();
        c.ranks_per_node = ranks_per_node;
        c.daso.state = state[i % 3];
        c.daso.batches_to_wait = wait;
        c.daso.local_skip = local_skip;
        if (i >= 3) c = with_adam(c);
        equals_model(&c, true);
    }
}

Test(np2_daso, every_state_equals_model) { every_state(1, 2, 1); }
Test(np2_daso, every_state_without_wait_equals_model) { every_state(1, 0, 1); }
Test(np4_daso, every_state_equals_model) { every_state(2, 2, 1); }
Test(np4_daso, every_state_equals_model_with_local_skip) { every_state(2, 2, 3); }
Test(np3_daso, every_state_equals_model_with_unequal_nodes) { every_state(2, 2, 1); }

// ---- Merges in closed form --------------------------------------------------------------------------

// With lr 0 nothing moves but what this test adds, so that each value is known without any
// training: element k of rank r is x0 + r d u at the send, with u = k mod 7, grows by d u in each
// of `wait` further batches, and then is merged.
static float *merge_once(const daso_case *c, float drift, int64_t *count, float **start) {
    trainer t;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    *start = daso_values(&t, count);
    int steps = (int)(c->daso.global_skip + c->daso.batches_to_wait);
    iso_assert_ok(daso_drift(&t, drift * (float)test_rank));
    for (int step = 0; step < steps; step++) {
        if (step >= c->daso.global_skip) iso_assert_ok(daso_drift(&t, drift));
        iso_assert_ok(trainer_step(&t, step, NULL));
    }
    float *values = daso_values(&t, count);
    daso_close(&t);
    return values;
}

static void closed_form(iso_merge merge, int64_t wait, double of_mean, double of_own,
                        double of_progress) {
    daso_case c = daso_case_default(100);
    int64_t count;
    float *start;
    float drift = 0x1p-6f;
    c.train.hyper.lr = 0;
    c.daso.global_skip = 6;
    c.daso.batches_to_wait = wait;
    c.daso.merge = merge;
    float *values = merge_once(&c, drift, &count, &start);
    double worst = 0, mean = (test_size - 1) / 2.0;
    for (int64_t k = 0; k < count; k++) {
        double u = (double)drift * (double)(k % 7);
        double shift = (of_mean * mean + of_own * test_rank + of_progress * (double)wait) * u;
        worst = fmax(worst, fabs((double)values[k] - ((double)start[k] + shift)));
    }
    free(values);
    free(start);
    iso_assert_all(count > 1000 && worst < 1e-6);
}

Test(np4_daso, progress_keeps_the_steps_made_while_waiting) {
    closed_form(ISO_MERGE_PROGRESS, 3, 1, 0, 1);
}
// P = 4, S = 2: the rank's own 0.5, each stale one 1/8 (HeAT).
Test(np4_daso, heat_weighs_by_age) { closed_form(ISO_MERGE_HEAT, 2, 0.5, 0.5, 0.5); }
// P = 2, S = 1: 0.5 each.
Test(np2_daso, heat_weighs_by_age) { closed_form(ISO_MERGE_HEAT, 1, 0.5, 0.5, 0.5); }
Test(np4_daso, without_wait_the_mean_replaces) { closed_form(ISO_MERGE_HEAT, 0, 1, 0, 0); }
