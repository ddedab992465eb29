// SPDX-License-Identifier: MIT
// Kernels around matrix products: bias and activation, sums over channels.
#include "device/cuda/ops/linear_kernels.h"

#include "device/cuda/runtime/cuda_pack.cuh"
#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_types.cuh"

// ---- Bias and activation -----------------------------------------------------------------------

// From: y's type, and its memory; or f32, for sums that get 16 bits with the bias.
// Index: 32 bits where they reach, as divisions of 64 take several times as long.
template <class From, class T, class Index> struct bias_args {
    Index count, channels, plane;
    const From *from;
    const T *bias;
    bool relu;
    T *y;
};

template <class From, class T>
__device__ inline void finish(From from, const T *bias, bool relu, T *y) {
    typename iso__real<T>::type value = iso__widen(from);
    if (bias) value += iso__widen(*bias);
    iso__narrow(relu && !(value > 0) ? 0 : value, y);
}

template <class From, class T, class Index> __global__ void bias_act(bias_args<From, T, Index> a) {
    for (int64_t item = iso__first_item(); item < (int64_t)a.count; item += iso__item_stride()) {
        Index i = (Index)item;
        finish(a.from[i], a.bias ? &a.bias[i / a.plane % a.channels] : nullptr, a.relu, &a.y[i]);
    }
}

// Where the 16 bytes of y that a thread writes are of one channel, or of channels beside each
// other.
template <class From, class T, class Index>
__global__ void bias_act_packs(bias_args<From, T, Index> a) {
    typedef iso__pack<From> in;
    typedef iso__pack<T> out;
    const int ins = out::width / in::width;
    int64_t packs = (int64_t)a.count / out::width;
    Index step = a.plane == 1 ? 1 : 0;
    for (int64_t item = iso__first_item(); item < packs; item += iso__item_stride()) {
        in x[ins];
        out y;
        for (int k = 0; k < ins; k++) x[k] = ((const in *)a.from)[item * ins + k];
        Index channel = (Index)(item * out::width) / a.plane % a.channels;
        const T *bias = a.bias ? &a.bias[channel] : nullptr;
        for (int k = 0; k < out::width; k++)
            finish(x[k / in::width].at[k % in::width], bias ? bias + step * (Index)k : nullptr,
                   a.relu, &y.at[k]);
        ((out *)a.y)[item] = y;
    }
}

template <class From, class T, class Index>
static iso_status launch_bias_act(iso__cuda *cuda, int64_t count, int64_t channels, int64_t plane,
                                  const void *from, const void *bias, bool relu, void *y) {
    const int width = iso__pack<T>::width;
    bias_args<From, T, Index> args = {
        (Index)count, (Index)channels, (Index)plane, (const From *)from, (const T *)bias,
        relu,         (T *)y};
    bool packs =
        (plane > 1 ? plane : channels) % width == 0 && iso__is_aligned(y) && iso__is_aligned(from);
    if (packs)
        return iso__cuda_submit_over(cuda, bias_act_packs<From, T, Index>, count / width, args);
    return iso__cuda_submit_over(cuda, bias_act<From, T, Index>, count, args);
}

template <class From, class T>
static iso_status bias_act_of(iso__cuda *cuda, int64_t count, int64_t channels, int64_t plane,
                              const void *from, const void *bias, bool relu, void *y) {
    auto launch =
        count <= INT32_MAX ? launch_bias_act<From, T, uint32_t> : launch_bias_act<From, T, int64_t>;
    return launch(cuda, count, channels, plane, from, bias, relu, y);
}

iso_status iso__cuda_bias_act(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t channels,
                              int64_t plane, const void *bias, bool relu, void *y) {
    auto run = iso__for_type(dtype, bias_act_of<double, double>, bias_act_of<float, float>,
                             bias_act_of<iso__bf16, iso__bf16>, bias_act_of<iso__f16, iso__f16>);
    return run(cuda, rows * channels * plane, channels, plane, y, bias, relu, y);
}

iso_status iso__cuda_bias_act_of_sums(iso__cuda *cuda, iso_dtype dtype, int64_t rows,
                                      int64_t channels, int64_t plane, const float *sums,
                                      const void *bias, bool relu, void *y) {
    auto run = dtype == ISO_F16 ? bias_act_of<float, iso__f16> : bias_act_of<float, iso__bf16>;
    return run(cuda, rows * channels * plane, channels, plane, sums, bias, relu, y);
}

// ---- Sums over channels ------------------------------------------------------------------------
// A block sums one part of the items of a channel, or of 32 channels that lie beside each other;
// the one of its channels that is done last puts the parts together, in an order that is the same
// in every run.

template <class T> struct sum_args {
    typedef typename iso__real<T>::type Real;
    int rows, plane, parts;
    int64_t channels;
    T *x;
    const T *y; // NULL: x is summed as it is
    bool accumulate;
    Real *partial, *out; // partial: [parts, channels]
    unsigned *arrived;   // a counter for each blockIdx.x
};

template <class T> static __device__ inline void mask_element(T y, T *x) {
    if (!(iso__widen(y) > 0)) *x = T(); // all bits 0: a choice, not a branch
}

// The sum of N items, which lie at at[...], added to `sum` one by one. All are loaded before the
// first is stored: so they are under way at once.
template <int N, class T>
static __device__ inline void take_terms(const sum_args<T> &a, const int64_t (&at)[N],
                                         typename iso__real<T>::type *sum) {
    T x[N], y[N];
    for (int k = 0; k < N; k++) x[k] = a.x[at[k]];
    for (int k = 0; a.y && k < N; k++) y[k] = a.y[at[k]];
    for (int k = 0; k < N; k++) {
        if (a.y) {
            mask_element(y[k], &x[k]);
            a.x[at[k]] = x[k];
        }
        *sum += iso__widen(x[k]);
    }
}

// Items first, first + step, ... before end; place(i): where item i lies.
template <class T, class Place>
static __device__ inline typename iso__real<T>::type
take_all(const sum_args<T> &a, int64_t first, int64_t end, int64_t step, const Place &place) {
    typename iso__real<T>::type sum = 0;
    int64_t i = first;
    for (; i + 7 * step < end; i += 8 * step) {
        int64_t at[8];
        for (int k = 0; k < 8; k++) at[k] = place(i + k * step);
        take_terms(a, at, &sum);
    }
    for (; i + 3 * step < end; i += 4 * step) {
        const int64_t at[] = {place(i), place(i + step), place(i + 2 * step), place(i + 3 * step)};
        take_terms(a, at, &sum);
    }
    for (; i < end; i += step) {
        const int64_t at[] = {place(i)};
        take_terms(a, at, &sum);
    }
    return sum;
}

template <class T>
static __device__ inline void put_total(const sum_args<T> &a, int64_t channel,
                                        typename iso__real<T>::type sum) {
    a.out[channel] = a.accumulate ? a.out[channel] + sum : sum;
}

template <class T>
static __device__ void put_sum(const sum_args<T> &a, int part, int64_t channel,
                               typename iso__real<T>::type sum) {
    if (a.parts > 1)
        a.partial[part * a.channels + channel] = sum;
    else
        put_total(a, channel, sum);
}

// Every step-th of the parts of a channel, from `first` on; several loads are under way at once.
template <class Real>
static __device__ inline Real sum_of_parts(const volatile Real *part, int64_t stride, int first,
                                           int step, int parts) {
    const int at_once = 16;
    Real sum = 0;
    for (int i = first; i < parts; i += at_once * step) {
        Real x[at_once];
        for (int k = 0; k < at_once; k++)
            x[k] = i + k * step < parts ? part[(i + k * step) * stride] : 0;
        for (int k = 0; k < at_once; k++) sum += x[k];
    }
    return sum;
}

// Whether this block is the last of its channels: one counter serves the blocks of a blockIdx.x.
template <class T> static __device__ bool is_last(const sum_args<T> &a) {
    return iso__is_last_block(&a.arrived[blockIdx.x], (unsigned)a.parts);
}

// Items first .. end of part `part`.
static __device__ int part_bound(int64_t items, int parts, int part) {
    return (int)(items * part / parts);
}

// A plane of 1: neighbours are other channels. Warps take every eighth row of 32 columns.
enum { SUM_COLUMNS = 32, SUM_LANES = ISO_CUDA_BLOCK / SUM_COLUMNS };
template <class Real> struct column_sums { Real of_warp[SUM_LANES][SUM_COLUMNS]; };

// In the threads of the first warp, the sum of what the warps have left for its column.
template <class Real> static __device__ inline Real sum_of_warps(const column_sums<Real> &sums) {
    __syncthreads();
    Real sum = 0;
    for (int i = 0; threadIdx.x < SUM_COLUMNS && i < SUM_LANES; i++)
        sum += sums.of_warp[i][threadIdx.x];
    return sum;
}

// Goes on with what the warps of this block have left.
template <class T>
static __device__ void finish_columns(const sum_args<T> &a,
                                      column_sums<typename iso__real<T>::type> *sums) {
    typedef typename iso__real<T>::type Real;
    int column = (int)threadIdx.x % SUM_COLUMNS, warp = (int)threadIdx.x / SUM_COLUMNS;
    int64_t channel = (int64_t)blockIdx.x * SUM_COLUMNS + column;
    bool exists = channel < a.channels;
    Real sum = sum_of_warps(*sums);
    if (warp == 0 && exists) put_sum(a, (int)blockIdx.y, channel, sum);
    if (a.parts == 1 || !is_last(a)) return;
    const volatile Real *partial = a.partial; // of other blocks: not from a cache
    sum = exists ? sum_of_parts(partial + channel, a.channels, warp, SUM_LANES, a.parts) : 0;
    sums->of_warp[warp][column] = sum;
    sum = sum_of_warps(*sums);
    if (warp == 0 && exists) put_total(a, channel, sum);
}

template <class T> __global__ void sum_columns(sum_args<T> a) {
    typedef typename iso__real<T>::type Real;
    __shared__ column_sums<Real> sums;
    int column = (int)threadIdx.x % SUM_COLUMNS, lane = (int)threadIdx.x / SUM_COLUMNS;
    int64_t channel = (int64_t)blockIdx.x * SUM_COLUMNS + column;
    int end = part_bound(a.rows, a.parts, (int)blockIdx.y + 1);
    Real sum = 0;
    if (channel < a.channels)
        sum = take_all(a, part_bound(a.rows, a.parts, (int)blockIdx.y) + lane, end, SUM_LANES,
                       [&a, channel](int64_t n) { return n * a.channels + channel; });
    sums.of_warp[lane][column] = sum;
    finish_columns(a, &sums);
}

// The same, 16 bytes at a time: each lane takes every LANES-th row.
template <class T> struct packed_columns {
    static const int packs = SUM_COLUMNS / iso__pack<T>::width, lanes = ISO_CUDA_BLOCK / packs;
};

// N packs, each so many elements behind the one before.
template <int N, class T>
static __device__ inline void take_packs(const sum_args<T> &a, int64_t at, int64_t step,
                                         typename iso__real<T>::type *sum) {
    typedef iso__pack<T> pack;
    pack x[N], y[N];
    for (int k = 0; k < N; k++) x[k] = *(const pack *)(a.x + at + k * step);
    for (int k = 0; a.y && k < N; k++) y[k] = *(const pack *)(a.y + at + k * step);
    for (int k = 0; k < N; k++) {
        for (int i = 0; a.y && i < pack::width; i++) mask_element(y[k].at[i], &x[k].at[i]);
        if (a.y) *(pack *)(a.x + at + k * step) = x[k];
        for (int i = 0; i < pack::width; i++) sum[i] += iso__widen(x[k].at[i]);
    }
}

template <class T> __global__ void sum_packs(sum_args<T> a) {
    typedef typename iso__real<T>::type Real;
    typedef packed_columns<T> shape;
    typedef iso__pack<T> pack;
    __shared__ column_sums<Real> sums;
    int first = (int)threadIdx.x % shape::packs * pack::width;
    int lane = (int)threadIdx.x / shape::packs;
    int64_t channel = (int64_t)blockIdx.x * SUM_COLUMNS + first;
    int end = part_bound(a.rows, a.parts, (int)blockIdx.y + 1);
    int64_t n = part_bound(a.rows, a.parts, (int)blockIdx.y) + lane;
    Real sum[pack::width] = {};
    if (channel < a.channels) {
        int64_t at = n * a.channels + channel, step = shape::lanes * a.channels;
        for (; n + 7 * shape::lanes < end; n += 8 * shape::lanes, at += 8 * step)
            take_packs<8>(a, at, step, sum);
        for (; n + 3 * shape::lanes < end; n += 4 * shape::lanes, at += 4 * step)
            take_packs<4>(a, at, step, sum);
        for (; n < end; n += shape::lanes, at += step) take_packs<1>(a, at, step, sum);
    }
    for (int offset = shape::packs; offset < 32; offset *= 2)
        for (int k = 0; k < pack::width; k++)
            sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], offset);
    if (threadIdx.x % 32 < shape::packs)
        for (int k = 0; k < pack::width; k++) sums.of_warp[threadIdx.x / 32][first + k] = sum[k];
    finish_columns(a, &sums);
}

// Larger planes: neighbours are of the same channel. A block per channel and part.
template <class T> __global__ void sum_planes(sum_args<T> a) {
    typedef typename iso__real<T>::type Real;
    int64_t channel = blockIdx.x, items = (int64_t)a.rows * a.plane;
    int end = part_bound(items, a.parts, (int)blockIdx.y + 1);
    Real sum = take_all(a, part_bound(items, a.parts, (int)blockIdx.y) + (int)threadIdx.x, end,
                        blockDim.x, [&a, channel](int64_t i) {
                            unsigned n = (unsigned)i / (unsigned)a.plane;
                            unsigned p = (unsigned)i % (unsigned)a.plane;
                            return (n * a.channels + channel) * a.plane + p;
                        });
    sum = iso__block_sum(sum);
    if (threadIdx.x == 0) put_sum(a, (int)blockIdx.y, channel, sum);
    if (a.parts == 1 || !is_last(a)) return;
    const volatile Real *partial = a.partial; // of other blocks: not from a cache
    sum = iso__block_sum(sum_of_parts(partial + channel, a.channels, (int)threadIdx.x,
                                      (int)ISO_CUDA_BLOCK, a.parts));
    if (threadIdx.x == 0) put_total(a, channel, sum);
}

static int64_t sum_blocks(int64_t channels, int64_t plane) {
    return plane > 1 ? channels : (channels + SUM_COLUMNS - 1) / SUM_COLUMNS;
}

static int pack_width(iso_dtype dtype) { return 16 / (int)iso_dtype_size(dtype); }

static bool takes_packs(iso_dtype dtype, int64_t channels, int64_t plane) {
    return plane == 1 && channels % pack_width(dtype) == 0;
}

// Each thread loads several times what is under way at once, and a few hundred blocks keep any GPU
// busy.
int iso__cuda_channel_sum_parts(iso_dtype dtype, int64_t rows, int64_t channels, int64_t plane) {
    enum { ENOUGH_BLOCKS = 2 * ISO_CUDA_ARRIVALS, MOST = 256, EACH = 8 };
    int64_t at_once = plane > 1                             ? (int)ISO_CUDA_BLOCK
                      : takes_packs(dtype, channels, plane) ? (int)SUM_LANES * pack_width(dtype)
                                                            : (int)SUM_LANES;
    int64_t of_items = rows * plane / (EACH * at_once);
    int64_t of_blocks = ENOUGH_BLOCKS / sum_blocks(channels, plane);
    int64_t parts = of_items < of_blocks ? of_items : of_blocks;
    return (int)(parts < 1 ? 1 : parts < MOST ? parts : (int64_t)MOST);
}

template <class T> static iso_status launch_sums(iso__cuda *cuda, const iso__cuda_channels *s) {
    typedef typename iso__real<T>::type Real;
    int parts = iso__cuda_channel_sum_parts(s->dtype, s->rows, s->channels, s->plane);
    sum_args<T> args = {};
    args.rows = (int)s->rows, args.plane = (int)s->plane, args.parts = parts;
    args.channels = s->channels, args.accumulate = s->accumulate;
    args.x = (T *)s->x, args.y = (const T *)s->y;
    args.partial = (Real *)s->partial, args.out = (Real *)s->out, args.arrived = s->arrived;
    bool packs = takes_packs(s->dtype, s->channels, s->plane) && iso__is_aligned(s->x) &&
                 iso__is_aligned(s->y);
    auto kernel = s->plane > 1 ? sum_planes<T> : packs ? sum_packs<T> : sum_columns<T>;
    dim3 grid((unsigned)sum_blocks(s->channels, s->plane), (unsigned)parts);
    return iso__cuda_submit(cuda, kernel, grid, ISO_CUDA_BLOCK, args);
}

iso_status iso__cuda_channel_sums(iso__cuda *cuda, const iso__cuda_channels *sums) {
    return iso__for_type(sums->dtype, launch_sums<double>, launch_sums<float>,
                         launch_sums<iso__bf16>, launch_sums<iso__f16>)(cuda, sums);
}
