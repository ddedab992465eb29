// SPDX-License-Identifier: MIT
// Private: one element of an array of f32, f64, bf16 or f16, which need not be aligned. To 16 bits,
// numbers are rounded to f32 first, as iso_tensor_copy does.
#ifndef ISO_ELEMENT_H
#define ISO_ELEMENT_H

#include "base/half.h"

#include <isotherm/device.h>

static inline double iso__element_get(iso_dtype dtype, const void *data, int64_t i) {
    const char *from = data;
    uint16_t half;
    double wide;
    float x;
    if (dtype == ISO_F64) {
        memcpy(&wide, from + i * (int64_t)sizeof(wide), sizeof(wide));
        return wide;
    }
    if (dtype == ISO_F32) {
        memcpy(&x, from + i * (int64_t)sizeof(x), sizeof(x));
        return (double)x;
    }
    memcpy(&half, from + i * (int64_t)sizeof(half), sizeof(half));
    return (double)(dtype == ISO_BF16 ? iso__of_bf16(half) : iso__of_f16(half));
}

static inline void iso__element_put(iso_dtype dtype, void *data, int64_t i, double wide) {
    char *to = data;
    float x = (float)wide;
    if (dtype == ISO_F64) {
        memcpy(to + i * (int64_t)sizeof(wide), &wide, sizeof(wide));
    } else if (dtype == ISO_F32) {
        memcpy(to + i * (int64_t)sizeof(x), &x, sizeof(x));
    } else {
        uint16_t half = (uint16_t)(dtype == ISO_BF16 ? iso__bf16_of(x) : iso__f16_of(x));
        memcpy(to + i * (int64_t)sizeof(half), &half, sizeof(half));
    }
}

#endif
