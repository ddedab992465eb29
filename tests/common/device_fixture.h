// SPDX-License-Identifier: MIT
// Shared by tests of device operations: every device with each of its element types, and tensors
// with their expected values.
#ifndef ISO_TEST_DEVICE_FIXTURE_H
#define ISO_TEST_DEVICE_FIXTURE_H

#include "device/device_impl.h"

#include <criterion/criterion.h>

#define OK(expr)     cr_assert((expr) == ISO_OK, "%s: %s", #expr, iso_last_error()->message)
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

// A device, and an element type that it computes in.
typedef struct target {
    iso_device *device;
    iso_dtype dtype;
    const iso_kernel_ops *kernels;
} target;

// Runs body in f32 and f64 on each kernel set of the CPU, unless ISO_TEST_DEVICE names a GPU, and
// on a GPU if there is one.
void on_each_target(void (*body)(const target *on));
// In bf16 and f16 too: for bodies whose tensors are activations, or of
// parameter_target.
void on_each_activation_target(void (*body)(const target *on));
// The type of gradients of parameters, and of parameters and statistics of norms.
target parameter_target(const target *on);

double bf16_value(uint16_t bits);
uint16_t bf16_nearest(double value); // ties to even
double half_double(iso_dtype half, uint16_t bits); // of bf16 or f16
uint16_t half_nearest(iso_dtype half, double value);

static const iso_layout layouts[] = {ISO_LAYOUT_LOGICAL, ISO_LAYOUT_BLOCKED};

// A tensor, and its actual or expected values in double precision.
typedef struct pair {
    iso_tensor *t;
    double *d;
} pair;

// Random multiples of 1/levels in [-1, 1]; few levels give ties.
pair pair_create(const target *on, int ndim, const int64_t *shape, iso_layout layout, int levels);
pair pair_4d(const target *on, int64_t n, int64_t c, int64_t h, int64_t w, iso_layout layout);
pair pair_2d(const target *on, int64_t n, int64_t k);
pair pair_1d(const target *on, int64_t k);
void pair_destroy(pair *p);

// Sets the doubles to zero, but not the tensor.
void zero(pair *p);
// Sets number i, in logical order, of both.
void pair_set(pair *p, int64_t i, double value);
// Copies the pair's doubles to the tensor, and what they are there, rounded, back.
void pair_write(pair *p);
// Copies the tensor's values to the pair's doubles.
void pair_read(pair *p);
// Asserts that the tensor holds the pair's doubles, up to `tolerance` of the largest (for f64 up to
// 1e-7 of that), and zeros where a blocked layout has no channels. In 16 bits, rounding to
// nearest is off by another 2^-8 (bf16) or 2^-11 (f16) of each number.
void check_pair(const target *on, pair *p, double tolerance, const char *what);

#endif
