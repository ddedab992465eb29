// SPDX-License-Identifier: MIT
// What .cu files share: launching a kernel of one struct, walking items, reductions of a block.
#ifndef ISO_CUDA_SUBMIT_CUH
#define ISO_CUDA_SUBMIT_CUH

#include "device/cuda/runtime/cuda_launch.h"

#include <cuda_runtime.h>

// What lies between the members of a struct would make two launches look different.
template <class Args> void iso__clear_padding(Args *args) {
    (void)args;
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(args);
#endif
#endif
}

template <class Args>
iso_status iso__cuda_submit(iso__cuda *cuda, void (*kernel)(Args), dim3 grid, unsigned block,
                            const Args &given) {
    Args args = given;
    iso__clear_padding(&args);
#ifdef ISO_CUDA_EMULATED
    emulated_register(kernel);
#endif
    iso__cuda_kernel k = {
        (const void *)kernel, {grid.x, grid.y, grid.z}, block, &args, sizeof(args)};
    return iso__cuda_launch(cuda, &k);
}

// For items that are independent of each other.
template <class Args>
iso_status iso__cuda_submit_over(iso__cuda *cuda, void (*kernel)(Args), int64_t count,
                                 const Args &args) {
    return iso__cuda_submit(cuda, kernel, dim3(iso__cuda_blocks(cuda, count)), ISO_CUDA_BLOCK,
                            args);
}

// for (int64_t i = iso__first_item(); i < count; i += iso__item_stride())
__device__ inline int64_t iso__first_item() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ inline int64_t iso__item_stride() { return (int64_t)gridDim.x * blockDim.x; }

// The sum over all threads of a block (a multiple of 32, at most 1024), in every thread; in a fixed
// order. All threads call it.
template <class Real> __device__ Real iso__block_sum(Real value) {
    __shared__ Real part[32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads(); // part may still be read by a call before
    if (lane == 0) part[warp] = value;
    __syncthreads();
    Real sum = 0;
    for (unsigned w = 0; w < warps; w++) sum += part[w];
    return sum;
}

#endif
