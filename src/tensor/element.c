// SPDX-License-Identifier: MIT
// One element of an array of any real type, at any address.
#include "base/half.h"
#include "tensor/tensor_impl.h"

#include <string.h>

double iso__element_get(iso_dtype dtype, const void *data, int64_t i) {
    const char *at = (const char *)data + (size_t)i * iso_dtype_size(dtype);
    uint16_t half;
    double wide;
    float x;
    switch (dtype) {
    case ISO_F64: memcpy(&wide, at, sizeof(wide)); return wide;
    case ISO_BF16: memcpy(&half, at, sizeof(half)); return (double)iso__of_bf16(half);
    case ISO_F16: memcpy(&half, at, sizeof(half)); return (double)iso__of_f16(half);
    default: memcpy(&x, at, sizeof(x)); return (double)x;
    }
}

void iso__element_put(iso_dtype dtype, void *data, int64_t i, double x) {
    char *at = (char *)data + (size_t)i * iso_dtype_size(dtype);
    float rounded = (float)x;
    uint16_t half;
    switch (dtype) {
    case ISO_F64: memcpy(at, &x, sizeof(x)); return;
    case ISO_BF16: half = (uint16_t)iso__bf16_of(rounded); break;
    case ISO_F16: half = (uint16_t)iso__f16_of(rounded); break;
    default: memcpy(at, &rounded, sizeof(rounded)); return;
    }
    memcpy(at, &half, sizeof(half));
}
