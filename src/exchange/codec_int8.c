// SPDX-License-Identifier: MIT
// The codec int8: 8-bit integers with a scale for each group.
#include "exchange/codec.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

enum { GROUP = 256, MOST = 127 };
#define LARGEST 0x7f7ffffeu // bits of the largest magnitude whose scale times 127 is finite

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

ISO_INLINE bool is_finite(float x) { return (iso__bits_of(x) & 0x7fffffff) < 0x7f800000; }

ISO_INLINE size_t group_size(size_t count, size_t at) {
    return count - at < GROUP ? count - at : GROUP;
}

// out = v, encoded; v = v - out
ISO_INLINE bool encode_group(size_t n, float *restrict v, group *restrict out) {
    uint32_t most = largest_bits(n, v);
    float scale = iso__float_of(most) / (float)MOST;
    bool finite = most <= LARGEST;
    bool some = finite && scale > 0;
    float divisor = some ? scale : 1;
    out->scale = finite ? scale : NAN;
    for (size_t i = 0; i < n; i++) {
        float q = round_small(v[i] / divisor);
        // A tiny scale is rounded coarsely, and q may exceed MOST.
        q = q > (float)MOST ? (float)MOST : q < -(float)MOST ? -(float)MOST : q;
        out->value[i] = some ? (int8_t)q : 0;
        v[i] = !finite ? 0 : v[i] - (float)out->value[i] * scale;
    }
    memset(out->value + n, 0, GROUP - n);
    return finite;
}

// ---- Encoding -------------------------------------------------------------------------------------

ISO_CLONES static bool encode_values(size_t count, const float *x, float factor, void *out) {
    bool finite = true;
    group *to = out;
    for (size_t at = 0; at < count; at += GROUP, to++) {
        float v[GROUP];
        size_t n = group_size(count, at);
        for (size_t i = 0; i < n; i++) v[i] = x[at + i] * factor;
        finite = encode_group(n, v, to) && finite;
    }
    return finite;
}

ISO_CLONES static bool encode_feedback(size_t count, const float *x, float factor, float *state,
                                       void *out) {
    bool finite = true;
    group *to = out;
    for (size_t at = 0; at < count; at += GROUP, to++) {
        size_t n = group_size(count, at);
        for (size_t i = 0; i < n; i++) state[at + i] = x[at + i] * factor + state[at + i];
        finite = encode_group(n, state + at, to) && finite;
    }
    return finite;
}

ISO_INLINE bool encode_between(size_t count, const float *restrict x, float factor,
                               const float *restrict reference, const float *restrict residual,
                               float *restrict left, group *restrict to) {
    bool finite = true;
    for (size_t at = 0; at < count; at += GROUP, to++) {
        size_t n = group_size(count, at);
        for (size_t i = at; i < at + n; i++) left[i] = (x[i] - reference[i]) * factor + residual[i];
        finite = encode_group(n, left + at, to) && finite;
    }
    return finite;
}

ISO_CLONES static bool encode_difference(size_t count, const float *x, float factor,
                                         const float *reference,
                                         const iso__codec_feedback *feedback, void *out) {
    return encode_between(count, x, factor, reference, feedback->residual, feedback->left, out);
}

// ---- The mean of shares ---------------------------------------------------------------------------

ISO_INLINE void add_group(const group *restrict from, float *restrict sum) {
    for (size_t i = 0; i < GROUP; i++) sum[i] += (float)from->value[i] * from->scale;
}

// Group g of all nodes.
ISO_INLINE void add_nodes(const iso__codec_shares *shares, size_t g, float *restrict sum) {
    const group *from = (const group *)shares->data + g;
    for (size_t i = 0; i < GROUP; i++) sum[i] = (float)from->value[i] * from->scale;
    for (int k = 1; k < shares->nodes; k++) add_group(from += shares->count / GROUP, sum);
}

ISO_INLINE bool mean_of_group(const float *restrict sum, float nodes,
                              const float *restrict residual, float *restrict left, group *out) {
    for (size_t i = 0; i < GROUP; i++) left[i] = sum[i] / nodes + residual[i];
    return encode_group(GROUP, left, out);
}

ISO_CLONES static bool mean_of_shares(const iso__codec_shares *shares,
                                      const iso__codec_feedback *feedback, void *out) {
    bool finite = true;
    static const float none[GROUP];
    for (size_t g = 0; g < shares->count / GROUP; g++) {
        float sum[GROUP], lost[GROUP];
        const float *residual = feedback ? feedback->residual + g * GROUP : none;
        float *left = feedback ? feedback->left + g * GROUP : lost;
        add_nodes(shares, g, sum);
        finite =
            mean_of_group(sum, (float)shares->nodes, residual, left, (group *)out + g) && finite;
    }
    return finite;
}

// ---- Decoding -------------------------------------------------------------------------------------

// Writes `expression` of each `value`.
#define DECODE(expression)                                                                         \
    uint32_t bad = 0;                                                                              \
    const group *from = in;                                                                        \
    for (size_t at = 0; at < count; at += GROUP, from++) {                                         \
        size_t n = group_size(count, at);                                                          \
        for (size_t i = 0; i < n; i++) {                                                           \
            float value = (float)from->value[i] * from->scale;                                     \
            out[at + i] = expression;                                                              \
            bad |= !is_finite(out[at + i]);                                                        \
        }                                                                                          \
    }                                                                                              \
    return bad == 0

ISO_CLONES static bool decode_values(size_t count, const void *in, float *out) { DECODE(value); }

ISO_CLONES static bool decode_scaled(size_t count, const void *in, float factor, float *out) {
    DECODE(value * factor);
}

ISO_CLONES static bool decode_difference(size_t count, const void *in, const float *reference,
                                         float *out) {
    DECODE(reference[at + i] + value);
}

ISO_CLONES static bool decode_add(size_t count, const void *in, float *out) {
    DECODE(out[at + i] + value);
}

const iso__codec iso__codec_int8 = {.name = "int8",
                                    .group = GROUP,
                                    .bytes = int8_bytes,
                                    .encode = encode_values,
                                    .encode_feedback = encode_feedback,
                                    .encode_difference = encode_difference,
                                    .mean = mean_of_shares,
                                    .decode = decode_values,
                                    .decode_scaled = decode_scaled,
                                    .decode_difference = decode_difference,
                                    .decode_add = decode_add};
