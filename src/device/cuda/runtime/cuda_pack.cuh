// SPDX-License-Identifier: MIT
// Shared by .cu files: moves elements 16 bytes at a time if memory is aligned accordingly.
#ifndef ISO_CUDA_PACK_CUH
#define ISO_CUDA_PACK_CUH

#include <cuda_runtime.h>
#include <stdint.h>

template <class Real> struct alignas(16) iso__pack {
    static const int width = 16 / sizeof(Real);
    Real at[width];
};

__host__ __device__ inline bool iso__is_aligned(const void *memory) {
    return (uintptr_t)memory % 16 == 0;
}

template <class Real> __device__ inline iso__pack<Real> iso__load(const Real *from, bool aligned) {
    iso__pack<Real> x;
    if (aligned) return *(const iso__pack<Real> *)from;
    for (int k = 0; k < iso__pack<Real>::width; k++) x.at[k] = from[k];
    return x;
}

template <class Real>
__device__ inline void iso__store(Real *to, const iso__pack<Real> &x, bool aligned) {
    if (aligned) {
        *(iso__pack<Real> *)to = x;
        return;
    }
    for (int k = 0; k < iso__pack<Real>::width; k++) to[k] = x.at[k];
}

#endif
