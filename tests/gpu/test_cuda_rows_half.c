// SPDX-License-Identifier: MIT
// Softmax and layer norm of bf16 and f16 on a GPU: rows that are read 16 bytes at a time, and the
// same rows in memory that does not allow that.
#include "common/autocast_fixture.h"
#include "common/balance.h"

#include <math.h>

TestSuite(cuda_rows_half, .timeout = 120, .fini = balance_check);

// For warps and for blocks; 11 and 1030 are read one by one anywhere.
static const int64_t sizes[][2] = {{5, 64}, {3, 1000}, {2, 2056}, {4, 11}, {2, 1030}, {1, 8}};
enum { GUARD = 9 };

static iso_dtype half = ISO_BF16; // the type under test

// [rows, k] of 16 bits in memory that begins `first` elements behind a multiple of 16 bytes, and
// what follows it there.
typedef struct grid {
    iso_tensor *memory, t;
} grid;

static grid new_grid(iso_device *device, const int64_t *size, int first) {
    int64_t count = size[0] * size[1] + first + GUARD;
    grid g;
    OK(iso_tensor_create(device, half, 1, &count, &g.memory));
    OK(iso_tensor_fill(g.memory, -7));
    g.t = *g.memory;
    g.t.ndim = 2, g.t.shape[0] = size[0], g.t.shape[1] = size[1], g.t.count = size[0] * size[1];
    g.t.data = (char *)g.t.data + (size_t)first * sizeof(uint16_t);
    return g;
}

static grid given_grid(iso_device *device, const int64_t *size, int first, const iso_tensor *x) {
    grid g = new_grid(device, size, first);
    OK(device->ops->copy(device, x, &g.t));
    return g;
}

// What came out in either memory: the same up to how sums are rounded, and nothing beside it.
static void compare(const grid out[2], const char *what) {
    double *x[2];
    iso_tensor *wide;
    for (int i = 0; i < 2; i++) {
        OK(iso_tensor_create(out[i].t.device, ISO_F32, 1, out[i].memory->shape, &wide));
        OK(iso_tensor_copy(out[i].memory, wide));
        x[i] = doubles(wide);
        iso_tensor_destroy(&wide);
        int64_t end = out[i].t.count + i;
        for (int64_t k = 0; k < i; k++) cr_assert(x[i][k] == -7, "%s: in front", what);
        for (int64_t k = end; k < end + GUARD; k++) cr_assert(x[i][k] == -7, "%s: behind", what);
    }
    for (int64_t k = 0; k < out[0].t.count; k++)
        cr_assert(fabs(x[0][k] - x[1][k + 1]) <= 0x1p-7 * fabs(x[0][k]), "%s: %d is %g and %g",
                  what, (int)k, x[0][k], x[1][k + 1]);
    free(x[0]), free(x[1]);
}

typedef iso_status (*rows_forward)(iso_device *self, const iso_tensor *x, iso_tensor *y);
typedef iso_status (*rows_backward)(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                    iso_tensor *dx);

static void compare_softmax(iso_device *device, const int64_t *size, rows_forward forward,
                            rows_backward backward) {
    target on = {.device = device, .dtype = ISO_F32};
    pair x = pair_2d(&on, size[0], size[1]), dy = pair_2d(&on, size[0], size[1]);
    grid y[2], dx[2];
    for (int i = 0; i < 2; i++) {
        grid from = given_grid(device, size, i, x.t);
        y[i] = new_grid(device, size, i);
        dx[i] = given_grid(device, size, i, dy.t);
        OK(forward(device, &from.t, &y[i].t));
        OK(backward(device, &y[i].t, &dx[i].t, &dx[i].t)); // in place
        iso_tensor_destroy(&from.memory);
    }
    compare(y, "softmax");
    compare(dx, "gradient of a softmax");
    for (int i = 0; i < 2; i++) iso_tensor_destroy(&y[i].memory), iso_tensor_destroy(&dx[i].memory);
    pair_destroy(&x), pair_destroy(&dy);
}

static void in_both(void (*body)(iso_device *device)) {
    iso_device *device = open_cuda();
    half = ISO_BF16;
    body(device);
    half = ISO_F16;
    body(device);
    iso_device_destroy(&device);
}

static void compare_softmaxes(iso_device *device) {
    const iso_kernel_ops *ops = device->kernels[half];
    for (int i = 0; i < COUNT(sizes); i++) {
        compare_softmax(device, sizes[i], ops->softmax_forward, ops->softmax_backward);
        compare_softmax(device, sizes[i], ops->log_softmax_forward, ops->log_softmax_backward);
    }
}

Test(cuda_rows_half, softmax_is_the_same_wherever_memory_begins) { in_both(compare_softmaxes); }

// Of sums over rows, which are f32 and were summed in double precision.
static void compare_sums(const pair sums[2], const char *what) {
    double *x[2] = {doubles(sums[0].t), doubles(sums[1].t)}, largest = 0;
    for (int64_t k = 0; k < sums[0].t->count; k++) largest = fmax(largest, fabs(x[0][k]));
    for (int64_t k = 0; k < sums[0].t->count; k++)
        cr_assert(fabs(x[0][k] - x[1][k]) <= 1e-6 * largest, "%s: %d is %g and %g", what, (int)k,
                  x[0][k], x[1][k]);
    free(x[0]), free(x[1]);
}

// Gradients of weight and bias: many rows, in parts, and columns that fill no block.
static void compare_norm_params(iso_device *device, const int64_t *size, bool accumulate) {
    target on = {.device = device, .dtype = ISO_F32};
    const iso_kernel_ops *ops = device->kernels[half];
    pair x = pair_2d(&on, size[0], size[1]), dy = pair_2d(&on, size[0], size[1]), dw[2], db[2];
    pair kept = pair_2d(&on, 3, size[0]);
    for (int i = 0; i < 2; i++) {
        grid from = given_grid(device, size, i, x.t), slope = given_grid(device, size, i, dy.t);
        grid y = new_grid(device, size, i);
        dw[i] = pair_1d(&on, size[1]), db[i] = pair_1d(&on, size[1]);
        OK(iso_tensor_fill(dw[i].t, 3));
        OK(iso_tensor_fill(db[i].t, 4));
        OK(ops->layer_norm_forward(device, 1e-5, size[1], &from.t, NULL, NULL, kept.t, &y.t));
        OK(ops->layer_norm_backward_params(device, size[1], &from.t, &slope.t, kept.t, dw[i].t,
                                           accumulate, db[i].t, accumulate));
        iso_tensor_destroy(&from.memory), iso_tensor_destroy(&slope.memory);
        iso_tensor_destroy(&y.memory);
    }
    compare_sums(dw, "gradient of a weight");
    compare_sums(db, "gradient of a bias");
    for (int i = 0; i < 2; i++) pair_destroy(&dw[i]), pair_destroy(&db[i]);
    pair_destroy(&x), pair_destroy(&dy), pair_destroy(&kept);
}

static void compare_all_params(iso_device *device) {
    static const int64_t many[][2] = {{300, 40}, {1, 8}, {67, 256}, {130, 24}, {9, 33}};
    for (int i = 0; i < COUNT(many) * 2; i++) compare_norm_params(device, many[i / 2], i % 2);
}

Test(cuda_rows_half, gradients_of_parameters_are_the_same_wherever_memory_begins) {
    in_both(compare_all_params);
}

// affine: with weight and bias.
static void compare_norm(iso_device *device, const int64_t *size, bool affine) {
    target on = {.device = device, .dtype = ISO_F32};
    const iso_kernel_ops *ops = device->kernels[half];
    pair x = pair_2d(&on, size[0], size[1]), dy = pair_2d(&on, size[0], size[1]);
    pair w = pair_1d(&on, size[1]), b = pair_1d(&on, size[1]), kept = pair_2d(&on, 3, size[0]);
    const iso_tensor *weight = affine ? w.t : NULL, *bias = affine ? b.t : NULL;
    grid y[2], dx[2];
    for (int i = 0; i < 2; i++) {
        grid from = given_grid(device, size, i, x.t);
        y[i] = new_grid(device, size, i);
        dx[i] = given_grid(device, size, i, dy.t);
        OK(ops->layer_norm_forward(device, 1e-5, size[1], &from.t, weight, bias, kept.t, &y[i].t));
        OK(ops->layer_norm_backward_input(device, size[1], &from.t, weight, &dx[i].t, kept.t,
                                          &dx[i].t));
        iso_tensor_destroy(&from.memory);
    }
    compare(y, "layer norm");
    compare(dx, "gradient of a layer norm");
    for (int i = 0; i < 2; i++) iso_tensor_destroy(&y[i].memory), iso_tensor_destroy(&dx[i].memory);
    pair_destroy(&x), pair_destroy(&dy), pair_destroy(&w), pair_destroy(&b), pair_destroy(&kept);
}

static void compare_norms(iso_device *device) {
    for (int i = 0; i < COUNT(sizes); i++) {
        compare_norm(device, sizes[i], true);
        compare_norm(device, sizes[i], false);
    }
}

Test(cuda_rows_half, layer_norm_is_the_same_wherever_memory_begins) { in_both(compare_norms); }
