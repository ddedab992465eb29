// SPDX-License-Identifier: MIT
// What tests of autocast share: layers on a GPU, and the numbers of tensors.
#include "gpu/autocast_fixture.h"

#include <string.h>

iso_device *open_cuda(void) {
    iso_device *device;
    if (iso_device_create("cuda", &device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    return device;
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

iso_module *with_autocast(iso_module *model) {
    iso_module *wrapped;
    OK(iso_autocast_create_take(model, ISO_BF16, &wrapped));
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
