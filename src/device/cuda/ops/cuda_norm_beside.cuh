// SPDX-License-Identifier: MIT
// Sums of batch normalisation where channels lie beside each other, so that a plane is one pixel
// and a row has a value of each channel. A thread moves K values of a row in one access, fewer than
// 16 bytes where that saves registers: more threads find room, and more accesses are under way.
// Blocks sum parts of the rows of a group of channels; the one of a group that arrives last adds
// the parts up, in an order that is the same in every run, and goes on with the sums.
#ifndef ISO_CUDA_NORM_BESIDE_CUH
#define ISO_CUDA_NORM_BESIDE_CUH

#include "device/cuda/ops/cuda_norm.cuh"

enum {
    ISO__NORM_WARPS = ISO__NORM_SUM_BLOCK / 32,
    ISO__NORM_PARTS = 16 // that a thread loads at once
};

// Channels of a thread: where moments are taken, and where it writes as much as it reads. Blocks of
// sums that a processor has room for.
template <class T> struct iso__norm_beside {
    enum {
        moments = ISO__NORM_SUMMED_MOMENTS(sizeof(T)),
        moved = iso__widest<T>::width < 4 ? iso__widest<T>::width : 4,
        blocks = sizeof(T) < sizeof(double) ? 2 : 1
    };
};

// ---- Where a thread works -----------------------------------------------------------------------

// The thread's way through the rows of its block: one of every `step`, the first of which has its K
// values from element `at` on; the next `stride` elements further.
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

// K numbers of each channel, from memory that kernels before this one wrote.
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

// What threads share: numbers of each warp, then sums: one number of each channel of the group, the
// other of each.
template <int K> struct iso__norm_shared {
    double warp[ISO__NORM_WARPS * 2 * K * ISO__NORM_LANES];
    double found[2 * K * ISO__NORM_LANES];
};

// In thread t < 2 * group: the sum over the block of one number of a channel. own: both numbers of
// each of the thread's channels.
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

// part[0], part[step], ...: several loads are under way at once. volatile, as these come from other
// blocks and not from a cache.
__device__ inline double iso__norm_add_parts(const volatile double *part, int64_t step, int count) {
    double sum = 0;
    for (int i = 0; i < count; i += ISO__NORM_PARTS) {
        double x[ISO__NORM_PARTS];
        for (int k = 0; k < ISO__NORM_PARTS; k++) x[k] = i + k < count ? part[(i + k) * step] : 0;
        for (int k = 0; k < ISO__NORM_PARTS; k++) sum += x[k];
    }
    return sum;
}

// The same sums over all parts. A group's parts lie together, each of them as in `found`.
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

// Whether this is the last block of its group; then shared.found has the sums. own: sums of this
// thread. All threads call it; lanes and K are powers of two.
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
