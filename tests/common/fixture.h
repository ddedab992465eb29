// SPDX-License-Identifier: MIT
// Reads the golden values of tests/fixtures. Any error fails the running test.
#ifndef ISO_TEST_FIXTURE_H
#define ISO_TEST_FIXTURE_H

#include <isotherm/nn.h>

typedef struct fixture fixture;

// `file` lies in the folder that ISO_TEST_FIXTURES names.
fixture *fixture_open(const char *file);
void fixture_close(fixture **f);

// The array "PREFIX.NAME" (NAME alone when prefix is NULL), valid until fixture_close.
const double *fixture_get(fixture *f, const char *prefix, const char *name, int64_t *count);
// A new tensor with the array's shape and values: f32, or of type dtype.
iso_tensor *fixture_tensor(fixture *f, iso_device *device, const char *prefix, const char *name);
iso_tensor *fixture_tensor_of(fixture *f, iso_device *device, iso_dtype dtype, const char *prefix,
                              const char *name);
// Copies the array into a tensor of the same shape, f32 or f64.
void fixture_load(fixture *f, const char *prefix, const char *name, iso_tensor *to);
// Asserts that the tensor has the array's shape and values; tolerance is relative to the array's
// largest magnitude.
void fixture_compare(fixture *f, const char *prefix, const char *name, iso_tensor *tensor,
                     double tolerance);

#endif
