// SPDX-License-Identifier: MIT
// What this machine can do at most, measured.
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include <stddef.h>

// Multiply-adds on f32 in registers with the widest instructions, two operations each, and their
// name.
double bench_peak_gflops(int threads, const char **with);
// Bytes read and written by a triad that works on so many in all (rounded up to a power of two from
// 64 KiB to 256 MiB): small ones stay in caches. Measured once for each size.
double bench_peak_gbs(size_t bytes, int threads);

#endif
