// SPDX-License-Identifier: MIT
// The codec int4: 4-bit floats with a scale for each group.
#include "exchange/codec_groups.h"

#include <math.h>

enum { SIZE = 128, HALF = SIZE / 2 };
#define INFINITE 0x7f800000u // bits

// A code is a sign (8) and an exponent: 0 is 0, and 1 to 7 are 2^-6 to 1, times the scale.
typedef struct group_int4 {
    float scale;
    uint8_t codes[HALF]; // element i in the lower half of codes[i], element HALF + i in the upper
} group_int4;

enum { BELOW = 120 }; // the exponent field of f32 for 2^-7, one below code 1

// Of x, a fraction of the scale, at most 1 in magnitude. To nearest, ties away from zero: between
// two powers of two a mantissa of 1.5 or more rounds up, and below 2^-6 the tie is 2^-7.
ISO_INLINE uint32_t code_of(float x) {
    uint32_t bits = iso__bits_of(x), size = bits & 0x7fffffff;
    uint32_t up = (size + 0x400000) >> 23;
    uint32_t exponent = up > BELOW + 1 ? up - BELOW : 1;
    uint32_t code = exponent | ((bits >> 28) & 8);
    return iso__choose(size >= (uint32_t)BELOW << 23, code, 0);
}

ISO_INLINE float value_of(uint32_t code) {
    uint32_t exponent = code & 7;
    uint32_t size = iso__choose(exponent > 0, (exponent + BELOW) << 23, 0);
    return iso__float_of(size | (code & 8) << 28);
}

ISO_INLINE bool encode_group_int4(size_t n, float *restrict v, group_int4 *restrict out) {
    uint32_t most = largest_bits(n, v), code[SIZE];
    bool finite = most < INFINITE;
    float scale = finite ? iso__float_of(most) : NAN;
    float divisor = finite && most > 0 ? scale : 1;
    for (size_t i = 0; i < n; i++) {
        code[i] = finite ? code_of(v[i] / divisor) : 0;
        v[i] = finite ? v[i] - value_of(code[i]) * scale : 0;
    }
    for (size_t i = n; i < SIZE; i++) code[i] = 0;
    for (size_t i = 0; i < HALF; i++) out->codes[i] = (uint8_t)(code[i] | code[HALF + i] << 4);
    out->scale = scale;
    return finite;
}

ISO_INLINE void read_group_int4(const group_int4 *restrict in, float *restrict value) {
    for (size_t i = 0; i < HALF; i++) {
        value[i] = value_of(in->codes[i] & 15) * in->scale;
        value[HALF + i] = value_of(in->codes[i] >> 4) * in->scale;
    }
}

#define CODEC        int4
#define CODEC_WORD   "int4"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES ISO_CLONES
#include "exchange/codec_passes.h"
