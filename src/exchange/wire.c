// SPDX-License-Identifier: MIT
// Conversion between f32 and the element types that travel, written so that loops vectorise.
#include "exchange/wire.h"

#include "base/half.h"

#define CLONES ISO_CLONES
// Inlined with a constant element type, so that the compiler removes the branches on it.
#define INLINE ISO_INLINE

// ---- One element ----------------------------------------------------------------------------------

INLINE float of_bits(iso_dtype wire, uint32_t h) {
    return wire == ISO_F32 ? iso__float_of(h) : wire == ISO_BF16 ? iso__of_bf16(h) : iso__of_f16(h);
}

INLINE uint32_t to_bits(iso_dtype wire, float x) {
    return wire == ISO_F32 ? iso__bits_of(x) : wire == ISO_BF16 ? iso__bf16_of(x) : iso__f16_of(x);
}

INLINE float load_element(iso_dtype wire, const void *in, size_t i) {
    if (wire == ISO_F32) return ((const float *)in)[i];
    return of_bits(wire, ((const uint16_t *)in)[i]);
}

INLINE void store_element(iso_dtype wire, uint32_t h, void *out, size_t i) {
    if (wire == ISO_F32)
        ((float *)out)[i] = iso__float_of(h);
    else
        ((uint16_t *)out)[i] = (uint16_t)h;
}

// Not 0 if h is infinite or NaN.
INLINE uint32_t excess_of(iso_dtype wire, uint32_t h) {
    uint32_t exponent = wire == ISO_F32 ? 0x7f800000 : wire == ISO_BF16 ? 0x7f80 : 0x7c00;
    return (h & exponent) == exponent;
}

// Calls a function whose first argument is the wire type, with that argument as a constant.
#define FOR_EACH_WIRE(wire, function, ...)                                                         \
    switch (wire) {                                                                                \
    case ISO_BF16: return function(ISO_BF16, __VA_ARGS__);                                         \
    case ISO_F16: return function(ISO_F16, __VA_ARGS__);                                           \
    default: return function(ISO_F32, __VA_ARGS__);                                                \
    }

// ---- To the wire ----------------------------------------------------------------------------------

INLINE bool encode_values(iso_dtype wire, size_t count, const float *restrict x, float factor,
                          void *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t sent = to_bits(wire, x[i] * factor);
        store_element(wire, sent, out, i);
        bad |= excess_of(wire, sent);
    }
    return bad == 0;
}

CLONES bool iso__wire_encode(iso_dtype wire, size_t count, const float *x, float factor,
                             void *out){FOR_EACH_WIRE(wire, encode_values, count, x, factor, out)}

INLINE bool encode_feedback(iso_dtype wire, size_t count, const float *restrict x, float factor,
                            float *restrict state, void *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        float v = x[i] * factor + state[i];
        uint32_t sent = to_bits(wire, v), lost = excess_of(wire, sent);
        store_element(wire, sent, out, i);
        // Infinity minus infinity would be NaN, and would remain NaN in every later step.
        uint32_t left = iso__bits_of(v - of_bits(wire, sent));
        state[i] = iso__float_of(iso__choose(lost, 0, left));
        bad |= lost;
    }
    return bad == 0;
}

CLONES bool iso__wire_encode_feedback(iso_dtype wire, size_t count, const float *x, float factor,
                                      float *state, void *out){
    FOR_EACH_WIRE(wire, encode_feedback, count, x, factor, state, out)}

INLINE bool encode_difference(iso_dtype wire, size_t count, const float *restrict x, float factor,
                              const float *restrict reference, const float *restrict residual,
                              float *restrict left, void *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        float v = (x[i] - reference[i]) * factor + residual[i];
        uint32_t sent = to_bits(wire, v);
        store_element(wire, sent, out, i);
        left[i] = v - of_bits(wire, sent);
        bad |= excess_of(wire, sent);
    }
    return bad == 0;
}

CLONES bool iso__wire_encode_difference(iso_dtype wire, size_t count, const float *x, float factor,
                                        const float *reference, const iso__wire_feedback *feedback,
                                        void *out) {
    FOR_EACH_WIRE(wire, encode_difference, count, x, factor, reference, feedback->residual,
                  feedback->left, out)
}

// ---- The mean of shares ---------------------------------------------------------------------------

#define TILE ((size_t)512) // floats that stay in the first-level cache while all nodes are added

// round: rounds to the wire type after every addition.
INLINE void add_shares(iso_dtype wire, const iso__wire_shares *shares, bool round, size_t first,
                       size_t n, float *restrict sum) {
    const void *data = shares->data;
    for (size_t i = 0; i < n; i++) sum[i] = load_element(wire, data, first + i);
    for (int k = 1; k < shares->nodes; k++) {
        size_t at = (size_t)k * shares->count + first;
        for (size_t i = 0; i < n; i++) {
            float s = sum[i] + load_element(wire, data, at + i);
            sum[i] = round ? of_bits(wire, to_bits(wire, s)) : s;
        }
    }
}

INLINE uint32_t divide_sum(iso_dtype wire, size_t n, const float *restrict sum, float nodes,
                           void *restrict out, size_t first) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t sent = to_bits(wire, sum[i] / nodes);
        store_element(wire, sent, out, first + i);
        bad |= excess_of(wire, sent);
    }
    return bad;
}

INLINE uint32_t divide_with_feedback(iso_dtype wire, size_t n, const float *restrict sum,
                                     float nodes, const float *restrict residual,
                                     float *restrict left, void *restrict out, size_t first) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        float v = sum[i] / nodes + residual[first + i];
        uint32_t sent = to_bits(wire, v);
        store_element(wire, sent, out, first + i);
        left[first + i] = v - of_bits(wire, sent);
        bad |= excess_of(wire, sent);
    }
    return bad;
}

INLINE bool mean_of_shares(iso_dtype wire, const iso__wire_shares *shares, bool round,
                           const iso__wire_feedback *feedback, void *restrict out) {
    float sum[TILE], nodes = (float)shares->nodes;
    uint32_t bad = 0;
    for (size_t first = 0; first < shares->count; first += TILE) {
        size_t n = shares->count - first < TILE ? shares->count - first : TILE;
        add_shares(wire, shares, round, first, n, sum);
        bad |= feedback ? divide_with_feedback(wire, n, sum, nodes, feedback->residual,
                                               feedback->left, out, first)
                        : divide_sum(wire, n, sum, nodes, out, first);
    }
    return bad == 0;
}

CLONES bool iso__wire_mean(iso_dtype wire, const iso__wire_shares *shares,
                           const iso__wire_feedback *feedback, void *out){
    FOR_EACH_WIRE(wire, mean_of_shares, shares, false, feedback, out)}

CLONES bool iso__wire_mean_rounded(iso_dtype wire, const iso__wire_shares *shares, void *out){
    FOR_EACH_WIRE(wire, mean_of_shares, shares, true, NULL, out)}

// ---- From the wire --------------------------------------------------------------------------------

INLINE
    bool decode_values(iso_dtype wire, size_t count, const void *restrict in, float *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = load_element(wire, in, i);
        bad |= excess_of(ISO_F32, iso__bits_of(out[i]));
    }
    return bad == 0;
}

CLONES bool iso__wire_decode(iso_dtype wire, size_t count, const void *in,
                             float *out){FOR_EACH_WIRE(wire, decode_values, count, in, out)}

INLINE bool decode_scaled(iso_dtype wire, size_t count, const void *restrict in, float factor,
                          float *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = load_element(wire, in, i) * factor;
        bad |= excess_of(ISO_F32, iso__bits_of(out[i]));
    }
    return bad == 0;
}

CLONES bool iso__wire_decode_scaled(iso_dtype wire, size_t count, const void *in, float factor,
                                    float *out){
    FOR_EACH_WIRE(wire, decode_scaled, count, in, factor, out)}

INLINE bool decode_difference(iso_dtype wire, size_t count, const void *restrict in,
                              const float *restrict reference, float *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = reference[i] + load_element(wire, in, i);
        bad |= excess_of(ISO_F32, iso__bits_of(out[i]));
    }
    return bad == 0;
}

CLONES bool iso__wire_decode_difference(iso_dtype wire, size_t count, const void *in,
                                        const float *reference, float *out) {
    FOR_EACH_WIRE(wire, decode_difference, count, in, reference, out)
}
