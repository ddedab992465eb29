// SPDX-License-Identifier: MIT
// Norms of many arrays taken as one vector, and clipping by them, in a few launches for any number
// of arrays.
#include "device/cuda/ops/clip_kernels.h"

#include "device/cuda/runtime/cuda_pack.cuh"
#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_types.cuh"

#include <math.h>

namespace {

// The elements of one array that a block has: of no array in two lists.
template <class T> struct part {
    T *x;
    int count;
    bool aligned;
};

template <class T> __device__ part<T> part_of(const iso__cuda_clip_list &list) {
    int low = 0, high = (int)list.arrays; // the last array that begins no later
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *((int)blockIdx.x < list.first[middle] ? &high : &low) = middle;
    }
    int64_t begin = (int64_t)((int)blockIdx.x - list.first[low]) * ISO_CUDA_CLIP_PART;
    int64_t left = list.count[low] - begin;
    T *x = (T *)list.at[low] + begin;
    return {x, (int)(left < ISO_CUDA_CLIP_PART ? left : (int64_t)ISO_CUDA_CLIP_PART),
            iso__is_aligned(x)};
}

// Calls f(element) for each element of this block, 16 bytes at a time: which thread has which does
// not depend on where they lie. Written back where `writes`.
template <bool writes, class T, class Function>
__device__ void each(const part<T> &p, const Function &f) {
    const int width = iso__pack<T>::width;
    int packs = p.count / width;
    for (int i = (int)threadIdx.x; i < packs; i += (int)blockDim.x) {
        iso__pack<T> x = iso__load(p.x + i * width, p.aligned);
        for (int k = 0; k < width; k++) f(&x.at[k]);
        if (writes) iso__store(p.x + i * width, x, p.aligned);
    }
    int last = packs * width + (int)threadIdx.x;
    if (last < p.count) f(&p.x[last]);
}

// ---- Norms ----------------------------------------------------------------------------------------

// What becomes of the number of all elements so far and that of another one. A NaN stays.
__device__ inline double larger(double a, double b) { return isnan(a) || a >= b ? a : b; }

__device__ double block_largest(double value) {
    __shared__ double partial[32];
    for (int offset = 16; offset > 0; offset /= 2)
        value = larger(value, __shfl_xor_sync(0xffffffffu, value, offset));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; w++) value = larger(partial[w], value);
    return value;
}

struct parts_args {
    iso__cuda_clip_list list;
    double p;
    double *parts;
};

template <class T> __device__ inline double wide(const T *x) { return (double)iso__widen(*x); }

template <class T> __global__ void norm_parts(parts_args a) {
    part<T> p = part_of<T>(a.list);
    double value = 0, power = a.p;
    if (isinf(power))
        each<false>(p, [&value](T *x) { value = larger(fabs(wide(x)), value); });
    else if (power == 2)
        each<false>(p, [&value](T *x) { value = fma(wide(x), wide(x), value); });
    else
        each<false>(p, [&value, power](T *x) { value += pow(fabs(wide(x)), power); });
    value = isinf(power) ? block_largest(value) : iso__block_sum(value);
    if (threadIdx.x == 0) a.parts[blockIdx.x] = value;
}

struct result_args {
    int64_t count;
    const double *parts;
    double p, max_norm;
    iso__cuda_clip_result *out;
};

__global__ void norm_result(result_args a) {
    double value = 0;
    for (int64_t i = threadIdx.x; i < a.count; i += blockDim.x)
        value = isinf(a.p) ? larger(a.parts[i], value) : value + a.parts[i];
    value = isinf(a.p) ? block_largest(value) : iso__block_sum(value);
    if (threadIdx.x > 0) return;
    double norm = isinf(a.p) ? value : a.p == 2 ? sqrt(value) : pow(value, 1 / a.p);
    *a.out = {norm, a.max_norm / (norm + 1e-6)};
}

// ---- Clipping -------------------------------------------------------------------------------------

struct scale_args {
    iso__cuda_clip_list list;
    const iso__cuda_clip_result *result;
};

template <class T> __global__ void scale(scale_args a) {
    double factor = a.result->factor;
    if (factor >= 1) return;
    typename iso__real<T>::type by = (typename iso__real<T>::type)factor;
    each<true>(part_of<T>(a.list), [by](T *x) { iso__narrow(iso__widen(*x) * by, x); });
}

struct clamp_args {
    iso__cuda_clip_list list;
    double most;
};

template <class T> __global__ void clamp(clamp_args a) {
    typedef typename iso__real<T>::type Real;
    Real most = (Real)a.most;
    each<true>(part_of<T>(a.list), [most](T *x) {
        Real value = iso__widen(*x);
        iso__narrow(value > most ? most : value < -most ? -most : value, x);
    });
}

template <class Args> iso_status submit(iso__cuda *cuda, void (*kernel)(Args), const Args &args) {
    const iso__cuda_clip_list &list = args.list;
    return iso__cuda_submit(cuda, kernel, dim3((unsigned)list.first[list.arrays]), ISO_CUDA_BLOCK,
                            args);
}

#define OF_TYPE(kernel)                                                                            \
    iso__for_type(dtype, kernel<double>, kernel<float>, kernel<iso__bf16>, kernel<iso__f16>)

} // namespace

// ---- Launchers ------------------------------------------------------------------------------------

iso_status iso__cuda_clip_parts(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_clip_list *list,
                                double p, double *parts) {
    parts_args args = {*list, p, parts};
    return submit(cuda, OF_TYPE(norm_parts), args);
}

iso_status iso__cuda_clip_result_of(iso__cuda *cuda, int64_t count, const double *parts, double p,
                                    double max_norm, iso__cuda_clip_result *out) {
    result_args args = {count, parts, p, max_norm, out};
    return iso__cuda_submit(cuda, norm_result, dim3(1), ISO_CUDA_BLOCK, args);
}

iso_status iso__cuda_clip_scale(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_clip_list *list,
                                const iso__cuda_clip_result *result) {
    scale_args args = {*list, result};
    return submit(cuda, OF_TYPE(scale), args);
}

iso_status iso__cuda_clip_clamp(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_clip_list *list,
                                double most) {
    clamp_args args = {*list, most};
    return submit(cuda, OF_TYPE(clamp), args);
}
