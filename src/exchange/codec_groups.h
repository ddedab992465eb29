// SPDX-License-Identifier: MIT
// Private to src/exchange/codec_*.c: what codecs that encode groups of elements share.
#ifndef ISO_CODEC_GROUPS_H
#define ISO_CODEC_GROUPS_H

#include "base/half.h"
#include "exchange/codec.h"

#define CODEC_JOIN(a, b)  a##_##b
#define CODEC_PASTE(a, b) CODEC_JOIN(a, b)
#define CODEC_OF(x)       CODEC_PASTE(x, CODEC)

// The bits of the largest magnitude. Bits of magnitudes have the order of the magnitudes, with NaN
// above infinity.
ISO_INLINE uint32_t largest_bits(size_t n, const float *v) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = iso__bits_of(v[i]) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return most;
}

ISO_INLINE bool is_finite(float x) { return (iso__bits_of(x) & 0x7fffffff) < 0x7f800000; }

ISO_INLINE size_t group_size(size_t count, size_t at, size_t group) {
    return count - at < group ? count - at : group;
}

#endif
