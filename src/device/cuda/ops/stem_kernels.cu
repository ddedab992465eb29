// SPDX-License-Identifier: MIT
// Convolutions from very few channels.
//
// A thread works on a few filters and four adjacent pixels, whose windows overlap for the most
// part. In forward it computes the outputs of those filters and pixels; in backward, the gradients
// of those filters' taps on one channel, over the pixels assigned to it. It loads little for each
// multiplication, so both kernels are limited by multiply-adds or by the memory traffic of y.
#include "device/cuda/ops/stem_kernels.h"

#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_vector.cuh"

namespace {

// Filters of a thread (iso__cuda_stem_width), so many that its sums fit into registers; its pixels,
// and how many columns of x they see.
template <int side> struct stem_shape {
    enum { width = side == 3 ? 8 : 2, pixels = 4, columns = pixels + side - 1, taps = side * side };
};

template <class T> struct stem_args {
    iso__cuda_stem s;
    const T *x, *w, *bias;
    T *y;
    const T *dy;
    float *partial;
    int relu, strips, strips_of_row; // a strip: four pixels of a row of y, or what is left of it
};

// Where a strip begins in y and in x. count: pixels of it.
struct strip {
    int pixel, count; // in y
    int from, top, left;
};

template <int side, class T> __device__ inline strip strip_of(const stem_args<T> &a, int number) {
    enum { PIXELS = stem_shape<side>::pixels };
    const iso__cuda_stem &s = a.s;
    int row = number / a.strips_of_row, n = row / s.out_height;
    int column = (number - row * a.strips_of_row) * PIXELS;
    int top = row - n * s.out_height - s.padding[0], left = column - s.padding[1];
    int count = s.out_width - column < PIXELS ? s.out_width - column : (int)PIXELS;
    return {row * s.out_width + column, count,
            n * s.sample_step + (top * s.width + left) * s.pixel_step, top, left};
}

// What row `i` of the windows of a strip sees of a channel; 0 outside of x.
template <int side, class T>
__device__ inline void load_row(const iso__cuda_stem &s, const T *x, const strip &at, int channel,
                                int i, float (&seen)[stem_shape<side>::columns]) {
    bool row = (unsigned)(at.top + i) < (unsigned)s.height;
    x += at.from + channel * s.channel_step + i * s.width * s.pixel_step;
#pragma unroll
    for (int j = 0; j < stem_shape<side>::columns; j++) {
        bool inside = row && (unsigned)(at.left + j) < (unsigned)s.width;
        seen[j] = inside ? iso__widen(x[j * s.pixel_step]) : 0;
    }
}

// ---- Forward ------------------------------------------------------------------------------------

// w as [channel, tap, filter], f32.
template <int side, class T>
__device__ inline void keep_weights(const stem_args<T> &a, float *weight) {
    const iso__cuda_stem &s = a.s;
    const int taps = side * side;
    for (int i = (int)threadIdx.x; i < s.channels * taps * s.filters; i += ISO_CUDA_BLOCK) {
        int filter = i % s.filters, tap = i / s.filters % taps, channel = i / s.filters / taps;
        weight[i] = iso__widen(
            a.w[filter * s.filter_step + channel * s.of_channel_step + tap * s.tap_step]);
    }
    __syncthreads();
}

// One row of the windows, on one channel, into the sums.
template <int side, int width>
__device__ inline void add_row(const float (&seen)[stem_shape<side>::columns], const float *weight,
                               int filters, float (&sum)[stem_shape<side>::pixels][width]) {
#pragma unroll
    for (int j = 0; j < side; j++) {
        iso__vector<float, width> w = *(const iso__vector<float, width> *)(weight + j * filters);
#pragma unroll
        for (int p = 0; p < stem_shape<side>::pixels; p++)
            for (int k = 0; k < width; k++) sum[p][k] += seen[p + j] * w.at[k];
    }
}

template <int side, class T> __global__ void stem_forward(stem_args<T> a) {
    enum { WIDTH = stem_shape<side>::width, PIXELS = stem_shape<side>::pixels };
    alignas(32) __shared__ float weight[ISO_CUDA_STEM_WEIGHTS];
    const iso__cuda_stem &s = a.s;
    keep_weights<side>(a, weight);
    const int groups = s.filters / WIDTH, at_once = ISO_CUDA_BLOCK / groups;
    const int first = (int)threadIdx.x % groups * WIDTH, lane = (int)threadIdx.x / groups;
    if (lane >= at_once) return;
    float bias[WIDTH] = {};
    for (int k = 0; a.bias && k < WIDTH; k++) bias[k] = iso__widen(a.bias[first + k]);
    for (int number = (int)blockIdx.x * at_once + lane; number < a.strips;
         number += (int)gridDim.x * at_once) {
        strip at = strip_of<side>(a, number);
        float sum[PIXELS][WIDTH];
        for (int p = 0; p < PIXELS; p++)
            for (int k = 0; k < WIDTH; k++) sum[p][k] = 0;
        for (int channel = 0; channel < s.channels; channel++) {
            float seen[side][stem_shape<side>::columns];
            for (int i = 0; i < side; i++) load_row<side>(s, a.x, at, channel, i, seen[i]);
            for (int i = 0; i < side; i++)
                add_row<side, WIDTH>(seen[i],
                                     weight + (channel * side + i) * side * s.filters + first,
                                     s.filters, sum);
        }
        T *y = a.y + (int64_t)at.pixel * s.filters + first;
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
            iso__vector<T, WIDTH> out;
            for (int k = 0; k < WIDTH; k++) {
                float value = sum[p][k] + bias[k];
                iso__narrow(a.relu && !(value > 0) ? 0 : value, &out.at[k]);
            }
            if (p < at.count) *(iso__vector<T, WIDTH> *)(y + p * s.filters) = out;
        }
    }
}

template <int side, class T>
stem_args<T> args_of(const iso__cuda_stem *s, const void *x, const void *w) {
    enum { PIXELS = stem_shape<side>::pixels };
    stem_args<T> args = {};
    args.s = *s;
    args.x = (const T *)x, args.w = (const T *)w;
    args.strips_of_row = (s->out_width + PIXELS - 1) / PIXELS;
    args.strips = s->samples * s->out_height * args.strips_of_row;
    return args;
}

template <int side, class T>
iso_status launch_forward(iso__cuda *cuda, const iso__cuda_stem *s, const void *x, const void *w,
                          const void *bias, bool relu, void *y) {
    stem_args<T> args = args_of<side, T>(s, x, w);
    args.relu = relu, args.bias = (const T *)bias, args.y = (T *)y;
    int64_t threads = (int64_t)args.strips * (s->filters / stem_shape<side>::width);
    return iso__cuda_submit_over(cuda, stem_forward<side, T>, threads, args);
}

// ---- Weight gradients ---------------------------------------------------------------------------
// Threads of a pixel: one for each channel and group of filters, filled up to a power of two.

__host__ __device__ inline int owners_of(const iso__cuda_stem &s, int width) {
    int owners = 1;
    while (owners < s.channels * (s.filters / width)) owners *= 2;
    return owners;
}

// The sum of a thread and those of its warp that have the same channel and filters.
__device__ inline float warp_total(float value, int owners) {
    for (int offset = owners; offset < 32; offset *= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

// The sums of a thread over its strips.
template <int side, class T>
__device__ inline void sum_strips(const stem_args<T> &a, int channel, int first, int number,
                                  int step,
                                  float (&sum)[stem_shape<side>::taps][stem_shape<side>::width]) {
    enum { WIDTH = stem_shape<side>::width, PIXELS = stem_shape<side>::pixels };
    const iso__cuda_stem &s = a.s;
    for (; number < a.strips; number += step) {
        strip at = strip_of<side>(a, number);
        const T *from = a.dy + (int64_t)at.pixel * s.filters + first;
        float seen[side][stem_shape<side>::columns];
        for (int i = 0; i < side; i++) load_row<side>(s, a.x, at, channel, i, seen[i]);
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
            // Beyond the row: any, multiplied by 0.
            iso__vector<T, WIDTH> dy =
                *(const iso__vector<T, WIDTH> *)(from + (p < at.count ? p : 0) * s.filters);
            float value[WIDTH];
            for (int k = 0; k < WIDTH; k++) value[k] = p < at.count ? iso__widen(dy.at[k]) : 0;
#pragma unroll
            for (int i = 0; i < side; i++)
#pragma unroll
                for (int j = 0; j < side; j++)
                    for (int k = 0; k < WIDTH; k++)
                        sum[i * side + j][k] += seen[i][p + j] * value[k];
        }
    }
}

template <int side, class T>
__global__ void __launch_bounds__(ISO_CUDA_BLOCK, 2) stem_filter(stem_args<T> a) {
    enum { WIDTH = stem_shape<side>::width, TAPS = stem_shape<side>::taps };
    __shared__ float room[ISO_CUDA_BLOCK][WIDTH];
    const iso__cuda_stem &s = a.s;
    const int owners = owners_of(s, WIDTH), groups = s.filters / WIDTH;
    const int owner = (int)threadIdx.x % owners, at_once = ISO_CUDA_BLOCK / owners;
    const int channel = owner / groups, first = owner % groups * WIDTH;
    float sum[TAPS][WIDTH];
    for (int t = 0; t < TAPS; t++)
        for (int k = 0; k < WIDTH; k++) sum[t][k] = 0;
    if (channel < s.channels)
        sum_strips<side>(a, channel, first, (int)blockIdx.x * at_once + (int)threadIdx.x / owners,
                         (int)gridDim.x * at_once, sum);
    // Tap by tap: warps add up their lanes, then the block its warps.
    const int lanes = owners < 32 ? owners : 32, parts = ISO_CUDA_BLOCK / 32 * lanes / owners;
    float *out = a.partial + (int64_t)blockIdx.x * s.filters * s.channels * TAPS;
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        for (int k = 0; k < WIDTH; k++) {
            float total = warp_total(sum[t][k], owners);
            if ((int)threadIdx.x % 32 < lanes)
                room[(int)threadIdx.x / 32 * lanes + (int)threadIdx.x % 32][k] = total;
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < owners * WIDTH; i += ISO_CUDA_BLOCK) {
            int of = i / WIDTH, k = i % WIDTH, c = of / groups;
            float total = room[of][k];
            for (int part = 1; part < parts; part++) total += room[part * owners + of][k];
            if (c < s.channels)
                out[((of % groups * WIDTH + k) * s.channels + c) * TAPS + t] = total;
        }
        __syncthreads();
    }
}

struct join_args {
    int count, parts, accumulate;
    const float *partial;
    float *dw;
};

// 32 elements for a block; each of its warps takes every eighth part.
enum { JOIN_WARPS = ISO_CUDA_BLOCK / 32, AT_ONCE = ISO_CUDA_STEM_PARTS / JOIN_WARPS };
__global__ void join_filters(join_args a) {
    __shared__ float room[JOIN_WARPS][32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int i = (int)blockIdx.x * 32 + lane;
    float part[AT_ONCE], sum = 0;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
        int p = k * JOIN_WARPS + warp;
        part[k] = i < a.count && p < a.parts ? a.partial[(int64_t)p * a.count + i] : 0;
    }
    for (int k = 0; k < AT_ONCE; k++) sum += part[k];
    room[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || i >= a.count) return;
    for (int w = 1; w < JOIN_WARPS; w++) sum += room[w][lane];
    a.dw[i] = a.accumulate ? a.dw[i] + sum : sum;
}

template <int side, class T>
iso_status launch_filter(iso__cuda *cuda, const iso__cuda_stem *s, const void *x, const void *dy,
                         bool accumulate, float *partial, float *dw) {
    stem_args<T> args = args_of<side, T>(s, x, NULL);
    args.dy = (const T *)dy, args.partial = partial;
    int parts = iso__cuda_stem_parts(s), count = s->filters * s->channels * side * side;
    iso_status status =
        iso__cuda_submit(cuda, stem_filter<side, T>, dim3((unsigned)parts), ISO_CUDA_BLOCK, args);
    if (status < 0) return status;
    join_args join = {count, parts, accumulate, partial, dw};
    return iso__cuda_submit(cuda, join_filters, dim3((unsigned)((count + 31) / 32)), ISO_CUDA_BLOCK,
                            join);
}

} // namespace

// Whatever the GPU, so that all give the same bits.
int iso__cuda_stem_parts(const iso__cuda_stem *s) {
    int at_once = ISO_CUDA_BLOCK / owners_of(*s, iso__cuda_stem_width(s->side));
    int64_t parts = args_of<3, float>(s, NULL, NULL).strips / at_once;
    return (int)(parts < 1                     ? 1
                 : parts < ISO_CUDA_STEM_PARTS ? parts
                                               : (int64_t)ISO_CUDA_STEM_PARTS);
}

#define OF_TYPE(name, side)                                                                        \
    (dtype == ISO_BF16  ? name<side, iso__bf16>                                                    \
     : dtype == ISO_F16 ? name<side, iso__f16>                                                     \
                        : name<side, float>)

iso_status iso__cuda_stem_forward(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_stem *s,
                                  const void *x, const void *w, const void *bias, bool relu,
                                  void *y) {
    auto launch = s->side == 3 ? OF_TYPE(launch_forward, 3) : OF_TYPE(launch_forward, 5);
    return launch(cuda, s, x, w, bias, relu, y);
}

iso_status iso__cuda_stem_filter(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_stem *s,
                                 const void *x, const void *dy, bool accumulate, float *partial,
                                 float *dw) {
    auto launch = s->side == 3 ? OF_TYPE(launch_filter, 3) : OF_TYPE(launch_filter, 5);
    return launch(cuda, s, x, dy, accumulate, partial, dw);
}
