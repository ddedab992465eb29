// SPDX-License-Identifier: MIT
// Access to tensors on any device, for tests.
#ifndef ISO_TEST_TENSOR_ACCESS_H
#define ISO_TEST_TENSOR_ACCESS_H

#include <isotherm/tensor.h>
#include <math.h>
#include <string.h>

static inline size_t tensor_bytes(const iso_tensor *t) {
    return (size_t)iso_tensor_count(t) * iso_dtype_size(iso_tensor_dtype(t));
}

static inline iso_status tensor_get(iso_tensor *t, void *to) {
    void *data;
    iso_status status = iso_tensor_map(t, ISO_READ, &data);
    if (status < 0) return status;
    memcpy(to, data, tensor_bytes(t));
    return iso_tensor_unmap(t);
}

static inline iso_status tensor_set(iso_tensor *t, const void *from) {
    void *data;
    iso_status status = iso_tensor_map(t, ISO_WRITE, &data);
    if (status < 0) return status;
    memcpy(data, from, tensor_bytes(t));
    return iso_tensor_unmap(t);
}

// Sets element i of an f32 tensor. Returns its previous value, or NaN on an error.
static inline float tensor_swap(iso_tensor *t, int64_t i, float value) {
    void *data;
    if (iso_tensor_map(t, ISO_READ_WRITE, &data) < 0) return NAN;
    float before = ((float *)data)[i];
    ((float *)data)[i] = value;
    return iso_tensor_unmap(t) < 0 ? NAN : before;
}

#endif
