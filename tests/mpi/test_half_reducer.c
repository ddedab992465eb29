// SPDX-License-Identifier: MIT
// Parameters and gradients of bf16 and f16 on the gradient engine: summed in f32, rounded once.
#include "common/half_values.h"
#include "common/mpi_fixture.h"

#include <isotherm/clip.h>
#include <isotherm/device.h>
#include <isotherm/reducer.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void setup_messages(void) {
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    test_mpi_setup();
}
TestSuite(np1_half_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_half_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_half_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_half_messages, .init = setup_messages, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_half_messages, .init = setup_messages, .fini = test_mpi_teardown, .timeout = 60);

// MATRIX is bf16 and may be cut, BIAS is f16, PLAIN f32, LAYERS bf16 with two layers.
enum { MATRIX, BIAS, PLAIN, LAYERS, TENSORS, PARAMS = TENSORS + 1, ROW = 16, MOST = 64 * ROW };
enum { STEPS = 4 };
static const iso_dtype types[TENSORS] = {ISO_BF16, ISO_F16, ISO_F32, ISO_BF16};
static const size_t counts[TENSORS] = {MOST, 41, 33, 50};
static const char *const names[TENSORS] = {"matrix", "bias", "plain", "layers"};

// A model with arrays of the types above, or one of f32 whose elements have values of these types.
typedef struct model {
    bool wide;
    uint16_t half[TENSORS][MOST], half_gradient[TENSORS][MOST];
    float full[TENSORS][MOST], full_gradient[TENSORS][MOST];
} model;
static model given, expected;

static bool is_half(const model *m, int t) { return !m->wide && types[t] != ISO_F32; }
static void *value_of(model *m, int t) { return is_half(m, t) ? (void *)m->half[t] : m->full[t]; }
static void *gradient_of(model *m, int t) {
    return is_half(m, t) ? (void *)m->half_gradient[t] : m->full_gradient[t];
}
static uint16_t bits_of(int t, float x) { return half_bits(types[t], x); }
static float wide_of(int t, uint16_t h) { return half_float(types[t], h); }
static float rounded(int t, float x) { return types[t] == ISO_F32 ? x : wide_of(t, bits_of(t, x)); }

static float get(model *m, int t, const void *array, size_t k) {
    return is_half(m, t) ? wide_of(t, ((const uint16_t *)array)[k]) : ((const float *)array)[k];
}
static void put(model *m, int t, void *array, size_t k, float x) {
    if (is_half(m, t))
        ((uint16_t *)array)[k] = bits_of(t, x);
    else
        ((float *)array)[k] = rounded(t, x);
}

// ---- Training ---------------------------------------------------------------------------------------

typedef struct how {
    iso_reducer_config config;
    bool own_arrays; // gradients in arrays of the program
    bool finishes;   // completes each exchange before the step
    bool clips, sparse;
} how;

static int params_of(int t) { return t == LAYERS ? 2 : 1; }

static iso_reducer *create(model *m, const how *how) {
    iso_reducer_param param[TENSORS];
    iso_reducer *r = NULL;
    for (int t = 0; t < TENSORS; t++) {
        for (size_t k = 0; k < counts[t] * (size_t)params_of(t); k++)
            put(m, t, value_of(m, t), k, (float)(test_rank + 1 + sin(0.3 * (double)k + t)));
        param[t] = (iso_reducer_param){.name = names[t],
                                       .value = value_of(m, t),
                                       .count = counts[t],
                                       .dtype = is_half(m, t) ? types[t] : ISO_F32,
                                       .gradient = how->own_arrays ? gradient_of(m, t) : NULL,
                                       .layer = t,
                                       .layers = params_of(t),
                                       .row = t == MATRIX ? ROW : 0,
                                       .sparse_rows = t == MATRIX && how->sparse ? 64 : 0};
    }
    iso_assert_ok(iso_reducer_create(test_comm, param, TENSORS, &how->config, &r));
    return r;
}

// The value of a gradient in the type in which the program has it.
static void write_gradient(iso_reducer *r, model *m, const how *how, int step, int t, int slice) {
    void *to = iso_reducer_grad(r, t + slice);
    for (size_t k = 0; k < counts[t]; k++) {
        float x = (float)sin(0.4 * (test_rank + 1) + 1.1 * step + t + 5 * slice + 0.3 * (double)k);
        if (how->own_arrays)
            put(m, t, to, k, x);
        else
            ((float *)to)[k] = x; // of any value
    }
}

// Gets f32 gradients whatever the type of the value, and computes in f32.
static iso_status descend(const iso_reducer_update *u) {
    const float lr = *(const float *)u->hyper, *g = u->gradient;
    model *m = u->user;
    int t = u->param < LAYERS ? u->param : LAYERS;
    for (size_t k = 0; k < u->count; k++) {
        float x = get(m, t, u->value, k) - lr * (g[k] * (float)u->scale);
        put(m, t, u->value, k, x);
    }
    bool told = u->dtype == (is_half(m, t) ? types[t] : ISO_F32);
    return told ? ISO_OK : ISO_ERR_STATE;
}

// An f32 model's averages are rounded here, as those of 16-bit arrays are by the engine.
static void round_gradients(iso_reducer *r, const how *how) {
    for (int i = 0; how->own_arrays && i < PARAMS; i++) {
        int t = i < LAYERS ? i : LAYERS;
        float *g = iso_reducer_grad(r, i);
        for (size_t k = 0; k < counts[t]; k++) g[k] = rounded(t, g[k]);
    }
}

static iso_status train_step(iso_reducer *r, model *m, const how *how, int step, double *norm) {
    const float lr = 0.3f;
    iso_status status = ISO_OK;
    for (int i = 0; status == ISO_OK && i < PARAMS; i++) status = iso_reducer_param_needed(r, i);
    for (int t = TENSORS - 1; status == ISO_OK && t >= 0; t--)
        for (int l = params_of(t) - 1; status == ISO_OK && l >= 0; l--) {
            write_gradient(r, m, how, step, t, l);
            status = iso_reducer_grad_ready(r, t + l);
        }
    if (status == ISO_OK && (m->wide || how->finishes)) status = iso_reducer_finish(r);
    if (m->wide) round_gradients(r, how);
    if (status == ISO_OK && how->clips) status = iso_reducer_clip_grad_norm(r, 5, 2, norm);
    if (m->wide && how->clips) round_gradients(r, how);
    if (status == ISO_OK) status = iso_reducer_step(r, &lr);
    if (!m->wide) iso_reducer_zero_grad(r);
    return status;
}

static void train(model *m, const how *how, double norm[STEPS]) {
    iso_reducer *r = create(m, how);
    iso_assert_ok(iso_reducer_set_update(r, descend, sizeof(float), m));
    for (int step = 0; step < STEPS; step++)
        iso_assert_ok(train_step(r, m, how, step, &norm[step]));
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_destroy(&r);
}

static bool same_values(model *a, model *b) {
    for (int t = 0; t < TENSORS; t++)
        for (size_t k = 0; k < counts[t] * (size_t)params_of(t); k++)
            if (get(a, t, value_of(a, t), k) != get(b, t, value_of(b, t), k)) return false;
    return true;
}

// The training of 16-bit arrays has the bits of one of f32 arrays with the same values, which
// finishes each exchange and rounds its averages itself.
static void sums_in_f32_and_rounds_once(const iso_reducer_config *config, bool sparse) {
    double norms[2][STEPS] = {{0}};
    for (int n = 0; n < 8; n++) {
        how h = {.config = *config, .sparse = sparse};
        h.own_arrays = n & 1;
        h.finishes = n & 2;
        h.clips = n & 4;
        if (h.clips && config->zero) continue; // norms of rounded and unrounded elements
        given.wide = false;
        expected.wide = true;
        train(&given, &h, norms[0]);
        train(&expected, &h, norms[1]);
        iso_assert_all(same_values(&given, &expected));
        iso_assert_all(!h.clips ||
                       (norms[0][1] > 5 && memcmp(norms[0], norms[1], sizeof(norms[0])) == 0));
    }
}

Test(np1_half_reducer, sums_in_f32_and_rounds_once) {
    sums_in_f32_and_rounds_once(&(iso_reducer_config){.piece_bytes = 1024}, false);
}
Test(np2_half_reducer, sums_in_f32_and_rounds_once) {
    sums_in_f32_and_rounds_once(&(iso_reducer_config){.piece_bytes = 1024}, false);
    sums_in_f32_and_rounds_once(&(iso_reducer_config){.sync = ISO_SYNC_BLOCKING}, false);
}
Test(np3_half_reducer, sums_in_f32_and_rounds_once) {
    sums_in_f32_and_rounds_once(&(iso_reducer_config){.sums = 1, .bucket_bytes = 1 << 20}, false);
    sums_in_f32_and_rounds_once(&(iso_reducer_config){.unused = ISO_UNUSED_NEGOTIATE}, true);
}
Test(np3_half_messages, sums_in_f32_and_rounds_once) {
    sums_in_f32_and_rounds_once(&(iso_reducer_config){0}, false);
}
Test(np2_half_messages, sums_in_f32_and_rounds_once_with_hooks) {
    sums_in_f32_and_rounds_once(&(iso_reducer_config){.hook = &iso_hook_bf16}, false);
    sums_in_f32_and_rounds_once(&(iso_reducer_config){.hook = &iso_hook_int8}, false);
}

// ---- Against exact numbers --------------------------------------------------------------------------

// Rank 0 has 1, the others 2^-8, of which each would be lost in a sum of bf16: the sum of three is
// 1 + 2^-7, a bf16.
Test(np3_half_reducer, small_gradients_are_not_lost) {
    static uint16_t x[4], g[4];
    iso_reducer *r = NULL;
    const iso_reducer_param p = {
        .name = "x", .value = x, .gradient = g, .count = 4, .dtype = ISO_BF16};
    const iso_reducer_config config = {.average = ISO_AVERAGE_SUM};
    iso_assert_ok(iso_reducer_create(test_comm, &p, 1, &config, &r));
    for (int k = 0; k < 4; k++) g[k] = (uint16_t)iso__bf16_of(test_rank == 0 ? 1 : 0x1p-8f);
    iso_assert_ok(iso_reducer_grad_ready(r, 0));
    iso_assert_ok(iso_reducer_finish(r));
    bool right = true;
    for (int k = 0; k < 4; k++) right = right && iso__of_bf16(g[k]) == 1 + 0x1p-7f;
    iso_assert_all(right);
    iso_reducer_destroy(&r);
}

// ---- ZeRO, and what is refused ----------------------------------------------------------------------

static void zero_gives_the_bits(size_t piece_bytes) {
    double norms[STEPS];
    for (int own = 0; own < 2; own++) {
        how h = {.config = {.piece_bytes = piece_bytes}, .own_arrays = own};
        given.wide = expected.wide = false;
        train(&expected, &h, norms);
        for (h.config.zero = 1; h.config.zero <= 2; h.config.zero++) {
            train(&given, &h, norms);
            iso_assert_all(same_values(&given, &expected));
        }
    }
}
Test(np2_half_reducer, zero_gives_the_bits_of_a_run_without) { zero_gives_the_bits(0); }
Test(np3_half_reducer, zero_gives_the_bits_of_a_run_without) { zero_gives_the_bits(1024); }

static void expect_said(iso_status status, iso_status wanted, const char *said) {
    bool told = strstr(iso_last_error()->message, said);
    if (!told) fprintf(stderr, "%s\n", iso_last_error()->message);
    iso_assert_all(status == wanted && told);
}

Test(np2_half_reducer, misuse_is_told) {
    static uint16_t x[4];
    iso_reducer *r = NULL;
    iso_reducer_param p = {.name = "x", .value = x, .count = 4};
    p.dtype = test_rank ? ISO_BF16 : ISO_F16;
    expect_said(iso_reducer_create(test_comm, &p, 1, NULL, &r), ISO_ERR_MISMATCH, "bf16");
    p.dtype = ISO_U8;
    expect_said(iso_reducer_create(test_comm, &p, 1, NULL, &r), ISO_ERR_TYPE,
                "takes f32, f64, bf16 and f16");
}
