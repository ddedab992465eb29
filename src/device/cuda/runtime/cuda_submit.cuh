// SPDX-License-Identifier: MIT
// Shared by .cu files: launches of a kernel that takes one struct, loops over items, reductions of
// a block.
#ifndef ISO_CUDA_SUBMIT_CUH
#define ISO_CUDA_SUBMIT_CUH

#include "device/cuda/runtime/cuda_launch.h"

#include <cuda_runtime.h>

// Clears the padding, which would make two equal launches look different.
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

// The sum over all threads of a block (a multiple of 32, at most 1024), returned in every thread,
// in a fixed order. All threads must call it.
template <class Real> __device__ Real iso__block_sum(Real value) {
    __shared__ Real partial[32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads(); // an earlier call may still read partial
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    Real sum = 0;
    for (unsigned w = 0; w < warps; w++) sum += partial[w];
    return sum;
}

// Whether this block is the last of `blocks` to arrive at a counter, which is 0 before and after.
// All threads of each block call it after they have stored their partial sums. The last block then
// reads the sums of the others through volatile.
__device__ inline bool iso__is_last_block(unsigned *counter, unsigned blocks) {
    __shared__ bool last;
    __threadfence(); // makes this thread's sum visible before its block arrives
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == blocks - 1;
    __syncthreads();
    if (!last) return false;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    return true;
}

#endif
