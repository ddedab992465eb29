// SPDX-License-Identifier: MIT
// Shared by tests of modules: a device that checks the memory balance when it is closed, and
// tensors of known values.
#ifndef ISO_TEST_NN_FIXTURE_H
#define ISO_TEST_NN_FIXTURE_H

#include <criterion/criterion.h>
#include <isotherm/nn.h>

#define cr_ok(expr) cr_assert((expr) >= 0, "%s: %s", #expr, iso_last_error()->message)
// Asserts that the call fails with this code, and that the error message contains this text.
#define cr_fails(expr, status, part)                                                               \
    do {                                                                                           \
        cr_assert_eq((expr), (status), "%s does not fail as it should", #expr);                    \
        cr_assert(strstr(iso_last_error()->message, (part)), "%s", iso_last_error()->message);     \
    } while (0)

iso_device *open_cpu(void);
// Destroys the device and asserts that nothing of the library's memory is left.
void close_cpu(iso_device **device);

// A new f32 tensor: values in [-1, 1) that depend on seed only; or all of them `value`.
iso_tensor *random_tensor(iso_device *device, int ndim, const int64_t *shape, uint64_t seed);
iso_tensor *filled_tensor(iso_device *device, int ndim, const int64_t *shape, double value);
// As random_tensor, f32 or f64; the f64 values cannot be represented in f32.
iso_tensor *random_tensor_of(iso_device *device, iso_dtype dtype, int ndim, const int64_t *shape,
                             uint64_t seed);
// The values of a tensor in logical order, to be freed with free().
float *tensor_values(iso_tensor *tensor);
// The same of a tensor of f32 or f64.
double *tensor_doubles(iso_tensor *tensor);
// Whether both have the same shape and bits.
bool same_values(iso_tensor *a, iso_tensor *b);

#endif
