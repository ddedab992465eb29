// SPDX-License-Identifier: MIT
// ZeRO (of stage 1, with -DZERO_STAGE=2 of stage 2) on plain arrays: who updates which elements,
// and what update functions must offer.
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <isotherm/reducer.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#ifndef ZERO_STAGE
#define ZERO_STAGE 1
#endif

TestSuite(np1_zero_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_zero_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_zero_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_zero_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 6 };

// ---- Plain arrays -----------------------------------------------------------------------------------

enum { ARRAYS = 5, LONGEST = 1200 };
static const size_t length_of[ARRAYS] = {7, 1200, 1, 640, 33};

typedef struct arrays {
    double value[ARRAYS][LONGEST];
    float single[LONGEST]; // of the fourth
    int updates[ARRAYS][LONGEST];
    bool fails;
    iso_reducer *reducer;
} arrays;

static iso_dtype dtype_of(int i) { return i == 3 ? ISO_F32 : ISO_F64; }

static iso_status update_all(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)i, (void)gradient, (void)scale, (void)hyper, (void)user;
    return ISO_FAIL(ISO_ERR_STATE, "a whole update");
}

static iso_status update_some(int i, size_t first, size_t count, void *gradient, double scale,
                              const void *hyper, void *user) {
    arrays *x = user;
    double lr = *(const double *)hyper;
    if (x->fails) {
        x->fails = false;
        return ISO_FAIL(ISO_ERR_STATE, "an update that fails once");
    }
    for (size_t k = 0; k < count; k++) {
        x->updates[i][first + k]++;
        if (dtype_of(i) == ISO_F32)
            x->single[first + k] -= (float)(lr * scale * (double)((float *)gradient)[k]);
        else
            x->value[i][first + k] -= lr * scale * ((double *)gradient)[k];
    }
    return ISO_OK;
}

static void create_arrays(arrays *x, const iso_reducer_config *config) {
    static const char *const name[ARRAYS] = {"a", "b", "c", "d", "e"};
    iso_reducer_param param[ARRAYS];
    *x = (arrays){.fails = false};
    for (int i = 0; i < ARRAYS; i++)
        param[i] = (iso_reducer_param){.name = name[i],
                                       .value = i == 3 ? (void *)x->single : x->value[i],
                                       .count = length_of[i],
                                       .dtype = dtype_of(i),
                                       .row = i == 1 ? 40 : 0,
                                       .layer = i};
    iso_assert_ok(iso_reducer_create(test_comm, param, ARRAYS, config, &x->reducer));
    iso_assert_ok(iso_reducer_set_apply(x->reducer, update_all, sizeof(double), x));
}

static void write_gradient(arrays *x, int i, int step) {
    void *gradient = iso_reducer_grad(x->reducer, i);
    for (size_t k = 0; k < length_of[i]; k++) {
        double g = (double)(test_rank + 1) * (double)(step + 1) + (double)(k % 5);
        if (dtype_of(i) == ISO_F32)
            ((float *)gradient)[k] = (float)g;
        else
            ((double *)gradient)[k] = g;
    }
}

// The sum over steps and ranks of what was written.
static double wanted(int steps, size_t k) {
    double sum = 0;
    for (int step = 0; step < steps; step++)
        for (int r = 0; r < test_size; r++) sum += (double)(r + 1) * (step + 1) + (double)(k % 5);
    return -sum / test_size;
}

static bool values_are(const arrays *x, int steps) {
    for (int i = 0; i < ARRAYS; i++)
        for (size_t k = 0; k < length_of[i]; k++) {
            double got = i == 3 ? (double)x->single[k] : x->value[i][k];
            if (fabs(got - wanted(steps, k)) > 1e-4) return false;
        }
    return true;
}

static void backward_arrays(arrays *x, int step) {
    for (int i = ARRAYS - 1; i >= 0; i--) {
        write_gradient(x, i, step);
        iso_assert_ok(iso_reducer_grad_ready(x->reducer, i));
    }
}

// Every element is updated once a step, by the rank that owns it.
static void updates_are_shared(size_t bucket, size_t piece) {
    const iso_reducer_config config = {
        .zero = ZERO_STAGE, .bucket_bytes = bucket, .piece_bytes = piece, .sums = 1};
    const double lr = 1;
    static arrays x;
    create_arrays(&x, &config);
    iso_assert_ok(iso_reducer_set_apply_piece(x.reducer, ISO_REDUCER_ONLY, update_some));
    for (int step = 0; step < STEPS; step++) {
        double sum = 0;
        iso_assert_ok(iso_reducer_add_sum(x.reducer, 0, test_rank + step));
        backward_arrays(&x, step);
        iso_assert_ok(iso_reducer_step(x.reducer, &lr));
        for (int i = 0; i < ARRAYS; i++)
            iso_assert_ok(iso_reducer_param_needed(x.reducer, step % 2 ? i : ARRAYS - 1 - i));
        iso_assert_all(values_are(&x, step + 1));
        iso_assert_ok(iso_reducer_get_sum(x.reducer, 0, &sum));
        iso_assert_all(sum == test_size * (test_size - 1) / 2 + test_size * step);
    }
    for (int i = 0; i < ARRAYS; i++) {
        bool own[LONGEST] = {false};
        for (int k = 0; k < iso_reducer_pieces(x.reducer, i); k++) {
            size_t first, count;
            iso_reducer_own(x.reducer, i, k, &first, &count);
            for (size_t e = 0; e < count; e++) own[first + e] = true;
        }
        for (size_t k = 0; k < length_of[i]; k++) {
            int64_t owners = own[k];
            cr_assert_eq(x.updates[i][k], own[k] ? STEPS : 0);
            iso_assert_ok(iso_comm_allreduce_i64(test_comm, &owners, 1, ISO_SUM));
            iso_assert_all(owners == 1);
        }
    }
    iso_reducer_destroy(&x.reducer);
}

Test(np2_zero_arrays, every_element_has_one_owner) { updates_are_shared(0, 0); }
Test(np3_zero_arrays, every_element_has_one_owner) { updates_are_shared(5000, 0); }
Test(np4_zero_arrays, every_element_has_one_owner) { updates_are_shared(0, 1600); }
Test(np1_zero_arrays, every_element_has_one_owner) { updates_are_shared(0, 0); }

// The call that waits reports it, and goes on where it is called again. Whether that call waits for
// the values of another bucket at this moment differs from step to step.
static void fail_once(int failing) {
    const iso_reducer_config config = {.zero = ZERO_STAGE, .sums = 1};
    const double lr = 1;
    static arrays x;
    create_arrays(&x, &config);
    iso_assert_ok(iso_reducer_set_apply_piece(x.reducer, ISO_REDUCER_ONLY, update_some));
    for (int step = 0; step < STEPS; step++) {
        double sum = 0;
        iso_assert_ok(iso_reducer_add_sum(x.reducer, 0, test_rank + 1));
        backward_arrays(&x, step);
        x.fails = test_rank == failing;
        iso_status status = iso_reducer_step(x.reducer, &lr);
        if (status == ISO_OK) status = iso_reducer_finish(x.reducer);
        bool told = status == (test_rank == failing ? ISO_ERR_STATE : ISO_OK);
        iso_assert_ok(iso_reducer_finish(x.reducer)); // the other rank may wait for it
        iso_assert_all(told);
        iso_assert_all(values_are(&x, step + 1));
        iso_assert_ok(iso_reducer_get_sum(x.reducer, 0, &sum));
        iso_assert_all(sum == 3);
    }
    iso_reducer_destroy(&x.reducer);
}

Test(np2_zero_arrays, an_update_that_fails_is_made_again) {
    fail_once(0);
    fail_once(1);
}

Test(np2_zero_arrays, an_update_of_whole_parameters_is_refused) {
    const iso_reducer_config config = {.zero = ZERO_STAGE};
    const double lr = 1;
    static arrays x;
    create_arrays(&x, &config);
    backward_arrays(&x, 0);
    iso_assert_all(iso_reducer_step(x.reducer, &lr) == ISO_ERR_STATE);
    cr_assert(strstr(iso_last_error()->message, "iso_reducer_set_apply_piece"));
    iso_assert_ok(iso_reducer_set_apply_piece(x.reducer, ISO_REDUCER_ONLY, update_some));
    iso_assert_ok(iso_reducer_step(x.reducer, &lr));
    iso_assert_ok(iso_reducer_finish(x.reducer));
    iso_assert_all(values_are(&x, 1));
    int id;
    iso_assert_all(iso_reducer_add_apply(x.reducer, NULL, 0, update_all, 8, NULL, &id) ==
                   ISO_ERR_UNSUPPORTED);
    iso_reducer_destroy(&x.reducer);
}
