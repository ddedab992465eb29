// SPDX-License-Identifier: MIT
// The codec fp8: 8-bit floats (E4M3) with a scale for each group.
#include "exchange/codec_groups.h"

#include <math.h>

enum { SIZE = 128 };
#define LARGEST  448.0f      // the largest magnitude of a code
#define INFINITE 0x7f800000u // bits of f32
#define NOT_A    0x7fc00000u

// A code is a sign (128), four bits of an exponent with the bias 7, and three bits of a fraction.
// Exponent 0 means multiples of 2^-9. 127 and 255 are NaN; there is no infinity.
typedef struct group_fp8 {
    float scale;
    uint8_t code[SIZE];
} group_fp8;

enum { BELOW = 120, LEAST = (BELOW + 1) << 23 }; // exponent of f32 for 2^-7; bits of 2^-6

// To nearest, ties to even; LARGEST if x is larger.
ISO_INLINE uint32_t code_of(float x) {
    uint32_t bits = iso__bits_of(x), size = bits & 0x7fffffff, most = iso__bits_of(LARGEST);
    size = size > most ? most : size;
    uint32_t normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (BELOW << 3);
    // Floats from 2^14 to 2^15 are 2^-9 apart, so the addition rounds to a multiple of it.
    uint32_t small = iso__bits_of(iso__float_of(size) + 0x1p14f) - iso__bits_of(0x1p14f);
    return iso__choose(size >= LEAST, normal, small) | (bits >> 24 & 0x80);
}

ISO_INLINE float value_of(uint32_t code) {
    uint32_t size = code & 0x7f;
    uint32_t normal = (size + (BELOW << 3)) << 20;
    uint32_t small = iso__bits_of((float)(int32_t)size * 0x1p-9f);
    uint32_t bits = iso__choose(size >= 8, normal, small);
    return iso__float_of(iso__choose(size == 0x7f, NOT_A, bits) | (code & 0x80) << 24);
}

ISO_INLINE bool encode_group_fp8(size_t n, float *restrict v, group_fp8 *restrict out) {
    uint32_t most = largest_bits(n, v);
    bool finite = most < INFINITE;
    float scale = iso__float_of(most) / LARGEST;
    bool some = finite && scale > 0;
    float divisor = some ? scale : 1;
    out->scale = finite ? scale : NAN;
    uint32_t kept = some ? 0xff : 0, left = finite ? UINT32_MAX : 0; // masks, so that it vectorises
    for (size_t i = 0; i < n; i++) {
        // A scale that was rounded down makes the quotient exceed LARGEST.
        uint32_t code = code_of(v[i] / divisor) & kept;
        out->code[i] = (uint8_t)code;
        v[i] = iso__float_of(iso__bits_of(v[i] - value_of(code) * scale) & left);
    }
    memset(out->code + n, 0, SIZE - n);
    return finite;
}

ISO_INLINE void read_group_fp8(const group_fp8 *restrict in, float *restrict value) {
    for (size_t i = 0; i < SIZE; i++) value[i] = value_of(in->code[i]) * in->scale;
}

#define CODEC        fp8
#define CODEC_WORD   "fp8"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES ISO_CLONES
#include "exchange/codec_passes.h"
