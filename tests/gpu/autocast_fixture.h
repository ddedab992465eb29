// SPDX-License-Identifier: MIT
// What tests of autocast share: layers on a GPU, and the numbers of tensors.
#ifndef ISO_TEST_AUTOCAST_FIXTURE_H
#define ISO_TEST_AUTOCAST_FIXTURE_H

#include "common/device_fixture.h"

// Skips the test where there is no GPU.
iso_device *open_cuda(void);

void append_layer(iso_module *net, const char *name, iso_module *layer);
// With values that depend on the seed alone.
iso_module *new_linear(iso_device *device, int64_t in, int64_t out, uint64_t seed);
iso_module *new_relu(iso_device *device);
iso_module *with_autocast(iso_module *model);
iso_parameter_list parameters_of(iso_module *model);

// The numbers of an f32 tensor, to be freed with free().
double *doubles(iso_tensor *t);
bool same_bits(iso_tensor *a, iso_tensor *b);

#endif
