// SPDX-License-Identifier: MIT
// The asynchronous parameter server: each rank pushes its changes to all ranks, each of which
// serves a shard, and merges their answers at its own steps.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/server_model.h"
#include "common/types_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_server, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_server, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_server, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_server, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = 22, PERIOD = 2, CHANGES = 2048 };

static daso_case case_of(int64_t warmup) {
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_server_config(STEPS, PERIOD);
    c.daso.warmup_steps = warmup;
    return c;
}

// Local: ranks need not be at the same step.
static iso_status try_steps(trainer *t, const daso_case *c, int from, int to) {
    for (int step = from; step < to; step++) ISO_TRY(daso_delayed_step(t, c, step));
    return ISO_OK;
}
static void train_on(trainer *t, const daso_case *c, int from, int to) {
    iso_assert_ok(try_steps(t, c, from, to));
}

// ---- What ranks did -------------------------------------------------------------------------------

typedef struct script {
    iso_daso_change change[CHANGES];
    int count;
} script;

static void note_change(const iso_daso_change *change, void *user) {
    script *s = user;
    cr_assert(s->count < CHANGES && change->cause == ISO_CAUSE_RANK);
    s->change[s->count++] = *change;
}

static void note_in(daso_case *c, script *s) {
    s->count = 0;
    c->daso.changed = test_rank == 0 ? note_change : NULL;
    c->daso.changed_user = s;
}

static void share_script(script *s) {
    MPI_Bcast(s, (int)sizeof(*s), MPI_BYTE, 0, MPI_COMM_WORLD);
    iso_assert_all(s->count > 0);
}

static void use_script(daso_case *c, const script *s) {
    c->daso.replay = s->change;
    c->daso.replay_count = s->count;
}

// How often ranks did this; -1: any of them.
static int count_events(const script *s, int rank, int64_t kind) {
    int count = 0;
    for (int i = 0; i < s->count; i++)
        count += (rank < 0 || s->change[i].rank == rank) && s->change[i].actions % 8 == kind;
    return count;
}

// ---- One rank -------------------------------------------------------------------------------------

// It has nobody to share with.
Test(np1_server, one_worker_has_the_bits_of_local_training) {
    uint64_t expected, hash;
    for (int64_t warmup = 0; warmup <= 3; warmup += 3) {
        daso_case c = case_of(warmup);
        trainer_config alone = c.train;
        alone.rows = 2;
        iso_assert_ok(trainer_run(test_comm, &alone, STEPS, &expected));
        iso_assert_ok(daso_hash(MPI_COMM_WORLD, &c, 0, &hash));
        iso_assert_all(hash == expected);
    }
}

// ---- The model ------------------------------------------------------------------------------------

// Drift of a rank in a step, from 1, in the place of training.
static float drift_of(int rank, int64_t step) {
    return (step % 2 ? 0.01f : -0.007f) * (float)(rank + 1 + step % 3);
}

// Keeps the parameters after each step, and what the model has to make of them.
static void follows_the_model(iso_status (*build)(iso_device *, bool, iso_module **), double scale,
                              int64_t period) {
    trainer t;
    script s;
    server_model m;
    daso_case c = case_of(0);
    c.train.hyper.lr = 0;
    c.train.build = build;
    c.delay_us = test_rank % 2 ? 3000 : 1000;
    c.daso.push_scale = scale;
    c.daso.global_skip = period;
    note_in(&c, &s);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_all(server_model_open(&m, t.model, test_size, STEPS, scale, period));
    iso_status status = ISO_OK;
    for (int step = 1; step <= STEPS && status == ISO_OK; step++) {
        // step() works on what was there before it, and the drift is the update
        status = daso_drift(&t, drift_of(test_rank, step));
        if (status == ISO_OK) status = daso_delayed_step(&t, &c, step - 1);
        if (status == ISO_OK && !server_model_keep(&m, t.model, step)) status = ISO_ERR_STATE;
    }
    iso_assert_ok(status);
    share_script(&s);
    iso_assert_all(server_model_run(&m, s.change, s.count, drift_of));
    iso_assert_all(server_model_agrees(&m, test_rank));
    iso_assert_all(daso_equal(&t));
    server_model_close(&m);
    daso_close(&t);
}

static void has_its_bits(void) { follows_the_model(build_smooth, 0, PERIOD); }
static void of_both_types(void) { follows_the_model(build_smooth_mixed, 0, 1); }
static void scaled(void) { follows_the_model(build_smooth_wide, 1, 3); }
Test(np2_server, serving_in_the_order_told_gives_the_bits) { has_its_bits(); }
Test(np3_server, serving_in_the_order_told_gives_the_bits) { has_its_bits(); }
Test(np4_server, serving_in_the_order_told_gives_the_bits) { has_its_bits(); }
Test(np2_server, both_types_follow_the_model) { of_both_types(); }
Test(np3_server, both_types_follow_the_model) { of_both_types(); }
Test(np4_server, both_types_follow_the_model) { of_both_types(); }
Test(np3_server, a_scale_follows_the_model) { scaled(); }
Test(np4_server, a_scale_follows_the_model) { scaled(); }

// ---- As messages arrive ---------------------------------------------------------------------------

// The others make their steps two by two, so that each serves what the other has pushed.
static iso_status step_with(trainer *t, const daso_case *c, int other, int from, int to) {
    iso_status status = ISO_OK;
    for (int step = from; step < to && status == ISO_OK; step++) {
        MPI_Sendrecv(&step, 1, MPI_INT, other, 0, &(int){0}, 1, MPI_INT, other, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        status = daso_delayed_step(t, c, step);
    }
    return status;
}

// The last rank makes no step before the others have made all but the last one: none of them waits,
// and they merge each other's shards all the while.
static void runs_with_a_late_rank(void) {
    trainer t;
    iso_daso_stats stats;
    daso_case c = case_of(0);
    char token = 0;
    bool late = test_rank == test_size - 1;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int r = 0; late && r < test_size - 1; r++)
        MPI_Recv(&token, 1, MPI_CHAR, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    iso_status status =
        late ? try_steps(&t, &c, 0, STEPS - 1) : step_with(&t, &c, 1 - test_rank, 0, STEPS - 1);
    iso_status known = iso_daso_get_stats(t.optimizer, &stats);
    if (!late) MPI_Send(&token, 1, MPI_CHAR, test_size - 1, 0, MPI_COMM_WORLD);
    iso_assert_ok(status < 0 ? status : known);
    iso_assert_all(late || (stats.syncs >= 3 && stats.pending));
    train_on(&t, &c, STEPS - 1, STEPS);
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(daso_equal(&t) && !stats.pending && stats.bytes_sent > 0);
    daso_close(&t);
}

Test(np3_server, a_late_rank_holds_nobody_up) { runs_with_a_late_rank(); }
Test(np3_server, messages_do_not_disturb_the_comparison_of_collectives) {
    setenv("ISO_DEBUG", "detail", 1);
    runs_with_a_late_rank();
    unsetenv("ISO_DEBUG");
}

// Evaluates, completes, saves, and trains on. *hash: of this rank's own parameters before the end.
static void run_with_stops(const daso_case *c, int save_at, bool resumes, uint64_t *hash) {
    trainer t;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    train_on(&t, c, 0, 6);
    iso_module_train(t.model, false);
    iso_assert_all(daso_equal(&t));
    iso_module_train(t.model, true);
    train_on(&t, c, 6, save_at);
    iso_assert_ok(iso_daso_complete(t.optimizer));
    iso_assert_all(daso_equal(&t));
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
static void repeats(int64_t warmup, iso_status (*build)(iso_device *, bool, iso_module **)) {
    static script first, second;
    uint64_t hash, again, resumed;
    daso_case c = case_of(warmup);
    c.train.build = build;
    c.delay_us = test_rank % 2 ? 3000 : 1000;
    note_in(&c, &first);
    run_with_stops(&c, 13, false, &hash);
    share_script(&first);
    for (int r = 0; r < test_size; r++) {
        iso_assert_all(count_events(&first, r, 1) + count_events(&first, r, 5) > 0);
        iso_assert_all(count_events(&first, r, 2) + count_events(&first, r, 6) > 0);
    }
    use_script(&c, &first);
    note_in(&c, &second);
    c.delay_us = test_rank % 2 ? 0 : 2000;
    run_with_stops(&c, 13, false, &again);
    iso_assert_all(again == hash);
    iso_assert_all(test_rank > 0 || (first.count == second.count &&
                                     memcmp(first.change, second.change,
                                            (size_t)first.count * sizeof(*first.change)) == 0));
    c.daso.changed = NULL;
    run_with_stops(&c, 13, true, &resumed);
    iso_assert_all(resumed == hash);
}
Test(np2_server, a_run_repeats) { repeats(3, build_smooth); }
Test(np3_server, a_run_repeats) { repeats(0, build_smooth_mixed); }
Test(np4_server, a_run_repeats) { repeats(2, build_smooth); }

// Once all messages have been sent in both directions.
Test(np2_server, steps_allocate_nothing) {
    trainer t;
    long long before, after;
    daso_case c = case_of(0);
    c.daso.total_steps = 200;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(step_with(&t, &c, 1 - test_rank, 0, 20));
    iso_memory_balance(NULL, NULL, &before);
    iso_status status = step_with(&t, &c, 1 - test_rank, 20, 60);
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_ok(status);
    iso_assert_all(after == before);
    daso_close(&t);
}

// ---- Other ends -----------------------------------------------------------------------------------

// After a cool-down, after a finish in the middle, and after a reset.
Test(np3_server, all_ends_are_equal) {
    trainer t;
    daso_case c = case_of(2);
    c.daso.cooldown_steps = 4;
    c.delay_us = 1000;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    train_on(&t, &c, 0, 9);
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_all(daso_equal(&t));
    train_on(&t, &c, 9, STEPS);
    iso_assert_all(daso_equal(&t));
    iso_assert_ok(iso_daso_reset(t.optimizer));
    train_on(&t, &c, 0, 5);
    daso_close(&t); // while pushes are under way
}

// More ranks than elements of a type: some shards are empty.
static iso_status build_tiny(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = 3};
    iso_module *m, *net;
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(iso_flatten_create(device, &m));
    ISO_TRY(iso_sequential_add_take(net, "flatten", m));
    ISO_TRY(iso_linear_create(device, TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE, 1, true, &rng,
                              &m));
    ISO_TRY(iso_sequential_add_take(net, "fc1", m));
    ISO_TRY(iso_linear_create(device, 1, TRAINER_CLASSES, false, &rng, &m));
    ISO_TRY(iso_sequential_add_take(net, "fc2", m));
    *out = net;
    return ISO_OK;
}
Test(np4_server, odd_sizes_follow_the_model) { follows_the_model(build_tiny, 0, 1); }

// ---- Faults ---------------------------------------------------------------------------------------

// Whether this rank's parameters are all finite.
static bool is_finite(trainer *t) {
    int64_t count;
    bool finite = true;
    float *values = daso_values(t, &count);
    for (int64_t i = 0; values && i < count; i++) finite = finite && isfinite(values[i]);
    free(values);
    return values && finite;
}

// The rank gets the error in its next push, the others where ranks meet. None waits in vain, and
// nothing that is not finite reaches another rank.
Test(np3_server, a_rank_that_fails_is_an_error_everywhere) {
    trainer t;
    bool failed = false;
    daso_case c = case_of(0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    train_on(&t, &c, 0, 3);
    iso_assert_ok(test_rank == 1 ? daso_drift(&t, INFINITY) : ISO_OK);
    for (int step = 3; step < STEPS - 1; step++)
        failed = trainer_step(&t, step, NULL) == ISO_ERR_STATE || failed;
    iso_assert_all(failed == (test_rank == 1));
    iso_assert_all(iso_daso_complete(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "rank 1"));
    iso_assert_all(strstr(iso_last_error()->message, "not finite"));
    iso_assert_ok(iso_daso_complete(t.optimizer)); // nothing is under way
    iso_assert_all(is_finite(&t) == (test_rank != 1));
    daso_close(&t);
}

Test(np2_server, what_does_not_go_together_is_refused) {
    iso_daso_change wrong = {.step = 3, .cause = ISO_CAUSE_RANK, .rank = 1, .actions = 3};
    daso_case c = case_of(0);
    c.daso.outer = &iso_outer_slowmo;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "asynchronous needs"));
    c = case_of(0);
    c.daso.wire = ISO_WIRE_BF16;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "server needs"));
    c = case_of(0);
    c.daso.asynchronous = false;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "server needs"));
    c = case_of(0);
    c.daso.push_scale = -1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "push_scale is -1"));
    c.daso.push_scale = 1e39; // not an f32
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "push_scale is 1e+39"));
    c.daso.push_scale = 1 + test_rank;
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "server is push_scale"));
    c = case_of(0);
    c.daso.server = false;
    c.daso.global_skip = 1;
    c.daso.push_scale = 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "without server"));
    c = case_of(0);
    c.daso.replay = &wrong;
    c.daso.replay_count = 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "which no worker"));
}

// ---- A rank that comes late -----------------------------------------------------------------------

static void setup_warning(void) {
    setenv("ISO_STALL_WARN", "0.4", 1);
    resume_setup();
}
TestSuite(np3_server_late, .init = setup_warning, .fini = resume_teardown, .timeout = 60);

Test(np3_server_late, is_named_where_ranks_meet) {
    trainer t;
    daso_case c = case_of(0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    train_on(&t, &c, 0, 7);
    log_capture(); // a busy machine warns of other waits, too
    if (test_rank == test_size - 1) usleep(SLOW);
    iso_assert_ok(iso_daso_complete(t.optimizer));
    iso_assert_all(daso_equal(&t));
    bool said = test_rank > 0 || log_said("\"parameter server: all ranks meet\": rank 2 on ", 100);
    iso_assert_all(said);
    daso_close(&t);
}

// The rank that did not wait long enough is told so again. It neither takes its parameters for
// those of all ranks, nor trains on. No take-down: messages stay under way.
TestSuite(np2_server_lost, .init = resume_setup, .timeout = 60);

Test(np2_server_lost, a_meeting_that_failed_is_an_error_from_then_on) {
    trainer t;
    daso_case c = case_of(0);
    setenv("ISO_TIMEOUT", "1", 1);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    train_on(&t, &c, 0, 7);
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == 1) usleep(SLOW);
    iso_assert_all(iso_daso_complete(t.optimizer) == ISO_ERR_TIMEOUT);
    iso_assert_all(iso_daso_complete(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "did not meet"));
    iso_assert_all(trainer_step(&t, 7, NULL) == ISO_ERR_STATE);
    daso_close(&t); // without another wait
    MPI_Finalize();
}
