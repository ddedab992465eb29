// SPDX-License-Identifier: MIT
// The 16-bit element types of the emulated GPU: to and from f32, rounding to nearest even.
#ifndef EMULATED_TYPES_H
#define EMULATED_TYPES_H

#include <stdint.h>
#include <string.h>

#include <cmath>

namespace emulated {

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

inline uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

inline float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

// Keeps the upper bits of an f32's pattern; infinity and NaN stay what they are.
inline uint32_t round_bits(float x, int dropped) {
    uint32_t u = bits_of(x);
    if (std::isnan(x)) return u | 0x400000u;
    uint32_t half = (1u << (dropped - 1)) - 1 + (u >> dropped & 1);
    return (u + half) >> dropped << dropped;
}

inline float load(float x) { return x; }
inline double load(double x) { return x; }
inline float load(bf16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }
inline float load(f16 x) {
    int exponent = x.bits >> 10 & 31, mantissa = x.bits & 1023;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                : std::ldexp(static_cast<float>(mantissa | 1024), exponent - 25);
    if (exponent == 31) value = mantissa != 0 ? NAN : INFINITY;
    return x.bits >> 15 ? -value : value;
}

inline void store(float *to, float x) { *to = x; }
inline void store(double *to, double x) { *to = x; }
inline void store(bf16 *to, float x) { to->bits = static_cast<uint16_t>(round_bits(x, 16) >> 16); }
inline void store(f16 *to, float x) {
    uint16_t sign = static_cast<uint16_t>(bits_of(x) >> 16 & 0x8000u);
    float size = std::fabs(x);
    uint16_t bits;
    if (std::isnan(x))
        bits = 0x7E00;
    else if (size >= 65520.0f) // halfway to what would follow the largest number
        bits = 0x7C00;
    else if (size < 6.103515625e-5f) // subnormal: a multiple of 2^-24
        bits = static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 24)));
    else
        bits = static_cast<uint16_t>((round_bits(size, 13) >> 13) - (112u << 10));
    to->bits = sign | bits;
}

} // namespace emulated

#endif
