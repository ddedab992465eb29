// SPDX-License-Identifier: MIT
// Kernels over rows: a warp works on a row or, if rows are long, a block.
#ifndef ISO_CUDA_ROWS_CUH
#define ISO_CUDA_ROWS_CUH

#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_vector.cuh"

#include <math.h>

// All threads of a row must call sum, largest and any together. Sums have a fixed order.
//   for (int64_t n = team::first_row(); n < rows; n += team::row_stride())
//       for (int64_t i = team::lane(); i < k; i += team::lanes())
template <bool block> struct iso__team {
    static __device__ int64_t first_row() { return block ? blockIdx.x : iso__first_item() / 32; }
    static __device__ int64_t row_stride() { return block ? gridDim.x : iso__item_stride() / 32; }
    static __device__ unsigned lane() { return block ? threadIdx.x : threadIdx.x % 32; }
    static __device__ unsigned lanes() { return block ? blockDim.x : 32; }

    static __device__ bool any(bool value) {
        return block ? __syncthreads_or(value) : __any_sync(0xffffffffu, value);
    }
    template <class Real> static __device__ Real sum(Real value) {
        for (int offset = 16; !block && offset > 0; offset /= 2)
            value += __shfl_xor_sync(0xffffffffu, value, offset);
        return block ? iso__block_sum(value) : value;
    }
    // value must not be NaN.
    template <class Real> static __device__ Real largest(Real value) {
        __shared__ Real partial[32];
        for (int offset = 16; offset > 0; offset /= 2) {
            Real other = __shfl_xor_sync(0xffffffffu, value, offset);
            value = other > value ? other : value;
        }
        if (!block) return value;
        __syncthreads(); // partial may still be read by a call before
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
        __syncthreads();
        for (unsigned w = 0; w < blockDim.x / 32; w++)
            value = partial[w] > value ? partial[w] : value;
        return value;
    }
    // The largest entry of a row, ignoring NaNs; the row is read N entries at a time.
    template <int N, class T>
    static __device__ typename iso__real<T>::type top(int64_t k, const T *x) {
        typedef typename iso__real<T>::type Real;
        Real found = -(Real)INFINITY;
        for (int64_t i = lane(); i < k / N; i += lanes()) {
            iso__vector<T, N> at = iso__load_vector<true, T, N>(x + i * N);
            for (int j = 0; j < N; j++) {
                Real entry = iso__widen(at.at[j]);
                found = entry > found ? entry : found;
            }
        }
        return largest(found);
    }
};

// Rows of 16 bits are read 16 bytes at a time if alignment allows: N is then ISO_CUDA_ROW_PACK,
// else 1.
enum { ISO_CUDA_ROW_PACK = iso__widest<iso__bf16>::width };
inline bool iso__rows_hold_packs(int64_t k, const void *a, const void *b, const void *c) {
    return k % ISO_CUDA_ROW_PACK == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}

// Submits the kernel made with iso__team<false> if rows are short, else the one with
// iso__team<true>.
template <class Args>
iso_status iso__cuda_submit_rows(iso__cuda *cuda, void (*by_warps)(Args), void (*by_blocks)(Args),
                                 int64_t rows, int64_t k, const Args &args) {
    if (k <= ISO_CUDA_BLOCK) return iso__cuda_submit_over(cuda, by_warps, rows * 32, args);
    return iso__cuda_submit_over(cuda, by_blocks, rows * ISO_CUDA_BLOCK, args);
}

// The row length to pass to iso__cuda_submit_rows. If rows are read N entries at a time, warps take
// rows up to N/2 times as long.
template <int N> int64_t iso__row_loads(int64_t k) { return N > 1 ? 2 * k / N : k; }

#endif
