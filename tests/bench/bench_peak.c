// SPDX-License-Identifier: MIT
// What this machine can do at most: multiply-adds in registers, and a triad through memory.
#include "bench_peak.h"

#include <isotherm/trace.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define ROUNDS 20000
#define TRIES  9

// ---- Arithmetic -----------------------------------------------------------------------------------

// Twelve sums: more than the latency of a multiply-add times the units of any core needs, and few
// enough for 16 registers. The compiler contracts a * b + c.
#define FMA_LOOP(name, lanes, ...)                                                                 \
    typedef float name##_vector __attribute__((vector_size(4 * lanes)));                           \
    __VA_ARGS__ static float name(void) {                                                          \
        name##_vector sum[12], x, y;                                                               \
        for (int l = 0; l < lanes; l++) x[l] = 0.999f, y[l] = 1e-3f;                               \
        for (int i = 0; i < 12; i++) sum[i] = x * (float)i;                                        \
        for (int r = 0; r < ROUNDS; r++) {                                                         \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) sum[i] = sum[i] * x + y;         \
        }                                                                                          \
        name##_vector all = sum[0];                                                                \
        for (int i = 1; i < 12; i++) all += sum[i];                                                \
        return all[0];                                                                             \
    }

FMA_LOOP(fma_plain, 4)
#if defined(__x86_64__) && defined(__GNUC__)
FMA_LOOP(fma_avx2, 8, __attribute__((target("avx2,fma"))))
FMA_LOOP(fma_avx512, 16, __attribute__((target("avx512f"))))
#endif

static volatile float sink;

static double time_fma(float (*loop)(void), int lanes, int threads) {
    double best = 0;
    for (int t = 0; t < TRIES; t++) {
        int64_t start = iso_now();
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
        sink = loop();
        double rate = 2.0 * 12 * lanes * ROUNDS * threads / (double)(iso_now() - start);
        if (rate > best) best = rate;
    }
    return best;
}

double bench_peak_gflops(int threads, const char **with) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f")) {
        *with = "AVX-512";
        return time_fma(fma_avx512, 16, threads);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        *with = "AVX2";
        return time_fma(fma_avx2, 8, threads);
    }
#endif
    *with = "vectors of 4";
    return time_fma(fma_plain, 4, threads);
}

// ---- Memory ---------------------------------------------------------------------------------------

static double time_triad(size_t count, int threads, float *a, const float *b, const float *c) {
    double best = 0;
    int repeats = (int)((size_t)(1 << 22) / count) + 1;
    for (int t = 0; t < TRIES; t++) {
        int64_t start = iso_now();
        for (int r = 0; r < repeats; r++) {
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads)
#endif
            for (size_t i = 0; i < count; i++) a[i] = b[i] + 1.5f * c[i];
            __asm__ volatile("" : : "r"(a) : "memory");
        }
        double bytes = 3.0 * sizeof(float) * (double)count * repeats;
        double rate = bytes / (double)(iso_now() - start);
        if (rate > best) best = rate;
    }
    (void)threads;
    return best;
}

static double measure_triad(size_t bytes, int threads) {
    size_t count = bytes / 12 / 16 * 16, room = count * sizeof(float);
    float *memory[3];
    for (int i = 0; i < 3; i++) {
        memory[i] = aligned_alloc(64, room);
        if (!memory[i]) abort();
        memset(memory[i], 0, room);
    }
    double best = time_triad(count, threads, memory[0], memory[1], memory[2]);
    for (int i = 0; i < 3; i++) free(memory[i]);
    return best;
}

double bench_peak_gbs(size_t bytes, int threads) {
    static double known[29]; // by power of two, from 64 KiB on
    int power = 16;
    while (power < 28 && (size_t)1 << power < bytes) power++;
    if (known[power] == 0) known[power] = measure_triad((size_t)1 << power, threads);
    return known[power];
}
