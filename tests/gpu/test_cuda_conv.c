// SPDX-License-Identifier: MIT
// Products and convolutions of a GPU by cuBLAS: samples taken in parts, the same bits in every run,
// nothing made again for a shape that was seen, and how f32 is rounded.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "device/cuda/runtime/cuda_impl.h"
#include "gpu/conv_problem.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_conv, .timeout = 120, .fini = balance_check);

static target open_cuda(iso_dtype dtype) {
    target on = {.dtype = dtype};
    setenv("ISO_CUDA_CONV", "gemm", 1);
    if (iso_device_create("cuda", &on.device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    on.kernels = on.device->kernels[dtype];
    return on;
}

// ---- Convolutions -------------------------------------------------------------------------------

static const oracle_conv convs[] = {
    {5, 6, 7, 9, 4, {3, 2}, {2, 1}, {1, 1}, .dilation = {1, 2}, .groups = 2},
    {5, 3, 9, 8, 7, {1, 1}, {1, 1}, .padding = {0, 0}}, // a sample is its own patches, forwards and
                                                        // to dx
};

// Room for one sample at a time, two, and all of them.
static void parts_of(iso_dtype dtype) {
    target on = open_cuda(dtype);
    for (int i = 0; i < COUNT(convs); i++)
        for (int samples = 1; samples <= 5; samples += samples < 2 ? 1 : 3) {
            const oracle_conv *c = &convs[i];
            int64_t cells = oracle_conv_height(c) * oracle_conv_width(c);
            int64_t one = cells * (c->in * c->kernel[0] * c->kernel[1] + c->out);
            size_t bytes = (size_t)(samples * one + one / 2) * iso_dtype_size(dtype);
            iso__cuda_of(on.device)->conv_room = bytes;
            problem p = problem_of(&on, c);
            problem_check(&on, &p, 1e-5);
            problem_destroy(&p);
        }
    iso_device_destroy(&on.device);
}
Test(cuda_conv, samples_in_parts_match_the_oracle_in_f32) { parts_of(ISO_F32); }
Test(cuda_conv, samples_in_parts_match_the_oracle_in_f64) { parts_of(ISO_F64); }

// Of so many pixels that the sums of the bias gradient are put together from parts.
static const oracle_conv wide = {9, 2, 34, 34, 3, {3, 3}, {1, 1}, .padding = {0, 0}};
Test(cuda_conv, sums_of_thousands_match_the_oracle) {
    target on = open_cuda(ISO_F64);
    problem p = problem_of(&on, &wide);
    problem_check(&on, &p, 1e-5);
    problem_destroy(&p);
    iso_device_destroy(&on.device);
}

// The bytes of dw and db after a backward.
static void *gradients(const target *on, problem *p) {
    size_t size = sizeof(float), w = (size_t)p->w.t->count * size, b = (size_t)p->b.t->count * size;
    char *out = malloc(w + b);
    OK(on->kernels->conv2d_backward_params(on->device, &p->config, p->x.t, p->y.t, p->w.t, false,
                                           p->b.t, false));
    OK(on->device->ops->to_host(on->device, p->w.t, out));
    OK(on->device->ops->to_host(on->device, p->b.t, out + w));
    return out;
}

Test(cuda_conv, gradients_have_the_same_bits_in_every_run) {
    target on = open_cuda(ISO_F32);
    problem p = problem_of(&on, &wide);
    size_t bytes = (size_t)(p.w.t->count + p.b.t->count) * sizeof(float);
    char *first = gradients(&on, &p);
    for (int i = 0; i < 5; i++) {
        char *again = gradients(&on, &p);
        cr_assert(memcmp(first, again, bytes) == 0, "run %d gave other bits", i);
        free(again);
    }
    free(first);
    problem_destroy(&p);
    iso_device_destroy(&on.device);
}

Test(cuda_conv, nothing_is_made_for_a_shape_that_was_seen) {
    setenv("ISO_CUDA_GRAPHS", "0", 1); // they take a few steps to settle
    target on = open_cuda(ISO_F32);
    iso__cuda *cuda = iso__cuda_of(on.device);
    problem p = problem_of(&on, &wide);
    free(gradients(&on, &p));
    long long made = iso_device_primitives_created(on.device), blocks, before, after;
    int device_blocks = cuda->pool.count;
    iso_memory_balance(&blocks, NULL, &before);
    OK(on.kernels->conv2d_backward_params(on.device, &p.config, p.x.t, p.y.t, p.w.t, true, p.b.t,
                                          true));
    iso_memory_balance(&blocks, NULL, &after);
    cr_assert(made > 0, "cuBLAS counts");
    cr_assert(iso_device_primitives_created(on.device) == made);
    cr_assert(cuda->pool.count == device_blocks);
    cr_assert(after == before);
    problem_destroy(&p);
    iso_device_destroy(&on.device);
}

Test(cuda_conv, an_unknown_choice_of_library_is_refused) {
    target on = open_cuda(ISO_F32);
    problem p = problem_of(&on, &wide);
    setenv("ISO_CUDA_CONV", "fastest", 1);
    cr_assert(on.kernels->conv2d_forward(on.device, &p.config, p.x.t, p.w.t, NULL, ISO_ACT_NONE,
                                         p.y.t) == ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "ISO_CUDA_CONV"));
    problem_destroy(&p);
    iso_device_destroy(&on.device);
}

// ---- Rounding of factors ------------------------------------------------------------------------

// The largest error of a linear layer, which may be compared with 2^-24, 2^-11 and 2^-8.
static double error_of(const target *on, const char *math, pair *x, pair *w, pair *y) {
    int64_t rows = x->t->shape[0], in = x->t->shape[1], out = w->t->shape[0];
    double *got = malloc((size_t)(rows * out) * sizeof(double)), worst = 0;
    OK(iso_device_set_math(on->device, math));
    OK(on->kernels->linear_forward(on->device, x->t, w->t, NULL, NULL, ISO_ACT_NONE, y->t));
    oracle_linear(rows, in, out, x->d, w->d, NULL, false, y->d);
    OK(on->device->ops->to_host(on->device, y->t, got));
    for (int64_t i = 0; i < rows * out; i++) {
        double value = on->dtype == ISO_F64 ? got[i] : (double)((float *)got)[i];
        worst = fmax(worst, fabs(value - y->d[i]));
    }
    free(got);
    return worst;
}

Test(cuda_conv, f32_is_exact_until_it_is_told_to_round) {
    for (iso_dtype dtype = ISO_F32; dtype <= ISO_F64; dtype++) {
        target on = open_cuda(dtype);
        bool emulated = strstr(iso_device_describe(on.device), "emulated") != NULL;
        pair x = pair_2d(&on, 8, 32), w = pair_2d(&on, 24, 32), y = pair_2d(&on, 8, 24);
        double f32 = error_of(&on, "f32", &x, &w, &y), tf32 = error_of(&on, "tf32", &x, &w, &y);
        double bf16 = error_of(&on, "bf16", &x, &w, &y);
        if (dtype == ISO_F64) {
            cr_assert(f32 < 1e-13 && tf32 < 1e-13 && bf16 < 1e-13, "f64 is never rounded");
        } else {
            cr_assert(f32 < 1e-5, "f32 is off by %g", f32);
            cr_assert(tf32 < 1e-2, "tf32 is off by %g", tf32);
            cr_assert(bf16 < 1e-1, "bf16 is off by %g", bf16);
            cr_assert(!emulated || (tf32 > 10 * f32 && bf16 > 2 * tf32), "%g %g %g", f32, tf32,
                      bf16);
            cr_assert(error_of(&on, "f32", &x, &w, &y) == f32, "and back");
        }
        pair_destroy(&x), pair_destroy(&w), pair_destroy(&y);
        iso_device_destroy(&on.device);
    }
}
