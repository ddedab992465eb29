// Convolutions from very few channels.
//
// A thread has a few filters of a pixel. Forward, its sums are of those filters; backward, of the
// taps that those filters have on one channel, over the pixels that its place in the grid gives it.
// There is little to load for each multiplication, so both run at the speed of multiply-adds or of
// y's memory.
#include "device/cuda/kernels/stem_kernels.h"

#include "device/cuda/kernels/cuda_submit.cuh"
#include "device/cuda/kernels/cuda_vector.cuh"

namespace {

// Filters of a thread (iso__cuda_stem_width), so many that its sums fit into registers.
template <int side> struct stem_width { static const int value = side == 3 ? 8 : 2; };

template <class T> struct stem_args {
    iso__cuda_stem s;
    const T *x, *w, *bias;
    T *y;
    const T *dy;
    float *partial;
    int relu, pixels;
};

// Where the window of an output pixel begins in x.
struct window {
    int from, top, left; // from: element of channel 0; the others may lie outside
};

__device__ inline window window_of(const iso__cuda_stem &s, int pixel) {
    int row = pixel / s.out_width, n = row / s.out_height;
    int top = (row - n * s.out_height) * s.stride[0] - s.padding[0];
    int left = (pixel - row * s.out_width) * s.stride[1] - s.padding[1];
    return {n * s.sample_step + (top * s.width + left) * s.pixel_step, top, left};
}

// The pixels of a window on one channel; 0 outside.
template <int side, class T>
__device__ inline void load_taps(const iso__cuda_stem &s, const T *x, const window &w, int channel,
                                 float (&tap)[side * side]) {
    const int row_step = s.dilation[0] * s.width * s.pixel_step;
    const int column_step = s.dilation[1] * s.pixel_step;
    x += w.from + channel * s.channel_step;
#pragma unroll
    for (int i = 0; i < side; i++) {
        bool row = (unsigned)(w.top + i * s.dilation[0]) < (unsigned)s.height;
#pragma unroll
        for (int j = 0; j < side; j++) {
            bool inside = row && (unsigned)(w.left + j * s.dilation[1]) < (unsigned)s.width;
            tap[i * side + j] = inside ? iso__widen(x[i * row_step + j * column_step]) : 0;
        }
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

template <int side, class T> __global__ void stem_forward(stem_args<T> a) {
    const int width = stem_width<side>::value, taps = side * side;
    alignas(32) __shared__ float weight[ISO_CUDA_STEM_WEIGHTS];
    const iso__cuda_stem &s = a.s;
    keep_weights<side>(a, weight);
    const int groups = s.filters / width, at_once = ISO_CUDA_BLOCK / groups;
    const int first = (int)threadIdx.x % groups * width, lane = (int)threadIdx.x / groups;
    if (lane >= at_once) return;
    float bias[width] = {};
    for (int k = 0; a.bias && k < width; k++) bias[k] = iso__widen(a.bias[first + k]);
    for (int pixel = (int)blockIdx.x * at_once + lane; pixel < a.pixels;
         pixel += (int)gridDim.x * at_once) {
        window w = window_of(s, pixel);
        float sum[width];
        for (int k = 0; k < width; k++) sum[k] = 0;
        for (int channel = 0; channel < s.channels; channel++) {
            float tap[taps];
            load_taps<side>(s, a.x, w, channel, tap);
            const float *of_channel = weight + channel * taps * s.filters + first;
#pragma unroll
            for (int t = 0; t < taps; t++) {
                iso__vector<float, width> of_tap =
                    *(const iso__vector<float, width> *)(of_channel + t * s.filters);
                for (int k = 0; k < width; k++) sum[k] += tap[t] * of_tap.at[k];
            }
        }
        iso__vector<T, width> out;
        for (int k = 0; k < width; k++) {
            float value = sum[k] + bias[k];
            iso__narrow(a.relu && !(value > 0) ? 0 : value, &out.at[k]);
        }
        *(iso__vector<T, width> *)(a.y + (int64_t)pixel * s.filters + first) = out;
    }
}

template <int side, class T>
iso_status launch_forward(iso__cuda *cuda, const iso__cuda_stem *s, const void *x, const void *w,
                          const void *bias, bool relu, void *y) {
    stem_args<T> args = {};
    args.s = *s, args.relu = relu, args.pixels = s->samples * s->out_height * s->out_width;
    args.x = (const T *)x, args.w = (const T *)w, args.bias = (const T *)bias, args.y = (T *)y;
    int64_t threads = (int64_t)args.pixels * (s->filters / stem_width<side>::value);
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

template <int side, class T>
__global__ void __launch_bounds__(ISO_CUDA_BLOCK, 2) stem_filter(stem_args<T> a) {
    const int width = stem_width<side>::value, taps = side * side;
    __shared__ float room[ISO_CUDA_BLOCK][width];
    const iso__cuda_stem &s = a.s;
    const int owners = owners_of(s, width), groups = s.filters / width;
    const int owner = (int)threadIdx.x % owners, at_once = ISO_CUDA_BLOCK / owners;
    const int channel = owner / groups, first = owner % groups * width;
    const bool owns = channel < s.channels;
    float sum[taps][width];
    for (int t = 0; t < taps; t++)
        for (int k = 0; k < width; k++) sum[t][k] = 0;
    for (int pixel = (int)blockIdx.x * at_once + (int)threadIdx.x / owners;
         owns && pixel < a.pixels; pixel += (int)gridDim.x * at_once) {
        window w = window_of(s, pixel);
        float tap[taps], dy[width];
        iso__vector<T, width> loaded =
            *(const iso__vector<T, width> *)(a.dy + (int64_t)pixel * s.filters + first);
        load_taps<side>(s, a.x, w, channel, tap);
        for (int k = 0; k < width; k++) dy[k] = iso__widen(loaded.at[k]);
#pragma unroll
        for (int t = 0; t < taps; t++)
            for (int k = 0; k < width; k++) sum[t][k] += tap[t] * dy[k];
    }
    // Tap by tap: warps add up their lanes, then the block its warps.
    const int lanes = owners < 32 ? owners : 32, parts = ISO_CUDA_BLOCK / 32 * lanes / owners;
    float *out = a.partial + (int64_t)blockIdx.x * s.filters * s.channels * taps;
#pragma unroll
    for (int t = 0; t < taps; t++) {
        for (int k = 0; k < width; k++) {
            float total = warp_total(sum[t][k], owners);
            if ((int)threadIdx.x % 32 < lanes)
                room[(int)threadIdx.x / 32 * lanes + (int)threadIdx.x % 32][k] = total;
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < owners * width; i += ISO_CUDA_BLOCK) {
            int of = i / width, k = i % width, c = of / groups;
            float total = room[of][k];
            for (int part = 1; part < parts; part++) total += room[part * owners + of][k];
            if (c < s.channels)
                out[((of % groups * width + k) * s.channels + c) * taps + t] = total;
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
    stem_args<T> args = {};
    args.s = *s, args.pixels = s->samples * s->out_height * s->out_width;
    args.x = (const T *)x, args.dy = (const T *)dy, args.partial = partial;
    int parts = iso__cuda_stem_parts(s), count = s->filters * s->channels * side * side;
    iso_status status =
        iso__cuda_submit(cuda, stem_filter<side, T>, dim3((unsigned)parts), ISO_CUDA_BLOCK, args);
    if (status < 0) return status;
    join_args join = {count, parts, accumulate, partial, dw};
    return iso__cuda_submit(cuda, join_filters, dim3((unsigned)((count + 31) / 32)), ISO_CUDA_BLOCK,
                            join);
}

} // namespace

// A thread has a few pixels at least; whatever the GPU, so that all give the same bits.
int iso__cuda_stem_parts(const iso__cuda_stem *s) {
    int at_once = ISO_CUDA_BLOCK / owners_of(*s, iso__cuda_stem_width(s->side));
    int64_t pixels = (int64_t)s->samples * s->out_height * s->out_width;
    int64_t parts = pixels / (2 * at_once);
    return (int)(parts < 1                     ? 1
                 : parts < ISO_CUDA_STEM_PARTS ? parts
                                               : (int64_t)ISO_CUDA_STEM_PARTS);
}

iso_status iso__cuda_stem_forward(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_stem *s,
                                  const void *x, const void *w, const void *bias, bool relu,
                                  void *y) {
    bool low = dtype == ISO_BF16;
    auto launch = s->side == 3 ? (low ? launch_forward<3, iso__bf16> : launch_forward<3, float>)
                               : (low ? launch_forward<5, iso__bf16> : launch_forward<5, float>);
    return launch(cuda, s, x, w, bias, relu, y);
}

iso_status iso__cuda_stem_filter(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_stem *s,
                                 const void *x, const void *dy, bool accumulate, float *partial,
                                 float *dw) {
    bool low = dtype == ISO_BF16;
    auto launch = s->side == 3 ? (low ? launch_filter<3, iso__bf16> : launch_filter<3, float>)
                               : (low ? launch_filter<5, iso__bf16> : launch_filter<5, float>);
    return launch(cuda, s, x, dy, accumulate, partial, dw);
}
