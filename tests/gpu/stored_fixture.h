// SPDX-License-Identifier: MIT
// What tests of kernels for several types and layouts share: tensors of the GPU whose memory the
// test lays out itself, and in double precision what they hold or should hold.
#ifndef ISO_TEST_STORED_FIXTURE_H
#define ISO_TEST_STORED_FIXTURE_H

#include "common/device_fixture.h"

// How elements are stored; shift: elements between an aligned address and the first.
typedef struct storing {
    iso_dtype dtype;
    bool channels_last;
    int shift;
} storing;

typedef struct stored {
    iso_tensor *t;
    double *d; // in logical order
    void *memory;
} stored;

target open_gpu(void); // skips the test where there is none; kernels are those of f32

// Random multiples of 1/levels in [-1, 1], rounded to the type; few levels give ties. Shapes that
// have other than 4 dimensions are always logical.
stored stored_create(iso_device *device, storing how, int ndim, const int64_t *shape, int levels);
stored stored_1d(iso_device *device, iso_dtype dtype, int64_t count); // aligned
void stored_destroy(stored *s);
// Numbers as the type has them: to the nearest.
double stored_round(iso_dtype dtype, double x);
// The device gets the doubles, rounded; the doubles become what it got.
void stored_put(stored *s);
// Asserts that each element is the double, up to what rounding to its type takes and `tolerance`
// (for f64 1e-7 times that) of the largest.
void stored_check(stored *s, double tolerance, const char *what);

#endif
