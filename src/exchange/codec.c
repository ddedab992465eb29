// SPDX-License-Identifier: MIT
// f32 as 8-bit integers with a scale for each group.
#include "exchange/codec.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

enum { GROUP = 256, MOST = 127 };

typedef struct group {
    float scale;
    int8_t value[GROUP];
} group;

static size_t group_count(size_t count) { return (count + GROUP - 1) / GROUP; }
static size_t int8_bytes(size_t count) { return group_count(count) * sizeof(group); }

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

// Rounds to nearest, ties to even; x must be below 2^22 in magnitude.
ISO_INLINE float round_small(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

ISO_INLINE void encode_group(size_t n, float *restrict v, group *out) {
    uint32_t most = largest_bits(n, v);
    bool finite = most < 0x7f800000;
    out->scale = finite ? iso__float_of(most) / (float)MOST : NAN;
    bool some = finite && out->scale > 0;
    float divisor = some ? out->scale : 1;
    for (size_t i = 0; i < n; i++) {
        float q = round_small(v[i] / divisor);
        // A tiny scale is rounded coarsely, and q may exceed MOST.
        q = q > (float)MOST ? (float)MOST : q < -(float)MOST ? -(float)MOST : q;
        out->value[i] = some ? (int8_t)q : 0;
        v[i] = !finite ? 0 : v[i] - (float)out->value[i] * out->scale;
    }
}

ISO_CLONES static void encode_int8(size_t count, const float *x, float factor, float *residual,
                                   void *out) {
    group *to = out;
    for (size_t at = 0; at < count; at += GROUP, to++) {
        size_t n = count - at < GROUP ? count - at : GROUP;
        for (size_t i = 0; i < n; i++) residual[at + i] = x[at + i] * factor + residual[at + i];
        encode_group(n, residual + at, to);
    }
}

ISO_CLONES static void decode_int8(size_t count, const void *in, float factor, float *out) {
    const group *from = in;
    for (size_t at = 0; at < count; at += GROUP, from++) {
        size_t n = count - at < GROUP ? count - at : GROUP;
        for (size_t i = 0; i < n; i++) out[at + i] = (float)from->value[i] * from->scale * factor;
    }
}

ISO_CLONES static void add_int8(size_t count, const void *in, float *out) {
    const group *from = in;
    for (size_t at = 0; at < count; at += GROUP, from++) {
        size_t n = count - at < GROUP ? count - at : GROUP;
        for (size_t i = 0; i < n; i++) out[at + i] += (float)from->value[i] * from->scale;
    }
}

const iso__codec iso__codec_int8 = {.name = "int8",
                                    .group = GROUP,
                                    .bytes = int8_bytes,
                                    .encode = encode_int8,
                                    .decode = decode_int8,
                                    .add = add_int8};
