// SPDX-License-Identifier: MIT
// What changes skip and wait while DASO trains: callbacks, plateaus of the loss, measurements; and
// starting again.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include <time.h>

TestSuite(np1_daso_changes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_daso_changes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_daso_changes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- Callbacks ------------------------------------------------------------------------------------

typedef struct witness {
    int rounds, epochs;
    iso_daso_observation last;
    iso_daso_decision in_force;
    iso_daso_decision change; // decided when the fourth round begins
    bool ranks_differ;        // ranks other than 0 decide something else
} witness;

static void observe(const iso_daso_observation *observed, iso_daso_decision *decision, void *user) {
    witness *w = user;
    w->last = *observed;
    w->in_force = *decision;
    if (observed->kind == ISO_OBSERVED_EPOCH) w->epochs++;
    if (observed->kind != ISO_OBSERVED_SYNC || ++w->rounds != 4) return;
    *decision = w->change;
    if (w->ranks_differ && test_rank > 0) {
        decision->global_skip += test_rank;
        decision->batches_to_wait = 0;
    }
}

static daso_case with_callback(witness *w) {
    daso_case c = daso_case_default(40);
    *w = (witness){.change = {.global_skip = 3, .local_skip = 1, .batches_to_wait = 2}};
    snprintf(w->change.reason, sizeof(w->change.reason), "the fourth round");
    c.daso.global_skip = 5;
    c.daso.batches_to_wait = 1;
    c.daso.policy = ISO_POLICY_CALLBACK;
    c.daso.callback = observe;
    c.daso.user = w;
    return c;
}

// Rounds begin with the first step and with the sends after 5, 10 and 15, and the decision holds
// from that one on: merged after 17, next sends after 18, 21, ...
static void callback_changes_skip_and_wait(bool ranks_differ) {
    trainer t;
    daso_model m;
    witness w;
    iso_daso_stats stats;
    daso_case c = with_callback(&w);
    w.ranks_differ = ranks_differ;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < (int)c.daso.total_steps; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        if (step == 14) m.decided = w.change;
        iso_assert_ok(model_daso_step(&m, &c.daso, step));
        iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
        iso_assert_all(daso_follows(&t, &m, "a step") && stats.last_age == m.last_age);
    }
    iso_assert_all(m.last_age != 1 && m.force.global_skip == 3 && stats.syncs == m.syncs);
    iso_assert_all(stats.global_skip == 3 && stats.batches_to_wait == 2);
    iso_assert_all(strstr(stats.reason, "the fourth round"));
    model_destroy(&m);
    daso_close(&t);
}

Test(np2_daso_changes, callback_changes_skip_and_wait) { callback_changes_skip_and_wait(false); }
Test(np2_daso_changes, decision_of_rank_0_holds) { callback_changes_skip_and_wait(true); }
Test(np4_daso_changes, decision_of_rank_0_holds) { callback_changes_skip_and_wait(true); }

// The same numbers on every rank, as the header promises.
Test(np4_daso_changes, callback_sees_the_same_everywhere) {
    trainer t;
    witness w;
    daso_case c = with_callback(&w);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int step = 0; step < 16; step++) iso_assert_ok(trainer_step(&t, step, NULL));
    iso_assert_all(w.rounds == 4 && w.last.kind == ISO_OBSERVED_SYNC && isnan(w.last.loss));
    iso_assert_all(w.last.step == 15 && w.last.total_steps == 40);
    iso_assert_all(w.in_force.global_skip == 5 && w.in_force.batches_to_wait == 1);
    iso_assert_all(w.last.exchange_ms > 0 && w.last.step_ms > 0 && w.last.divergence > 0);
    double same[4] = {w.last.exchange_ms, w.last.step_ms, w.last.wait_ms, w.last.divergence};
    double other[4];
    memcpy(other, same, sizeof(same));
    iso_assert_ok(iso_comm_bcast(t.comm, other, sizeof(other), 0));
    iso_assert_all(memcmp(same, other, sizeof(same)) == 0);
    iso_assert_ok(iso_daso_epoch_loss(t.optimizer, 1 + test_rank, false));
    iso_assert_all(w.epochs == 1 && fabs(w.last.loss - 2.5) < 1e-12);
    iso_assert_ok(iso_daso_epoch_loss(t.optimizer, 7, true));
    iso_assert_all(w.epochs == 2 && w.last.loss == 7 && w.last.kind == ISO_OBSERVED_EPOCH);
    daso_close(&t);
}

// The second round, which begins with the send after 4, is decided wrongly at first.
static void decide_wrongly(const iso_daso_observation *observed, iso_daso_decision *decision,
                           void *user) {
    if (observed->kind == ISO_OBSERVED_SYNC && ++*(int *)user == 2) decision->global_skip = 0;
}

Test(np2_daso_changes, wrong_decision_loses_no_exchange) {
    trainer t;
    daso_model m;
    iso_daso_stats stats;
    int rounds = 0;
    daso_case c = daso_case_default(14);
    c.daso.policy = ISO_POLICY_CALLBACK;
    c.daso.callback = decide_wrongly;
    c.daso.user = &rounds;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < 14; step++) {
        iso_assert_all(trainer_step(&t, step, NULL) == (step == 3 ? ISO_ERR_ARG : ISO_OK));
        iso_assert_ok(model_daso_step(&m, &c.daso, step));
        iso_assert_all(daso_follows(&t, &m, "a step"));
    }
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.syncs == m.syncs && m.syncs > 2);
    model_destroy(&m);
    daso_close(&t);
}

// In every round more than the config allows.
static void decide_too_much(const iso_daso_observation *observed, iso_daso_decision *decision,
                            void *user) {
    (void)observed;
    decision->global_skip = 1000;
    snprintf(decision->reason, sizeof(decision->reason), "round %d", ++*(int *)user);
}

Test(np2_daso_changes, decision_that_changes_nothing_is_not_told) {
    trainer t;
    iso_daso_stats stats;
    int rounds = 0;
    daso_case c = daso_case_default(20);
    c.daso.max_global_skip = 6;
    c.daso.policy = ISO_POLICY_CALLBACK;
    c.daso.callback = decide_too_much;
    c.daso.user = &rounds;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 14));
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(rounds == 3 && stats.global_skip == 6 && strcmp(stats.reason, "round 1") == 0);
    daso_close(&t);
}

// ---- The library's policies -----------------------------------------------------------------------

// Epochs of 8 batches. The loss of rank 0 falls, the mean does not: after more than two bad epochs
// the skip shrinks, down to 1, and then it starts again from the maximum.
Test(np2_daso_changes, plateau_shrinks_and_starts_again) {
    trainer t;
    iso_daso_stats stats;
    daso_case c = daso_case_default(1000);
    c.daso.global_skip = 4;
    c.daso.max_global_skip = 8;
    c.daso.policy = ISO_POLICY_PLATEAU;
    int64_t skip[24];
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int epoch = 0; epoch < 24; epoch++) {
        for (int b = 0; b < 8; b++) iso_assert_ok(trainer_step(&t, epoch * 8 + b, NULL));
        double loss = 2 + (test_rank ? epoch : -epoch);
        iso_assert_ok(iso_daso_epoch_loss(t.optimizer, loss, false));
        iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
        skip[epoch] = stats.global_skip;
        iso_assert_all(stats.batches_to_wait >= 0 && stats.batches_to_wait <= stats.global_skip);
    }
    iso_assert_all(skip[2] == 4);
    bool shrank = false, at_one = false, restarted = false;
    for (int e = 1; e < 24; e++) {
        shrank = shrank || skip[e] == 2;
        at_one = at_one || skip[e] == 1;
        restarted = restarted || (skip[e - 1] == 1 && skip[e] == 8);
    }
    iso_assert_all(shrank && at_one && restarted);
    iso_assert_ok(iso_daso_finish(t.optimizer));
    daso_close(&t);
}

// What is measured differs from run to run, so that only bounds and agreement can be tested.
static void measured(iso_policy policy) {
    trainer t;
    iso_daso_stats stats;
    uint64_t hash;
    daso_case c = daso_case_default(60);
    c.daso.policy = policy;
    c.daso.batches_to_wait = -1;
    c.daso.warmup_steps = 5;
    c.daso.max_global_skip = 16;
    bool given = policy == ISO_POLICY_FIXED; // a period shorter than any wait that is measured
    if (given) c.daso.global_skip = 2;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int step = 0; step < 60; step++) {
        if (given && step == 1) sleep(1); // the first steps of a run are slow
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
        if (given && step == 6) iso_assert_all(stats.step_ms > 0 && stats.step_ms < 150);
        int64_t mine[3] = {stats.global_skip, stats.batches_to_wait, stats.syncs};
        int64_t all[3] = {mine[0], mine[1], mine[2]};
        iso_assert_ok(iso_comm_allreduce_i64(t.comm, all, 3, ISO_MAX));
        iso_assert_all(memcmp(mine, all, sizeof(all)) == 0);
        if (given) iso_assert_all(mine[0] == 2);
        if (step < 13) continue; // measured before the first send
        iso_assert_all(mine[0] >= 1 && mine[0] <= 16 && mine[1] >= 0 && mine[1] <= mine[0]);
    }
    iso_assert_all((stats.exchange_ms > 0 || test_size == 1) && stats.step_ms > 0);
    iso_assert_all(stats.syncs > 2);
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_ok(trainer_hash(&t, &hash));
    daso_close(&t);
}

Test(np2_daso_changes, wait_is_measured) { measured(ISO_POLICY_FIXED); }
Test(np2_daso_changes, adaptive_keeps_bounds) { measured(ISO_POLICY_ADAPTIVE); }
Test(np4_daso_changes, adaptive_keeps_bounds) { measured(ISO_POLICY_ADAPTIVE); }
Test(np1_daso_changes, adaptive_keeps_bounds) { measured(ISO_POLICY_ADAPTIVE); }

// Rank 1 begins its second step a second late, which counts as no step of its own: rank 0 waits for
// what both send after it.
static iso_status late_steps(trainer *t) {
    for (int step = 0; step < 5; step++) {
        if (step == 1 && test_rank == 1) nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        if (step == 1) ISO_TRY(iso_module_train(t->model, true));
        ISO_TRY(trainer_step(t, step, NULL));
        ISO_TRY(iso_daso_complete(t->optimizer));
    }
    return ISO_OK;
}

Test(np2_daso_changes, wait_in_complete_is_no_step) {
    trainer t;
    iso_daso_stats stats;
    daso_case c = daso_case_default(12);
    c.daso.global_skip = 2;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(late_steps(&t));
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all((test_rank > 0 || stats.wait_ms > 300) && stats.step_ms < 250);
    daso_close(&t);
}

// ---- Starting again -------------------------------------------------------------------------------

// What is under way is forgotten, ranks get the mean, and the schedule begins anew.
Test(np2_daso_changes, reset_starts_again) {
    trainer t;
    daso_model m;
    iso_daso_stats stats;
    daso_case c = daso_case_default(14);
    c.daso.batches_to_wait = 3;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < 6; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_daso_step(&m, &c.daso, step));
    }
    iso_assert_ok(iso_daso_reset(t.optimizer));
    m.pending = 0;
    model_send(&m, -1, 0);
    model_replace(&m, true);
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(!stats.pending && daso_follows(&t, &m, "after reset"));
    for (int step = 0; step < 14; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_daso_step(&m, &c.daso, step));
        iso_assert_all(daso_follows(&t, &m, "a step"));
    }
    model_destroy(&m);
    daso_close(&t);
}
