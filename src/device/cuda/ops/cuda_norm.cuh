// SPDX-License-Identifier: MIT
// Divides batch normalisation among blocks and threads. A block takes one part of the values of a
// channel or, if planes are tiny, of several adjacent channels, so that it reads adjacent memory. A
// thread moves V adjacent values in one access: pixels of its channel or, if a plane is a single
// pixel, one value of each of its V channels.
#ifndef ISO_CUDA_NORM_CUH
#define ISO_CUDA_NORM_CUH

#include "device/cuda/ops/batch_norm_kernels.h"
#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_vector.cuh"

#include <math.h>

// ---- Where a thread works -----------------------------------------------------------------------

struct iso__norm_place {
    int64_t channel;         // the first of the thread's channels
    int lane, along, alongs; // lane: index of the channel (or channels) in the block; along: index
                             // among the `alongs` threads of that lane
    bool exists;
};

// K: channels of a thread.
template <int K>
__device__ inline iso__norm_place iso__norm_place_of(const iso__cuda_norm_shape &s) {
    iso__norm_place p;
    p.lane = (int)threadIdx.x % s.lanes;
    p.along = (int)threadIdx.x / s.lanes;
    p.alongs = (int)blockDim.x / s.lanes;
    p.channel = ((int64_t)blockIdx.x * s.lanes + p.lane) * K;
    p.exists = p.channel < s.channels;
    return p;
}

__device__ inline int64_t iso__norm_values(const iso__cuda_norm_shape &s, int64_t part) {
    int64_t left = s.values - part * s.part_values;
    return left < s.part_values ? left : s.part_values;
}

// A thread's walk through the values of a part, V at a time: each of the `alongs` threads of a lane
// takes every `alongs`-th access.
struct iso__norm_walk {
    int64_t at, in_plane, left;
    int64_t step, step_in_plane, plane, next_row;
};

template <int V, int K>
__device__ inline iso__norm_walk iso__norm_walk_of(const iso__cuda_norm_shape &s,
                                                   const iso__norm_place &p, int64_t part,
                                                   int64_t part_values) {
    const int pixels = V / K;
    // A constant for kernels with many channels, which are short of registers.
    int64_t plane = K > 4 ? 1 : s.plane / pixels, row = s.channels * s.plane / V;
    int64_t first = part * (part_values / pixels) + p.along, end = (part + 1) * part_values;
    if (end > s.values) end = s.values;
    iso__norm_walk w;
    w.in_plane = first % plane;
    w.at = first / plane * row + p.channel / K * plane + w.in_plane;
    w.step_in_plane = p.alongs % plane;
    w.step = p.alongs / plane * row + w.step_in_plane;
    w.plane = plane;
    w.next_row = row - plane;
    w.left = (end / pixels - first + p.alongs - 1) / p.alongs;
    if (!p.exists || first >= end / pixels) w.left = 0;
    return w;
}

// For work in which the order does not matter: rounds parts up to whole accesses.
template <int V, int K>
__device__ inline iso__norm_walk iso__norm_free_walk(const iso__cuda_norm_shape &s,
                                                     const iso__norm_place &p, int64_t part) {
    const int pixels = V / K;
    return iso__norm_walk_of<V, K>(s, p, part, (s.part_values + pixels - 1) / pixels * pixels);
}

template <int V> __device__ inline int64_t iso__norm_next(iso__norm_walk *w) {
    int64_t at = w->at;
    w->at += w->step;
    w->in_plane += w->step_in_plane;
    if (w->in_plane >= w->plane) {
        w->in_plane -= w->plane;
        w->at += w->next_row;
    }
    w->left--;
    return V * at;
}

// The number of values that a thread loads at once when it sums, in kernels that otherwise move V
// at a time. In planes, f32 and f64 values are summed one by one, so that the order does not depend
// on V.
template <class T, int V, int K> struct iso__norm_summed {
    enum { width = K > 1 || sizeof(T) < sizeof(float) ? V : 1 };
};

// ---- Sums ---------------------------------------------------------------------------------------

// The sum over the threads of a channel, returned in each of them. All threads of the block must
// call it.
__device__ inline double iso__norm_sum(int lanes, double value) {
    __shared__ double partial[ISO_CUDA_BLOCK];
    int t = (int)threadIdx.x;
    if (lanes == 1) return iso__block_sum(value);
    __syncthreads(); // partial may still be read by a call before
    partial[t] = value;
    for (int half = (int)blockDim.x / 2; half >= lanes; half /= 2) {
        __syncthreads();
        if (t < half) partial[t] += partial[t + half];
    }
    __syncthreads();
    return partial[t % lanes];
}

// For threads with several channels: combines the sets of each lane in its first thread. A Set
// should have an odd number of doubles, to avoid bank conflicts. All threads must call it.
template <class Set> __device__ inline void iso__norm_gather(int lanes, Set *own) {
    __shared__ Set other[ISO_CUDA_BLOCK / 2];
    int t = (int)threadIdx.x;
    for (int half = (int)blockDim.x / 2; half >= lanes; half /= 2) {
        __syncthreads(); // other may still be read
        if (t >= half && t < 2 * half) other[t - half] = *own;
        __syncthreads();
        if (t < half) own->add(other[t]);
    }
}

// The index of number `which` (0 or 1) of a part and channel.
__device__ inline int64_t iso__norm_part_at(const iso__cuda_norm_shape &s, int64_t part, int which,
                                            int64_t channel) {
    return (2 * part + which) * s.channels + channel;
}

// ---- Coefficients -------------------------------------------------------------------------------

// y = (x - mean) * scale + shift. `mean` is the rounded mean, so that the difference is exact where
// it matters; `rest` and `shift` compensate the rounding. The members are the rows of the
// workspace.
template <class Real> struct iso__norm_coefficients { Real mean, rest, deviation, scale, shift; };

// An explicit fma, so that backward computes the same sign as forward.
template <class Real>
__device__ Real iso__norm_output(const iso__norm_coefficients<Real> &k, Real x) {
    return (Real)fma(x - k.mean, k.scale, k.shift);
}

// ---- Launches -----------------------------------------------------------------------------------

// Submits a block for each part of each channel, or of each group of channels.
template <class Args>
iso_status iso__norm_submit(iso__cuda *cuda, void (*kernel)(Args), int64_t parts,
                            const Args &args) {
    int64_t channels = args.shape.lanes * args.shape.owned;
    dim3 grid((unsigned)((args.shape.channels + channels - 1) / channels), (unsigned)parts);
    return iso__cuda_submit(cuda, kernel, grid, ISO_CUDA_BLOCK, args);
}

// Submits the kernel that loads single values, several pixels, or several channels.
template <class Args>
iso_status iso__norm_submit_widest(iso__cuda *cuda, void (*single)(Args), void (*pixels)(Args),
                                   void (*channels)(Args), int64_t parts, const Args &args) {
    const iso__cuda_norm_shape &s = args.shape;
    return iso__norm_submit(cuda,
                            s.owned > 1   ? channels
                            : s.width > 1 ? pixels
                                          : single,
                            parts, args);
}

// Whether a separate launch combines parts: otherwise each block with several channels would read
// too much.
inline bool iso__norm_is_joined(const iso__cuda_norm_shape &s) {
    return s.parts > 1 && s.lanes * s.owned > 1;
}

// The division of that launch.
inline iso__cuda_norm_shape iso__norm_joining(const iso__cuda_norm_shape &s) {
    iso__cuda_norm_shape few = s;
    few.width = 1;
    return few;
}

// Twice as many parts, for kernels without sums, so that threads wait less for each other.
inline iso__cuda_norm_shape iso__norm_finer(const iso__cuda_norm_shape &s) {
    iso__cuda_norm_shape fine = s;
    fine.part_values = (s.part_values + 1) / 2;
    fine.parts = (s.values + fine.part_values - 1) / fine.part_values;
    return fine;
}

// A division with `owned` channels for each thread. A block has the same channels as before or, if
// it would need too many lanes, fewer channels and more rows.
inline iso__cuda_norm_shape iso__norm_narrower(const iso__cuda_norm_shape &s, int owned) {
    iso__cuda_norm_shape narrow = s;
    int times = s.owned / owned, lanes = s.lanes * times;
    narrow.width = narrow.owned = owned;
    narrow.lanes = lanes < ISO__NORM_LANES ? lanes : (int)ISO__NORM_LANES;
    narrow.part_values = s.part_values * lanes / narrow.lanes;
    if (narrow.part_values > s.values) narrow.part_values = s.values;
    narrow.parts = (s.values + narrow.part_values - 1) / narrow.part_values;
    return narrow;
}

#endif
