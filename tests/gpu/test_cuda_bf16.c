// SPDX-License-Identifier: MIT
// bf16 on a GPU: how conversions round, and sums over channels that lie beside each other.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "common/oracle.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_bf16, .timeout = 120, .fini = balance_check);

static iso_device *open_cuda(void) {
    iso_device *device;
    if (iso_device_create("cuda", &device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    return device;
}

static iso_tensor *new_tensor(iso_device *device, iso_dtype dtype, int64_t count) {
    iso_tensor *t;
    OK(iso_tensor_create(device, dtype, 1, &count, &t));
    return t;
}

static void give(iso_tensor *t, const void *values) {
    OK(t->device->ops->from_host(t->device, values, t));
}

static void take(iso_tensor *t, void *values) { OK(t->device->ops->to_host(t->device, t, values)); }

// ---- Conversions ----------------------------------------------------------------------------------

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static bool is_nan(uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

// Every number of bf16 and what may follow it in f32: nothing, the least, both sides of a tie and
// the tie itself, the most. That is all exponents with denormals, infinities and NaNs.
static const uint32_t tails[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
enum { NUMBERS = 1 << 16, TAILS = sizeof(tails) / sizeof(tails[0]), FLOATS = NUMBERS * TAILS };

static void check_rounding(const double *x, const uint16_t *got, int64_t count, const char *from) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t want = bf16_nearest(x[i]);
        bool right = isnan(x[i]) ? is_nan(got[i]) : got[i] == want;
        cr_assert(right, "%a in %s became %04x, not %04x", x[i], from, got[i], want);
    }
}

Test(cuda_bf16, every_exponent_is_rounded_to_nearest_ties_to_even) {
    iso_device *device = open_cuda();
    iso_tensor *a = new_tensor(device, ISO_F32, FLOATS), *b = new_tensor(device, ISO_BF16, FLOATS);
    float *x = malloc(FLOATS * sizeof(float));
    double *wide = malloc(FLOATS * sizeof(double));
    uint16_t *y = malloc(FLOATS * sizeof(uint16_t));
    for (int64_t i = 0; i < FLOATS; i++) {
        x[i] = float_of((uint32_t)(i / TAILS) << 16 | tails[i % TAILS]);
        wide[i] = (double)x[i];
    }
    give(a, x);
    OK(iso_tensor_copy(a, b));
    take(b, y);
    check_rounding(wide, y, FLOATS, "f32");
    free(x), free(wide), free(y);
    iso_tensor_destroy(&a), iso_tensor_destroy(&b);
    iso_device_destroy(&device);
}

// f64 is rounded once: a number next to a tie does not first become the tie in f32.
Test(cuda_bf16, doubles_next_to_a_tie_are_rounded_once) {
    iso_device *device = open_cuda();
    iso_tensor *a = new_tensor(device, ISO_F64, FLOATS), *b = new_tensor(device, ISO_BF16, FLOATS);
    double *x = malloc(FLOATS * sizeof(double));
    uint16_t *y = malloc(FLOATS * sizeof(uint16_t));
    for (int64_t i = 0; i < FLOATS; i++) {
        static const double nudge[TAILS] = {1, 1, 1 - 0x1p-40, 1, 1 + 0x1p-40, 1};
        x[i] = (double)float_of((uint32_t)(i / TAILS) << 16 | (i % TAILS == 0 ? 0 : 0x8000));
        x[i] *= nudge[i % TAILS];
    }
    x[0] = 1e300, x[1] = -1e300, x[2] = 1e-300;
    give(a, x);
    OK(iso_tensor_copy(a, b));
    take(b, y);
    check_rounding(x, y, FLOATS, "f64");
    free(x), free(y);
    iso_tensor_destroy(&a), iso_tensor_destroy(&b);
    iso_device_destroy(&device);
}

Test(cuda_bf16, widening_is_exact) {
    iso_device *device = open_cuda();
    iso_tensor *a = new_tensor(device, ISO_BF16, NUMBERS);
    iso_tensor *b = new_tensor(device, ISO_F32, NUMBERS), *c = new_tensor(device, ISO_F64, NUMBERS);
    static uint16_t x[NUMBERS];
    static uint32_t y[NUMBERS];
    static double z[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) x[i] = (uint16_t)i;
    give(a, x);
    OK(iso_tensor_copy(a, b));
    OK(iso_tensor_copy(a, c));
    take(b, y), take(c, z);
    for (int i = 0; i < NUMBERS; i++) {
        cr_assert(y[i] == (uint32_t)i << 16, "%04x became %08x in f32", i, y[i]);
        cr_assert(z[i] == bf16_value(x[i]) || (is_nan(x[i]) && isnan(z[i])),
                  "%04x became %a in f64", i, z[i]);
    }
    iso_tensor_destroy(&a), iso_tensor_destroy(&b), iso_tensor_destroy(&c);
    iso_device_destroy(&device);
}

// What is left of the last eight elements, and memory that does not begin at 16 bytes.
Test(cuda_bf16, conversions_reach_every_element_and_no_other) {
    enum { COUNT_OF = 37 };
    iso_device *device = open_cuda();
    iso_tensor *a = new_tensor(device, ISO_F32, COUNT_OF),
               *b = new_tensor(device, ISO_BF16, COUNT_OF);
    float x[COUNT_OF];
    uint16_t y[COUNT_OF];
    for (int i = 0; i < COUNT_OF; i++) x[i] = (float)(i + 1);
    give(a, x);
    for (int64_t first = 0; first < 10; first++)
        for (int64_t count = 1; first + count < COUNT_OF; count++) {
            iso_tensor *from, *to;
            OK(iso_tensor_borrow(device, ISO_F32, 1, &count, (float *)a->data + first, &from));
            OK(iso_tensor_borrow(device, ISO_BF16, 1, &count, (uint16_t *)b->data + first, &to));
            OK(iso_tensor_fill(b, -2));
            OK(iso_tensor_copy(from, to));
            take(b, y);
            for (int64_t i = 0; i < COUNT_OF; i++) {
                bool in = i >= first && i < first + count;
                cr_assert(bf16_value(y[i]) == (in ? (double)x[i] : -2));
            }
            iso_tensor_destroy(&from), iso_tensor_destroy(&to);
        }
    iso_tensor_destroy(&a), iso_tensor_destroy(&b);
    iso_device_destroy(&device);
}

// ---- Sums over channels ---------------------------------------------------------------------------

// Many rows make many parts; 12 channels are no whole packs of 16 bytes.
Test(cuda_bf16, bias_gradients_are_sums_in_f32_whatever_the_shape) {
    static const int64_t sizes[][2] = {{3, 8},      {1, 64},   {5000, 8}, {4097, 40},
                                       {20000, 32}, {300, 12}, {7, 1}};
    target on = {.device = open_cuda(), .dtype = ISO_BF16};
    on.kernels = on.device->kernels[ISO_BF16];
    target of_parameters = parameter_target(&on);
    for (int i = 0; i < COUNT(sizes); i++) {
        int64_t rows = sizes[i][0], channels = sizes[i][1];
        pair x = pair_2d(&on, rows, 1), dy = pair_2d(&on, rows, channels);
        pair db = pair_1d(&of_parameters, channels);
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            if (!accumulate) zero(&db);
            OK(on.kernels->linear_backward_params(on.device, x.t, dy.t, NULL, false, db.t,
                                                  accumulate));
            oracle_linear_backward(rows, 1, channels, x.d, NULL, dy.d, NULL, db.d, NULL);
            check_pair(&on, &db, 1e-5, "bias gradient");
        }
        pair_destroy(&x), pair_destroy(&dy), pair_destroy(&db);
    }
    iso_device_destroy(&on.device);
}

// ---- What is refused ------------------------------------------------------------------------------

Test(cuda_bf16, what_is_not_computed_in_bf16_is_refused) {
    iso_device *device = open_cuda();
    iso_tensor *x = new_tensor(device, ISO_BF16, 4), *half = new_tensor(device, ISO_F16, 4);
    OK(iso_tensor_fill(x, 1));
    cr_assert(iso_tensor_scale(x, 2) == ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "bf16"));
    cr_assert(iso_tensor_copy(x, half) == ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "bf16 to f16"));
    iso_tensor_destroy(&x), iso_tensor_destroy(&half);
    iso_device_destroy(&device);
}
