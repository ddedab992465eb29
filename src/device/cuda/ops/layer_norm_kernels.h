// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of layer normalisation kernels.
#ifndef ISO_LAYER_NORM_KERNELS_H
#define ISO_LAYER_NORM_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// x, y, dy and dx are of dtype; if that is bf16 or f16, w, b, dw, db and statistics are f32.
//
// x[rows, size]; w and b may be NULL. statistics[rows, 3]: the rounded mean, its rounding error,
// and 1 / deviation.
iso_status iso__cuda_layer_norm_forward(iso__cuda *cuda, iso_dtype dtype, int64_t rows,
                                        int64_t size, double eps, const void *x, const void *w,
                                        const void *b, void *statistics, void *y);
// dx may be dy.
iso_status iso__cuda_layer_norm_backward_input(iso__cuda *cuda, iso_dtype dtype, int64_t rows,
                                               int64_t size, const void *x, const void *w,
                                               const void *dy, const void *statistics, void *dx);

typedef struct iso__cuda_layer_norm_params {
    iso_dtype dtype;
    int64_t rows, size;
    const void *x, *dy, *statistics;
    void *dw, *db; // may be NULL
    bool accumulate_w, accumulate_b;
    double *parts; // scratch: [iso__cuda_layer_norm_parts()]
} iso__cuda_layer_norm_params;
int64_t iso__cuda_layer_norm_parts(int64_t rows, int64_t size);
iso_status iso__cuda_layer_norm_backward_params(iso__cuda *cuda,
                                                const iso__cuda_layer_norm_params *args);

#ifdef __cplusplus
}
#endif
#endif
