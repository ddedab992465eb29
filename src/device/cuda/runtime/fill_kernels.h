// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of kernels that fill and convert.
#ifndef ISO_FILL_KERNELS_H
#define ISO_FILL_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// x[i] = value; f32, f64, bf16, f16 or i64.
iso_status iso__cuda_fill_values(iso__cuda *cuda, iso_dtype dtype, int64_t count, double value,
                                 void *x);
// to[i] = from[i], rounded to nearest; between two different types of f32, f64, bf16 and
// f16.
iso_status iso__cuda_convert(iso__cuda *cuda, int64_t count, iso_dtype from_dtype, const void *from,
                             iso_dtype to_dtype, void *to);

#ifdef __cplusplus
}
#endif
#endif
