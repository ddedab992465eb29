// SPDX-License-Identifier: MIT
// DASO runs that are interrupted anywhere, an exchange under way included, go on with the same
// bits.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(np2_resume_daso, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_resume_daso, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_resume_daso, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = 24, BATCHES = 4 }; // heat: batches of an epoch

static daso_case variant(int i) {
    daso_case c = i == 4 ? heat_case_default(STEPS / BATCHES) : daso_case_default(STEPS);
    c.ranks_per_node = 2;
    c.heat_config.max_global_skips = 4;
    c.daso.warmup_steps = c.daso.cooldown_steps = 3;
    c.daso.global_skip = 5;
    c.daso.batches_to_wait = 3;
    c.daso.wire = i == 0   ? ISO_WIRE_BF16
                  : i == 1 ? ISO_WIRE_F16
                  : i == 5 ? ISO_WIRE_INT8
                           : ISO_WIRE_F32;
    c.daso.merge = i == 1 ? ISO_MERGE_HEAT : ISO_MERGE_PROGRESS;
    c.daso.state = i == 1   ? ISO_STATE_SYNC_AVERAGE
                   : i == 2 ? ISO_STATE_SYNC_RESET
                            : ISO_STATE_SYNC_KEEP;
    if (i == 2) c.daso.local_skip = 3;
    if (i == 3) c.daso.unit = ISO_SCOPE_RANK;
    if (i == 3) c.daso.policy = ISO_POLICY_PLATEAU;
    if (i == 6) c.daso.outer = &iso_outer_adam;
    if (i == 7) c.daso.outer = &iso_outer_pull;
    if (i == 8) {
        c.daso.outer = &iso_outer_nesterov;
        c.daso.fragments = 3;
        c.daso.fragment_order = ISO_FRAGMENT_STRIDES;
        c.daso.wire = ISO_WIRE_INT8;
    }
    if (i == 7) c.daso.wire = ISO_WIRE_BF16;
    if (i == 9) c.daso.wire = ISO_WIRE_INT4;
    if (i == 10) c.daso.wire = ISO_WIRE_TOPK;
    if (i == 11) c.daso.wire = ISO_WIRE_FP8;
    return c;
}

static void train_on(trainer *t, const daso_case *c, int from, int to) {
    for (int step = from; step < to; step++) {
        iso_assert_ok(trainer_step(t, step, NULL));
        if (step % BATCHES == BATCHES - 1) // epochs whose losses stand still
            iso_assert_ok(iso_daso_epoch_loss(t->optimizer, 1, c->heat));
    }
}

static void open_run(trainer *t, const daso_case *c) {
    iso_assert_ok(daso_open(t, MPI_COMM_WORLD, c));
    if (c->heat) iso_assert_ok(iso_daso_heat_set_last_batch(t->optimizer, BATCHES - 1));
}

static void exchange_state(trainer *t, int64_t step, bool save) {
    iso_state *state;
    int64_t found = step;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t->model, t->optimizer, state));
    if (save) {
        iso_assert_ok(iso_resume_save(t->comm, resume_path(), step, state));
    } else {
        iso_assert_ok(iso_resume_load(t->comm, resume_path(), state, &found));
        iso_assert_ok(iso_training_loaded(t->model, t->optimizer));
    }
    iso_state_destroy(&state);
    iso_assert_all(found == step);
}

// What this rank has at the end of a run that is stopped after `stop` steps (0: never): the hash of
// its parameters after the last step, with the counters of the run.
static uint64_t end_of(const daso_case *c, int stop, iso_daso_stats *stats, bool *pending) {
    trainer t;
    uint64_t hash = 0;
    open_run(&t, c);
    if (stop > 0) {
        train_on(&t, c, 0, stop);
        exchange_state(&t, stop, true);
        iso_assert_ok(iso_daso_get_stats(t.optimizer, stats));
        *pending = stats->pending;
        daso_close(&t);
        open_run(&t, c);
        train_on(&t, c, 0, stop % 3); // a past of its own
        exchange_state(&t, stop, false);
    }
    train_on(&t, c, stop, STEPS);
    iso_assert_ok(daso_own_hash(&t, &hash));
    iso_assert_ok(iso_daso_get_stats(t.optimizer, stats));
    daso_close(&t);
    return hash;
}

// Stopped in warm-up, with and without an exchange under way, and in the cool-down.
static void goes_on(int v) {
    const int stops[] = {2, variant(v).heat ? 9 : 10, 15, 22};
    bool with_pending = false, without = false;
    daso_case c = variant(v);
    iso_daso_stats straight, stopped;
    bool pending = false;
    uint64_t expected = end_of(&c, 0, &straight, &pending);
    for (int i = 0; i < 4; i++) {
        uint64_t hash = end_of(&c, stops[i], &stopped, &pending);
        if (hash != expected) fprintf(stderr, "stopped after %d\n", stops[i]);
        iso_assert_all(hash == expected);
        iso_assert_all(stopped.steps == straight.steps && stopped.syncs == straight.syncs);
        iso_assert_all(stopped.global_skip == straight.global_skip);
        with_pending = with_pending || pending;
        without = without || !pending;
    }
    iso_assert_all(with_pending && without);
}

// ---- A longer run -----------------------------------------------------------------------------------

enum { MORE = 36 };

static daso_case longer(const daso_case *c, int64_t total) {
    daso_case more = *c;
    more.daso.total_steps = total;
    more.daso.extends = true;
    return more;
}

static void save_run(const daso_case *c, int stop) {
    trainer t;
    open_run(&t, c);
    train_on(&t, c, 0, stop);
    if (stop == STEPS) iso_assert_ok(iso_daso_finish(t.optimizer));
    exchange_state(&t, stop, true);
    daso_close(&t);
}

// As end_of, of a run of MORE steps that goes on from a shorter one's state after `stop` steps.
static uint64_t extended_end(const daso_case *c, int stop, iso_daso_stats *stats) {
    trainer t;
    uint64_t hash = 0;
    daso_case more = longer(c, MORE);
    if (stop > 0) save_run(c, stop);
    open_run(&t, &more);
    if (stop > 0) exchange_state(&t, stop, false);
    train_on(&t, &more, stop, MORE);
    iso_assert_ok(daso_own_hash(&t, &hash));
    iso_assert_ok(iso_daso_get_stats(t.optimizer, stats));
    daso_close(&t);
    return hash;
}

// From warm-up and cycling as if the run had been longer from the beginning. From its cool-down and
// its end it returns to cycling: it exchanges again, and its own cool-down leaves equal ranks.
static void becomes_longer(int v) {
    const int stops[] = {2, 10, 15, 22, STEPS};
    daso_case c = variant(v);
    iso_daso_stats straight, extended;
    uint64_t expected = extended_end(&c, 0, &straight);
    for (int i = 0; i < 5; i++) {
        uint64_t hash = extended_end(&c, stops[i], &extended), first = hash;
        iso_assert_all(stops[i] > 20 || hash == expected);
        iso_assert_all(extended.steps == MORE && strcmp(extended.phase, "done") == 0);
        iso_assert_all(stops[i] < 21 || extended.syncs >= straight.syncs / 2);
        MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        iso_assert_all(hash == first);
    }
}

// The status of loading a state of step 10 with other phases.
static iso_status load_with(const daso_case *c) {
    trainer t;
    iso_state *state;
    int64_t step;
    open_run(&t, c);
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t.model, t.optimizer, state));
    iso_assert_ok(iso_resume_load(t.comm, resume_path(), state, &step));
    iso_status status = iso_training_loaded(t.model, t.optimizer);
    iso_state_destroy(&state);
    daso_close(&t);
    return status;
}

static void is_never_shorter(void) {
    daso_case c = variant(0), less = longer(&c, STEPS - 1), more = longer(&c, MORE);
    save_run(&c, 10);
    iso_assert_all(load_with(&less) == ISO_ERR_ARG);
    more.daso.extends = false;
    iso_assert_all(load_with(&more) == ISO_ERR_MISMATCH);
    more.daso.extends = true;
    more.daso.cooldown_steps = MORE - 10;
    iso_assert_all(load_with(&more) == ISO_ERR_ARG);
    more.daso.cooldown_steps--;
    iso_assert_all(load_with(&more) == ISO_OK);
}

Test(np3_resume_daso, becomes_longer_with_bf16) { becomes_longer(0); }
Test(np4_resume_daso, becomes_longer_with_local_skips) { becomes_longer(2); }
Test(np2_resume_daso, becomes_longer_with_a_pull) { becomes_longer(7); }
Test(np3_resume_daso, becomes_longer_with_fragments) { becomes_longer(8); }
Test(np2_resume_daso, is_never_shorter) { is_never_shorter(); }
Test(np2_resume_daso, goes_on_with_bf16) { goes_on(0); }
Test(np4_resume_daso, goes_on_with_bf16) { goes_on(0); }
Test(np3_resume_daso, goes_on_with_int8) { goes_on(5); }
Test(np4_resume_daso, goes_on_with_int8) { goes_on(5); }
Test(np2_resume_daso, goes_on_with_int4) { goes_on(9); }
Test(np3_resume_daso, goes_on_with_int4) { goes_on(9); }
Test(np3_resume_daso, goes_on_with_fp8) { goes_on(11); }
Test(np3_resume_daso, goes_on_with_topk) { goes_on(10); }
Test(np3_resume_daso, goes_on_with_f16_that_carries_state) { goes_on(1); }
Test(np4_resume_daso, goes_on_with_local_skips) { goes_on(2); }
Test(np3_resume_daso, goes_on_with_ranks_alone_and_a_policy) { goes_on(3); }
Test(np2_resume_daso, goes_on_with_an_outer_adam) { goes_on(6); }
Test(np3_resume_daso, goes_on_with_a_pull) { goes_on(7); }
Test(np3_resume_daso, goes_on_with_fragments) { goes_on(8); }
Test(np4_resume_daso, goes_on_with_fragments) { goes_on(8); }
Test(np2_resume_daso, goes_on_as_heat) { goes_on(4); }
Test(np4_resume_daso, goes_on_as_heat) { goes_on(4); }
