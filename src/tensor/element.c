// SPDX-License-Identifier: MIT
// One element of an array of any real type.
#include "base/half.h"
#include "tensor/tensor_impl.h"

double iso__element_get(iso_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case ISO_F64: return ((const double *)data)[i];
    case ISO_BF16: return (double)iso__of_bf16(((const uint16_t *)data)[i]);
    case ISO_F16: return (double)iso__of_f16(((const uint16_t *)data)[i]);
    default: return (double)((const float *)data)[i];
    }
}

void iso__element_put(iso_dtype dtype, void *data, int64_t i, double x) {
    switch (dtype) {
    case ISO_F64: ((double *)data)[i] = x; break;
    case ISO_BF16: ((uint16_t *)data)[i] = (uint16_t)iso__bf16_of((float)x); break;
    case ISO_F16: ((uint16_t *)data)[i] = (uint16_t)iso__f16_of((float)x); break;
    default: ((float *)data)[i] = (float)x;
    }
}
