// SPDX-License-Identifier: MIT
// What goes wrong half-way in the reducer: updates that fail, gradients given up, pieces that are
// missing.
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/reducer.h>
#include <math.h>
#include <string.h>

TestSuite(np1_reducer_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_reducer_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_reducer_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static void fill(iso_reducer *r, int i, size_t count, float x) {
    float *g = iso_reducer_grad(r, i);
    for (size_t k = 0; k < count; k++) g[k] = x;
}

// ---- Pieces of a parameter that some backwards reach in part --------------------------------------------

enum { ROW = 64, ROWS = 1024, CUT = ROW * ROWS, PIECES = 4 };
static float cut[CUT], expected[CUT];
static int updates;

static iso_status update_whole(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)i, (void)hyper, (void)user;
    const float *g = gradient;
    for (size_t k = 0; k < CUT; k++) cut[k] -= g[k] * (float)scale;
    updates++;
    return ISO_OK;
}

static iso_status update_piece(int i, size_t first, size_t count, void *gradient, double scale,
                               const void *hyper, void *user) {
    (void)i, (void)hyper, (void)user;
    const float *g = gradient;
    for (size_t k = 0; k < count; k++) cut[first + k] -= g[k] * (float)scale;
    updates++;
    return ISO_OK;
}

// Pieces that a rank reports in a step, as bits: some, none, all, one; then nobody any; all again.
enum { STEPS = 7 };
static unsigned reported(int rank, int step) {
    static const unsigned first[STEPS] = {7, 15, 0, 15, 0, 15, 2}, // rank 0
        others[STEPS] = {0, 15, 8, 6, 0, 15, 2};
    return rank == 0 ? first[step] : others[step];
}

static float gradient_of(int rank, int step) { return (float)(rank + 1) * (float)(1 << step); }

// Who has not reported a piece contributes zeros; steps in which nobody did change nothing.
static void expect_step(int step) {
    for (size_t k = 0; k < CUT; k++) {
        float sum = 0;
        for (int rank = 0; rank < test_size; rank++)
            if (reported(rank, step) >> (k * PIECES / CUT) & 1) sum += gradient_of(rank, step);
        expected[k] -= sum * (float)(1.0 / test_size);
    }
}

// As expected, and the same bits as on rank 0.
static bool is_right(void) {
    static float first[CUT];
    memcpy(first, cut, sizeof(cut));
    iso_assert_ok(iso_comm_bcast(test_comm, first, sizeof(first), 0));
    for (size_t k = 0; k < CUT; k++)
        if (fabsf(cut[k] - expected[k]) > 1e-4f) return false;
    return memcmp(cut, first, sizeof(cut)) == 0;
}

static void create_cut(iso_sync sync, bool piecewise, iso_reducer **r) {
    iso_reducer_param param = {
        .name = "a", .value = cut, .count = CUT, .dtype = ISO_F32, .row = ROW};
    iso_reducer_config config = {
        .sync = sync, .unused = ISO_UNUSED_NEGOTIATE, .piece_bytes = sizeof(cut) / PIECES};
    int id = -1;
    memset(cut, 0, sizeof(cut));
    memset(expected, 0, sizeof(expected));
    updates = 0;
    iso_assert_ok(iso_reducer_create(test_comm, &param, 1, &config, r));
    iso_assert_all(iso_reducer_pieces(*r, 0) == PIECES);
    iso_assert_ok(iso_reducer_add_apply(*r, NULL, 0, update_whole, 0, NULL, &id));
    if (piecewise) iso_assert_ok(iso_reducer_set_apply_piece(*r, id, update_piece));
}

static iso_status report_pieces(iso_reducer *r, int step) {
    unsigned mine = reported(test_rank, step);
    for (int k = 0; k < PIECES; k++) {
        size_t first, count;
        if (!(mine >> k & 1)) continue; // what is there is old
        iso_reducer_piece(r, 0, k, &first, &count);
        float *g = iso_reducer_grad(r, 0);
        for (size_t n = 0; n < count; n++) g[first + n] = gradient_of(test_rank, step);
        iso_status status = iso_reducer_piece_ready(r, 0, k);
        if (status < 0) return status;
    }
    return ISO_OK;
}

static bool is_used(int step) {
    for (int rank = 0; rank < test_size; rank++)
        if (reported(rank, step) != 0) return true;
    return false;
}

static void reached_in_part(iso_sync sync, bool piecewise) {
    iso_reducer *r;
    create_cut(sync, piecewise, &r);
    for (int step = 0, used = 0; step < STEPS; step++) {
        iso_reducer_zero_grad(r);
        iso_status status = report_pieces(r, step);
        if (status == ISO_OK) status = iso_reducer_step_of(r, 0, "");
        if (status == ISO_OK) status = iso_reducer_param_needed(r, 0);
        iso_assert_ok(status);
        expect_step(step);
        used += is_used(step);
        iso_assert_all(is_right());
        if (!piecewise) iso_assert_all(updates == used);
    }
    iso_reducer_destroy(&r);
}

Test(np1_reducer_faults, a_parameter_reached_in_part) { reached_in_part(ISO_SYNC_LAZY, false); }
Test(np2_reducer_faults, a_parameter_reached_in_part) {
    reached_in_part(ISO_SYNC_LAZY, false);
    reached_in_part(ISO_SYNC_BLOCKING, false);
    reached_in_part(ISO_SYNC_LAZY, true);
}
Test(np3_reducer_faults, a_parameter_reached_in_part) { reached_in_part(ISO_SYNC_LAZY, false); }

// ---- An update that fails --------------------------------------------------------------------------------

enum { COUNT = 10, PARAMS = 3 }; // the last one has no optimizer: its average stays in place
static float value[PARAMS][COUNT];
static int calls[PARAMS], failing;

static iso_status update(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)hyper, (void)user;
    calls[i]++;
    if (i == failing) {
        failing = -1;
        return ISO_ERR_ARG;
    }
    for (int k = 0; k < COUNT; k++) value[i][k] -= ((float *)gradient)[k] * (float)scale;
    return ISO_OK;
}

static void create_small(const iso_reducer_config *config, int params, iso_reducer **r) {
    static const char *const name[PARAMS] = {"a", "b", "c"};
    iso_reducer_param param[PARAMS];
    memset(value, 0, sizeof(value));
    memset(calls, 0, sizeof(calls));
    failing = -1;
    for (int i = 0; i < PARAMS; i++)
        param[i] = (iso_reducer_param){
            .name = name[i], .value = value[i], .count = COUNT, .dtype = ISO_F32, .layer = i};
    iso_assert_ok(iso_reducer_create(test_comm, param, params, config, r));
}

static void backward_and_step(iso_reducer *r, int params) {
    iso_reducer_zero_grad(r);
    for (int i = params - 1; i >= 0; i--) {
        fill(r, i, COUNT, (float)(i + 1) * (float)(test_rank + 1));
        iso_assert_ok(iso_reducer_grad_ready(r, i));
    }
    iso_assert_ok(iso_reducer_step_of(r, 0, ""));
}

static float average_of(int i) { return (float)(i + 1) * (float)(test_size + 1) / 2; }

// After so many steps of which each was made once. What has an average of its own to keep is scaled
// before updates, the rest by them.
static bool holds(iso_reducer *r, int params, int steps) {
    bool right = true;
    for (int i = 0; i < params && i < 2; i++)
        right = right && value[i][0] == -(float)steps * average_of(i) &&
                value[i][COUNT - 1] == value[i][0];
    const float *kept = iso_reducer_grad(r, 2);
    return right && (params < 3 || kept[COUNT - 1] == average_of(2));
}

static void update_fails(const iso_comm_hook *hook, int params, int which, int rank) {
    static const int mine[2] = {0, 1};
    iso_reducer_config config = {.bucket_bytes = 1 << 20, .hook = hook};
    iso_reducer *r;
    int id = -1;
    create_small(&config, params, &r);
    iso_assert_ok(iso_reducer_add_apply(r, mine, 2, update, 0, NULL, &id));
    for (int step = 1; step <= 3; step++) {
        bool here = step == 2 && (rank < 0 || rank == test_rank);
        backward_and_step(r, params);
        if (here) failing = which;
        iso_assert_all(iso_reducer_finish(r) == (here ? ISO_ERR_ARG : ISO_OK));
        iso_assert_ok(iso_reducer_finish(r));
        iso_assert_all(holds(r, params, step));
        for (int i = 0; i < 2; i++) // the one that failed was called once more
            iso_assert_all(calls[i] ==
                           step + (step > 1 && i == which && (rank < 0 || rank == test_rank)));
    }
    iso_reducer_destroy(&r);
}

static void updates_fail(const iso_comm_hook *hook) {
    for (int params = 2; params <= PARAMS; params++)
        for (int which = 0; which < 2; which++) update_fails(hook, params, which, -1);
    update_fails(hook, PARAMS, 0, test_size - 1);
}

Test(np1_reducer_faults, an_update_that_failed_is_repeated_alone) { updates_fail(NULL); }
Test(np2_reducer_faults, an_update_that_failed_is_repeated_alone) {
    updates_fail(NULL);
    updates_fail(&iso_hook_bf16);
}
Test(np3_reducer_faults, an_update_that_failed_is_repeated_alone) { updates_fail(NULL); }

// ---- Gradients that are given up -------------------------------------------------------------------------

// A rank that has reported all has asked the others what they used; destroying must not wait for
// who has not, nor leave memory behind (which the fixture looks for).
static void destroyed_half_way(iso_unused unused, size_t bucket_bytes, int whole, int part) {
    iso_reducer_config config = {.unused = unused, .bucket_bytes = bucket_bytes};
    iso_comm_config patient = {.timeout_s = 20};
    iso_comm *world = test_comm;
    iso_reducer *r;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, &patient, &test_comm));
    create_small(&config, PARAMS, &r);
    iso_status status = ISO_OK;
    for (int i = PARAMS - 1; i >= 0 && status == ISO_OK; i--)
        if (test_rank == whole || i >= PARAMS - part) status = iso_reducer_grad_ready(r, i);
    iso_assert_ok(status);
    double start = MPI_Wtime();
    iso_reducer_destroy(&r);
    iso_assert_all(MPI_Wtime() - start < 5);
    iso_comm_destroy(&test_comm);
    test_comm = world;
}

static void destroyed(iso_unused unused) {
    for (int part = 1; part < PARAMS; part++) {
        destroyed_half_way(unused, 0, 0, part);
        destroyed_half_way(unused, 1 << 20, test_size - 1, part);
    }
}

Test(np2_reducer_faults, destroying_half_way_is_prompt) {
    destroyed(ISO_UNUSED_NEGOTIATE);
    destroyed(ISO_UNUSED_ERROR);
}
Test(np3_reducer_faults, destroying_half_way_is_prompt) { destroyed(ISO_UNUSED_NEGOTIATE); }

// ---- Lists that cannot be served ------------------------------------------------------------------------

static void refuse(const iso_reducer_param *params, int count, const char *said) {
    iso_reducer *r = NULL;
    iso_assert_all(iso_reducer_create(test_comm, params, count, NULL, &r) == ISO_ERR_ARG && !r);
    cr_expect(strstr(iso_last_error()->message, said), "%s", iso_last_error()->message);
}

static void describe(iso_reducer_param *params) {
    static const char *const name[PARAMS] = {"a", "b", "c"};
    memset(value, 0, sizeof(value));
    for (int i = 0; i < PARAMS; i++)
        params[i] = (iso_reducer_param){
            .name = name[i], .value = value[i], .count = COUNT, .dtype = ISO_F32, .layer = i};
}

static void refuses_lists(void) {
    iso_reducer_param params[PARAMS];
    bool here = test_rank == test_size - 1; // one rank suffices
    refuse(NULL, PARAMS, "at least one parameter");
    describe(params);
    if (here) params[2].value = value[0];
    refuse(params, PARAMS, "\"a\" and \"c\" of the reducer are the same array");
    describe(params);
    if (here) params[0].value = value[2] + COUNT - 1; // begins with its last element
    refuse(params, PARAMS, "\"c\" and \"a\" of the reducer overlap");
    describe(params);
    if (here) params[1].count = COUNT / 2; // inside another
    if (here) params[1].value = value[2] + 2;
    refuse(params, PARAMS, "\"c\" and \"b\" of the reducer overlap");
    describe(params);
    if (here) params[2].layer = 0;
    refuse(params, PARAMS, "\"a\" and \"c\" of the reducer are of layer 0");
}

Test(np1_reducer_faults, refuses_lists) { refuses_lists(); }
Test(np2_reducer_faults, refuses_lists) { refuses_lists(); }

// As one that is all zero; numbers of layers may fall.
Test(np2_reducer_faults, no_config_is_the_default) {
    static const iso_reducer_config zero = {0};
    iso_reducer_param params[PARAMS];
    iso_reducer *r = NULL;
    int id;
    describe(params);
    for (int i = 0; i < PARAMS; i++) params[i].layer = -i;
    iso_assert_ok(iso_reducer_create(test_comm, params, PARAMS, test_rank == 0 ? NULL : &zero, &r));
    memset(calls, 0, sizeof(calls));
    failing = -1;
    iso_assert_ok(iso_reducer_add_apply(r, NULL, 0, update, 0, NULL, &id));
    for (int step = 1; step <= 2; step++) {
        backward_and_step(r, PARAMS);
        iso_assert_ok(iso_reducer_finish(r));
        for (int i = 0; i < PARAMS; i++)
            iso_assert_all(value[i][0] == -(float)step * average_of(i));
    }
    iso_reducer_destroy(&r);
}

// ---- A hook that fails ------------------------------------------------------------------------------

static iso_status cannot(const iso_comm_hook_bucket *bucket, double factor, void *user) {
    (void)bucket, (void)factor, (void)user;
    return ISO_ERR_UNSUPPORTED;
}

// What never travelled is no average, whoever asks.
Test(np2_reducer_faults, after_a_hook_has_failed_nothing_is_updated) {
    const iso_comm_hook hook = {
        .name = "broken", .wire = ISO_BF16, .compress = cannot, .decompress = cannot};
    iso_reducer_config config = {.hook = &hook};
    iso_reducer *r;
    create_small(&config, PARAMS, &r);
    iso_status status = ISO_OK;
    for (int i = PARAMS - 1; i >= 0 && status == ISO_OK; i--) status = iso_reducer_grad_ready(r, i);
    iso_assert_all(status == ISO_ERR_UNSUPPORTED);
    iso_assert_all(iso_reducer_param_needed(r, PARAMS - 1) < 0);
    iso_assert_all(iso_reducer_finish(r) < 0);
    iso_reducer_destroy(&r);
}

// ---- Calls in the wrong place -----------------------------------------------------------------------

static float plain[8];
static iso_status (*forbidden)(iso_reducer *r);

static iso_status needs_parameter(iso_reducer *r) { return iso_reducer_param_needed(r, 0); }

// Inside an update the reducer is not to be called: it would update again, and again.
static iso_status call_back(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)i, (void)gradient, (void)scale, (void)hyper;
    iso_status (*call)(iso_reducer *) = forbidden;
    forbidden = NULL;
    return call ? call(*(iso_reducer **)user) : ISO_OK;
}

static void create_plain(iso_reducer **r, size_t row) {
    iso_reducer_param param = {
        .name = "a", .value = plain, .count = 8, .dtype = ISO_F32, .row = row};
    iso_assert_ok(iso_reducer_create(test_comm, &param, 1, NULL, r));
    iso_assert_ok(iso_reducer_set_apply(*r, call_back, 0, r));
}

static void is_refused(iso_status (*call)(iso_reducer *r)) {
    iso_reducer *r;
    create_plain(&r, 0);
    forbidden = call;
    iso_assert_ok(iso_reducer_grad_ready(r, 0));
    iso_status status = iso_reducer_step(r, plain);
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_all(status == ISO_ERR_STATE);
    cr_assert(strstr(iso_last_error()->message, "called the reducer"));
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_destroy(&r);
}

Test(np2_reducer_faults, an_update_does_not_call_the_reducer) {
    is_refused(needs_parameter);
    is_refused(iso_reducer_finish);
}

Test(np2_reducer_faults, a_gradient_is_not_written_before_its_exchange_was_waited_for) {
    iso_reducer *r;
    create_plain(&r, 0);
    iso_assert_ok(iso_reducer_grad_ready(r, 0));
    iso_assert_ok(iso_reducer_step(r, plain));
    iso_assert_all(iso_reducer_grad_ready(r, 0) == ISO_ERR_STATE);
    cr_assert(strstr(iso_last_error()->message, "iso_reducer_param_needed"));
    iso_assert_ok(iso_reducer_param_needed(r, 0));
    iso_assert_ok(iso_reducer_grad_ready(r, 0));
    iso_assert_ok(iso_reducer_step(r, plain));
    iso_reducer_destroy(&r);
}

Test(np3_reducer_faults, other_rows_on_a_rank_are_named) {
    iso_reducer *r = NULL;
    iso_reducer_param param = {
        .name = "a", .value = plain, .count = 8, .dtype = ISO_F32, .row = test_rank == 2 ? 4 : 2};
    iso_reducer_config config = {.piece_bytes = 8};
    iso_assert_all(iso_reducer_create(test_comm, &param, 1, &config, &r) == ISO_ERR_MISMATCH);
    cr_assert(strstr(iso_last_error()->message, "rows of 4"), "%s", iso_last_error()->message);
}
