// SPDX-License-Identifier: MIT
// Rounds many arrays to bf16 or f16 in one launch, because most weights are so small that a launch
// takes longer than the work.
#include "device/cuda/ops/round_kernels.h"

#include "device/cuda/runtime/cuda_pack.cuh"
#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_types.cuh"

static_assert(sizeof(iso__cuda_roundings) <= 4096, "kernels take 4 KiB");

namespace {

enum { ITEM = 8, FILTER_ROOM = 2048 };

__host__ __device__ int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- In order -------------------------------------------------------------------------------------

template <class T> __device__ void round_item(const float *from, T *to, int64_t i) {
    iso__pack<float> x[2];
    iso__pack<T> y;
    for (int k = 0; k < 2; k++) x[k] = ((const iso__pack<float> *)from)[2 * i + k];
    for (int k = 0; k < ITEM; k++) iso__narrow(x[k / 4].at[k % 4], &y.at[k]);
    ((iso__pack<T> *)to)[i] = y;
}

// Rounds the share of block number `block` of the `blocks` that an array has.
template <class T>
__device__ void round_array(const iso__cuda_rounding &r, unsigned block, unsigned blocks) {
    const float *from = (const float *)r.from;
    T *to = (T *)r.to;
    int64_t items = iso__is_aligned(from) && iso__is_aligned(to) ? r.count / ITEM : 0;
    int64_t first = (int64_t)block * blockDim.x + threadIdx.x;
    int64_t stride = (int64_t)blocks * blockDim.x;
    for (int64_t i = first; i < items; i += stride) round_item(from, to, i);
    for (int64_t i = items * ITEM + first; i < r.count; i += stride) iso__narrow(from[i], &to[i]);
}

// ---- Filters --------------------------------------------------------------------------------------
// A block takes some channels of one filter, which lie beside each other in logical order, through
// shared memory.

// As many channels as there is room for, in whole warps where there are several.
__host__ __device__ int64_t channels_of_block(const iso__cuda_rounding &r) {
    int64_t chunk = FILTER_ROOM / r.taps;
    if (chunk > 32) chunk -= chunk % 32;
    return chunk < r.channels ? chunk : r.channels;
}

template <class T> __device__ void round_filter(const iso__cuda_rounding &r, unsigned block) {
    __shared__ float room[FILTER_ROOM];
    int64_t chunk = channels_of_block(r), chunks = divide_up(r.channels, chunk);
    int64_t filter = block / chunks, first = block % chunks * chunk;
    int64_t left = r.channels - first;
    unsigned width = (unsigned)(chunk < left ? chunk : left), taps = (unsigned)r.taps;
    const float *from = (const float *)r.from + (filter * r.channels + first) * taps;
    for (unsigned i = threadIdx.x; i < width * taps; i += blockDim.x) room[i] = from[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < width * taps; i += blockDim.x) {
        unsigned tap = i / width, c = i % width;
        T *to = (T *)r.to + (filter * taps + tap) * r.channels + first + c;
        iso__narrow(room[c * taps + tap], to);
    }
}

// ---- All ------------------------------------------------------------------------------------------

template <class T> __global__ void round_all(iso__cuda_roundings t) {
    unsigned low = 0, high = t.count; // first[low] <= this block < first[high]
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (t.first[middle] <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    unsigned block = blockIdx.x - t.first[low];
    if (t.item[low].taps > 0)
        round_filter<T>(t.item[low], block);
    else
        round_array<T>(t.item[low], block, t.first[low + 1] - t.first[low]);
}

unsigned blocks_of(const iso__cuda *cuda, const iso__cuda_rounding &r) {
    if (r.taps == 0) return iso__cuda_blocks(cuda, divide_up(r.count, ITEM));
    int64_t filters = r.count / (r.channels * r.taps);
    return (unsigned)(filters * divide_up(r.channels, channels_of_block(r)));
}

} // namespace

iso_status iso__cuda_round_all(iso__cuda *cuda, iso_dtype dtype, iso__cuda_roundings *r) {
    auto kernel = dtype == ISO_F16 ? round_all<iso__f16> : round_all<iso__bf16>;
    for (unsigned i = 0; i < r->count; i++)
        r->first[i + 1] = r->first[i] + blocks_of(cuda, r->item[i]);
    return iso__cuda_submit(cuda, kernel, dim3(r->first[r->count]), ISO_CUDA_BLOCK, *r);
}
