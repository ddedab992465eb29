// SPDX-License-Identifier: MIT
// Tournaments that go wrong: trainers that are lost, scores that fail, saved runs of others, and
// what is refused.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"
#include "common/tournament_fixture.h"

#include "optim/periodic/periodic.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np2_tournament_faults, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_tournament_faults, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_tournament_faults, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = TOURNAMENT_STEPS };

// ---- A trainer that is lost -----------------------------------------------------------------------

static float poison(tournament_run *r, float value) {
    iso_parameter_list list;
    if (iso_data_parallel_finish(r->t.model) < 0 || iso_module_parameters(r->t.model, &list) < 0)
        return NAN;
    float before = tensor_swap(list.item[0]->value, 0, value);
    iso_parameter_list_destroy(&list);
    return before;
}

static bool all_finite(tournament_run *r) {
    bool finite = true;
    size_t bytes = tournament_copy(r, NULL, false);
    float *values = malloc(bytes);
    tournament_copy(r, (char *)values, false);
    for (size_t i = 0; i < bytes / sizeof(*values); i++) finite = finite && isfinite(values[i]);
    free(values);
    return finite;
}

// Its gradients, and so its optimizer state, are NaN, too. The partner gets it, and keeps its own.
static void lost_trainer_recovers(float value) {
    tournament_run r;
    tournament_describe(&r, 4, 0);
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, 2));
    if (test_rank == 1) poison(&r, value);
    iso_assert_ok(trainer_step(&r.t, 2, NULL));
    iso_assert_all(test_rank != 1 || !all_finite(&r));
    for (int step = 3; step < STEPS - 1; step++) iso_assert_ok(trainer_step(&r.t, step, NULL));
    bool met = false;
    for (int i = 0; i < r.j.matches; i++) {
        const iso_match *m = &r.j.match[i];
        bool lost = !isfinite(m->own), theirs = !isfinite(m->theirs);
        cr_assert(!(theirs && m->took) && (!lost || m->took || m->partner == m->trainer));
        met = met || (lost && m->took);
    }
    iso_assert_all(test_rank != 0 || met);
    iso_assert_all(all_finite(&r));
    iso_assert_ok(trainer_step(&r.t, STEPS - 1, NULL));
    iso_assert_all(daso_equal(&r.t) && all_finite(&r));
    tournament_close(&r);
}
Test(np2_tournament_faults, a_lost_trainer_takes_its_partners_model) {
    lost_trainer_recovers(NAN);
    lost_trainer_recovers(INFINITY);
}
Test(np3_tournament_faults, a_lost_trainer_takes_its_partners_model) { lost_trainer_recovers(NAN); }

// In evaluation it does not win, either.
Test(np2_tournament_faults, a_lost_trainer_is_not_shown) {
    tournament_run r;
    tournament_describe(&r, STEPS + 1, 0);
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, 2));
    if (test_rank == 0) poison(&r, NAN);
    iso_assert_ok(iso_module_train(r.t.model, false));
    iso_assert_all(daso_equal(&r.t) && all_finite(&r));
    iso_assert_ok(iso_module_train(r.t.model, true));
    iso_assert_all(test_rank != 0 || !all_finite(&r));
    tournament_close(&r);
}

// ---- Beside tournaments ---------------------------------------------------------------------------

static bool same_everywhere(const char *own, size_t bytes) {
    char *first = malloc(bytes);
    memcpy(first, own, bytes);
    MPI_Bcast(first, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    bool same = memcmp(first, own, bytes) == 0;
    free(first);
    return same;
}

// All ranks begin anew with the best model and its optimizer state, even if that stays otherwise.
Test(np3_tournament_faults, reset_leaves_one_model_with_its_state) {
    tournament_run r;
    tournament_describe(&r, 3, 0);
    r.tournament.keep_state = true;
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, 5));
    size_t bytes = tournament_copy_part(&r, TOURNAMENT_STATE, NULL, false);
    char *state = malloc(bytes);
    tournament_copy_part(&r, TOURNAMENT_STATE, state, false);
    iso_assert_all(bytes > 0 && !daso_equal(&r.t));
    iso_assert_ok(iso_daso_reset(r.t.optimizer));
    tournament_copy_part(&r, TOURNAMENT_STATE, state, false);
    iso_assert_all(same_everywhere(state, bytes) && daso_equal(&r.t));
    iso_assert_ok(trainer_go_on(&r.t, 0, STEPS));
    iso_assert_all(daso_equal(&r.t));
    free(state);
    tournament_close(&r);
}

// A tournament sends a model once, and evaluation does not count.
Test(np2_tournament_faults, what_travels_is_counted) {
    tournament_run r;
    iso_daso_stats stats;
    tournament_describe(&r, 4, 0);
    r.tournament.keep_state = true;
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, 9));
    int64_t numbers = (int64_t)(tournament_copy(&r, NULL, false) / sizeof(float));
    int64_t padded = (numbers + 31) / 32 * 32 * (int64_t)sizeof(float);
    iso_assert_ok(iso_module_train(r.t.model, false));
    iso_assert_ok(iso_module_train(r.t.model, true));
    iso_assert_ok(iso_daso_get_stats(r.t.optimizer, &stats));
    iso_assert_all(stats.syncs == 2 && stats.bytes_sent == 2 * padded && stats.global_skip == 4);
    tournament_close(&r);
}

// It trains as one rank of a whole, and is told how to make two trainers.
Test(np2_tournament_faults, one_trainer_is_warned) {
    tournament_run r;
    tournament_describe(&r, 3, 0);
    r.c.ranks_per_node = 2;
    log_capture();
    iso_assert_ok(tournament_open(&r));
    iso_assert_all(test_rank != 0 || log_said("there is one trainer, of 2 ranks", 1));
    iso_assert_ok(trainer_go_on(&r.t, 0, STEPS));
    iso_assert_all(daso_equal(&r.t));
    tournament_close(&r);
}

// ---- Ranks without samples ----------------------------------------------------------------------

// What a rank without samples reports: anything, or zeros.
static double reported;
static iso_status score_on_even_ranks(iso_module *model, iso_evaluation *out, void *user) {
    ISO_TRY(tournament_judge_model(model, out, user));
    if (test_rank % 2) *out = (iso_evaluation){.loss = reported, .accuracy = reported};
    return ISO_OK;
}

static uint64_t train_on_even_scores(double value, tournament_run *r) {
    uint64_t hash = 0;
    reported = value;
    tournament_describe(r, 2, 0);
    r->c.ranks_per_node = 2;
    r->tournament.score = score_on_even_ranks;
    iso_assert_ok(tournament_open(r));
    iso_assert_ok(trainer_go_on(&r->t, 0, STEPS));
    iso_assert_ok(daso_own_hash(&r->t, &hash));
    tournament_close(r);
    return hash;
}

Test(np4_tournament_faults, a_rank_without_samples_adds_nothing) {
    const double values[] = {NAN, INFINITY};
    tournament_run expected, r;
    uint64_t hash = train_on_even_scores(0, &expected);
    for (int i = 0; i < 2; i++) {
        bool same = train_on_even_scores(values[i], &r) == hash;
        same = same && r.j.matches == expected.j.matches;
        for (int k = 0; same && k < r.j.matches; k++)
            same = isfinite(r.j.match[k].own) && isfinite(r.j.match[k].theirs) &&
                   r.j.match[k].own == expected.j.match[k].own &&
                   r.j.match[k].theirs == expected.j.match[k].theirs;
        iso_assert_all(same);
    }
}

// On all ranks, in a tournament and where one model is chosen; no model changes.
Test(np2_tournament_faults, a_trainer_without_samples_is_refused) {
    static const char *const said = "trainer 1 has no held-out samples";
    tournament_run r;
    reported = NAN;
    tournament_describe(&r, 2, 1);
    r.tournament.score = score_on_even_ranks;
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, 2));
    size_t bytes = tournament_copy(&r, NULL, false);
    char *own = malloc(bytes), *after = malloc(bytes);
    tournament_copy(&r, own, false);
    iso_status status = iso_module_train(r.t.model, false);
    iso_assert_all(status == ISO_ERR_ARG && strstr(iso_last_error()->message, said));
    iso_assert_ok(iso_module_train(r.t.model, true));
    tournament_copy(&r, after, false);
    iso_assert_all(memcmp(own, after, bytes) == 0);
    status = trainer_step(&r.t, 2, NULL);
    iso_assert_all(status == ISO_ERR_ARG && strstr(iso_last_error()->message, said));
    iso_assert_all(r.j.matches == 0 && !daso_equal(&r.t));
    free(after);
    free(own);
    tournament_close(&r);
}

// ---- A device that fails ------------------------------------------------------------------------

// The device of this rank, from a score on: copies to and from it fail.
static iso_device *broken;
static const iso_device_ops *healthy;
static iso_device_ops faulty;
static iso__remote_ops faulty_remote;

static iso_status fail_record(iso_device *device, iso__queue queue, iso__device_event *event) {
    (void)device, (void)queue, (void)event;
    return ISO_FAIL(ISO_ERR_IO, "the device has gone");
}
static iso_status fail_pin(iso_device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes;
    return ISO_FAIL(ISO_ERR_IO, "the device has gone");
}

static void break_device(iso_device *device) {
    healthy = device->ops;
    faulty = *healthy;
    if (healthy->remote) faulty_remote = *healthy->remote;
    faulty_remote.record = fail_record;
    faulty_remote.pin = fail_pin;
    faulty.remote = &faulty_remote;
    device->ops = &faulty;
    broken = device;
}

static void mend_device(void) {
    if (broken) broken->ops = healthy;
    broken = NULL;
}

// Rank 0 has the best model, and partners have none that is better. A device breaks after a call.
static int breaks_at, breaks_on;
static iso_status score_and_break(iso_module *model, iso_evaluation *out, void *user) {
    tournament_judge *j = user;
    j->calls++;
    double loss = j->calls % 2 ? 1 + test_rank : 9;
    *out = (iso_evaluation){.loss = loss, .samples = 1};
    if (j->calls == breaks_at && test_rank == breaks_on) break_device(model->device);
    return ISO_OK;
}

static void open_breaking(tournament_run *r, int rank, int call) {
    tournament_describe(r, 2, 0);
    breaks_on = rank;
    breaks_at = call;
    r->tournament.score = score_and_break;
    iso_assert_ok(tournament_open(r));
}

// The own model cannot come back: the others are told.
Test(np2_tournament_faults, a_device_that_fails_to_take_its_model_back_is_told) {
    tournament_run r;
    open_breaking(&r, 1, 2);
    iso_assert_ok(trainer_step(&r.t, 0, NULL));
    iso_status status = trainer_step(&r.t, 1, NULL);
    mend_device();
    iso_assert_all(status == ISO_ERR_IO && strstr(iso_last_error()->message, "has gone"));
    tournament_close(&r);
}

// The model that won cannot be sent: nobody waits for it.
Test(np3_tournament_faults, a_device_that_fails_to_send_its_model_is_told) {
    tournament_run r;
    open_breaking(&r, 0, 1);
    iso_assert_ok(trainer_step(&r.t, 0, NULL));
    iso_status status = iso_module_train(r.t.model, false);
    mend_device();
    iso_assert_all(status == ISO_ERR_IO && strstr(iso_last_error()->message, "has gone"));
    iso_assert_ok(iso_module_train(r.t.model, true));
    r.j.calls = breaks_at; // it does not break again
    iso_assert_ok(iso_module_train(r.t.model, false));
    iso_assert_all(daso_equal(&r.t));
    iso_assert_ok(iso_module_train(r.t.model, true));
    tournament_close(&r);
}

// The last tournament fails, one step before the end. All ranks end with one model all the same.
static void ends_with_one_model_after_a_failure(void) {
    tournament_run r;
    tournament_describe(&r, 4, 1);
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, STEPS - 1));
    r.j.failing = test_rank == 1 ? r.j.calls + 1 : 0;
    iso_status status = trainer_step(&r.t, STEPS - 1, NULL);
    iso_assert_all(status == ISO_ERR_IO && strstr(iso_last_error()->message, "cannot be read"));
    iso_assert_all(daso_equal(&r.t));
    tournament_close(&r);
}
Test(np2_tournament_faults, ends_with_one_model_after_a_failure) {
    ends_with_one_model_after_a_failure();
}
Test(np3_tournament_faults, ends_with_one_model_after_a_failure) {
    ends_with_one_model_after_a_failure();
}

// ---- Wrong use --------------------------------------------------------------------------------------

Test(np4_tournament_faults, goes_on_with_as_many_trainers_only) {
    tournament_run r;
    tournament_describe(&r, 3, 0);
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, 4));
    iso_assert_ok(daso_exchange_state(&r.t, 4, true));
    tournament_close(&r);
    r.c.ranks_per_node = 2;
    iso_assert_ok(tournament_open(&r));
    iso_status status = daso_exchange_state(&r.t, 4, false);
    iso_assert_all(status == ISO_ERR_MISMATCH &&
                   strstr(iso_last_error()->message, "4 trainers on 4 ranks, and this one has 2"));
    tournament_close(&r);
}

// As many trainers on as many ranks: {0, 1} and {2, 3} have saved, {0, 1, 2} and {3} load.
Test(np4_tournament_faults, goes_on_with_the_same_trainers_only) {
    tournament_run r;
    tournament_describe(&r, 3, 0);
    r.c.ranks_per_node = 2;
    iso_assert_ok(tournament_open(&r));
    iso_assert_ok(trainer_go_on(&r.t, 0, 4));
    iso_assert_ok(daso_exchange_state(&r.t, 4, true));
    tournament_close(&r);
    r.c.ranks_per_node = 3;
    iso_assert_ok(tournament_open(&r));
    iso_status status = daso_exchange_state(&r.t, 4, false);
    iso_assert_all(status == ISO_ERR_MISMATCH &&
                   strstr(iso_last_error()->message, "2 trainers that had other ranks than"));
    tournament_close(&r);
}

Test(np2_tournament_faults, what_does_not_go_with_it_is_refused) {
    for (int i = 0; i < 10; i++) {
        tournament_run r;
        tournament_describe(&r, 4, 1);
        iso_daso_config *d = &r.c.daso;
        d->tournament = &r.tournament;
        if (i == 0) d->wire = ISO_WIRE_BF16;
        if (i == 1) d->merge = ISO_MERGE_HEAT;
        if (i == 2) d->state = ISO_STATE_SYNC_RESET;
        if (i == 3) d->policy = ISO_POLICY_QSR, d->max_global_skip = 64;
        if (i == 4) d->unit = ISO_SCOPE_RANK, d->gossip = true;
        if (i == 5) d->outer = &iso_outer_mean;
        if (i == 6) d->fragments = 2;
        if (i == 7) d->local_skip = 2;
        if (i == 8) d->global_skip = -1;
        if (i == 9) d->batches_to_wait = -1;
        iso_assert_all(daso_refused(&r.c, ISO_ERR_ARG, "a tournament needs ISO_WIRE_F32"));
    }
    tournament_run r;
    tournament_describe(&r, 4, 0);
    r.tournament.score = NULL;
    r.c.daso.tournament = &r.tournament;
    iso_assert_all(daso_refused(&r.c, ISO_ERR_ARG, "a tournament needs `score`"));
    tournament_describe(&r, 4, 0);
    r.tournament.seed = (uint64_t)test_rank;
    r.c.daso.tournament = &r.tournament;
    iso_assert_all(daso_refused(&r.c, ISO_ERR_MISMATCH, "tournament"));
}
