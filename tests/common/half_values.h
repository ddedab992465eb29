// SPDX-License-Identifier: MIT
// For tests: bf16 and f16 numbers, one at a time.
#ifndef ISO_HALF_VALUES_H
#define ISO_HALF_VALUES_H

#include "base/half.h"

#include <isotherm/device.h>

// type: ISO_BF16 or ISO_F16.
static inline uint16_t half_bits(iso_dtype type, float x) {
    return (uint16_t)(type == ISO_BF16 ? iso__bf16_of(x) : iso__f16_of(x));
}
static inline float half_float(iso_dtype type, uint32_t h) {
    return type == ISO_BF16 ? iso__of_bf16(h) : iso__of_f16(h);
}

#endif
