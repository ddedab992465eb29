// SPDX-License-Identifier: MIT
// The geometry of pooling: sizes, windows and pixels along an axis, and division by numbers that
// are the same for all threads.
#ifndef ISO_CUDA_WINDOWS_CUH
#define ISO_CUDA_WINDOWS_CUH

#include "device/cuda/ops/pool_kernels.h"

#include <cuda_runtime.h>

// A division takes a GPU ten times as long as a multiplication. For n below 2^31, n / by is
// n * m >> (32 + shift), where m = 2^32 + factor is slightly above 2^(32 + shift) / by (Granlund,
// Montgomery: Division by invariant integers using multiplication, 1994).
template <class Index> struct iso__divider;

template <> struct iso__divider<int32_t> {
    uint32_t factor, shift;

    iso__divider() = default;
    explicit iso__divider(int64_t by) : factor(1), shift(0) {
        while (((int64_t)1 << shift) < by) shift++;
        uint64_t over = ((uint64_t)1 << shift) - (uint64_t)by;
        factor = (uint32_t)((over << 32) / (uint64_t)by + 1);
    }
    __device__ int32_t of(int32_t n) const {
        uint32_t upper = (uint32_t)((uint64_t)(uint32_t)n * factor >> 32);
        return (int32_t)((upper + (uint32_t)n) >> shift);
    }
};

template <> struct iso__divider<int64_t> {
    int64_t by;

    iso__divider() = default;
    explicit iso__divider(int64_t number) : by(number) {}
    __device__ int64_t of(int64_t n) const { return n / by; }
};

// Index: 32 bits if the sizes allow it.
template <class Index> struct iso__axis {
    Index in, out, kernel, stride, padding;
    iso__divider<Index> by_in, by_out, by_stride;

    iso__axis() = default;
    explicit iso__axis(const iso__cuda_pool_axis &a)
        : in((Index)a.in), out((Index)a.out), kernel((Index)a.kernel), stride((Index)a.stride),
          padding((Index)a.padding), by_in(a.in), by_out(a.out),
          by_stride(a.kernel ? a.stride : 1) {}
};

template <class Index> struct iso__span { Index first, end; };

// The start of window `o`, which may lie in the padding.
template <class Index> __device__ inline Index iso__start_of(const iso__axis<Index> &a, Index o) {
    return o * a.stride - a.padding;
}

// The pixels of window `o` that lie in the image.
template <class Index>
__device__ inline iso__span<Index> iso__pixels_of(const iso__axis<Index> &a, Index o) {
    if (a.kernel == 0) return {a.by_out.of(o * a.in), a.by_out.of((o + 1) * a.in + a.out - 1)};
    Index start = iso__start_of(a, o), end = start + a.kernel;
    return {start < 0 ? 0 : start, end > a.in ? a.in : end};
}

// The windows that contain pixel i.
template <class Index>
__device__ inline iso__span<Index> iso__windows_of(const iso__axis<Index> &a, Index i) {
    if (a.kernel == 0) return {a.by_in.of(i * a.out), a.by_in.of((i + 1) * a.out - 1) + 1};
    Index before = i + a.padding - a.kernel, end = a.by_stride.of(i + a.padding) + 1;
    return {before < 0 ? 0 : a.by_stride.of(before) + 1, end > a.out ? a.out : end};
}

#endif
