// SPDX-License-Identifier: MIT
// Shared by .cu files: moves adjacent elements of any type in one access if memory is aligned
// accordingly.
#ifndef ISO_CUDA_VECTOR_CUH
#define ISO_CUDA_VECTOR_CUH

#include "device/cuda/runtime/cuda_types.cuh"

template <class T, int N> struct alignas(N * sizeof(T)) iso__vector { T at[N]; };

// The number of elements in 16 bytes, the widest access.
template <class T> struct iso__widest {
    enum { width = 16 / sizeof(T) };
};

template <class T, int N> __host__ __device__ inline bool iso__holds_vectors(const void *memory) {
    return N == 1 || (uintptr_t)memory % sizeof(iso__vector<T, N>) == 0;
}

// aligned is a template argument, because a branch around each access would prevent several from
// being under way at once.
template <bool aligned, class T, int N>
__device__ inline iso__vector<T, N> iso__load_vector(const T *from) {
    iso__vector<T, N> x;
    if (aligned) x = *(const iso__vector<T, N> *)from;
    for (int i = 0; !aligned && i < N; i++) x.at[i] = from[i];
    return x;
}

template <bool aligned, class T, int N>
__device__ inline void iso__store_vector(T *to, const iso__vector<T, N> &x) {
    if (aligned) *(iso__vector<T, N> *)to = x;
    for (int i = 0; !aligned && i < N; i++) to[i] = x.at[i];
}

#endif
