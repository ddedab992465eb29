// SPDX-License-Identifier: MIT
// Conversions between f16 and f32 by the instructions that AVX-512 has for them. Bits are those of
// base/half.h; only a signalling NaN becomes a quiet one.
#include "base/half.h"
#include "device/cpu/half/cpu_half.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define LANES   16
#define WIDE    __attribute__((target("avx512f")))
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

WIDE void iso__cpu_widen_f16_wide(int64_t count, const uint16_t *from, float *to) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + i))));
    for (; i < count; i++) to[i] = iso__of_f16(from[i]);
}

WIDE void iso__cpu_narrow_f16_wide(int64_t count, const float *from, uint16_t *to) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm256_storeu_si256((__m256i *)(to + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(from + i), NEAREST));
    for (; i < count; i++) to[i] = (uint16_t)iso__f16_of(from[i]);
}

#else

void iso__cpu_widen_f16_wide(int64_t count, const uint16_t *from, float *to) {
    for (int64_t i = 0; i < count; i++) to[i] = iso__of_f16(from[i]);
}

void iso__cpu_narrow_f16_wide(int64_t count, const float *from, uint16_t *to) {
    for (int64_t i = 0; i < count; i++) to[i] = (uint16_t)iso__f16_of(from[i]);
}

#endif
