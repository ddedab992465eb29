// SPDX-License-Identifier: MIT
// Asynchronous averages: each rank merges the mean of all ranks when it arrives, at its own steps.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/types_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_async, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_async, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_async, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_async, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = 22, MERGED = 1, SENT = 2, PHASE = 4, CHANGES = 1024 };

static daso_case case_of(int64_t warmup) {
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_async_config(STEPS, warmup);
    return c;
}

// What all ranks do, for `replay`.
typedef struct script {
    iso_daso_change change[CHANGES];
    int count;
    bool twice; // something was told twice
} script;

static void add_change(script *s, int rank, int64_t step, int actions) {
    cr_assert(s->count < CHANGES);
    s->change[s->count++] =
        (iso_daso_change){.step = step, .cause = ISO_CAUSE_RANK, .rank = rank, .actions = actions};
}

static void use_script(daso_case *c, const script *s) {
    c->daso.replay = s->change;
    c->daso.replay_count = s->count;
}

// Local: ranks need not be at the same step.
static iso_status try_steps(trainer *t, const daso_case *c, int from, int to) {
    for (int step = from; step < to; step++) ISO_TRY(daso_delayed_step(t, c, step));
    return ISO_OK;
}
static void train_on(trainer *t, const daso_case *c, int from, int to) {
    iso_assert_ok(try_steps(t, c, from, to));
}

// ---- All ranks merge after the same step ----------------------------------------------------------

enum { PERIOD = 5, WAIT = 3 };

// As daso counts: from the end of the warm-up.
static void script_of_daso(script *s, int64_t warmup) {
    *s = (script){0};
    for (int r = 0; r < test_size; r++)
        for (int64_t at = warmup + PERIOD; at < STEPS; at += PERIOD) {
            add_change(s, r, at, SENT);
            if (at + WAIT < STEPS) add_change(s, r, at + WAIT, MERGED);
        }
}

static daso_case daso_like(const daso_case *c) {
    daso_case other = *c;
    other.daso = iso_post_local_sgd_config(STEPS, c->daso.warmup_steps, PERIOD);
    other.daso.batches_to_wait = WAIT;
    other.daso.wire = c->daso.wire;
    return other;
}

// per_node: of the asynchronous run. daso's means would add up inside such nodes first, these do
// not.
static void has_the_bits_of_daso(int64_t warmup, iso_wire wire, bool mixed, int per_node) {
    trainer t, other;
    script s;
    daso_case c = case_of(warmup);
    script_of_daso(&s, warmup);
    use_script(&c, &s);
    c.daso.wire = wire;
    if (mixed) c.train.build = build_smooth_mixed;
    daso_case daso = daso_like(&c);
    daso.ranks_per_node = 1;
    c.ranks_per_node = per_node;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_open(&other, MPI_COMM_WORLD, &daso));
    for (int step = 0; step < STEPS; step++) {
        uint64_t mine, its;
        train_on(&t, &c, step, step + 1);
        train_on(&other, &daso, step, step + 1);
        iso_assert_ok(daso_own_hash(&t, &mine));
        iso_assert_ok(daso_own_hash(&other, &its));
        iso_assert_all(mine == its);
    }
    iso_assert_all(daso_equal(&t));
    daso_close(&other);
    daso_close(&t);
}

static void equals_daso(void) {
    has_the_bits_of_daso(0, ISO_WIRE_F32, false, 1);
    has_the_bits_of_daso(3, ISO_WIRE_BF16, false, 1);
    has_the_bits_of_daso(0, ISO_WIRE_F32, true, 1);
}
Test(np1_async, equal_steps_have_the_bits_of_daso) { equals_daso(); }
Test(np2_async, equal_steps_have_the_bits_of_daso) { equals_daso(); }
Test(np3_async, equal_steps_have_the_bits_of_daso) { equals_daso(); }
Test(np4_async, on_nodes_of_two_equal_steps_have_the_bits_of_daso) {
    has_the_bits_of_daso(0, ISO_WIRE_F32, false, 2);
}

// ---- Each rank at its own steps -------------------------------------------------------------------

enum { ROUND = 6 };

// Exchange n, from 0: rank r sends after step 1 + n ROUND + r. After the last send every rank goes
// on to the verdict, and then each one merges, the later the lower it is.
enum { VERDICT = 4 };
static int64_t send_step(int n, int rank) { return 1 + n * ROUND + rank; }
static int64_t merge_step(int n, int rank) { return n * ROUND + 2 * test_size - rank; }

static void script_of_own_steps(script *s) {
    *s = (script){0};
    for (int r = 0; r < test_size; r++)
        for (int n = 0; send_step(n, r) < STEPS; n++) {
            bool last = r == test_size - 1;
            if (!last) add_change(s, r, send_step(n, r), SENT);
            if (send_step(n, test_size - 1) < STEPS)
                add_change(s, r, send_step(n, test_size - 1), PHASE * VERDICT + (last ? SENT : 0));
            int64_t merges = merge_step(n, r); // at the latest the end does
            add_change(s, r, merges < STEPS ? merges : STEPS, MERGED);
        }
}

// The formula on the serial model: x = x + (mean of what was sent) - (what this rank sent).
typedef struct model {
    daso_model m;
    double *sent[MODEL_RANKS];
} model;

static void open_model(model *s, const trainer *t, const daso_case *c) {
    iso_assert_ok(daso_model_open(&s->m, t, c));
    for (int r = 0; r < test_size; r++) s->sent[r] = calloc((size_t)s->m.count, sizeof(double));
}

static void close_model(model *s) {
    for (int r = 0; r < test_size; r++) free(s->sent[r]);
    model_destroy(&s->m);
}

static void merge_into(model *s, int rank) {
    double *x = s->m.rank[rank].now;
    for (int64_t i = 0; i < s->m.count; i++) {
        double sum = 0;
        for (int r = 0; r < test_size; r++) sum += s->sent[r][i];
        x[i] += sum / test_size - s->sent[rank][i];
    }
}

static void replace_by_mean(model *s) {
    for (int64_t i = 0; i < s->m.count; i++) {
        double sum = 0;
        for (int r = 0; r < test_size; r++) sum += s->m.rank[r].now[i];
        for (int r = 0; r < test_size; r++) s->m.rank[r].now[i] = sum / test_size;
    }
}

// What comes after step number `finished`, from 1.
static void synchronise(model *s, const script *what, int64_t finished) {
    for (int i = 0; i < what->count; i++) {
        const iso_daso_change *c = &what->change[i];
        if (c->step != finished) continue;
        if (c->actions & MERGED) merge_into(s, c->rank);
        if (c->actions & SENT)
            memcpy(s->sent[c->rank], s->m.rank[c->rank].now, (size_t)s->m.count * sizeof(double));
    }
    if (finished == STEPS) replace_by_mean(s);
    model_push(&s->m);
}

static void follows_the_model(void) {
    trainer t;
    model s;
    script own;
    double apart = 0;
    bool follows = true; // told at the end: until then ranks are at different steps
    daso_case c = case_of(0);
    script_of_own_steps(&own);
    use_script(&c, &own);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    open_model(&s, &t, &c);
    for (int step = 0; step < STEPS; step++) {
        follows = follows && try_steps(&t, &c, step, step + 1) == ISO_OK;
        follows = follows && model_batch(&s.m, step, ISO_SCOPE_RANK) == ISO_OK;
        synchronise(&s, &own, step + 1);
        follows = follows && daso_follows(&t, &s.m, "a step");
        apart = fmax(apart, model_spread(&s.m));
    }
    iso_daso_stats stats;
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(follows);
    iso_assert_all(apart > 1e-4);
    iso_assert_all(daso_equal(&t) && !stats.pending && stats.syncs == 5);
    close_model(&s);
    daso_close(&t);
}
Test(np2_async, own_steps_follow_the_formula) { follows_the_model(); }
Test(np3_async, own_steps_follow_the_formula) { follows_the_model(); }

// ---- As exchanges arrive --------------------------------------------------------------------------

// Collective. On rank 0 all that ranks did, then everywhere.
static void note_change(const iso_daso_change *change, void *user) {
    script *s = user;
    for (int i = 0; i < s->count; i++)
        s->twice |= s->change[i].rank == change->rank && s->change[i].step == change->step;
    add_change(s, change->rank, change->step, change->actions);
}

static void share_script(script *s) {
    MPI_Bcast(s, (int)sizeof(*s), MPI_BYTE, 0, MPI_COMM_WORLD);
    iso_assert_all(s->count > 0 && !s->twice);
}

static daso_case uneven_case(int64_t warmup) {
    daso_case c = case_of(warmup);
    c.delay_us = test_rank % 2 ? 3000 : 1000;
    return c;
}

// Without updates the ranks come closer, and the mean over ranks stays the same.
Test(np3_async, the_mean_over_ranks_stays) {
    trainer t;
    int64_t count;
    daso_case c = uneven_case(0);
    c.train.hyper.lr = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_drift(&t, 0.125f * (float)(test_rank * test_rank + 1)));
    float *mean = daso_values(&t, &count);
    MPI_Allreduce(MPI_IN_PLACE, mean, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    train_on(&t, &c, 0, STEPS);
    float *now = daso_values(&t, &count);
    bool near = true;
    for (int64_t i = 0; i < count; i++)
        near = near && fabsf(now[i] - mean[i] / (float)test_size) <= 1e-5f;
    iso_assert_all(near && daso_equal(&t));
    free(now);
    free(mean);
    daso_close(&t);
}

// The last rank makes no step before the others have made all but the last one: none of them waits.
static void runs_with_a_late_rank(void) {
    trainer t;
    iso_daso_stats stats;
    daso_case c = case_of(0);
    char token = 0;
    bool late = test_rank == test_size - 1;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int r = 0; late && r < test_size - 1; r++)
        MPI_Recv(&token, 1, MPI_CHAR, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    iso_status status = try_steps(&t, &c, 0, STEPS - 1);
    if (!late) MPI_Send(&token, 1, MPI_CHAR, test_size - 1, 0, MPI_COMM_WORLD);
    iso_assert_ok(status);
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(late || (stats.syncs == 0 && stats.pending));
    train_on(&t, &c, STEPS - 1, STEPS);
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(daso_equal(&t) && !stats.pending && stats.syncs >= 2);
    daso_close(&t);
}

Test(np3_async, a_late_rank_holds_nobody_up) { runs_with_a_late_rank(); }
// Ranks start exchanges at different places among their other collectives.
Test(np3_async, collectives_are_compared_without_its_exchanges) {
    setenv("ISO_DEBUG", "detail", 1);
    runs_with_a_late_rank();
    unsetenv("ISO_DEBUG");
}

// Looks at the mean, completes, and trains on. *hash: of this rank's own parameters after each.
static void run_with_stops(const daso_case *c, int save_at, bool resumes, uint64_t *hash) {
    trainer t;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    train_on(&t, c, 0, 6);
    iso_module_train(t.model, false);
    iso_assert_all(daso_equal(&t));
    iso_module_train(t.model, true);
    train_on(&t, c, 6, save_at);
    iso_assert_ok(iso_daso_complete(t.optimizer));
    iso_assert_ok(daso_exchange_state(&t, save_at, true));
    if (resumes) {
        daso_close(&t);
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
        iso_assert_ok(daso_exchange_state(&t, save_at, false));
    }
    train_on(&t, c, save_at, STEPS - 1);
    iso_assert_ok(daso_own_hash(&t, hash));
    train_on(&t, c, STEPS - 1, STEPS);
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}

// A run repeats, all at once and with a break, and tells the same again.
static void repeats(int64_t warmup, iso_wire wire, double interval_ms) {
    script first = {0}, second = {0};
    uint64_t hash, again, resumed;
    daso_case c = uneven_case(warmup);
    c.daso.wire = wire;
    c.daso.interval_ms = interval_ms;
    c.daso.changed = test_rank == 0 ? note_change : NULL;
    c.daso.changed_user = &first;
    run_with_stops(&c, 13, false, &hash);
    share_script(&first);
    use_script(&c, &first);
    c.daso.changed_user = &second;
    c.delay_us = test_rank % 2 ? 0 : 2000;
    run_with_stops(&c, 13, false, &again);
    iso_assert_all(again == hash);
    iso_assert_all(test_rank > 0 || memcmp(&first, &second, sizeof(first)) == 0);
    c.daso.changed = NULL;
    run_with_stops(&c, 13, true, &resumed);
    iso_assert_all(resumed == hash);
}
Test(np1_async, a_run_repeats) { repeats(0, ISO_WIRE_F32, 0); }
Test(np2_async, a_run_repeats) { repeats(3, ISO_WIRE_INT8, 0); }
Test(np3_async, a_run_repeats) { repeats(2, ISO_WIRE_BF16, 0); }
Test(np3_async, a_run_with_an_interval_repeats) { repeats(0, ISO_WIRE_F32, 5); }

// Every rank gets the error, in a step or where all meet, and none waits for the others.
Test(np3_async, a_rank_that_fails_is_an_error_everywhere) {
    trainer t;
    bool failed = false;
    daso_case c = case_of(0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(test_rank == 1 ? daso_drift(&t, INFINITY) : ISO_OK);
    for (int step = 0; step < STEPS - 1; step++)
        failed = trainer_step(&t, step, NULL) == ISO_ERR_STATE || failed;
    failed = iso_daso_complete(t.optimizer) == ISO_ERR_STATE || failed;
    iso_assert_all(failed);
    iso_assert_all(strstr(iso_last_error()->message, "rank 1"));
    daso_close(&t);
}

// The first exchange fails. Rank 0 has noticed it and started the second one. The others notice it
// where ranks meet.
Test(np3_async, an_error_of_ranks_that_are_behind_is_everybodys) {
    trainer t;
    script s = {0};
    iso_daso_stats stats;
    daso_case c = case_of(0);
    for (int r = 0; r < test_size; r++) {
        add_change(&s, r, 1, SENT);
        add_change(&s, r, 2, PHASE * VERDICT);
    }
    add_change(&s, 0, 3, MERGED);
    add_change(&s, 0, 4, SENT);
    use_script(&c, &s);
    c.train.hyper.lr = 0;
    c.daso.wire = ISO_WIRE_F16;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_drift(&t, test_rank == 1 ? 1e6f : 0)); // too large for the wire
    train_on(&t, &c, 0, 1);
    iso_assert_ok(daso_drift(&t, test_rank == 1 ? -1e6f : 0));
    train_on(&t, &c, 1, 2);
    iso_assert_all(trainer_step(&t, 2, NULL) == (test_rank == 0 ? ISO_ERR_STATE : ISO_OK));
    train_on(&t, &c, 3, 4);
    iso_assert_all(iso_daso_complete(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "too large"));
    iso_assert_ok(iso_daso_complete(t.optimizer)); // the second one has arrived
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.pending && stats.syncs == 0);
    train_on(&t, &c, 4, STEPS);
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}

Test(np2_async, what_does_not_go_together_is_refused) {
    daso_case c = case_of(0);
    c.daso.outer = &iso_outer_slowmo;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "asynchronous needs"));
    c = case_of(0);
    c.daso.unit = ISO_SCOPE_NODE;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "asynchronous needs"));
    c = case_of(0);
    c.daso.interval_ms = -1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "interval_ms is -1"));
    c.daso.interval_ms = test_rank;
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "asynchronous"));
}
