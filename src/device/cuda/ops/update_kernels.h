// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of optimizer updates. Arguments, and which may be NULL, are
// as for the slots of device_impl.h; all memory is of `dtype` (f32 or f64).
#ifndef ISO_UPDATE_KERNELS_H
#define ISO_UPDATE_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device_impl.h"

iso_status iso__cuda_scale(iso__cuda *cuda, iso_dtype dtype, int64_t count, double factor, void *x);
iso_status iso__cuda_sgd(iso__cuda *cuda, iso_dtype dtype, int64_t count, const iso__sgd_args *args,
                         const void *g, void *p, void *momentum);
iso_status iso__cuda_adam(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                          const iso__adam_args *args, const void *g, void *p, void *m, void *v,
                          void *most);
iso_status iso__cuda_adadelta(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                              const iso__adadelta_args *args, const void *g, void *p,
                              void *square_avg, void *acc_delta);
iso_status iso__cuda_adagrad(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                             const iso__adagrad_args *args, const void *g, void *p, void *sum);
iso_status iso__cuda_rmsprop(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                             const iso__rmsprop_args *args, const void *g, void *p,
                             void *square_avg, void *grad_avg, void *momentum);
iso_status iso__cuda_nadam(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                           const iso__nadam_args *args, const void *g, void *p, void *m, void *v);
// sums: ISO_CUDA_LAMB_SUMS doubles of the device.
enum { ISO_CUDA_LAMB_BLOCKS = 512, ISO_CUDA_LAMB_SUMS = 2 * ISO_CUDA_LAMB_BLOCKS };
iso_status iso__cuda_lamb(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                          const iso__lamb_args *args, const void *g, void *p, void *m, void *v,
                          double *sums);

// In halves. pair: the squares of the norms, 2 doubles of the device.
iso_status iso__cuda_lamb_measure(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                                  const iso__lamb_args *args, const void *g, const void *p, void *m,
                                  void *v, double *sums, double *pair);
iso_status iso__cuda_lamb_step(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                               const iso__lamb_args *args, const double square[2], void *p,
                               const void *m, const void *v);

#ifdef __cplusplus
}
#endif
#endif
