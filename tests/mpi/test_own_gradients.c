// SPDX-License-Identifier: MIT
// Gradients in arrays of the program (iso_reducer_param.gradient): the bits that the reducer's own
// memory gives, and whose the arrays are when.
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <isotherm/reducer.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_own_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_own_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_own_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_own_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Number 1 may be cut into pieces; the last two are f64.
enum { PARAMS = 5, MOST = 4000, STEPS = 5 };
static const char *const name[PARAMS] = {"a", "b.big", "b.bias", "c", "d"};
static const size_t count[PARAMS] = {70, MOST, 100, 640, 33};
static const int layer[PARAMS] = {0, 1, 1, 2, 3};
static float value[PARAMS][MOST], own[PARAMS][MOST];
static double value64[PARAMS][MOST], own64[PARAMS][MOST];

static bool is_double(int i) { return i >= 3; }
static void *value_of(int i) { return is_double(i) ? (void *)value64[i] : value[i]; }
static void *own_of(int i) { return is_double(i) ? (void *)own64[i] : own[i]; }
static size_t size_of(int i) { return is_double(i) ? sizeof(double) : sizeof(float); }

static void put(void *array, int i, size_t k, double x) {
    if (is_double(i))
        ((double *)array)[k] = x;
    else
        ((float *)array)[k] = (float)x;
}
static double get(const void *array, int i, size_t k) {
    return is_double(i) ? ((const double *)array)[k] : (double)((const float *)array)[k];
}

static int refusals; // of the next updates

static iso_status update_some(int i, size_t first, size_t n, void *gradient, double scale,
                              const void *lr, void *user) {
    (void)user;
    if (refusals > 0 && i == 1) return refusals--, ISO_FAIL(ISO_ERR_STATE, "refused once");
    for (size_t k = 0; k < n; k++) {
        double g = get(gradient, i, k) * scale * *(const double *)lr;
        put(value_of(i), i, first + k, get(value_of(i), i, first + k) - g);
    }
    return ISO_OK;
}

static iso_status update_all(int i, void *gradient, double scale, const void *lr, void *user) {
    return update_some(i, 0, count[i], gradient, scale, lr, user);
}

typedef struct setup {
    iso_reducer_config with;
    bool owns, in_pieces;
} setup;

static iso_reducer *make(const setup *s) {
    iso_reducer_param param[PARAMS];
    iso_reducer *r = NULL;
    for (int i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < count[i]; k++) put(value_of(i), i, k, i + sin((double)k));
        param[i] = (iso_reducer_param){.name = name[i],
                                       .value = value_of(i),
                                       .count = count[i],
                                       .dtype = is_double(i) ? ISO_F64 : ISO_F32,
                                       .layer = layer[i],
                                       .row = i == 1 ? 40 : 0,
                                       .gradient = s->owns ? own_of(i) : NULL};
    }
    iso_assert_ok(iso_reducer_create(test_comm, param, PARAMS, &s->with, &r));
    iso_assert_ok(iso_reducer_set_apply(r, update_all, sizeof(double), NULL));
    if (s->in_pieces || s->with.zero)
        iso_assert_ok(iso_reducer_set_apply_piece(r, ISO_REDUCER_ONLY, update_some));
    return r;
}

static double gradient_of(int rank, int step, int i, size_t k) {
    return sin((double)(rank + 1) * 0.7 + (double)step * 1.3 + (double)i + (double)k * 0.01);
}

static void write_gradient(iso_reducer *r, int i, int step, bool add) {
    void *g = iso_reducer_grad(r, i);
    for (size_t k = 0; k < count[i]; k++)
        put(g, i, k, gradient_of(test_rank, step, i, k) + (add ? get(g, i, k) : 0));
}

// Once reported, the program may use its array for anything.
static void spoil(int i) {
    for (size_t k = 0; k < count[i]; k++) put(own_of(i), i, k, NAN);
}
static bool is_spoilt(int i) {
    for (size_t k = 0; k < count[i]; k++)
        if (!isnan(get(own_of(i), i, k))) return false;
    return true;
}

static iso_status report(iso_reducer *r, const setup *s, int i) {
    iso_status status = ISO_OK;
    for (int k = 0; s->in_pieces && status == ISO_OK && k < iso_reducer_pieces(r, i) - 1; k++)
        status = iso_reducer_piece_ready(r, i, k);
    return status == ISO_OK ? iso_reducer_grad_ready(r, i) : status;
}

static iso_status backward(iso_reducer *r, const setup *s, int step, bool add) {
    iso_status status = ISO_OK;
    for (int i = PARAMS - 1; status == ISO_OK && i >= 0; i--) {
        write_gradient(r, i, step, add);
        status = report(r, s, i);
        if (s->owns) spoil(i);
    }
    if (s->with.sync == ISO_SYNC_EXPLICIT && status == ISO_OK) status = iso_reducer_all_reduce(r);
    return status;
}

static void train(const setup *s) {
    const double lr = 0.1;
    iso_reducer *r = make(s);
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < STEPS; step++) {
        for (int i = 0; status == ISO_OK && i < PARAMS; i++)
            status = iso_reducer_param_needed(r, i);
        if (s->with.zero) iso_reducer_zero_grad(r);
        if (status == ISO_OK) status = backward(r, s, step, false);
        if (status == ISO_OK) status = iso_reducer_step(r, &lr);
    }
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_ok(status);
    iso_reducer_destroy(&r);
}

static bool values_are(void *const expected[PARAMS]) {
    for (int i = 0; i < PARAMS; i++)
        if (memcmp(expected[i], value_of(i), count[i] * size_of(i)) != 0) return false;
    return true;
}

// The values of blocking training in the reducer's memory. Sums of f64 by messages depend on the
// sizes of buckets, so these are the same.
static void expect_bits(const setup *s) {
    static double room[PARAMS][MOST];
    void *expected[PARAMS];
    setup plain = {.with = s->with, .in_pieces = s->in_pieces};
    plain.with.sync = ISO_SYNC_BLOCKING;
    train(&plain);
    for (int i = 0; i < PARAMS; i++)
        expected[i] = memcpy(room[i], value_of(i), count[i] * size_of(i));
    train(s);
    iso_assert_all(values_are(expected));
}

static void gives_the_same_bits(void) {
    static const iso_sync sync[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_EXPLICIT};
    for (int k = 0; k < 3; k++)
        for (int cut = 0; cut < 4; cut++)
            expect_bits(&(setup){.with = {.sync = sync[k],
                                          .piece_bytes = cut & 1 ? 3000 : 0,
                                          .bucket_bytes = cut & 2 ? 1 << 20 : 0},
                                 .owns = true,
                                 .in_pieces = cut & 1});
    expect_bits(&(setup){.with = {.piece_bytes = 3000}, .owns = true}); // awaited as a whole
}
Test(np1_own_gradients, give_the_same_bits) { gives_the_same_bits(); }
Test(np2_own_gradients, give_the_same_bits) { gives_the_same_bits(); }
Test(np3_own_gradients, give_the_same_bits) { gives_the_same_bits(); }
Test(np4_own_gradients, give_the_same_bits) { gives_the_same_bits(); }

Test(np3_own_gradients, give_the_same_bits_with_zero) {
    for (int stage = 1; stage <= 2; stage++)
        expect_bits(&(setup){.with = {.zero = stage, .piece_bytes = 3000}, .owns = true});
}

// ---- Averages that no update uses -------------------------------------------------------------------

static double mean_of(int step, int i, size_t k) {
    double sum = 0;
    for (int rank = 0; rank < test_size; rank++) sum += gradient_of(rank, step, i, k);
    return sum / test_size;
}

static bool array_is(int i, double (*expected)(int i, size_t k)) {
    for (size_t k = 0; k < count[i]; k++)
        if (!(fabs(get(own_of(i), i, k) - expected(i, k)) < 1e-5)) return false;
    return true;
}
static double one_mean(int i, size_t k) { return mean_of(0, i, k); }
static double two_means(int i, size_t k) { return mean_of(0, i, k) + mean_of(1, i, k); }
static double lower_half(int i, size_t k) { return i + sin((double)k) - 0.5 * mean_of(0, i, k); }

static bool arrays_are(double (*expected)(int i, size_t k)) {
    for (int i = 0; i < PARAMS; i++)
        if (!array_is(i, expected)) return false;
    return true;
}

static const setup lazy = {.owns = true},
                   cut = {.owns = true, .with = {.piece_bytes = 3000}, .in_pieces = true},
                   blocking = {.owns = true, .with = {.sync = ISO_SYNC_BLOCKING}};

static void come_back_without_a_step(const setup *s) {
    iso_reducer *r = make(s);
    iso_assert_ok(backward(r, s, 0, false));
    iso_assert_ok(iso_reducer_param_needed(r, 1));
    iso_assert_all(array_is(1, one_mean));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(arrays_are(one_mean));
    iso_assert_ok(backward(r, s, 1, false)); // the arrays are spoilt
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < count[i]; k++) put(own_of(i), i, k, 7);
    const double lr = 0;
    iso_assert_ok(iso_reducer_step(r, &lr));
    iso_assert_ok(iso_reducer_finish(r));
    bool untouched = own[1][0] == 7 && own64[4][32] == 7;
    iso_assert_all(untouched); // a step uses the averages
    iso_reducer_destroy(&r);
}
Test(np1_own_gradients, averages_come_back_without_a_step) { come_back_without_a_step(&lazy); }
Test(np2_own_gradients, averages_come_back_without_a_step) { come_back_without_a_step(&lazy); }
Test(np3_own_gradients, averages_come_back_without_a_step_blocking) {
    come_back_without_a_step(&blocking);
}
Test(np2_own_gradients, averages_come_back_in_pieces) { come_back_without_a_step(&cut); }

// Parameters that an optimizer with its own step does not update get their averages, too.
Test(np2_own_gradients, averages_without_an_optimizer_come_back) {
    const double lr = 0.1;
    const int mine[] = {0, 1};
    int id;
    iso_reducer *r = make(&lazy);
    iso_assert_ok(iso_reducer_set_apply(r, NULL, 0, NULL));
    iso_assert_ok(iso_reducer_add_apply(r, mine, 2, update_all, sizeof(lr), NULL, &id));
    iso_assert_ok(backward(r, &lazy, 0, false));
    iso_assert_ok(iso_reducer_step(r, &lr));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(is_spoilt(0) && is_spoilt(1) && array_is(2, one_mean) && array_is(4, one_mean));
    iso_reducer_destroy(&r);
}

Test(np2_own_gradients, second_backward_adds_to_the_average) {
    iso_reducer *r = make(&lazy);
    iso_assert_ok(backward(r, &lazy, 0, false));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_ok(backward(r, &lazy, 1, true));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(arrays_are(two_means));
    iso_reducer_destroy(&r);
}

// As a program does that clips.
static void step_reads_the_arrays(const setup *s) {
    const double lr = 1;
    iso_reducer *r = make(s);
    iso_assert_ok(backward(r, s, 0, false));
    iso_assert_ok(iso_reducer_finish(r));
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < count[i]; k++) put(own_of(i), i, k, get(own_of(i), i, k) / 2);
    iso_assert_ok(iso_reducer_step(r, &lr));
    bool right = true;
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < count[i]; k++)
            if (!(fabs(get(value_of(i), i, k) - lower_half(i, k)) < 1e-5)) right = false;
    iso_assert_all(right);
    iso_reducer_destroy(&r);
}
Test(np2_own_gradients, step_after_finish_reads_the_arrays) { step_reads_the_arrays(&lazy); }
Test(np2_own_gradients, step_after_finish_reads_cut_arrays) { step_reads_the_arrays(&cut); }
Test(np2_own_gradients, step_after_finish_reads_cut_arrays_as_a_whole) {
    step_reads_the_arrays(&(setup){.owns = true, .with = {.piece_bytes = 3000}});
}

Test(np3_own_gradients, with_zero_this_ranks_elements_come_back) {
    const setup s = {.owns = true, .with = {.zero = true, .piece_bytes = 3000}};
    iso_reducer *r = make(&s);
    iso_assert_ok(backward(r, &s, 0, false));
    iso_assert_ok(iso_reducer_finish(r));
    bool right = true;
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < iso_reducer_pieces(r, i); k++) {
            size_t first, n, start, all;
            iso_reducer_own(r, i, k, &first, &n);
            iso_reducer_piece(r, i, k, &start, &all);
            for (size_t e = start; e < start + all; e++) {
                bool mine = e >= first && e < first + n;
                double g = get(own_of(i), i, e);
                if (mine ? !(fabs(g - mean_of(0, i, e)) < 1e-5) : !isnan(g)) right = false;
            }
        }
    iso_assert_all(right);
    iso_reducer_destroy(&r);
}

// ---- Unused parameters, errors ----------------------------------------------------------------------

// Parameter 2 is used on rank 0 only, parameter 4 nowhere.
static iso_status use_some(iso_reducer *r) {
    iso_status status = ISO_OK;
    for (int i = PARAMS - 2; status == ISO_OK && i >= 0; i--) {
        spoil(i);
        if (i == 2 && test_rank > 0) continue;
        write_gradient(r, i, 0, false);
        status = iso_reducer_grad_ready(r, i);
    }
    return status;
}

static double of_rank_0(int i, size_t k) { return gradient_of(0, 0, i, k) / test_size; }

Test(np2_own_gradients, unused_ones_count_as_zero) {
    iso_reducer *r = make(&(setup){.owns = true, .with = {.unused = ISO_UNUSED_ZERO}});
    spoil(4);
    iso_assert_ok(use_some(r));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(array_is(1, one_mean) && array_is(2, of_rank_0));
    iso_assert_all(own64[4][0] == 0 && own64[4][32] == 0);
    iso_reducer_destroy(&r);
}

Test(np2_own_gradients, one_that_no_rank_used_keeps_its_array) {
    iso_reducer *r = make(&(setup){.owns = true, .with = {.unused = ISO_UNUSED_NEGOTIATE}});
    spoil(4);
    iso_assert_ok(use_some(r));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(array_is(1, one_mean) && array_is(2, of_rank_0) && is_spoilt(4));
    iso_reducer_destroy(&r);
}

Test(np2_own_gradients, shadow_sends_zeros) {
    iso_reducer *r = make(&lazy);
    iso_assert_ok(backward(r, &lazy, 0, false));
    iso_assert_ok(iso_reducer_finish(r)); // averages that no step has used
    iso_assert_ok(test_rank == 1 ? iso_reducer_shadow(r) : backward(r, &lazy, 0, false));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(arrays_are(of_rank_0));
    iso_reducer_destroy(&r);
}

static double once(int i, size_t k) { return i + sin((double)k) - mean_of(0, i, k); }

Test(np2_own_gradients, failed_update_is_repeated_with_its_average) {
    const double lr = 1;
    iso_reducer *r = make(&(setup){.owns = true, .with = {.bucket_bytes = 1 << 20}});
    iso_assert_ok(backward(r, &lazy, 0, false));
    iso_assert_ok(iso_reducer_step(r, &lr));
    refusals = 1;
    iso_assert_all(iso_reducer_param_needed(r, 0) == ISO_ERR_STATE);
    iso_assert_ok(iso_reducer_finish(r));
    bool right = true;
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < count[i]; k++)
            if (!(fabs(get(value_of(i), i, k) - once(i, k)) < 1e-5)) right = false;
    iso_assert_all(right && is_spoilt(0) && is_spoilt(1) && is_spoilt(4));
    iso_reducer_destroy(&r);
}

static float a[8], b[8], g[12];

static void refuse(float *first, float *second, const char *said) {
    const iso_reducer_param param[] = {{.name = "a", .value = a, .count = 8, .gradient = first},
                                       {.name = "b", .value = b, .count = 8, .gradient = second}};
    iso_reducer *r = NULL;
    iso_status status = iso_reducer_create(test_comm, param, 2, NULL, &r);
    iso_assert_all(status == ISO_ERR_ARG && r == NULL);
    cr_expect(strstr(iso_last_error()->message, said), "%s", iso_last_error()->message);
}

Test(np1_own_gradients, arrays_that_overlap_are_refused) {
    refuse(g, g + 4, "the gradient of parameter \"a\" and the gradient of \"b\" overlap");
    refuse(g, g, "overlap in memory");
    refuse(a + 4, g, "the value of parameter \"a\" and the gradient of \"a\" overlap");
}
