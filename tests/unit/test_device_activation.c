// SPDX-License-Identifier: MIT
// Functions of one element, softmax and sums of every device and set of kernels against the
// double-precision oracle.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "common/oracle_norm.h"

#include <math.h>
#include <string.h>

TestSuite(device_activation, .timeout = 60, .fini = balance_check);

typedef struct function {
    iso__unary kind;
    double alpha;
} function;
static const function functions[] = {
    {ISO__TANH, 0},       {ISO__SIGMOID, 0}, {ISO__GELU, 0},
    {ISO__GELU_TANH, 0},  {ISO__SILU, 0},    {ISO__LEAKY_RELU, 0.25},
    {ISO__LEAKY_RELU, 0}, {ISO__ELU, 1},     {ISO__ELU, 0.375}};
static bool starts_from_output(function f) { return f.kind == ISO__TANH || f.kind == ISO__SIGMOID; }
static bool is_gelu(function f) { return f.kind == ISO__GELU || f.kind == ISO__GELU_TANH; }

// ---- Functions ----------------------------------------------------------------------------------

// In 16 bits a backward that starts from the output sees a rounded one.
static double slope(const target *on, function f, double x, double y) {
    if (iso__is_half(on->dtype) && f.kind == ISO__TANH) return 1 - y * y;
    if (iso__is_half(on->dtype) && f.kind == ISO__SIGMOID) return y * (1 - y);
    return oracle_unary_slope(f.kind, f.alpha, x);
}

static void unaries(const target *on) {
    for (int i = 0; i < COUNT(functions) * 2; i++) {
        function f = functions[i / 2];
        pair x = pair_4d(on, 2, 10, 5, 7, layouts[i % 2]);
        pair y = pair_4d(on, 2, 10, 5, 7, layouts[i % 2]);
        pair dy = pair_4d(on, 2, 10, 5, 7, layouts[i % 2]);
        for (int64_t k = 0; k < x.t->count; k++) x.d[k] *= 8;
        pair_write(&x);
        OK(on->kernels->unary_forward(on->device, f.kind, f.alpha, x.t, y.t));
        for (int64_t k = 0; k < x.t->count; k++) y.d[k] = oracle_unary(f.kind, f.alpha, x.d[k]);
        check_pair(on, &y, 2e-7, "output");
        pair_read(&y);
        OK(on->kernels->unary_backward(on->device, f.kind, f.alpha,
                                       starts_from_output(f) ? y.t : x.t, dy.t, dy.t));
        for (int64_t k = 0; k < x.t->count; k++) dy.d[k] *= slope(on, f, x.d[k], y.d[k]);
        check_pair(on, &dy, 1e-6, "gradient in place");
        pair_destroy(&x), pair_destroy(&y), pair_destroy(&dy);
    }
}
Test(device_activation, functions_match_the_oracle) { on_each_activation_target(unaries); }

// Relative errors over the whole range: small numbers are as exact as large ones.
static double allowed(const target *on, function f, double x) {
    double ulp = on->dtype == ISO_F64 ? 2.3e-16 : 1.2e-7;
    if (starts_from_output(f)) return 2 * ulp;
    if (!is_gelu(f)) return 3 * ulp;
    return (4 + 2 * x * x) * ulp; // in the tail of gelu the argument of exp rounds
}

static void precise(const target *on) {
    const int64_t count = 20001;
    for (int i = 0; i < COUNT(functions); i++) {
        function f = functions[i];
        pair x = pair_1d(on, count), y = pair_1d(on, count);
        void *in, *out;
        OK(iso_tensor_map(x.t, ISO_WRITE, &in));
        for (int64_t k = 0; k < count; k++) { // x = -10 ... 10, denser about 0
            double v = (double)(k - count / 2) / (double)(count / 2);
            v = 10 * v * v * v;
            if (on->dtype == ISO_F64)
                ((double *)in)[k] = x.d[k] = v;
            else
                x.d[k] = (double)(((float *)in)[k] = (float)v);
        }
        OK(iso_tensor_unmap(x.t));
        OK(on->kernels->unary_forward(on->device, f.kind, f.alpha, x.t, y.t));
        OK(iso_tensor_map(y.t, ISO_READ, &out));
        for (int64_t k = 0; k < count; k++) {
            double want = oracle_unary(f.kind, f.alpha, x.d[k]);
            if (f.kind == ISO__GELU_TANH && x.d[k] < -1) continue; // the oracle cancels
            double got = on->dtype == ISO_F64 ? ((double *)out)[k] : (double)((float *)out)[k];
            cr_assert(fabs(got - want) <= allowed(on, f, x.d[k]) * fabs(want),
                      "function %d of %.9g in %s is %.9g, not %.9g", (int)f.kind, x.d[k],
                      iso_dtype_name(on->dtype), got, want);
        }
        OK(iso_tensor_unmap(y.t));
        pair_destroy(&x), pair_destroy(&y);
    }
}
Test(device_activation, small_results_are_as_exact_as_large_ones) { on_each_target(precise); }

static void extremes(const target *on) {
    const double in[] = {-1e30, -200, -89, -0.0, 89, 200, 1e30, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < COUNT(functions); i++) {
        function f = functions[i];
        pair x = pair_1d(on, COUNT(in)), y = pair_1d(on, COUNT(in));
        for (int k = 0; k < COUNT(in); k++) {
            pair_set(&x, k, in[k]);
            y.d[k] = oracle_unary(f.kind, f.alpha, in[k]);
            // Infinite, or 0 * infinity, as x Phi(x), and x^3 + x in the approximation.
            bool large = isinf(in[k]) && !isfinite(y.d[k]);
            if (large || (is_gelu(f) && in[k] > 1e20)) pair_set(&x, k, y.d[k] = 0);
        }
        OK(on->kernels->unary_forward(on->device, f.kind, f.alpha, x.t, y.t));
        check_pair(on, &y, 1e-6, "output at the ends");
        pair_destroy(&x), pair_destroy(&y);
    }
}
Test(device_activation, ends_of_the_range_do_not_overflow) { on_each_target(extremes); }

// ---- Softmax ------------------------------------------------------------------------------------

static void softmax(const target *on) {
    static const int64_t sizes[][2] = {{9, 11}, {1, 1}, {5, 64}, {3, 1000}};
    for (int i = 0; i < COUNT(sizes); i++) {
        int64_t rows = sizes[i][0], k = sizes[i][1];
        pair x = pair_2d(on, rows, k), y = pair_2d(on, rows, k), dy = pair_2d(on, rows, k);
        pair dx = pair_2d(on, rows, k);
        for (int64_t j = 0; j < k; j++) x.d[j] *= 500; // would overflow
        pair_write(&x);
        OK(on->kernels->softmax_forward(on->device, x.t, y.t));
        oracle_softmax(rows, k, x.d, y.d);
        check_pair(on, &y, 1e-6, "softmax");
        pair_read(&y);
        OK(on->kernels->softmax_backward(on->device, y.t, dy.t, dx.t));
        oracle_softmax_backward(rows, k, y.d, dy.d, dx.d);
        check_pair(on, &dx, 1e-6, "softmax gradient");
        OK(on->kernels->softmax_backward(on->device, y.t, dy.t, dy.t));
        memcpy(dy.d, dx.d, (size_t)(rows * k) * sizeof(double));
        check_pair(on, &dy, 1e-6, "softmax gradient in place");
        pair_destroy(&x), pair_destroy(&y), pair_destroy(&dy), pair_destroy(&dx);
    }
}
Test(device_activation, softmax_matches_the_oracle) { on_each_activation_target(softmax); }

// ---- Sums ---------------------------------------------------------------------------------------

static void sums(const target *on) {
    for (int i = 0; i < 8; i++) { // layout, relu, in place
        iso_layout layout = layouts[i & 1];
        iso_activation act = i & 2 ? ISO_ACT_RELU : ISO_ACT_NONE;
        pair a = pair_4d(on, 3, 10, 3, 5, layout), b = pair_4d(on, 3, 10, 3, 5, layout);
        pair y = pair_4d(on, 3, 10, 3, 5, layout), *to = i & 4 ? &a : &y;
        OK(on->kernels->add(on->device, a.t, b.t, act, to->t));
        for (int64_t k = 0; k < a.t->count; k++) {
            double sum = a.d[k] + b.d[k];
            to->d[k] = act == ISO_ACT_RELU && sum < 0 ? 0 : sum;
        }
        check_pair(on, to, 1e-7, "sum");
        pair_read(to);
        OK(on->kernels->relu_backward_copy(on->device, to->t, b.t, y.t));
        for (int64_t k = 0; k < a.t->count; k++) b.d[k] = to->d[k] > 0 ? b.d[k] : 0;
        memcpy(y.d, b.d, (size_t)a.t->count * sizeof(double));
        check_pair(on, &b, 1e-7, "gradient through the relu of a sum");
        check_pair(on, &y, 1e-7, "its copy");
        pair_destroy(&a), pair_destroy(&b), pair_destroy(&y);
    }
}
Test(device_activation, sums_match_the_oracle) { on_each_activation_target(sums); }
