// SPDX-License-Identifier: MIT
// The codecs of element types. Loops are written so that they vectorise.
#include "exchange/codec.h"

#include "base/half.h"

// Inlined with a constant element type, so that the compiler removes the branches on it.
#define INLINE ISO_INLINE

// ---- One element ----------------------------------------------------------------------------------

INLINE float of_bits(iso_dtype type, uint32_t h) {
    return type == ISO_F32 ? iso__float_of(h) : type == ISO_BF16 ? iso__of_bf16(h) : iso__of_f16(h);
}

INLINE uint32_t to_bits(iso_dtype type, float x) {
    return type == ISO_F32 ? iso__bits_of(x) : type == ISO_BF16 ? iso__bf16_of(x) : iso__f16_of(x);
}

INLINE float load_element(iso_dtype type, const void *in, size_t i) {
    if (type == ISO_F32) return ((const float *)in)[i];
    return of_bits(type, ((const uint16_t *)in)[i]);
}

INLINE void store_element(iso_dtype type, uint32_t h, void *out, size_t i) {
    if (type == ISO_F32)
        ((float *)out)[i] = iso__float_of(h);
    else
        ((uint16_t *)out)[i] = (uint16_t)h;
}

// Not 0 if h is infinite or NaN.
INLINE uint32_t excess_of(iso_dtype type, uint32_t h) {
    uint32_t exponent = type == ISO_F32 ? 0x7f800000 : type == ISO_BF16 ? 0x7f80 : 0x7c00;
    return (h & exponent) == exponent;
}

// ---- Encoding -------------------------------------------------------------------------------------

INLINE bool encode_values(iso_dtype type, size_t count, const float *restrict x, float factor,
                          void *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t sent = to_bits(type, x[i] * factor);
        store_element(type, sent, out, i);
        bad |= excess_of(type, sent);
    }
    return bad == 0;
}

INLINE bool encode_feedback(iso_dtype type, size_t count, const float *restrict x, float factor,
                            float *restrict state, void *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        float v = x[i] * factor + state[i];
        uint32_t sent = to_bits(type, v), lost = excess_of(type, sent);
        store_element(type, sent, out, i);
        // Infinity minus infinity would be NaN, and would remain NaN in every later step.
        uint32_t left = iso__bits_of(v - of_bits(type, sent));
        state[i] = iso__float_of(iso__choose(lost, 0, left));
        bad |= lost;
    }
    return bad == 0;
}

INLINE bool encode_difference(iso_dtype type, size_t count, const float *restrict x, float factor,
                              const float *restrict reference, const float *restrict residual,
                              float *restrict left, void *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        float v = (x[i] - reference[i]) * factor + residual[i];
        uint32_t sent = to_bits(type, v);
        store_element(type, sent, out, i);
        left[i] = v - of_bits(type, sent);
        bad |= excess_of(type, sent);
    }
    return bad == 0;
}

// ---- The mean of shares ---------------------------------------------------------------------------

#define TILE ((size_t)512) // floats that stay in the first-level cache while all nodes are added

// round: rounds to the element type after every addition.
INLINE void add_shares(iso_dtype type, const iso__codec_shares *shares, bool round, size_t first,
                       size_t n, float *restrict sum) {
    const void *data = shares->data;
    for (size_t i = 0; i < n; i++) sum[i] = load_element(type, data, first + i);
    for (int k = 1; k < shares->nodes; k++) {
        size_t at = (size_t)k * shares->count + first;
        for (size_t i = 0; i < n; i++) {
            float s = sum[i] + load_element(type, data, at + i);
            sum[i] = round ? of_bits(type, to_bits(type, s)) : s;
        }
    }
}

INLINE uint32_t divide_sum(iso_dtype type, size_t n, const float *restrict sum, float nodes,
                           void *restrict out, size_t first) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t sent = to_bits(type, sum[i] / nodes);
        store_element(type, sent, out, first + i);
        bad |= excess_of(type, sent);
    }
    return bad;
}

INLINE uint32_t divide_with_feedback(iso_dtype type, size_t n, const float *restrict sum,
                                     float nodes, const float *restrict residual,
                                     float *restrict left, void *restrict out, size_t first) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        float v = sum[i] / nodes + residual[first + i];
        uint32_t sent = to_bits(type, v);
        store_element(type, sent, out, first + i);
        left[first + i] = v - of_bits(type, sent);
        bad |= excess_of(type, sent);
    }
    return bad;
}

INLINE bool mean_of_shares(iso_dtype type, const iso__codec_shares *shares, bool round,
                           const iso__codec_feedback *feedback, void *restrict out) {
    float sum[TILE], nodes = (float)shares->nodes;
    uint32_t bad = 0;
    for (size_t first = 0; first < shares->count; first += TILE) {
        size_t n = shares->count - first < TILE ? shares->count - first : TILE;
        add_shares(type, shares, round, first, n, sum);
        bad |= feedback ? divide_with_feedback(type, n, sum, nodes, feedback->residual,
                                               feedback->left, out, first)
                        : divide_sum(type, n, sum, nodes, out, first);
    }
    return bad == 0;
}

// ---- Decoding -------------------------------------------------------------------------------------

INLINE bool decode_values(iso_dtype type, size_t count, const void *restrict in,
                          float *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = load_element(type, in, i);
        bad |= excess_of(ISO_F32, iso__bits_of(out[i]));
    }
    return bad == 0;
}

INLINE bool decode_scaled(iso_dtype type, size_t count, const void *restrict in, float factor,
                          float *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = load_element(type, in, i) * factor;
        bad |= excess_of(ISO_F32, iso__bits_of(out[i]));
    }
    return bad == 0;
}

INLINE bool decode_difference(iso_dtype type, size_t count, const void *restrict in,
                              const float *restrict reference, float *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = reference[i] + load_element(type, in, i);
        bad |= excess_of(ISO_F32, iso__bits_of(out[i]));
    }
    return bad == 0;
}

INLINE bool decode_add(iso_dtype type, size_t count, const void *restrict in, float *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] += load_element(type, in, i);
        bad |= excess_of(ISO_F32, iso__bits_of(out[i]));
    }
    return bad == 0;
}

// ---- The codecs -----------------------------------------------------------------------------------

// The functions above, with the element type as a constant.
#define CODEC(type, TYPE, size)                                                                    \
    static size_t bytes_##type(size_t count) { return count * (size); }                            \
    ISO_CLONES static bool encode_##type(size_t count, const float *x, float factor, void *out) {  \
        return encode_values(TYPE, count, x, factor, out);                                         \
    }                                                                                              \
    ISO_CLONES static bool feedback_##type(size_t count, const float *x, float factor,             \
                                           float *state, void *out) {                              \
        return encode_feedback(TYPE, count, x, factor, state, out);                                \
    }                                                                                              \
    ISO_CLONES static bool difference_##type(size_t count, const float *x, float factor,           \
                                             const float *reference,                               \
                                             const iso__codec_feedback *feedback, void *out) {     \
        return encode_difference(TYPE, count, x, factor, reference, feedback->residual,            \
                                 feedback->left, out);                                             \
    }                                                                                              \
    ISO_CLONES static bool mean_##type(const iso__codec_shares *shares,                            \
                                       const iso__codec_feedback *feedback, void *out) {           \
        return mean_of_shares(TYPE, shares, false, feedback, out);                                 \
    }                                                                                              \
    ISO_CLONES static bool rounded_##type(const iso__codec_shares *shares, void *out) {            \
        return mean_of_shares(TYPE, shares, true, NULL, out);                                      \
    }                                                                                              \
    ISO_CLONES static bool decode_##type(size_t count, const void *in, float *out) {               \
        return decode_values(TYPE, count, in, out);                                                \
    }                                                                                              \
    ISO_CLONES static bool scaled_##type(size_t count, const void *in, float factor, float *out) { \
        return decode_scaled(TYPE, count, in, factor, out);                                        \
    }                                                                                              \
    ISO_CLONES static bool above_##type(size_t count, const void *in, const float *reference,      \
                                        float *out) {                                              \
        return decode_difference(TYPE, count, in, reference, out);                                 \
    }                                                                                              \
    ISO_CLONES static bool add_##type(size_t count, const void *in, float *out) {                  \
        return decode_add(TYPE, count, in, out);                                                   \
    }                                                                                              \
    const iso__codec iso__codec_##type = {.name = #type,                                           \
                                          .group = 1,                                              \
                                          .bytes = bytes_##type,                                   \
                                          .encode = encode_##type,                                 \
                                          .encode_feedback = feedback_##type,                      \
                                          .encode_difference = difference_##type,                  \
                                          .mean = mean_##type,                                     \
                                          .mean_rounded = rounded_##type,                          \
                                          .decode = decode_##type,                                 \
                                          .decode_scaled = scaled_##type,                          \
                                          .decode_difference = above_##type,                       \
                                          .decode_add = add_##type}

CODEC(f32, ISO_F32, sizeof(float));
CODEC(bf16, ISO_BF16, sizeof(uint16_t));
CODEC(f16, ISO_F16, sizeof(uint16_t));

const iso__codec *iso__codec_of(iso_dtype dtype) {
    switch (dtype) {
    case ISO_F32: return &iso__codec_f32;
    case ISO_BF16: return &iso__codec_bf16;
    case ISO_F16: return &iso__codec_f16;
    default: return NULL;
    }
}
