// SPDX-License-Identifier: MIT
// Linear layers to very few features. One thread or one warp computes all outputs of a row, so that
// it loads each element of x only once.
#include "device/cuda/ops/thin_kernels.h"

#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_vector.cuh"

namespace {

// Kernels are made for OUT outputs: of fewer, the last one is computed again, so that no load waits
// for a branch.
enum { PACK = ISO_CUDA_THIN_PACK, WARPS = ISO_CUDA_BLOCK / 32 };

__device__ inline int smaller(int a, int b) { return a < b ? a : b; }

// PACK elements, 16 bytes of them at a time.
template <class T> __device__ inline void load_pack(const T *from, float (&to)[PACK]) {
    enum { WIDTH = (int)iso__widest<T>::width };
    iso__vector<T, WIDTH> x[PACK / WIDTH];
    for (int i = 0; i < PACK / WIDTH; i++) x[i] = ((const iso__vector<T, WIDTH> *)from)[i];
    for (int i = 0; i < PACK; i++) to[i] = iso__widen(x[i / WIDTH].at[i % WIDTH]);
}

template <class T> __device__ inline void store_pack(T *to, const float (&from)[PACK]) {
    enum { WIDTH = (int)iso__widest<T>::width };
    iso__vector<T, WIDTH> x[PACK / WIDTH];
    for (int i = 0; i < PACK; i++) iso__narrow(from[i], &x[i / WIDTH].at[i % WIDTH]);
    for (int i = 0; i < PACK / WIDTH; i++) ((iso__vector<T, WIDTH> *)to)[i] = x[i];
}

template <class T> struct thin_args {
    int rows, in, out;
    const T *x, *w, *bias, *dy;
    T *y, *dx;
    bool relu;
};

// ---- Forward ------------------------------------------------------------------------------------
// A warp for each row.

template <int OUT, class T> __global__ void thin_forward(thin_args<T> a) {
    int lane = (int)threadIdx.x % 32;
    for (int64_t row = iso__first_item() / 32; row < a.rows; row += iso__item_stride() / 32) {
        float sum[OUT] = {};
        for (int k = lane * PACK; k < a.in; k += 32 * PACK) {
            float x[PACK];
            load_pack(a.x + row * a.in + k, x);
#pragma unroll
            for (int o = 0; o < OUT; o++) {
                float w[PACK];
                load_pack(a.w + (int64_t)smaller(o, a.out - 1) * a.in + k, w);
                for (int i = 0; i < PACK; i++) sum[o] += x[i] * w[i];
            }
        }
        float mine = 0; // lane o keeps output o
#pragma unroll
        for (int o = 0; o < OUT; o++) {
            for (int offset = 16; offset > 0; offset /= 2)
                sum[o] += __shfl_xor_sync(0xffffffffu, sum[o], offset);
            if (lane == o) mine = sum[o];
        }
        if (lane >= a.out) continue;
        if (a.bias) mine += iso__widen(a.bias[lane]);
        iso__narrow(a.relu && !(mine > 0) ? 0 : mine, &a.y[row * a.out + lane]);
    }
}

// ---- Input gradients ----------------------------------------------------------------------------

template <int OUT, class T> __global__ void thin_input(thin_args<T> a) {
    int packs = a.in / PACK;
    int64_t count = (int64_t)a.rows * packs;
    for (int64_t item = iso__first_item(); item < count; item += iso__item_stride()) {
        int row = (int)item / packs, k = ((int)item - row * packs) * PACK;
        float sum[PACK] = {};
#pragma unroll
        for (int o = 0; o < OUT; o++) {
            float w[PACK];
            int of = smaller(o, a.out - 1);
            float dy = o < a.out ? iso__widen(a.dy[(int64_t)row * a.out + of]) : 0;
            load_pack(a.w + (int64_t)of * a.in + k, w);
            for (int i = 0; i < PACK; i++) sum[i] += dy * w[i];
        }
        store_pack(a.dx + (int64_t)row * a.in + k, sum);
    }
}

// ---- Weight gradients ---------------------------------------------------------------------------
// A block has 32 columns of dw and a part of the rows; each of its warps takes every eighth row of
// that, and the block that is done last with its columns adds up the parts. db is column `in`.

template <class T> struct params_args {
    int rows, in, out, parts, accumulate_w, accumulate_b;
    const T *x, *dy;
    float *dw, *db, *partial; // partial: [parts, out, in + 1]
    unsigned *arrived;
};

template <class T>
__device__ inline void put(const params_args<T> &a, int o, int column, float value) {
    float *to = column < a.in ? &a.dw[(int64_t)o * a.in + column] : &a.db[o];
    *to = (column < a.in ? a.accumulate_w : a.accumulate_b) ? *to + value : value;
}

// Rows that a thread has under way at once.
enum { AT_ONCE = 4 };

template <int OUT, class T>
__device__ inline void add_rows(const params_args<T> &a, int first, int end, int column,
                                float (&sum)[OUT]) {
    for (int row = first; row < end; row += AT_ONCE * WARPS) {
        float x[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) {
            int at = row + k * WARPS;
            x[k] = at >= end ? 0 : column < a.in ? iso__widen(a.x[(int64_t)at * a.in + column]) : 1;
        }
        for (int k = 0; k < AT_ONCE; k++) {
            const T *dy = a.dy + (int64_t)smaller(row + k * WARPS, end - 1) * a.out;
#pragma unroll
            for (int o = 0; o < OUT; o++) sum[o] += x[k] * iso__widen(dy[smaller(o, a.out - 1)]);
        }
    }
}

// The sum of all parts, with several loads under way at once.
template <class T>
__device__ inline float sum_of_parts(const params_args<T> &a, int o, int column) {
    enum { LOADS = 16 };
    const volatile float *partial =
        a.partial + (int64_t)o * (a.in + 1) + column; // not from a cache
    const int64_t step = (int64_t)a.out * (a.in + 1);
    float sum = 0;
    for (int p = 0; p < a.parts; p += LOADS) {
        float part[LOADS];
        for (int k = 0; k < LOADS; k++) part[k] = partial[smaller(p + k, a.parts - 1) * step];
        for (int k = 0; k < LOADS; k++)
            if (p + k < a.parts) sum += part[k];
    }
    return sum;
}

template <int OUT, class T> __global__ void thin_params(params_args<T> a) {
    __shared__ float room[WARPS][OUT][32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int columns = a.in + (a.db ? 1 : 0), column = (int)blockIdx.x * 32 + lane;
    int first = (int)((int64_t)a.rows * blockIdx.y / a.parts);
    int end = (int)((int64_t)a.rows * (blockIdx.y + 1) / a.parts);
    float sum[OUT] = {};
    if (column < columns) add_rows(a, first + warp, end, column, sum);
    for (int o = 0; o < OUT; o++) room[warp][o][lane] = sum[o];
    __syncthreads();
    for (int o = warp; o < a.out && column < columns; o += WARPS) {
        float total = room[0][o][lane];
        for (int w = 1; w < WARPS; w++) total += room[w][o][lane];
        if (a.parts == 1)
            put(a, o, column, total);
        else
            a.partial[((int64_t)blockIdx.y * a.out + o) * (a.in + 1) + column] = total;
    }
    if (a.parts == 1 || !iso__is_last_block(&a.arrived[blockIdx.x], (unsigned)a.parts)) return;
    for (int o = warp; o < a.out && column < columns; o += WARPS)
        put(a, o, column, sum_of_parts(a, o, column));
}

// ---- Launchers ----------------------------------------------------------------------------------

template <int OUT, class T>
iso_status launch_forward(iso__cuda *cuda, const iso__cuda_thin *t, const void *x, const void *w,
                          const void *bias, bool relu, void *y) {
    thin_args<T> args = {};
    args.rows = (int)t->rows, args.in = (int)t->in, args.out = (int)t->out, args.relu = relu;
    args.x = (const T *)x, args.w = (const T *)w, args.bias = (const T *)bias, args.y = (T *)y;
    return iso__cuda_submit_over(cuda, thin_forward<OUT, T>, t->rows * 32, args);
}

template <int OUT, class T>
iso_status launch_input(iso__cuda *cuda, const iso__cuda_thin *t, const void *dy, const void *w,
                        void *dx) {
    thin_args<T> args = {};
    args.rows = (int)t->rows, args.in = (int)t->in, args.out = (int)t->out;
    args.dy = (const T *)dy, args.w = (const T *)w, args.dx = (T *)dx;
    return iso__cuda_submit_over(cuda, thin_input<OUT, T>, t->rows * (t->in / PACK), args);
}

template <int OUT, class T>
iso_status launch_params(iso__cuda *cuda, const iso__cuda_thin *t,
                         const iso__cuda_thin_gradients *g) {
    params_args<T> args = {};
    args.rows = (int)t->rows, args.in = (int)t->in, args.out = (int)t->out;
    args.parts = iso__cuda_thin_parts(t);
    args.accumulate_w = g->accumulate_w, args.accumulate_b = g->accumulate_b;
    args.x = (const T *)g->x, args.dy = (const T *)g->dy;
    args.dw = g->dw, args.db = g->db, args.partial = g->partial, args.arrived = g->arrived;
    unsigned blocks = (unsigned)((t->in + (g->db ? 1 : 0) + 31) / 32);
    return iso__cuda_submit(cuda, thin_params<OUT, T>, dim3(blocks, (unsigned)args.parts),
                            ISO_CUDA_BLOCK, args);
}

} // namespace

// A thread has some rows of its own; whatever the GPU, so that all give the same bits.
int iso__cuda_thin_parts(const iso__cuda_thin *t) {
    int64_t parts = t->rows / (2 * AT_ONCE * WARPS);
    return (int)(parts < 1                     ? 1
                 : parts < ISO_CUDA_THIN_PARTS ? parts
                                               : (int64_t)ISO_CUDA_THIN_PARTS);
}

// The launcher for as many outputs and for the type.
#define WITH_OUTPUTS(name, T)                                                                      \
    (t->out <= 4    ? name<4, T>                                                                   \
     : t->out <= 8  ? name<8, T>                                                                   \
     : t->out <= 10 ? name<10, T>                                                                  \
                    : name<ISO_CUDA_THIN_OUT, T>)
#define LAUNCHER(name)                                                                             \
    (dtype == ISO_BF16  ? WITH_OUTPUTS(name, iso__bf16)                                            \
     : dtype == ISO_F16 ? WITH_OUTPUTS(name, iso__f16)                                             \
                        : WITH_OUTPUTS(name, float))

iso_status iso__cuda_thin_forward(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_thin *t,
                                  const void *x, const void *w, const void *bias, bool relu,
                                  void *y) {
    return LAUNCHER(launch_forward)(cuda, t, x, w, bias, relu, y);
}

iso_status iso__cuda_thin_input(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_thin *t,
                                const void *dy, const void *w, void *dx) {
    return LAUNCHER(launch_input)(cuda, t, dy, w, dx);
}

iso_status iso__cuda_thin_params(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_thin *t,
                                 const iso__cuda_thin_gradients *g) {
    return LAUNCHER(launch_params)(cuda, t, g);
}
