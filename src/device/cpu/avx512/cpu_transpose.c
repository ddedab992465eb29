// SPDX-License-Identifier: MIT
// Transposes small matrices in AVX-512 registers, for kernels and for conversions of layouts.
#include "device/cpu/cpu_impl.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define LANES  16
#define WIDE   __attribute__((target("avx512f")))
#define INLINE static inline __attribute__((always_inline, target("avx512f")))

bool iso__cpu_is_wide(void) { return __builtin_cpu_supports("avx512f"); }

// Exchanges the halves of 2s x 2s squares; for s = 1, 2, 4 and 8 in turn this transposes 16 x 16.
INLINE void exchange_halves(__m512 *v, int s) {
    int low[LANES], high[LANES];
    for (int l = 0; l < LANES; l++) {
        low[l] = l & s ? LANES + l - s : l;
        high[l] = l & s ? LANES + l : l + s;
    }
    const __m512i first = _mm512_loadu_si512(low), second = _mm512_loadu_si512(high);
    for (int i = 0; i < LANES; i++) {
        if (i & s) continue;
        __m512 a = v[i], b = v[i + s];
        v[i] = _mm512_permutex2var_ps(a, first, b);
        v[i + s] = _mm512_permutex2var_ps(a, second, b);
    }
}

INLINE __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1); }

WIDE void iso__cpu_transpose16(const float *from, int64_t from_stride, int rows, int columns,
                               float *to, int64_t to_stride, int width) {
    __m512 v[LANES];
    __mmask16 there = first_lanes(columns), wanted = first_lanes(width);
    for (int i = 0; i < LANES; i++)
        v[i] =
            i < rows ? _mm512_maskz_loadu_ps(there, from + i * from_stride) : _mm512_setzero_ps();
    exchange_halves(v, 1);
    exchange_halves(v, 2);
    exchange_halves(v, 4);
    exchange_halves(v, 8);
    for (int i = 0; i < columns; i++) _mm512_mask_storeu_ps(to + i * to_stride, wanted, v[i]);
}

#else

bool iso__cpu_is_wide(void) { return false; }

void iso__cpu_transpose16(const float *from, int64_t from_stride, int rows, int columns, float *to,
                          int64_t to_stride, int width) {
    for (int i = 0; i < columns; i++)
        for (int k = 0; k < width; k++)
            to[i * to_stride + k] = k < rows ? from[k * from_stride + i] : 0;
}

#endif
