// SPDX-License-Identifier: MIT
// What tests of autocast share: devices, layers, and the values of tensors.
#include "common/autocast_fixture.h"

#include "common/any_device.h"

#include <string.h>

static iso_device *open_or_skip(const char *name) {
    iso_device *device;
    if (iso_device_create(name, &device) != ISO_OK)
        cr_skip_test("no %s device can be used: %s", name, iso_last_error()->message);
    return device;
}

iso_device *open_cuda(void) { return open_or_skip("cuda"); }
iso_device *open_any(void) { return open_or_skip(test_device()); }

void on_each_half(void (*body)(iso_device *device, iso_dtype half)) {
    static const iso_dtype halves[] = {ISO_BF16, ISO_F16};
    iso_device *device = open_any();
    for (int i = 0; i < COUNT(halves); i++) body(device, halves[i]);
    iso_device_destroy(&device);
}

void append_layer(iso_module *net, const char *name, iso_module *layer) {
    OK(iso_sequential_add_take(net, name, layer));
}

iso_module *new_linear(iso_device *device, int64_t in, int64_t out, uint64_t seed) {
    iso_module *layer;
    iso_rng rng = {.seed = seed};
    OK(iso_linear_create(device, in, out, true, &rng, &layer));
    return layer;
}

iso_module *new_relu(iso_device *device) {
    iso_module *layer;
    OK(iso_relu_create(device, &layer));
    return layer;
}

iso_module *with_autocast(iso_module *model, iso_dtype half) {
    iso_module *wrapped;
    OK(iso_autocast_create_take(model, half, &wrapped));
    return wrapped;
}

iso_parameter_list parameters_of(iso_module *model) {
    iso_parameter_list list;
    OK(iso_module_parameters(model, &list));
    return list;
}

double *doubles(iso_tensor *t) {
    void *host;
    double *copy = malloc((size_t)t->count * sizeof(double));
    cr_assert(t->dtype == ISO_F32);
    OK(iso_tensor_map(t, ISO_READ, &host));
    for (int64_t i = 0; i < t->count; i++) copy[i] = (double)((float *)host)[i];
    OK(iso_tensor_unmap(t));
    return copy;
}

double half_value(iso_dtype half, double x) { return half_double(half, half_nearest(half, x)); }

bool same_bits(iso_tensor *a, iso_tensor *b) {
    void *x, *y;
    OK(iso_tensor_map(a, ISO_READ, &x));
    OK(iso_tensor_map(b, ISO_READ, &y));
    bool same =
        a->count == b->count && memcmp(x, y, (size_t)a->count * iso_dtype_size(a->dtype)) == 0;
    OK(iso_tensor_unmap(a));
    OK(iso_tensor_unmap(b));
    return same;
}
