// Kernels that fill, convert and count.
#include "device/cuda/fill_kernels.h"

#include "device/cuda/cuda_submit.cuh"

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
static iso_status fill_with(iso__cuda *cuda, int64_t count, double value, void *x) {
    fill_args<Value> args = {count, (Value)value, (Value *)x};
    return iso__cuda_submit_over(cuda, fill<Value>, count, args);
}

iso_status iso__cuda_fill_values(iso__cuda *cuda, iso_dtype dtype, int64_t count, double value,
                                 void *x) {
    if (dtype == ISO_F64) return fill_with<double>(cuda, count, value, x);
    if (dtype == ISO_I64) return fill_with<long long>(cuda, count, value, x);
    return fill_with<float>(cuda, count, value, x);
}

namespace {

template <class From, class To> struct convert_args {
    int64_t count;
    const From *from;
    To *to;
};

template <class From, class To> __global__ void convert(convert_args<From, To> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride())
        a.to[i] = (To)a.from[i];
}

} // namespace

iso_status iso__cuda_convert(iso__cuda *cuda, int64_t count, iso_dtype from_dtype, const void *from,
                             void *to) {
    convert_args<double, float> narrow = {count, (const double *)from, (float *)to};
    convert_args<float, double> widen = {count, (const float *)from, (double *)to};
    if (from_dtype == ISO_F64)
        return iso__cuda_submit_over(cuda, convert<double, float>, count, narrow);
    return iso__cuda_submit_over(cuda, convert<float, double>, count, widen);
}

namespace {

struct count_args {
    int64_t count;
    long long *x;
};

__global__ void count_up(count_args a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) a.x[i]++;
}

} // namespace

iso_status iso__cuda_count_up(iso__cuda *cuda, int64_t count, void *x) {
    count_args args = {count, (long long *)x};
    return iso__cuda_submit_over(cuda, count_up, count, args);
}
