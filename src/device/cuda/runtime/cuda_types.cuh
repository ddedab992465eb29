// SPDX-License-Identifier: MIT
// Shared by .cu files: the element types in which kernels store values, and those in which they
// compute. Kernels that take 16 bits are templates of the stored type T; they widen what they load
// and round what they store to nearest, ties to even.
#ifndef ISO_CUDA_TYPES_CUH
#define ISO_CUDA_TYPES_CUH

#include "base/half.h"

#include <cuda_runtime.h>
#include <isotherm/device.h>

// The upper half of a float.
struct iso__bf16 {
    uint16_t bits;
};
// IEEE 754 binary16.
struct iso__f16 {
    uint16_t bits;
};

// iso__real<T>::type: the type in which kernels compute with values of T.
template <class T> struct iso__real { typedef T type; };
template <> struct iso__real<iso__bf16> { typedef float type; };
template <> struct iso__real<iso__f16> { typedef float type; };

__host__ __device__ inline double iso__widen(double x) { return x; }
__host__ __device__ inline float iso__widen(float x) { return x; }
__host__ __device__ inline float iso__widen(iso__bf16 x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}
__host__ __device__ inline float iso__widen(iso__f16 x) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
#else
    return iso__of_f16(x.bits);
#endif
}

__host__ __device__ inline void iso__narrow(double x, double *to) { *to = x; }
__host__ __device__ inline void iso__narrow(float x, float *to) { *to = x; }
__host__ __device__ inline void iso__narrow(float x, iso__bf16 *to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (x != x)
        bits = 0x7fff0000u; // the NaN that the instruction returns
    else
        bits += 0x7fffu + (bits >> 16 & 1);
    to->bits = (uint16_t)(bits >> 16);
#endif
}
__host__ __device__ inline void iso__narrow(float x, iso__f16 *to) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
#else
    to->bits = (uint16_t)(x != x ? 0x7fffu : iso__f16_of(x));
#endif
}

// The instance of a launcher for an element type.
template <class Launcher>
Launcher iso__for_type(iso_dtype dtype, Launcher f64, Launcher f32, Launcher bf16, Launcher f16) {
    return dtype == ISO_F64 ? f64 : dtype == ISO_BF16 ? bf16 : dtype == ISO_F16 ? f16 : f32;
}

#endif
