// SPDX-License-Identifier: MIT
// What tests of modules share: a device whose closing checks the memory balance, and tensors of
// known values.
#include "common/any_device.h"
#include "common/nn_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <string.h>

iso_device *open_cpu(void) {
    iso_device *device = NULL;
    cr_ok(iso_device_create(test_device(), &device));
    return device;
}

void close_cpu(iso_device **device) {
    long long blocks;
    iso_device_destroy(device);
    iso_memory_balance(&blocks, NULL, NULL);
    cr_assert_eq(blocks, 0, "%lld blocks were not freed", blocks);
}

iso_tensor *random_tensor(iso_device *device, int ndim, const int64_t *shape, uint64_t seed) {
    iso_tensor *t = NULL;
    void *mapped;
    cr_ok(iso_tensor_create(device, ISO_F32, ndim, shape, &t));
    cr_ok(iso_tensor_map(t, ISO_WRITE, &mapped));
    iso__philox_key key = iso__philox_key_make(seed, ISO_RNG_TEST, 0);
    for (int64_t i = 0; i < iso_tensor_count(t); i++) {
        uint32_t draw[4], counter[4] = {(uint32_t)i, 0, 0, 0};
        iso__philox(key, counter, draw);
        ((float *)mapped)[i] = 2 * iso__uniform(draw[0]) - 1;
    }
    cr_ok(iso_tensor_unmap(t));
    return t;
}

iso_tensor *random_tensor_of(iso_device *device, iso_dtype dtype, int ndim, const int64_t *shape,
                             uint64_t seed) {
    if (dtype == ISO_F32) return random_tensor(device, ndim, shape, seed);
    iso_tensor *t = NULL;
    void *mapped;
    cr_ok(iso_tensor_create(device, ISO_F64, ndim, shape, &t));
    cr_ok(iso_tensor_map(t, ISO_WRITE, &mapped));
    iso__philox_key key = iso__philox_key_make(seed, ISO_RNG_TEST, 0);
    for (int64_t i = 0; i < iso_tensor_count(t); i++) {
        uint32_t draw[4], counter[4] = {(uint32_t)i, 0, 0, 0};
        iso__philox(key, counter, draw);
        ((double *)mapped)[i] = (2.0 * draw[0] + draw[1] * 0x1p-31) * 0x1p-32 - 1;
    }
    cr_ok(iso_tensor_unmap(t));
    return t;
}

iso_tensor *filled_tensor(iso_device *device, int ndim, const int64_t *shape, double value) {
    iso_tensor *t = NULL;
    cr_ok(iso_tensor_create(device, ISO_F32, ndim, shape, &t));
    cr_ok(iso_tensor_fill(t, value));
    return t;
}

float *tensor_values(iso_tensor *tensor) {
    size_t bytes = (size_t)iso_tensor_count(tensor) * sizeof(float);
    void *mapped;
    float *copy = malloc(bytes);
    cr_ok(iso_tensor_map(tensor, ISO_READ, &mapped));
    memcpy(copy, mapped, bytes);
    cr_ok(iso_tensor_unmap(tensor));
    return copy;
}

double *tensor_doubles(iso_tensor *tensor) {
    int64_t count = iso_tensor_count(tensor);
    bool wide = iso_tensor_dtype(tensor) == ISO_F64;
    double *copy = malloc((size_t)count * sizeof(double));
    void *mapped;
    cr_ok(iso_tensor_map(tensor, ISO_READ, &mapped));
    for (int64_t i = 0; i < count; i++)
        copy[i] = wide ? ((double *)mapped)[i] : (double)((float *)mapped)[i];
    cr_ok(iso_tensor_unmap(tensor));
    return copy;
}

bool same_values(iso_tensor *a, iso_tensor *b) {
    if (!iso__tensor_same_shape(a, b) || a->dtype != b->dtype) return false;
    double *x = tensor_doubles(a), *y = tensor_doubles(b);
    bool same = memcmp(x, y, (size_t)iso_tensor_count(a) * sizeof(double)) == 0;
    free(x);
    free(y);
    return same;
}
