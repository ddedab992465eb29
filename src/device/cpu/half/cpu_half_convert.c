// SPDX-License-Identifier: MIT
// Conversions of arrays between 16 bits and f32.
#include "base/half.h"
#include "device/cpu/half/cpu_half.h"

ISO_CLONES static void widen_bf16(int64_t count, const uint16_t *from, float *to) {
    for (int64_t i = 0; i < count; i++) to[i] = iso__of_bf16(from[i]);
}
ISO_CLONES static void widen_f16(int64_t count, const uint16_t *from, float *to) {
    for (int64_t i = 0; i < count; i++) to[i] = iso__of_f16(from[i]);
}
ISO_CLONES static void narrow_bf16(int64_t count, const float *from, uint16_t *to) {
    for (int64_t i = 0; i < count; i++) to[i] = (uint16_t)iso__bf16_of(from[i]);
}
ISO_CLONES static void narrow_f16(int64_t count, const float *from, uint16_t *to) {
    for (int64_t i = 0; i < count; i++) to[i] = (uint16_t)iso__f16_of(from[i]);
}

void iso__cpu_widen(iso_dtype type, int64_t count, const uint16_t *from, float *to) {
    if (type == ISO_BF16)
        widen_bf16(count, from, to);
    else if (iso__cpu_is_wide())
        iso__cpu_widen_f16_wide(count, from, to);
    else
        widen_f16(count, from, to);
}

void iso__cpu_narrow(iso_dtype type, int64_t count, const float *from, uint16_t *to) {
    if (type == ISO_BF16)
        narrow_bf16(count, from, to);
    else if (iso__cpu_is_wide())
        iso__cpu_narrow_f16_wide(count, from, to);
    else
        narrow_f16(count, from, to);
}
