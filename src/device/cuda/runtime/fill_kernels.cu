// SPDX-License-Identifier: MIT
// Kernels that fill and convert.
#include "device/cuda/runtime/fill_kernels.h"

#include "device/cuda/runtime/cuda_pack.cuh"
#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_types.cuh"

#include <math.h>

namespace {

// What differs by rounding twice is caught by rounding to odd in between: a float that is not exact
// gets a last bit of 1, which tells the second rounding on which side of a tie it lies.
__host__ __device__ inline float nearest_odd(double x) {
    float y = (float)x;
    uint32_t bits;
    if ((double)y == x || x != x) return y;
    memcpy(&bits, &y, sizeof(bits));
    if (fabs((double)y) > fabs(x)) bits--; // towards zero
    bits |= 1;
    memcpy(&y, &bits, sizeof(y));
    return y;
}

template <class From, class To> __host__ __device__ inline void round_to(From x, To *to) {
    *to = (To)iso__widen(x);
}
template <class From> __host__ __device__ inline void round_to(From x, iso__bf16 *to) {
    iso__narrow(iso__widen(x), to);
}
template <class From> __host__ __device__ inline void round_to(From x, iso__f16 *to) {
    iso__narrow(iso__widen(x), to);
}
__host__ __device__ inline void round_to(double x, iso__bf16 *to) {
    iso__narrow(nearest_odd(x), to);
}
__host__ __device__ inline void round_to(double x, iso__f16 *to) {
    iso__narrow(nearest_odd(x), to);
}

} // namespace

// In a namespace without a name, as a struct's name is part of the name of its launch.
namespace {

template <class Value> struct fill_args {
    int64_t count;
    Value value, *x;
};

template <class Value> __global__ void fill(fill_args<Value> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) a.x[i] = a.value;
}

} // namespace

template <class Value>
static iso_status fill_with(iso__cuda *cuda, int64_t count, Value value, void *x) {
    fill_args<Value> args = {count, value, (Value *)x};
    return iso__cuda_submit_over(cuda, fill<Value>, count, args);
}

template <class Value>
static iso_status fill_as(iso__cuda *cuda, int64_t count, double value, void *x) {
    Value rounded;
    round_to(value, &rounded);
    return fill_with(cuda, count, rounded, x);
}

iso_status iso__cuda_fill_values(iso__cuda *cuda, iso_dtype dtype, int64_t count, double value,
                                 void *x) {
    if (dtype == ISO_I64) return fill_with(cuda, count, (long long)value, x);
    return iso__for_type(dtype, fill_as<double>, fill_as<float>, fill_as<iso__bf16>,
                         fill_as<iso__f16>)(cuda, count, value, x);
}

namespace {

template <class From, class To> struct convert_args {
    int64_t count, items; // items: of eight elements, which are moved 16 bytes at a time
    const From *from;
    To *to;
};

enum { ITEM = 8 };

template <class From, class To>
__device__ inline void convert_item(const From *from, To *to, int64_t i) {
    typedef iso__pack<From> in;
    typedef iso__pack<To> out;
    in x[ITEM / in::width];
    out y[ITEM / out::width];
    for (int k = 0; k < ITEM / in::width; k++)
        x[k] = ((const in *)from)[i * (ITEM / in::width) + k];
    for (int k = 0; k < ITEM; k++)
        round_to(x[k / in::width].at[k % in::width], &y[k / out::width].at[k % out::width]);
    for (int k = 0; k < ITEM / out::width; k++) ((out *)to)[i * (ITEM / out::width) + k] = y[k];
}

template <class From, class To> __device__ inline void convert_rest(convert_args<From, To> a) {
    int64_t rest = a.items * ITEM + iso__first_item();
    for (int64_t i = rest; i < a.count; i += iso__item_stride()) round_to(a.from[i], &a.to[i]);
}

template <class From, class To> __global__ void convert(convert_args<From, To> a) {
    for (int64_t i = iso__first_item(); i < a.items; i += iso__item_stride())
        convert_item(a.from, a.to, i);
    convert_rest(a);
}

template <class From, class To>
convert_args<From, To> args_of(int64_t count, const void *from, void *to) {
    int64_t items = iso__is_aligned(from) && iso__is_aligned(to) ? count / ITEM : 0;
    return {count, items, (const From *)from, (To *)to};
}

template <class From, class To>
iso_status convert_as(iso__cuda *cuda, int64_t count, const void *from, void *to) {
    convert_args<From, To> args = args_of<From, To>(count, from, to);
    return iso__cuda_submit_over(cuda, convert<From, To>, args.items > 0 ? args.items : count,
                                 args);
}

template <class From>
iso_status convert_from(iso__cuda *cuda, int64_t count, const void *from, iso_dtype to_dtype,
                        void *to) {
    auto convert = iso__for_type(to_dtype, convert_as<From, double>, convert_as<From, float>,
                                 convert_as<From, iso__bf16>, convert_as<From, iso__f16>);
    return convert(cuda, count, from, to);
}

} // namespace

iso_status iso__cuda_convert(iso__cuda *cuda, int64_t count, iso_dtype from_dtype, const void *from,
                             iso_dtype to_dtype, void *to) {
    auto convert = iso__for_type(from_dtype, convert_from<double>, convert_from<float>,
                                 convert_from<iso__bf16>, convert_from<iso__f16>);
    return convert(cuda, count, from, to_dtype, to);
}
