// SPDX-License-Identifier: MIT
// Private to the library: f32 to and from bf16 and f16, one element at a time, written so that
// loops over it vectorise.
//
// Rounding is to nearest, ties to even; NaN stays NaN; values that are too large become infinite.
// Only integers and single f32 operations are used (no fused multiply-add), so the bits depend
// neither on the instruction set nor on the machine.
#ifndef ISO_HALF_H
#define ISO_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

// Compiles a function for each of these instruction sets; one is chosen when the program is loaded.
// Not with ThreadSanitizer, which cannot follow that choice.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define ISO_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ISO_CLONES
#endif
// Inlined into every clone that calls it.
#if defined(__GNUC__)
#define ISO_INLINE static inline __attribute__((always_inline))
#else
#define ISO_INLINE static inline
#endif

ISO_INLINE uint32_t iso__bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

ISO_INLINE float iso__float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

ISO_INLINE uint32_t iso__choose(bool which, uint32_t yes, uint32_t no) {
    uint32_t mask = -(uint32_t)which; // compilers may turn a conditional expression into a branch
    return (yes & mask) | (no & ~mask);
}

// bf16 is the upper half of f32. A NaN keeps its upper payload and becomes quiet.
ISO_INLINE uint32_t iso__bf16_of(float x) {
    uint32_t u = iso__bits_of(x);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded;
}

ISO_INLINE float iso__of_bf16(uint32_t h) { return iso__float_of(h << 16); }

#define ISO_F16_LEAST_NORMAL 0x38800000u // 2^-14
#define ISO_F16_INFINITE     0x477ff000u // the smallest value that rounds to more than 65504

ISO_INLINE uint32_t iso__f16_of(float x) {
    uint32_t u = iso__bits_of(x), sign = (u >> 16) & 0x8000, size = u & 0x7fffffff;
    uint32_t normal = (size - (112u << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    // 0.5f and subnormal f16 numbers have the same unit in the last place, 2^-24, so the addition
    // rounds.
    uint32_t subnormal = iso__bits_of(iso__float_of(size) + 0.5f) - iso__bits_of(0.5f);
    uint32_t nan = 0x7e00 | ((size >> 13) & 0x3ff);
    uint32_t h = iso__choose(size < ISO_F16_LEAST_NORMAL, subnormal, normal);
    h = iso__choose(size >= ISO_F16_INFINITE, 0x7c00, h);
    return iso__choose(size > 0x7f800000, nan, h) | sign;
}

ISO_INLINE float iso__of_f16(uint32_t h) {
    uint32_t sign = (h & 0x8000) << 16, size = (h & 0x7fff) << 13;
    uint32_t exponent = h & 0x7c00;
    // Raises the exponent to that of infinity and NaN in f32.
    uint32_t special = exponent == 0x7c00 ? 112u << 23 : 0;
    uint32_t normal = size + (112u << 23) + special;
    // A subnormal f16 number: a number in [2^-14, 2^-13), minus its leading one.
    float above = iso__float_of(size + (113u << 23)) - iso__float_of(113u << 23);
    return iso__float_of((exponent == 0 ? iso__bits_of(above) : normal) | sign);
}

#endif
