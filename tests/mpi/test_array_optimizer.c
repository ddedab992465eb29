// SPDX-License-Identifier: MIT
// Optimizers of the library, clipping and the check for finite gradients, on plain arrays.
#include "common/mpi_fixture.h"

#include <isotherm/clip.h>
#include <isotherm/optim.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_array_optimizer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_array_optimizer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_array_optimizer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// The matrix may be cut into pieces; the last one is f64.
enum { MATRIX, BIAS, HEAD, PARAMS, ROW = 16, MOST = 64 * ROW, STEPS = 4 };
static const size_t count[PARAMS] = {MOST, 40, 33};
static float value[2][MOST], own[2][MOST];
static double head[MOST], own_head[MOST];

static double get(const void *array, int i, size_t k) {
    return i == HEAD ? ((const double *)array)[k] : (double)((const float *)array)[k];
}
static void put(void *array, int i, size_t k, double x) {
    if (i == HEAD)
        ((double *)array)[k] = x;
    else
        ((float *)array)[k] = (float)x;
}
static void *value_of(int i) { return i == HEAD ? (void *)head : value[i]; }
static double start_of(int i, size_t k) { return 1 + 0.1 * i + 0.01 * sin((double)k); }
static double gradient_of(int rank, int step, int i, size_t k) {
    return sin(0.4 * (rank + 1) + 1.1 * step + i + 0.37 * (double)k);
}

static iso_reducer *create(const iso_reducer_config *config, bool owns) {
    static const char *const name[PARAMS] = {"net.weight", "net.bias", "head"};
    iso_reducer_param param[PARAMS];
    iso_reducer *r = NULL;
    for (int i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < count[i]; k++) put(value_of(i), i, k, start_of(i, k));
        param[i] = (iso_reducer_param){.name = name[i],
                                       .value = value_of(i),
                                       .count = count[i],
                                       .dtype = i == HEAD ? ISO_F64 : ISO_F32,
                                       .layer = i == HEAD ? 1 : 0,
                                       .row = i == MATRIX ? ROW : 0};
        if (owns) param[i].gradient = i == HEAD ? (void *)own_head : own[i];
    }
    iso_assert_ok(iso_reducer_create(test_comm, param, PARAMS, config, &r));
    return r;
}

static iso_status backward(iso_reducer *r, int step) {
    iso_status status = ISO_OK;
    for (int i = PARAMS - 1; status == ISO_OK && i >= 0; i--) {
        for (size_t k = 0; k < count[i]; k++)
            put(iso_reducer_grad(r, i), i, k, gradient_of(test_rank, step, i, k));
        status = iso_reducer_grad_ready(r, i);
    }
    return status;
}

static iso_status train(iso_reducer *r, iso_optimizer *optimizer) {
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < STEPS; step++) {
        for (int l = 0; status == ISO_OK && l < 2; l++) status = iso_reducer_layer_needed(r, l);
        iso_optimizer_zero_grad(optimizer);
        if (status == ISO_OK) status = backward(r, step);
        if (status == ISO_OK) status = iso_optimizer_step(optimizer);
    }
    return status == ISO_OK ? iso_reducer_finish(r) : status;
}

static void run(iso_optimizer_kind kind, const iso_reducer_config *config, bool owns) {
    iso_reducer *r = create(config, owns);
    iso_optimizer *optimizer = NULL;
    iso_hyper hyper = iso_hyper_default(kind);
    hyper.lr = 0.01;
    hyper.weight_decay = 0.1;
    iso_assert_ok(iso_reducer_set_optimizer(r, kind, &hyper, NULL, 0, &optimizer));
    iso_assert_ok(train(r, optimizer));
    iso_optimizer_destroy(&optimizer);
    iso_reducer_destroy(&r);
}

// ---- Against the formula ----------------------------------------------------------------------------

static double mean_of(int step, int i, size_t k) {
    double sum = 0;
    for (int rank = 0; rank < test_size; rank++) sum += gradient_of(rank, step, i, k);
    return sum / test_size;
}

// Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019), Algorithm 2.
static double adamw(int i, size_t k) {
    double x = start_of(i, k), m = 0, v = 0;
    for (int t = 1; t <= STEPS; t++) {
        double g = mean_of(t - 1, i, k);
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        x -= 0.01 * 0.1 * x;
        x -= 0.01 * m / (1 - pow(0.9, t)) / (sqrt(v / (1 - pow(0.999, t))) + 1e-8);
    }
    return x;
}

static void equals_the_formula(void) {
    run(ISO_ADAMW, &(iso_reducer_config){.sync = ISO_SYNC_LAZY}, true);
    double worst = 0;
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < count[i]; k++)
            worst = fmax(worst, fabs(get(value_of(i), i, k) - adamw(i, k)) * (i == HEAD ? 1e6 : 1));
    iso_assert_all(worst < 1e-5);
}
Test(np1_array_optimizer, adamw_equals_the_formula) { equals_the_formula(); }
Test(np3_array_optimizer, adamw_equals_the_formula) { equals_the_formula(); }

Test(np3_array_optimizer, lazy_gives_the_bits_of_blocking_for_every_kind) {
    static float expected[2][MOST];
    static double expected_head[MOST];
    for (int kind = ISO_SGD; kind <= ISO_NADAM; kind++) {
        run((iso_optimizer_kind)kind, &(iso_reducer_config){.sync = ISO_SYNC_BLOCKING}, false);
        memcpy(expected, value, sizeof(value));
        memcpy(expected_head, head, sizeof(head));
        const iso_reducer_config other[] = {
            {.piece_bytes = 1024}, {.bucket_bytes = 1 << 20}, {.zero = true}};
        for (int c = 0; c < (kind == ISO_LAMB ? 2 : 3); c++) {
            run((iso_optimizer_kind)kind, &other[c], c != 1);
            iso_assert_all(memcmp(expected, value, sizeof(value)) == 0);
            iso_assert_all(memcmp(expected_head, head, sizeof(head)) == 0);
        }
    }
}

static bool is_vector(const char *name, const iso_parameter *parameter, void *user) {
    int *calls = user;
    ++*calls;
    return strcmp(name, "net.weight") != 0 && iso_tensor_ndim(parameter->value) == 1;
}

// Only the matrix moves.
Test(np2_array_optimizer, groups_have_their_own_hyperparameters) {
    iso_reducer *r = create(NULL, true);
    iso_optimizer *optimizer = NULL;
    int calls = 0;
    iso_hyper still = iso_hyper_default(ISO_SGD), moves = still;
    still.lr = 0;
    moves.lr = 1;
    const iso_optimizer_group group = {still, is_vector, &calls};
    iso_assert_ok(iso_reducer_set_optimizer(r, ISO_SGD, &moves, &group, 1, &optimizer));
    cr_expect(calls == PARAMS && iso_optimizer_groups(optimizer) == 2);
    iso_assert_ok(backward(r, 0));
    iso_assert_ok(iso_optimizer_step(optimizer));
    iso_assert_ok(iso_reducer_finish(r));
    for (int i = 0; i < PARAMS; i++) {
        double moved = start_of(i, 3) - get(value_of(i), i, 3);
        iso_assert_all(fabs(moved - (i == MATRIX ? mean_of(0, i, 3) : 0)) < 1e-6);
    }
    iso_optimizer_destroy(&optimizer);
    iso_reducer_destroy(&r);
}

Test(np2_array_optimizer, one_is_enough) {
    iso_reducer *r = create(NULL, false);
    iso_optimizer *first = NULL, *second = NULL;
    iso_assert_ok(iso_reducer_set_optimizer(r, ISO_SGD, NULL, NULL, 0, &first));
    iso_assert_all(iso_reducer_set_optimizer(r, ISO_SGD, NULL, NULL, 0, &second) == ISO_ERR_STATE);
    cr_expect(strstr(iso_last_error()->message, "have an optimizer"));
    iso_optimizer_destroy(&first);
    iso_assert_ok(iso_reducer_set_optimizer(r, ISO_SGD, NULL, NULL, 0, &second));
    iso_optimizer_destroy(&second);
    iso_reducer_destroy(&r);
}

// ---- Norms ------------------------------------------------------------------------------------------

static double norm_of_means(void) {
    double sum = 0;
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < count[i]; k++) sum += mean_of(0, i, k) * mean_of(0, i, k);
    return sqrt(sum);
}

// Clipped to half of their norm, all gradients are half as long, and SGD moves half as far.
static void clips(const iso_reducer_config *config, bool owns) {
    iso_reducer *r = create(config, owns);
    iso_optimizer *optimizer = NULL;
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    double before = 0, norm = norm_of_means(), largest = 0, worst = 0;
    hyper.lr = 1;
    iso_assert_ok(iso_reducer_set_optimizer(r, ISO_SGD, &hyper, NULL, 0, &optimizer));
    iso_assert_ok(backward(r, 0));
    iso_assert_ok(iso_reducer_grad_norm(r, INFINITY, &largest));
    iso_assert_ok(iso_reducer_clip_grad_norm(r, norm / 2, 2, &before));
    iso_assert_ok(iso_optimizer_step(optimizer));
    iso_assert_ok(iso_reducer_finish(r));
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < count[i]; k++)
            worst =
                fmax(worst, fabs(get(value_of(i), i, k) - start_of(i, k) + mean_of(0, i, k) / 2));
    iso_assert_all(fabs(before - norm) < 1e-4 * norm && largest <= 1 && largest > 0.1);
    iso_assert_all(worst < 1e-5);
    iso_optimizer_destroy(&optimizer);
    iso_reducer_destroy(&r);
}
Test(np1_array_optimizer, clips) { clips(NULL, true); }
Test(np2_array_optimizer, clips_the_reducers_gradients) { clips(NULL, false); }
Test(np2_array_optimizer, clips_own_gradients) {
    clips(&(iso_reducer_config){.piece_bytes = 1024}, true);
}
Test(np3_array_optimizer, clips_with_zero) { clips(&(iso_reducer_config){.zero = true}, true); }
Test(np3_array_optimizer, clips_the_reducers_gradients_with_zero) {
    clips(&(iso_reducer_config){.zero = true, .piece_bytes = 1024}, false);
}

static void sees_what_is_not_finite(const iso_reducer_config *config) {
    for (int bad = 0; bad < 2; bad++) {
        iso_reducer *r = create(config, true);
        bool finite = bad;
        iso_assert_ok(backward(r, 0));
        iso_assert_ok(iso_reducer_grads_finite(r, &finite));
        iso_assert_all(finite);
        iso_reducer_zero_grad(r);
        for (int i = PARAMS - 1; i >= 0; i--) {
            for (size_t k = 0; k < count[i]; k++) put(iso_reducer_grad(r, i), i, k, 1);
            if (i == HEAD && test_rank == 0)
                put(iso_reducer_grad(r, i), i, 7, bad ? (double)NAN : (double)INFINITY);
            iso_assert_ok(iso_reducer_grad_ready(r, i));
        }
        iso_assert_ok(iso_reducer_grads_finite(r, &finite));
        iso_assert_all(!finite);
        iso_reducer_destroy(&r);
    }
}
Test(np2_array_optimizer, sees_what_is_not_finite) { sees_what_is_not_finite(NULL); }
Test(np3_array_optimizer, sees_what_is_not_finite_with_zero) {
    sees_what_is_not_finite(&(iso_reducer_config){.zero = true});
}

Test(np1_array_optimizer, misuse_is_told) {
    iso_reducer *r = create(NULL, false);
    iso_optimizer *optimizer = NULL;
    double norm;
    cr_expect_eq(iso_reducer_clip_grad_norm(r, -1, 2, &norm), ISO_ERR_ARG);
    cr_expect_eq(iso_reducer_grad_norm(r, 0, &norm), ISO_ERR_ARG);
    cr_expect_eq(iso_reducer_set_optimizer(r, (iso_optimizer_kind)99, NULL, NULL, 0, &optimizer),
                 ISO_ERR_ARG);
    cr_expect_null(optimizer);
    iso_reducer_destroy(&r);
}
