// Kernels around matrix products: bias and activation, sums over channels.
#include "device/cuda/linear_kernels.h"

#include "device/cuda/cuda_submit.cuh"

// ---- Bias and activation -----------------------------------------------------------------------

// Index: 32 bits where they reach, as divisions of 64 take several times as long.
template <class Real, class Index> struct bias_args {
    Index count, channels, plane;
    const Real *bias;
    bool relu;
    Real *y;
};

template <class Real, class Index> __global__ void bias_act(bias_args<Real, Index> a) {
    for (int64_t item = iso__first_item(); item < (int64_t)a.count; item += iso__item_stride()) {
        Index i = (Index)item;
        Real value = a.y[i];
        if (a.bias) value += a.bias[i / a.plane % a.channels];
        a.y[i] = a.relu && !(value > 0) ? 0 : value;
    }
}

template <class Real, class Index>
static iso_status launch_bias_act(iso__cuda *cuda, int64_t count, int64_t channels, int64_t plane,
                                  const void *bias, bool relu, void *y) {
    bias_args<Real, Index> args = {(Index)count, (Index)channels, (Index)plane, (const Real *)bias,
                                   relu,         (Real *)y};
    return iso__cuda_submit_over(cuda, bias_act<Real, Index>, count, args);
}

iso_status iso__cuda_bias_act(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t channels,
                              int64_t plane, const void *bias, bool relu, void *y) {
    int64_t count = rows * channels * plane;
    bool narrow = count <= INT32_MAX;
    auto launch = dtype == ISO_F64 ? narrow ? launch_bias_act<double, uint32_t>
                                            : launch_bias_act<double, int64_t>
                  : narrow ? launch_bias_act<float, uint32_t>
                                   : launch_bias_act<float, int64_t>;
    return launch(cuda, count, channels, plane, bias, relu, y);
}

// ---- Sums over channels ------------------------------------------------------------------------
// A block sums one part of the items of a channel, or of 32 channels that lie beside each other; a
// second kernel puts the parts together. No atomics: the order is the same in every run.

template <class Real> struct sum_args {
    int rows, plane, parts;
    int64_t channels;
    const Real *x;
    bool accumulate;
    Real *out; // the result of one part, else [parts, channels]
};

template <class Real>
static __device__ void put_sum(const sum_args<Real> &a, int part, int64_t channel, Real sum) {
    Real *to = a.out + (a.parts > 1 ? part * a.channels : 0) + channel;
    *to = a.parts == 1 && a.accumulate ? *to + sum : sum;
}

// Items first .. end of part `part`.
static __device__ int part_bound(int64_t items, int parts, int part) {
    return (int)(items * part / parts);
}

// A plane of 1: neighbours are other channels. Warps take every eighth row of 32 columns.
enum { SUM_COLUMNS = 32, SUM_LANES = ISO_CUDA_BLOCK / SUM_COLUMNS };
template <class Real> __global__ void sum_columns(sum_args<Real> a) {
    __shared__ Real lane_sum[SUM_LANES][SUM_COLUMNS];
    int column = (int)threadIdx.x % SUM_COLUMNS, lane = (int)threadIdx.x / SUM_COLUMNS;
    int64_t channel = (int64_t)blockIdx.x * SUM_COLUMNS + column;
    int end = part_bound(a.rows, a.parts, (int)blockIdx.y + 1);
    Real sum = 0;
    if (channel < a.channels)
        for (int n = part_bound(a.rows, a.parts, (int)blockIdx.y) + lane; n < end; n += SUM_LANES)
            sum += a.x[n * a.channels + channel];
    lane_sum[lane][column] = sum;
    __syncthreads();
    if (lane > 0 || channel >= a.channels) return;
    for (int i = 1; i < SUM_LANES; i++) sum += lane_sum[i][column];
    put_sum(a, (int)blockIdx.y, channel, sum);
}

// Larger planes: neighbours are of the same channel. A block per channel and part.
template <class Real> __global__ void sum_planes(sum_args<Real> a) {
    int64_t channel = blockIdx.x, items = (int64_t)a.rows * a.plane;
    int end = part_bound(items, a.parts, (int)blockIdx.y + 1);
    Real sum = 0;
    for (int64_t i = part_bound(items, a.parts, (int)blockIdx.y) + (int)threadIdx.x; i < end;
         i += blockDim.x) {
        unsigned n = (unsigned)i / (unsigned)a.plane, p = (unsigned)i % (unsigned)a.plane;
        sum += a.x[(n * a.channels + channel) * a.plane + p];
    }
    sum = iso__block_sum(sum);
    if (threadIdx.x == 0) put_sum(a, (int)blockIdx.y, channel, sum);
}

template <class Real> struct parts_args {
    int parts;
    int64_t channels;
    const Real *partial;
    bool accumulate;
    Real *out;
};

template <class Real> __global__ void sum_parts(parts_args<Real> a) {
    for (int64_t c = iso__first_item(); c < a.channels; c += iso__item_stride()) {
        Real sum = a.partial[c];
        for (int i = 1; i < a.parts; i++) sum += a.partial[i * a.channels + c];
        a.out[c] = a.accumulate ? a.out[c] + sum : sum;
    }
}

static int64_t sum_blocks(int64_t channels, int64_t plane) {
    return plane > 1 ? channels : (channels + SUM_COLUMNS - 1) / SUM_COLUMNS;
}

// Parts keep a block busy for a while, and a few hundred blocks keep any GPU busy.
int iso__cuda_channel_sum_parts(int64_t rows, int64_t channels, int64_t plane) {
    enum { ENOUGH_BLOCKS = 512, MOST_PARTS = 64 };
    int64_t of_items = rows * plane / (plane > 1 ? 16 * ISO_CUDA_BLOCK : 16 * SUM_LANES);
    int64_t of_blocks = ENOUGH_BLOCKS / sum_blocks(channels, plane);
    int64_t parts = of_items < of_blocks ? of_items : of_blocks;
    return (int)(parts < 1 ? 1 : parts < MOST_PARTS ? parts : (int64_t)MOST_PARTS);
}

template <class Real>
static iso_status launch_sums(iso__cuda *cuda, int64_t rows, int64_t channels, int64_t plane,
                              const void *x, void *partial, bool accumulate, void *out) {
    int parts = iso__cuda_channel_sum_parts(rows, channels, plane);
    void *to = parts > 1 ? partial : out;
    sum_args<Real> args = {(int)rows,       (int)plane, parts,     channels,
                           (const Real *)x, accumulate, (Real *)to};
    dim3 grid((unsigned)sum_blocks(channels, plane), (unsigned)parts);
    iso_status status = iso__cuda_submit(cuda, plane > 1 ? sum_planes<Real> : sum_columns<Real>,
                                         grid, ISO_CUDA_BLOCK, args);
    if (status < 0 || parts == 1) return status;
    parts_args<Real> rest = {parts, channels, (const Real *)partial, accumulate, (Real *)out};
    return iso__cuda_submit_over(cuda, sum_parts<Real>, channels, rest);
}

iso_status iso__cuda_channel_sums(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t channels,
                                  int64_t plane, const void *x, void *partial, bool accumulate,
                                  void *out) {
    auto launch = dtype == ISO_F64 ? launch_sums<double> : launch_sums<float>;
    return launch(cuda, rows, channels, plane, x, partial, accumulate, out);
}
