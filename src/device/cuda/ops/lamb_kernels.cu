// SPDX-License-Identifier: MIT
// The LAMB update: a pass for the moments and the norms, and one for the update; with ZeRO, the
// norms go to the host in between. Formulas: cpu_update.c.
//
// The number of blocks and the elements of each thread depend on the count alone, so all GPUs
// compute the same bits. Each block of the second pass adds up the sums of all blocks. Every
// product that is added is an explicit fma, as in update_kernels.cu.
#include "device/cuda/runtime/cuda_pack.cuh"
#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/ops/update_kernels.h"

#include <math.h>

template <class Real> struct lamb_args {
    Real scale, eps, decay, beta1, rest1, beta2, rest2, correction1, correction2;
    double lr;
    int64_t count;
    int blocks; // of the first pass
    const Real *g;
    Real *p, *m, *v;
    double *sums; // of the squares of p, then of the direction: [2][blocks]
    double *pair; // their sums over the blocks
    double square[2];
    bool aligned;
};

// The same bits in both passes.
template <class Real>
__device__ inline Real lamb_direction(const lamb_args<Real> &a, Real m, Real v, Real p) {
    return fma(a.decay, p, m / a.correction1 / (sqrt(v) / a.correction2 + a.eps));
}

template <class Real>
__device__ inline void lamb_element(const lamb_args<Real> &a, Real grad, Real p, Real *m, Real *v,
                                    double square[2]) {
    Real g = grad * a.scale;
    *m = fma(a.beta1, *m, a.rest1 * g);
    *v = fma(a.beta2, *v, a.rest2 * g * g);
    double u = (double)lamb_direction(a, *m, *v, p);
    square[0] = fma((double)p, (double)p, square[0]);
    square[1] = fma(u, u, square[1]);
}

template <class Real> __global__ void lamb_moments(lamb_args<Real> a) {
    const int width = iso__pack<Real>::width;
    int64_t packs = a.count / width;
    double square[2] = {0, 0};
    for (int64_t i = iso__first_item(); i < packs; i += iso__item_stride()) {
        iso__pack<Real> g = iso__load(a.g + i * width, a.aligned),
                        p = iso__load(a.p + i * width, a.aligned);
        iso__pack<Real> m = iso__load(a.m + i * width, a.aligned),
                        v = iso__load(a.v + i * width, a.aligned);
#pragma unroll
        for (int k = 0; k < width; k++)
            lamb_element(a, g.at[k], p.at[k], &m.at[k], &v.at[k], square);
        iso__store(a.m + i * width, m, a.aligned);
        iso__store(a.v + i * width, v, a.aligned);
    }
    int64_t last = packs * width + iso__first_item();
    if (last < a.count) lamb_element(a, a.g[last], a.p[last], &a.m[last], &a.v[last], square);
    double p = iso__block_sum(square[0]), u = iso__block_sum(square[1]);
    if (threadIdx.x != 0) return;
    a.sums[blockIdx.x] = p;
    a.sums[a.blocks + blockIdx.x] = u;
}

// The sums of all blocks, in every thread.
template <class Real>
__device__ inline void lamb_total(const lamb_args<Real> &a, double *p2, double *u2) {
    double square[2] = {0, 0};
    for (int b = (int)threadIdx.x; b < a.blocks; b += (int)blockDim.x) {
        square[0] += a.sums[b];
        square[1] += a.sums[a.blocks + b];
    }
    *p2 = iso__block_sum(square[0]);
    *u2 = iso__block_sum(square[1]);
}

template <class Real> __device__ inline void lamb_move(const lamb_args<Real> &a, Real step) {
    const int width = iso__pack<Real>::width;
    int64_t packs = a.count / width;
    for (int64_t i = iso__first_item(); i < packs; i += iso__item_stride()) {
        iso__pack<Real> p = iso__load(a.p + i * width, a.aligned),
                        m = iso__load(a.m + i * width, a.aligned);
        iso__pack<Real> v = iso__load(a.v + i * width, a.aligned);
#pragma unroll
        for (int k = 0; k < width; k++)
            p.at[k] = fma(-step, lamb_direction(a, m.at[k], v.at[k], p.at[k]), p.at[k]);
        iso__store(a.p + i * width, p, a.aligned);
    }
    int64_t last = packs * width + iso__first_item();
    if (last >= a.count) return;
    Real p = a.p[last];
    a.p[last] = fma(-step, lamb_direction(a, a.m[last], a.v[last], p), p);
}

template <class Real>
__device__ inline Real lamb_step_of(const lamb_args<Real> &a, double p2, double u2) {
    return (Real)(a.lr * (p2 > 0 && u2 > 0 ? sqrt(p2 / u2) : 1));
}

template <class Real> __global__ void lamb_apply(lamb_args<Real> a) {
    double p2, u2;
    lamb_total(a, &p2, &u2);
    lamb_move(a, lamb_step_of(a, p2, u2));
}

template <class Real> __global__ void lamb_tell(lamb_args<Real> a) {
    double p2, u2;
    lamb_total(a, &p2, &u2);
    if (threadIdx.x != 0) return;
    a.pair[0] = p2;
    a.pair[1] = u2;
}

template <class Real> __global__ void lamb_finish(lamb_args<Real> a) {
    lamb_move(a, lamb_step_of(a, a.square[0], a.square[1]));
}

template <class Real>
static lamb_args<Real> lamb_args_of(int64_t count, const iso__lamb_args *from, const void *g,
                                    const void *p, const void *m, const void *v) {
    lamb_args<Real> a = {};
    a.scale = (Real)from->scale, a.eps = (Real)from->eps, a.decay = (Real)from->weight_decay;
    a.beta1 = (Real)from->beta1, a.rest1 = (Real)from->rest1;
    a.beta2 = (Real)from->beta2, a.rest2 = (Real)from->rest2;
    a.correction1 = (Real)from->correction1, a.correction2 = (Real)from->correction2_sqrt;
    a.lr = from->lr;
    a.count = count;
    a.g = (const Real *)g, a.p = (Real *)p, a.m = (Real *)m, a.v = (Real *)v;
    a.aligned = (!g || iso__is_aligned(g)) && iso__is_aligned(p) && iso__is_aligned(m) &&
                iso__is_aligned(v);
    int64_t wanted = (count / iso__pack<Real>::width + ISO_CUDA_BLOCK - 1) / ISO_CUDA_BLOCK;
    int64_t most = ISO_CUDA_LAMB_BLOCKS;
    a.blocks = (int)(wanted < 1 ? 1 : wanted < most ? wanted : most);
    return a;
}

template <class Real>
static iso_status submit_lamb(iso__cuda *cuda, void (*kernel)(lamb_args<Real>),
                              const lamb_args<Real> &a, int blocks) {
    return iso__cuda_submit(cuda, kernel, dim3((unsigned)blocks), ISO_CUDA_BLOCK, a);
}

template <class Real>
static iso_status launch_lamb(iso__cuda *cuda, int64_t count, const iso__lamb_args *from,
                              const void *g, void *p, void *m, void *v, double *sums) {
    lamb_args<Real> a = lamb_args_of<Real>(count, from, g, p, m, v);
    a.sums = sums;
    ISO_TRY(submit_lamb(cuda, lamb_moments<Real>, a, a.blocks));
    return submit_lamb(cuda, lamb_apply<Real>, a, a.blocks);
}

template <class Real>
static iso_status launch_measure(iso__cuda *cuda, int64_t count, const iso__lamb_args *from,
                                 const void *g, const void *p, void *m, void *v, double *sums,
                                 double *pair) {
    lamb_args<Real> a = lamb_args_of<Real>(count, from, g, p, m, v);
    a.sums = sums;
    a.pair = pair;
    ISO_TRY(submit_lamb(cuda, lamb_moments<Real>, a, a.blocks));
    return submit_lamb(cuda, lamb_tell<Real>, a, 1);
}

template <class Real>
static iso_status launch_step(iso__cuda *cuda, int64_t count, const iso__lamb_args *from,
                              const double square[2], void *p, const void *m, const void *v) {
    lamb_args<Real> a = lamb_args_of<Real>(count, from, NULL, p, m, v);
    a.square[0] = square[0], a.square[1] = square[1];
    return submit_lamb(cuda, lamb_finish<Real>, a, a.blocks);
}

iso_status iso__cuda_lamb(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                          const iso__lamb_args *args, const void *g, void *p, void *m, void *v,
                          double *sums) {
    return dtype == ISO_F64 ? launch_lamb<double>(cuda, count, args, g, p, m, v, sums)
                            : launch_lamb<float>(cuda, count, args, g, p, m, v, sums);
}

iso_status iso__cuda_lamb_measure(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                                  const iso__lamb_args *args, const void *g, const void *p, void *m,
                                  void *v, double *sums, double *pair) {
    return dtype == ISO_F64 ? launch_measure<double>(cuda, count, args, g, p, m, v, sums, pair)
                            : launch_measure<float>(cuda, count, args, g, p, m, v, sums, pair);
}

iso_status iso__cuda_lamb_step(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                               const iso__lamb_args *args, const double square[2], void *p,
                               const void *m, const void *v) {
    return dtype == ISO_F64 ? launch_step<double>(cuda, count, args, square, p, m, v)
                            : launch_step<float>(cuda, count, args, square, p, m, v);
}
