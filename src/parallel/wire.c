// Conversion between f32 and the element types that travel, written so that loops vectorise.
#include "parallel/wire.h"

#include <string.h>

// Compiled for each of these instruction sets, one is picked when the program is loaded. With
// integers and single operations in f32 (no fused multiply-add) all give the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
// The element type is a constant wherever these are used, so that branches on it go away.
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

// ---- One element ----------------------------------------------------------------------------------

INLINE uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

INLINE float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

// bf16 is the upper half of f32. A NaN keeps its upper payload and becomes quiet.
INLINE uint32_t bf16_of(float x) {
    uint32_t u = bits_of(x);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded;
}

#define F16_LEAST_NORMAL 0x38800000u // 2^-14
#define F16_INFINITE     0x477ff000u // what rounds to more than 65504

INLINE uint32_t choose(bool which, uint32_t yes, uint32_t no) {
    uint32_t mask = -(uint32_t)which; // a conditional expression is made a branch at times
    return (yes & mask) | (no & ~mask);
}

INLINE uint32_t f16_of(float x) {
    uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000, size = u & 0x7fffffff;
    uint32_t normal = (size - (112u << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    // The unit in the last place of 1/2 is that of subnormal halves: the addition rounds.
    uint32_t subnormal = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    uint32_t nan = 0x7e00 | ((size >> 13) & 0x3ff);
    uint32_t h = choose(size < F16_LEAST_NORMAL, subnormal, normal);
    h = choose(size >= F16_INFINITE, 0x7c00, h);
    return choose(size > 0x7f800000, nan, h) | sign;
}

INLINE float of_f16(uint32_t h) {
    uint32_t sign = (h & 0x8000) << 16, size = (h & 0x7fff) << 13;
    uint32_t exponent = h & 0x7c00;
    uint32_t special = exponent == 0x7c00 ? 112u << 23 : 0; // up to the exponent of f32
    uint32_t normal = size + (112u << 23) + special;
    // As a number in [2^-14, 2^-13), from which the leading one is taken away.
    uint32_t subnormal = bits_of(float_of(size + (113u << 23)) - float_of(113u << 23));
    return float_of((exponent == 0 ? subnormal : normal) | sign);
}

INLINE float of_bits(iso_dtype wire, uint32_t h) {
    return wire == ISO_F32 ? float_of(h) : wire == ISO_BF16 ? float_of(h << 16) : of_f16(h);
}

INLINE uint32_t to_bits(iso_dtype wire, float x) {
    return wire == ISO_F32 ? bits_of(x) : wire == ISO_BF16 ? bf16_of(x) : f16_of(x);
}

INLINE float load(iso_dtype wire, const void *in, size_t i) {
    if (wire == ISO_F32) return ((const float *)in)[i];
    return of_bits(wire, ((const uint16_t *)in)[i]);
}

INLINE void store(iso_dtype wire, uint32_t h, void *out, size_t i) {
    if (wire == ISO_F32)
        ((float *)out)[i] = float_of(h);
    else
        ((uint16_t *)out)[i] = (uint16_t)h;
}

// Not 0 for what is infinite or NaN.
INLINE uint32_t excess(iso_dtype wire, uint32_t h) {
    uint32_t exponent = wire == ISO_F32 ? 0x7f800000 : wire == ISO_BF16 ? 0x7f80 : 0x7c00;
    return (h & exponent) == exponent;
}

// Calls a function whose first argument is the wire type with a constant.
#define FOR_EACH_WIRE(wire, function, ...)                                                         \
    switch (wire) {                                                                                \
    case ISO_BF16: return function(ISO_BF16, __VA_ARGS__);                                         \
    case ISO_F16: return function(ISO_F16, __VA_ARGS__);                                           \
    default: return function(ISO_F32, __VA_ARGS__);                                                \
    }

// ---- To the wire ----------------------------------------------------------------------------------

INLINE bool encode(iso_dtype wire, size_t count, const float *restrict x, float factor,
                   void *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t sent = to_bits(wire, x[i] * factor);
        store(wire, sent, out, i);
        bad |= excess(wire, sent);
    }
    return bad == 0;
}

CLONES bool iso__wire_encode(iso_dtype wire, size_t count, const float *x, float factor,
                             void *out){FOR_EACH_WIRE(wire, encode, count, x, factor, out)}

INLINE bool encode_difference(iso_dtype wire, size_t count, const float *restrict x, float factor,
                              const float *restrict reference, const float *restrict residual,
                              float *restrict left, void *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        float v = (x[i] - reference[i]) * factor + residual[i];
        uint32_t sent = to_bits(wire, v);
        store(wire, sent, out, i);
        left[i] = v - of_bits(wire, sent);
        bad |= excess(wire, sent);
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

// `round`: after every addition.
INLINE void add_shares(iso_dtype wire, const iso__wire_shares *shares, bool round, size_t first,
                       size_t n, float *restrict sum) {
    const void *data = shares->data;
    for (size_t i = 0; i < n; i++) sum[i] = load(wire, data, first + i);
    for (int k = 1; k < shares->nodes; k++) {
        size_t at = (size_t)k * shares->count + first;
        for (size_t i = 0; i < n; i++) {
            float s = sum[i] + load(wire, data, at + i);
            sum[i] = round ? of_bits(wire, to_bits(wire, s)) : s;
        }
    }
}

INLINE uint32_t divide(iso_dtype wire, size_t n, const float *restrict sum, float nodes,
                       void *restrict out, size_t first) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t sent = to_bits(wire, sum[i] / nodes);
        store(wire, sent, out, first + i);
        bad |= excess(wire, sent);
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
        store(wire, sent, out, first + i);
        left[first + i] = v - of_bits(wire, sent);
        bad |= excess(wire, sent);
    }
    return bad;
}

INLINE bool mean(iso_dtype wire, const iso__wire_shares *shares, bool round,
                 const iso__wire_feedback *feedback, void *restrict out) {
    float sum[TILE], nodes = (float)shares->nodes;
    uint32_t bad = 0;
    for (size_t first = 0; first < shares->count; first += TILE) {
        size_t n = shares->count - first < TILE ? shares->count - first : TILE;
        add_shares(wire, shares, round, first, n, sum);
        bad |= feedback ? divide_with_feedback(wire, n, sum, nodes, feedback->residual,
                                               feedback->left, out, first)
                        : divide(wire, n, sum, nodes, out, first);
    }
    return bad == 0;
}

CLONES bool iso__wire_mean(iso_dtype wire, const iso__wire_shares *shares,
                           const iso__wire_feedback *feedback,
                           void *out){FOR_EACH_WIRE(wire, mean, shares, false, feedback, out)}

CLONES bool iso__wire_mean_rounded(iso_dtype wire, const iso__wire_shares *shares,
                                   void *out){FOR_EACH_WIRE(wire, mean, shares, true, NULL, out)}

// ---- From the wire --------------------------------------------------------------------------------

INLINE bool decode(iso_dtype wire, size_t count, const void *restrict in, float *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = load(wire, in, i);
        bad |= excess(ISO_F32, bits_of(out[i]));
    }
    return bad == 0;
}

CLONES bool iso__wire_decode(iso_dtype wire, size_t count, const void *in,
                             float *out){FOR_EACH_WIRE(wire, decode, count, in, out)}

INLINE bool decode_difference(iso_dtype wire, size_t count, const void *restrict in,
                              const float *restrict reference, float *restrict out) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = reference[i] + load(wire, in, i);
        bad |= excess(ISO_F32, bits_of(out[i]));
    }
    return bad == 0;
}

CLONES bool iso__wire_decode_difference(iso_dtype wire, size_t count, const void *in,
                                        const float *reference, float *out) {
    FOR_EACH_WIRE(wire, decode_difference, count, in, reference, out)
}
