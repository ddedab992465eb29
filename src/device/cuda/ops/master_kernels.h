// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of kernels for master weights, the f32 values of parameters
// of 16 bits. dtype: bf16 or f16.
#ifndef ISO_MASTER_KERNELS_H
#define ISO_MASTER_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// master[i] = value[i] where value[i] is not master[i] rounded.
iso_status iso__cuda_take_master(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *value,
                                 float *master);
// x[i] = x[i] rounded to dtype.
iso_status iso__cuda_round_values(iso__cuda *cuda, iso_dtype dtype, int64_t count, float *x);

#ifdef __cplusplus
}
#endif
#endif
