// SPDX-License-Identifier: MIT
// Kernels for master weights: they compare bits, so that a NaN equals itself.
#include "device/cuda/ops/master_kernels.h"

#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_types.cuh"

namespace {

template <class T> struct master_args {
    int64_t count;
    const T *value;
    float *master;
};

template <class T> __global__ void take_master(master_args<T> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        T rounded;
        iso__narrow(a.master[i], &rounded);
        if (rounded.bits != a.value[i].bits) a.master[i] = iso__widen(a.value[i]);
    }
}

template <class T>
iso_status launch_take(iso__cuda *cuda, int64_t count, const void *value, float *master) {
    master_args<T> args = {count, (const T *)value, master};
    return iso__cuda_submit_over(cuda, take_master<T>, count, args);
}

template <class T> __global__ void round_values(master_args<T> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        T rounded;
        iso__narrow(a.master[i], &rounded);
        a.master[i] = iso__widen(rounded);
    }
}

template <class T> iso_status launch_round(iso__cuda *cuda, int64_t count, float *x) {
    master_args<T> args = {count, NULL, x};
    return iso__cuda_submit_over(cuda, round_values<T>, count, args);
}

} // namespace

iso_status iso__cuda_take_master(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *value,
                                 float *master) {
    auto launch = dtype == ISO_F16 ? launch_take<iso__f16> : launch_take<iso__bf16>;
    return launch(cuda, count, value, master);
}

iso_status iso__cuda_round_values(iso__cuda *cuda, iso_dtype dtype, int64_t count, float *x) {
    auto launch = dtype == ISO_F16 ? launch_round<iso__f16> : launch_round<iso__bf16>;
    return launch(cuda, count, x);
}
