// SPDX-License-Identifier: MIT
// bf16 and f16 on a GPU: how conversions round, and sums over channels that lie beside each other.
#include "common/autocast_fixture.h"
#include "common/balance.h"
#include "common/oracle.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_half, .timeout = 120, .fini = balance_check);

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

static const iso_dtype halves[] = {ISO_BF16, ISO_F16};

static bool is_nan(iso_dtype half, uint16_t bits) {
    return (bits & 0x7fff) > (half == ISO_BF16 ? 0x7f80 : 0x7c00);
}

// Every upper half of an f32, which is a number of bf16, and what may follow it: nothing, the
// least, both sides of a tie of bf16 and the tie itself, the most; both sides of a tie of f16 and
// the tie itself. That is all exponents with denormals, infinities and NaNs.
static const uint32_t tails[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0xfff, 0x1000, 0x1001};
enum { NUMBERS = 1 << 16, TAILS = sizeof(tails) / sizeof(tails[0]), FLOATS = NUMBERS * TAILS };

static void check_rounding(iso_dtype half, const double *x, const uint16_t *got, int64_t count,
                           const char *from) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t want = half_nearest(half, x[i]);
        bool right = isnan(x[i]) ? is_nan(half, got[i]) : got[i] == want;
        cr_assert(right, "%a in %s became %04x in %s, not %04x", x[i], from, got[i],
                  iso_dtype_name(half), want);
    }
}

static void round_floats(iso_device *device, iso_dtype half) {
    iso_tensor *a = new_tensor(device, ISO_F32, FLOATS), *b = new_tensor(device, half, FLOATS);
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
    check_rounding(half, wide, y, FLOATS, "f32");
    free(x), free(wide), free(y);
    iso_tensor_destroy(&a), iso_tensor_destroy(&b);
}

static void in_both(void (*body)(iso_device *device, iso_dtype half)) {
    iso_device *device = open_cuda();
    for (int i = 0; i < COUNT(halves); i++) body(device, halves[i]);
    iso_device_destroy(&device);
}

Test(cuda_half, every_exponent_is_rounded_to_nearest_ties_to_even) { in_both(round_floats); }

// f64 is rounded once: a number next to a tie does not first become the tie in f32.
static void round_doubles(iso_device *device, iso_dtype half) {
    static const double nudge[] = {1, 1 - 0x1p-40, 1, 1 + 0x1p-40};
    enum { DOUBLES = NUMBERS * COUNT(nudge) };
    iso_tensor *a = new_tensor(device, ISO_F64, DOUBLES), *b = new_tensor(device, half, DOUBLES);
    double *x = malloc(DOUBLES * sizeof(double));
    uint16_t *y = malloc(DOUBLES * sizeof(uint16_t));
    uint32_t tie = half == ISO_BF16 ? 0x8000 : 0x1000;
    for (int64_t i = 0; i < DOUBLES; i++) {
        int which = (int)(i % COUNT(nudge));
        x[i] = (double)float_of((uint32_t)(i / COUNT(nudge)) << 16 | (which == 0 ? 0 : tie));
        x[i] *= nudge[which];
    }
    x[0] = 1e300, x[1] = -1e300, x[2] = 1e-300;
    give(a, x);
    OK(iso_tensor_copy(a, b));
    take(b, y);
    check_rounding(half, x, y, DOUBLES, "f64");
    free(x), free(y);
    iso_tensor_destroy(&a), iso_tensor_destroy(&b);
}

Test(cuda_half, doubles_next_to_a_tie_are_rounded_once) { in_both(round_doubles); }

static void widen(iso_device *device, iso_dtype half) {
    iso_tensor *a = new_tensor(device, half, NUMBERS);
    iso_tensor *b = new_tensor(device, ISO_F32, NUMBERS), *c = new_tensor(device, ISO_F64, NUMBERS);
    static uint16_t x[NUMBERS];
    static float y[NUMBERS];
    static double z[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) x[i] = (uint16_t)i;
    give(a, x);
    OK(iso_tensor_copy(a, b));
    OK(iso_tensor_copy(a, c));
    take(b, y), take(c, z);
    for (int i = 0; i < NUMBERS; i++) {
        double value = half_double(half, x[i]);
        bool nan = is_nan(half, x[i]);
        cr_assert((double)y[i] == value || (nan && isnan(y[i])), "%04x became %a in f32", i,
                  (double)y[i]);
        cr_assert(z[i] == value || (nan && isnan(z[i])), "%04x became %a in f64", i, z[i]);
    }
    iso_tensor_destroy(&a), iso_tensor_destroy(&b), iso_tensor_destroy(&c);
}

Test(cuda_half, widening_is_exact) { in_both(widen); }

// What is left of the last eight elements, and memory that does not begin at 16 bytes.
static void convert_some(iso_device *device, iso_dtype half) {
    enum { COUNT_OF = 37 };
    iso_tensor *a = new_tensor(device, ISO_F32, COUNT_OF), *b = new_tensor(device, half, COUNT_OF);
    float x[COUNT_OF];
    uint16_t y[COUNT_OF];
    for (int i = 0; i < COUNT_OF; i++) x[i] = (float)(i + 1);
    give(a, x);
    for (int64_t first = 0; first < 10; first++)
        for (int64_t count = 1; first + count < COUNT_OF; count++) {
            iso_tensor *from, *to;
            OK(iso_tensor_borrow(device, ISO_F32, 1, &count, (float *)a->data + first, &from));
            OK(iso_tensor_borrow(device, half, 1, &count, (uint16_t *)b->data + first, &to));
            OK(iso_tensor_fill(b, -2));
            OK(iso_tensor_copy(from, to));
            take(b, y);
            for (int64_t i = 0; i < COUNT_OF; i++) {
                bool in = i >= first && i < first + count;
                cr_assert(half_double(half, y[i]) == (in ? (double)x[i] : -2));
            }
            iso_tensor_destroy(&from), iso_tensor_destroy(&to);
        }
    iso_tensor_destroy(&a), iso_tensor_destroy(&b);
}

Test(cuda_half, conversions_reach_every_element_and_no_other) { in_both(convert_some); }

// Where f16 has no such number, as the infinite.
Test(cuda_half, bf16_becomes_f16_and_f16_bf16) {
    iso_device *device = open_cuda();
    static uint16_t x[NUMBERS], y[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) x[i] = (uint16_t)i;
    for (int i = 0; i < COUNT(halves); i++) {
        iso_dtype from = halves[i], to = halves[1 - i];
        iso_tensor *a = new_tensor(device, from, NUMBERS), *b = new_tensor(device, to, NUMBERS);
        give(a, x);
        OK(iso_tensor_copy(a, b));
        take(b, y);
        for (int k = 0; k < NUMBERS; k++) {
            double value = half_double(from, x[k]);
            bool right = isnan(value) ? is_nan(to, y[k]) : y[k] == half_nearest(to, value);
            cr_assert(right, "%a became %04x in %s", value, y[k], iso_dtype_name(to));
        }
        iso_tensor_destroy(&a), iso_tensor_destroy(&b);
    }
    iso_device_destroy(&device);
}

// ---- Master weights -------------------------------------------------------------------------------

// Every value of 16 bits, from f32 around it: at ties, just beside them, and far away.
static float master_of(iso_dtype half, int i, int k) {
    uint32_t tie = half == ISO_BF16 ? 0x8000 : 0x1000; // of normal numbers of f16
    float value = (float)half_double(half, (uint16_t)i);
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return float_of(bits + (uint32_t)(k / 3 - 1) * tie + (uint32_t)(k % 3 - 1));
}

static void take_masters(iso_device *device, iso_dtype half) {
    static uint16_t value[NUMBERS];
    static float x[NUMBERS], rounded[NUMBERS];
    iso_tensor *v = new_tensor(device, half, NUMBERS), *m = new_tensor(device, ISO_F32, NUMBERS);
    int kept = 0;
    for (int i = 0; i < NUMBERS; i++) value[i] = (uint16_t)i;
    give(v, value);
    for (int k = 0; k < 9; k++) {
        for (int i = 0; i < NUMBERS; i++) x[i] = master_of(half, i, k);
        give(m, x);
        OK(device->ops->take_master(device, half, NUMBERS, v->data, m->data));
        take(m, x);
        for (int i = 0; i < NUMBERS; i++) {
            float master = master_of(half, i, k);
            bool keeps = !is_nan(half, value[i]) && half_nearest(half, (double)master) == i;
            double want = keeps ? (double)master : half_double(half, value[i]);
            cr_assert((double)x[i] == want || (isnan(want) && isnan(x[i])), "%a for %04x, not %a",
                      (double)x[i], i, want);
            kept += keeps;
        }
        for (int i = 0; i < NUMBERS; i++) x[i] = master_of(half, i, k);
        give(m, x);
        OK(device->ops->remote->round_values(device, half, NUMBERS, m->data));
        take(m, rounded);
        for (int i = 0; i < NUMBERS; i++) {
            double want = half_double(half, half_nearest(half, (double)x[i]));
            cr_assert((double)rounded[i] == want || (isnan(want) && isnan(rounded[i])));
        }
    }
    cr_assert(kept > NUMBERS && kept < 8 * NUMBERS);
    iso_tensor_destroy(&v), iso_tensor_destroy(&m);
}

Test(cuda_half, master_weights_are_taken_where_rounding_differs) { in_both(take_masters); }

// ---- Sums over channels ---------------------------------------------------------------------------

// Many rows make many parts; 12 channels are no whole packs of 16 bytes.
static void sum_channels(iso_device *device, iso_dtype half) {
    static const int64_t sizes[][2] = {{3, 8},      {1, 64},   {5000, 8}, {4097, 40},
                                       {20000, 32}, {300, 12}, {7, 1}};
    target on = {.device = device, .dtype = half, .kernels = device->kernels[half]};
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
}

Test(cuda_half, bias_gradients_are_sums_in_f32_whatever_the_shape) { in_both(sum_channels); }

// ---- What is refused ------------------------------------------------------------------------------

static void refuse(iso_device *device, iso_dtype half) {
    iso_tensor *x = new_tensor(device, half, 4), *counts = new_tensor(device, ISO_I64, 4);
    OK(iso_tensor_fill(x, 1));
    cr_assert(iso_tensor_scale(x, 2) == ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, iso_dtype_name(half)));
    cr_assert(iso_tensor_copy(x, counts) == ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "to i64"));
    iso_tensor_destroy(&x), iso_tensor_destroy(&counts);
}

Test(cuda_half, what_is_not_computed_in_16_bits_is_refused) { in_both(refuse); }
