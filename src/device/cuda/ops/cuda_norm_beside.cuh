// SPDX-License-Identifier: MIT
// Sums of batch normalisation for channels that are adjacent in memory: a plane is one pixel, and a
// row has one value of each channel. A thread moves K values of a row in one access: fewer than 16
// bytes if that saves registers, so that more threads fit and more accesses are under way. Blocks
// sum parts of the rows of a group of channels. The last block of a group to arrive adds up the
// parts, in a fixed order, and uses the sums.
#ifndef ISO_CUDA_NORM_BESIDE_CUH
#define ISO_CUDA_NORM_BESIDE_CUH

#include "device/cuda/ops/cuda_norm.cuh"

enum {
    ISO__NORM_WARPS = ISO__NORM_SUM_BLOCK / 32,
    ISO__NORM_PARTS = 16 // parts that a thread loads at once
};

// moments: channels of a thread that computes moments. moved: channels of a thread that writes as
// much as it reads. blocks: blocks of sums that fit on a multiprocessor.
template <class T> struct iso__norm_beside {
    enum {
        moments = ISO__NORM_SUMMED_MOMENTS(sizeof(T)),
        moved = iso__widest<T>::width < 4 ? iso__widest<T>::width : 4,
        blocks = sizeof(T) < sizeof(double) ? 2 : 1
    };
};

// ---- Where a thread works -----------------------------------------------------------------------

// A thread's walk through the rows of its block. It takes one of every `step` rows. Its K values of
// the current row begin at element `at`, those of its next row `stride` elements further.
struct iso__norm_rows {
    int64_t channel, at, stride;
    int left, step; // rows to the end of the part

    template <int N> __device__ bool holds() const { return left > (N - 1) * step; }
    __device__ bool has(int i) const { return left > i * step; }
    template <int N> __device__ void skip() {
        at += N * stride;
        left -= N * step;
    }
};

template <int K> __device__ inline iso__norm_rows iso__norm_rows_of(const iso__cuda_norm_shape &s) {
    iso__norm_place p = iso__norm_place_of<K>(s);
    iso__norm_rows r;
    r.channel = p.channel;
    r.at = (blockIdx.y * s.part_values + p.along) * s.channels + p.channel;
    r.stride = p.alongs * s.channels;
    r.left = p.exists ? (int)iso__norm_values(s, blockIdx.y) - p.along : 0;
    r.step = p.alongs;
    return r;
}

// Loads one number for each of K channels, from memory that earlier kernels wrote.
template <int K, class Real>
__device__ inline void iso__norm_load(const Real *from, Real (&to)[K]) {
    enum { all = K * sizeof(Real), V = (int)all > 16 ? 16 / sizeof(Real) : K };
    if (iso__holds_vectors<Real, V>(from)) {
        for (int i = 0; i < K; i += V) {
            iso__vector<Real, V> v = iso__load_vector<true, Real, V>(from + i);
            for (int c = 0; c < V; c++) to[i + c] = v.at[c];
        }
        return;
    }
    for (int c = 0; c < K; c++) to[c] = from[c];
}

// ---- Sums of a group ----------------------------------------------------------------------------

// Shared by the threads of a block. warp: sums of each warp. found: the sums: the first number of
// each channel of the group, then the second number of each.
template <int K> struct iso__norm_shared {
    double warp[ISO__NORM_WARPS * 2 * K * ISO__NORM_LANES];
    double found[2 * K * ISO__NORM_LANES];
};

// Returns, in thread t < 2 * group, the sum over the block of one number of a channel. own: both
// numbers of each of the thread's channels.
template <int K>
__device__ double iso__norm_sum_block(int lanes, double (&own)[2][K], double *room) {
    int t = (int)threadIdx.x, lane = t % 32, group = lanes * K;
    for (int offset = 16; offset >= lanes; offset /= 2)
        for (int i = 0; i < 2 * K; i++)
            own[i / K][i % K] += __shfl_xor_sync(0xffffffffu, own[i / K][i % K], offset);
    double *mine = room + t / 32 * 2 * group + lane * K;
    for (int i = 0; lane < lanes && i < 2 * K; i++) mine[i / K * group + i % K] = own[i / K][i % K];
    __syncthreads();
    double sum = 0;
    for (int w = 0; t < 2 * group && w < ISO__NORM_WARPS; w++) sum += room[w * 2 * group + t];
    return sum;
}

// The sum of part[0], part[step], ..., with several loads under way at once. volatile, because
// other blocks wrote the numbers: they must not come from a cache.
__device__ inline double iso__norm_add_parts(const volatile double *part, int64_t step, int count) {
    double sum = 0;
    for (int i = 0; i < count; i += ISO__NORM_PARTS) {
        double x[ISO__NORM_PARTS];
        for (int k = 0; k < ISO__NORM_PARTS; k++) x[k] = i + k < count ? part[(i + k) * step] : 0;
        for (int k = 0; k < ISO__NORM_PARTS; k++) sum += x[k];
    }
    return sum;
}

// The same sums over all parts of a group. These are adjacent in memory, each in the order of
// `found`.
__device__ inline double iso__norm_sum_parts(const iso__cuda_norm_shape &s, int count,
                                             const double *parts, double *room) {
    int t = (int)threadIdx.x, slices = ISO__NORM_SUM_BLOCK / count, slice = t / count;
    int its = ((int)s.parts - slice + slices - 1) / slices;
    room[t] = iso__norm_add_parts(parts + t, (int64_t)slices * count, its);
    __syncthreads();
    double sum = 0;
    for (int i = 0; t < count && i < slices; i++) sum += room[i * count + t];
    return sum;
}

// Returns whether this is the last block of its group; shared.found then has the sums. own: sums of
// this thread. All threads must call it; lanes and K are powers of two.
template <int K>
__device__ bool iso__norm_sum_group(const iso__cuda_norm_shape &s, double (&own)[2][K],
                                    double *parts, unsigned *arrived, iso__norm_shared<K> *shared) {
    int t = (int)threadIdx.x, count = 2 * s.lanes * K;
    double sum = iso__norm_sum_block(s.lanes, own, shared->warp);
    if (s.parts > 1) {
        double *of_group = parts + blockIdx.x * s.parts * count;
        if (t < count) of_group[blockIdx.y * count + t] = sum;
        if (!iso__is_last_block(&arrived[blockIdx.x], (unsigned)s.parts)) return false;
        sum = iso__norm_sum_parts(s, count, of_group, shared->warp);
    }
    if (t < count) shared->found[t] = sum;
    __syncthreads();
    return true;
}

// ---- Launches -----------------------------------------------------------------------------------

template <class Args>
iso_status iso__norm_submit_sums(iso__cuda *cuda, void (*kernel)(Args), const Args &args) {
    const iso__cuda_norm_shape &s = args.shape;
    int64_t group = s.lanes * s.owned;
    dim3 grid((unsigned)((s.channels + group - 1) / group), (unsigned)s.parts);
    return iso__cuda_submit(cuda, kernel, grid, ISO__NORM_SUM_BLOCK, args);
}

#endif
