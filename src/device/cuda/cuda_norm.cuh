// How batch normalisation is divided among blocks and threads. A block takes one part of the values
// of a channel, or of a few neighbouring channels where planes are tiny, so that it reads memory
// side by side.
#ifndef ISO_CUDA_NORM_CUH
#define ISO_CUDA_NORM_CUH

#include "device/cuda/batch_norm_kernels.h"
#include "device/cuda/cuda_submit.cuh"

#include <math.h>

enum {
    ISO__NORM_LANES = 32, // channels of a block, at most
    ISO__NORM_BATCH = 8   // values that a thread has under way at once
};

// A block for each part of each channel, or of each few.
template <class Args>
iso_status iso__norm_submit(iso__cuda *cuda, void (*kernel)(Args), int64_t parts,
                            const Args &args) {
    int64_t lanes = args.shape.lanes;
    dim3 grid((unsigned)((args.shape.channels + lanes - 1) / lanes), (unsigned)parts);
    return iso__cuda_submit(cuda, kernel, grid, ISO_CUDA_BLOCK, args);
}

// ---- Where a thread works -----------------------------------------------------------------------

struct iso__norm_place {
    int64_t channel;
    int lane, along, alongs; // its channel in the block; its number among the threads of that
    bool exists;
};

__device__ inline iso__norm_place iso__norm_place_of(const iso__cuda_norm_shape &s) {
    iso__norm_place p;
    p.lane = (int)threadIdx.x % s.lanes;
    p.along = (int)threadIdx.x / s.lanes;
    p.alongs = (int)blockDim.x / s.lanes;
    p.channel = (int64_t)blockIdx.x * s.lanes + p.lane;
    p.exists = p.channel < s.channels;
    return p;
}

__device__ inline int64_t iso__norm_values(const iso__cuda_norm_shape &s, int64_t part) {
    int64_t left = s.values - part * s.part_values;
    return left < s.part_values ? left : s.part_values;
}

// A thread's way through the values of a part: every one of so many, counted in `alongs`.
struct iso__norm_walk {
    int64_t at, in_plane, left;
    int64_t step, step_in_plane, plane, next_row;
};

__device__ inline iso__norm_walk iso__norm_walk_of(const iso__cuda_norm_shape &s,
                                                   const iso__norm_place &p, int64_t part) {
    int64_t row = s.channels * s.plane, first = part * s.part_values + p.along;
    iso__norm_walk w;
    w.in_plane = first % s.plane;
    w.at = first / s.plane * row + p.channel * s.plane + w.in_plane;
    w.step_in_plane = p.alongs % s.plane;
    w.step = p.alongs / s.plane * row + w.step_in_plane;
    w.plane = s.plane;
    w.next_row = row - s.plane;
    w.left = (iso__norm_values(s, part) - p.along + p.alongs - 1) / p.alongs;
    if (!p.exists) w.left = 0;
    return w;
}

__device__ inline int64_t iso__norm_next(iso__norm_walk *w) {
    int64_t at = w->at;
    w->at += w->step;
    w->in_plane += w->step_in_plane;
    if (w->in_plane >= w->plane) {
        w->in_plane -= w->plane;
        w->at += w->next_row;
    }
    w->left--;
    return at;
}

// The sum over the threads of a channel, in each of them. All threads of the block call it.
__device__ inline double iso__norm_sum(int lanes, double value) {
    __shared__ double part[ISO_CUDA_BLOCK];
    int t = (int)threadIdx.x;
    if (lanes == 1) return iso__block_sum(value);
    __syncthreads(); // part may still be read by a call before
    part[t] = value;
    for (int half = (int)blockDim.x / 2; half >= lanes; half /= 2) {
        __syncthreads();
        if (t < half) part[t] += part[t + half];
    }
    __syncthreads();
    return part[t % lanes];
}

// Number `which` of two that a part has for the channel.
__device__ inline int64_t iso__norm_part_at(const iso__cuda_norm_shape &s, int64_t part, int which,
                                            int64_t channel) {
    return (2 * part + which) * s.channels + channel;
}

// ---- Coefficients -------------------------------------------------------------------------------

// y = (x - mean) * scale + shift. `mean` is the mean rounded, so that the difference is exact where
// it matters; the others make up for the rest of it. They are the rows of the workspace.
template <class Real> struct iso__norm_coefficients { Real mean, rest, deviation, scale, shift; };
enum { ISO__NORM_ROWS = 5 };

// Fused by name, so that backward sees the sign that forward saw.
template <class Real>
__device__ Real iso__norm_output(const iso__norm_coefficients<Real> &k, Real x) {
    return (Real)fma(x - k.mean, k.scale, k.shift);
}

#endif
