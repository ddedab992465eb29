// SPDX-License-Identifier: MIT
// Optimizer updates of the CUDA device: its slots, which take memory instead of tensors, for each
// type.
#include "device/cuda/runtime/cuda_impl.h"
#include "device/cuda/ops/elementwise_kernels.h"
#include "device/cuda/ops/master_kernels.h"
#include "device/cuda/ops/update_kernels.h"
#include "device/cuda/runtime/fill_kernels.h"

static iso_status update_lamb(iso_device *self, iso_dtype dtype, int64_t count,
                              const iso__lamb_args *args, const void *g, void *p, void *m,
                              void *v) {
    iso__cuda *cuda = iso__cuda_of(self);
    void *sums;
    const iso__rounded_to *to = &args->to;
    if (to->value) ISO_TRY(iso__cuda_take_master(cuda, to->dtype, count, to->value, p));
    ISO_TRY(iso__cuda_scratch(cuda, ISO_CUDA_LAMB_SUMS * sizeof(double), &sums));
    ISO_TRY(iso__cuda_lamb(cuda, dtype, count, args, g, p, m, v, sums));
    if (!to->value) return ISO_OK;
    return iso__cuda_convert(cuda, count, ISO_F32, p, to->dtype, to->value);
}

static iso_status measure_lamb(iso_device *self, iso_dtype dtype, int64_t count,
                               const iso__lamb_args *args, const void *g, const void *p, void *m,
                               void *v, double square[2]) {
    iso__cuda *cuda = iso__cuda_of(self);
    double *pair;
    void *sums;
    ISO_TRY(iso__cuda_scratch(cuda, ISO_CUDA_LAMB_SUMS * sizeof(double), &sums));
    ISO_TRY(iso__cuda_pair(cuda, square, &pair));
    return iso__cuda_lamb_measure(cuda, dtype, count, args, g, p, m, v, sums, pair);
}

// The slots of one type.
#define SLOTS(dtype, suffix)                                                                       \
    static iso_status scale_##suffix(iso_device *self, int64_t count, double factor, void *x) {    \
        return iso__cuda_scale(iso__cuda_of(self), dtype, count, factor, x);                       \
    }                                                                                              \
    static iso_status sgd_##suffix(iso_device *self, int64_t count, const iso__sgd_args *args,     \
                                   const void *g, void *p, void *momentum) {                       \
        return iso__cuda_sgd(iso__cuda_of(self), dtype, count, args, g, p, momentum);              \
    }                                                                                              \
    static iso_status adam_##suffix(iso_device *self, int64_t count, const iso__adam_args *args,   \
                                    const void *g, void *p, void *m, void *v, void *most) {        \
        return iso__cuda_adam(iso__cuda_of(self), dtype, count, args, g, p, m, v, most);           \
    }                                                                                              \
    static iso_status adadelta_##suffix(iso_device *self, int64_t count,                           \
                                        const iso__adadelta_args *args, const void *g, void *p,    \
                                        void *square_avg, void *acc_delta) {                       \
        return iso__cuda_adadelta(iso__cuda_of(self), dtype, count, args, g, p, square_avg,        \
                                  acc_delta);                                                      \
    }                                                                                              \
    static iso_status adagrad_##suffix(iso_device *self, int64_t count,                            \
                                       const iso__adagrad_args *args, const void *g, void *p,      \
                                       void *sum) {                                                \
        return iso__cuda_adagrad(iso__cuda_of(self), dtype, count, args, g, p, sum);               \
    }                                                                                              \
    static iso_status rmsprop_##suffix(iso_device *self, int64_t count,                            \
                                       const iso__rmsprop_args *args, const void *g, void *p,      \
                                       void *square_avg, void *grad_avg, void *momentum) {         \
        return iso__cuda_rmsprop(iso__cuda_of(self), dtype, count, args, g, p, square_avg,         \
                                 grad_avg, momentum);                                              \
    }                                                                                              \
    static iso_status nadam_##suffix(iso_device *self, int64_t count, const iso__nadam_args *args, \
                                     const void *g, void *p, void *m, void *v) {                   \
        return iso__cuda_nadam(iso__cuda_of(self), dtype, count, args, g, p, m, v);                \
    }                                                                                              \
    static iso_status lamb_##suffix(iso_device *self, int64_t count, const iso__lamb_args *args,   \
                                    const void *g, void *p, void *m, void *v) {                    \
        return update_lamb(self, dtype, count, args, g, p, m, v);                                  \
    }                                                                                              \
    static iso_status lamb_measure_##suffix(iso_device *self, int64_t count,                       \
                                            const iso__lamb_args *args, const void *g,             \
                                            const void *p, void *m, void *v, double square[2]) {   \
        return measure_lamb(self, dtype, count, args, g, p, m, v, square);                         \
    }                                                                                              \
    static iso_status lamb_step_##suffix(iso_device *self, int64_t count,                          \
                                         const iso__lamb_args *args, const double square[2],       \
                                         void *p, const void *m, const void *v) {                  \
        return iso__cuda_lamb_step(iso__cuda_of(self), dtype, count, args, square, p, m, v);       \
    }

SLOTS(ISO_F32, f32)
SLOTS(ISO_F64, f64)

static iso_status scale_bf16(iso_device *self, int64_t count, double factor, void *x) {
    return iso__cuda_scale_half(iso__cuda_of(self), ISO_BF16, count, factor, x);
}
static iso_status scale_f16(iso_device *self, int64_t count, double factor, void *x) {
    return iso__cuda_scale_half(iso__cuda_of(self), ISO_F16, count, factor, x);
}

void iso__cuda_fill_update(iso_kernel_ops *ops, iso_dtype dtype) {
    bool is_f64 = dtype == ISO_F64;
    ops->scale = is_f64 ? scale_f64 : scale_f32;
    if (iso__is_half(dtype)) ops->scale = dtype == ISO_BF16 ? scale_bf16 : scale_f16;
    ops->sgd = is_f64 ? sgd_f64 : sgd_f32;
    ops->adam = is_f64 ? adam_f64 : adam_f32;
    ops->adadelta = is_f64 ? adadelta_f64 : adadelta_f32;
    ops->adagrad = is_f64 ? adagrad_f64 : adagrad_f32;
    ops->rmsprop = is_f64 ? rmsprop_f64 : rmsprop_f32;
    ops->nadam = is_f64 ? nadam_f64 : nadam_f32;
    ops->lamb = is_f64 ? lamb_f64 : lamb_f32;
    ops->lamb_measure = is_f64 ? lamb_measure_f64 : lamb_measure_f32;
    ops->lamb_step = is_f64 ? lamb_step_f64 : lamb_step_f32;
}
