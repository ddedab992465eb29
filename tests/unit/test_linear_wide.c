// SPDX-License-Identifier: MIT
// The AVX-512 forward of linear layers: the right values at every edge, and bits that depend on
// neither the other rows nor the number of threads.
#include "common/balance.h"
#include "device/cpu/cpu_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(linear_wide, .timeout = 60, .fini = balance_check);

#define OK(expr) cr_assert((expr) == ISO_OK, "%s: %s", #expr, iso_last_error()->message)

enum { ROWS = 150, IN = 70, OUT = 40 };

static float x[ROWS * IN], w[OUT * IN], b[OUT], y[ROWS * OUT + 1], again[ROWS * OUT];

static void fill(float *to, int count, int seed) {
    for (int i = 0; i < count; i++) to[i] = (float)((i + seed) * 7919LL % 1009) / 1009 - 0.5f;
}

static iso_device *open_cpu(void) {
    iso_device *device;
    fill(x, ROWS * IN, 1), fill(w, OUT * IN, 2), fill(b, OUT, 3);
    OK(iso_device_create("cpu", &device));
    if (!iso__cpu_wide_suits(16, 16, 6)) {
        iso_device_destroy(&device);
        cr_skip_test("this processor has no AVX-512");
    }
    return device;
}

static double expected(const iso__wide_args *a, int64_t row, int64_t o) {
    double sum = a->b ? a->b[o] : 0;
    for (int64_t k = 0; k < a->in; k++) sum += (double)a->x[row * a->in + k] * a->w[o * a->in + k];
    return a->relu && sum < 0 ? 0 : sum;
}

Test(linear_wide, gives_the_product_for_every_remainder) {
    iso_device *device = open_cpu();
    const int64_t rows[] = {16, 17, 31, 32, 47, 48, 63, 64, 65, 100, 128, ROWS};
    const int64_t in[] = {16, 17, 31, 48, IN}, out[] = {6, 7, 11, 12, 13, OUT};
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++)
        for (int i = 0; i < 5; i++)
            for (int o = 0; o < 6; o++) {
                iso__wide_args a = {rows[r], in[i], out[o], x, w, o % 2 ? b : NULL, i % 2, y, NULL};
                int64_t count = a.rows * a.out;
                y[count] = 7;
                OK(iso__cpu_wide_linear(iso__cpu_of(device), &a));
                cr_assert(y[count] == 7, "wrote behind the end");
                for (int64_t k = 0; k < count; k++)
                    cr_assert(fabs(y[k] - expected(&a, k / a.out, k % a.out)) < 1e-5,
                              "%lld x %lld -> %lld, element %lld", (long long)a.rows,
                              (long long)a.in, (long long)a.out, (long long)k);
            }
    iso_device_destroy(&device);
}

Test(linear_wide, a_row_has_the_same_bits_in_every_batch) {
    iso_device *device = open_cpu();
    iso__wide_args all = {ROWS, IN, OUT, x, w, b, true, y, NULL};
    OK(iso__cpu_wide_linear(iso__cpu_of(device), &all));
    for (int64_t from = 0; from + 21 <= ROWS; from += 13) {
        iso__wide_args part = {21, IN, OUT, x + from * IN, w, b, true, again, NULL};
        OK(iso__cpu_wide_linear(iso__cpu_of(device), &part));
        cr_assert(memcmp(again, y + from * OUT, 21 * OUT * sizeof(float)) == 0);
    }
    iso_device_destroy(&device);
}

Test(linear_wide, threads_do_not_change_the_bits) {
    iso_device *device = open_cpu();
    iso__wide_args one = {ROWS, IN, OUT - 1, x, w, b, false, y, NULL}, three = one;
    three.y = again;
    OK(iso__cpu_wide_linear(iso__cpu_of(device), &one));
    OK(iso_device_set_threads(device, 3));
    OK(iso__cpu_wide_linear(iso__cpu_of(device), &three));
    cr_assert(memcmp(y, again, sizeof(float) * ROWS * (OUT - 1)) == 0);
    iso_device_destroy(&device);
}

Test(linear_wide, a_nan_passes_the_relu) {
    iso_device *device = open_cpu();
    iso__wide_args a = {20, IN, OUT, x, w, b, true, y, NULL};
    x[3 * IN + 5] = NAN;
    OK(iso__cpu_wide_linear(iso__cpu_of(device), &a));
    for (int i = 0; i < 20 * OUT; i++) cr_assert(isnan(y[i]) == (i / OUT == 3));
    iso_device_destroy(&device);
}
