// SPDX-License-Identifier: MIT
// Shared by tests of autocast: devices, layers, and the values of tensors.
#ifndef ISO_TEST_AUTOCAST_FIXTURE_H
#define ISO_TEST_AUTOCAST_FIXTURE_H

#include "common/device_fixture.h"

// Skips the test where there is no GPU.
iso_device *open_cuda(void);
// The CPU, or what ISO_TEST_DEVICE names. Skips the test where there is no such device.
iso_device *open_any(void);
// Runs body on such a device for each type of 16 bits.
void on_each_half(void (*body)(iso_device *device, iso_dtype half));

void append_layer(iso_module *net, const char *name, iso_module *layer);
// With values that depend on the seed alone.
iso_module *new_linear(iso_device *device, int64_t in, int64_t out, uint64_t seed);
iso_module *new_relu(iso_device *device);
iso_module *with_autocast(iso_module *model, iso_dtype half);
iso_parameter_list parameters_of(iso_module *model);

// The numbers of an f32 tensor, to be freed with free().
double *doubles(iso_tensor *t);
// The value of type `half` that is nearest to x.
double half_value(iso_dtype half, double x);
bool same_bits(iso_tensor *a, iso_tensor *b);

#endif
