// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of linear layers to very few features, such as the last one
// of a classifier. Tiled matrix products have too few tiles to keep a GPU busy with these.
#ifndef ISO_THIN_KERNELS_H
#define ISO_THIN_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// x [rows, in], w [out, in], y [rows, out], of one type: f32, bf16 or f16, sums in f32. `in` is a
// multiple of 8, and x, w and dx begin at multiples of 16 bytes. rows * in is at most INT32_MAX.
enum { ISO_CUDA_THIN_OUT = 16, ISO_CUDA_THIN_PACK = 8, ISO_CUDA_THIN_PARTS = 64 };
typedef struct iso__cuda_thin {
    int64_t rows, in, out;
} iso__cuda_thin;

// y = x w^T + bias (NULL: none), with relu.
iso_status iso__cuda_thin_forward(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_thin *t,
                                  const void *x, const void *w, const void *bias, bool relu,
                                  void *y);
// dx = dy w.
iso_status iso__cuda_thin_input(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_thin *t,
                                const void *dy, const void *w, void *dx);
// dw [out, in] and db [out] (NULL: not wanted), f32, of x and dy; sums are in an order that is the
// same in every run. partial: room for iso__cuda_thin_parts times (in + 1) * out floats, and
// arrived: counters (iso__cuda_arrivals), where there are several parts.
int iso__cuda_thin_parts(const iso__cuda_thin *t);
typedef struct iso__cuda_thin_gradients {
    const void *x, *dy;
    float *dw, *db, *partial;
    unsigned *arrived;
    bool accumulate_w, accumulate_b;
} iso__cuda_thin_gradients;
iso_status iso__cuda_thin_params(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_thin *t,
                                 const iso__cuda_thin_gradients *g);

#ifdef __cplusplus
}
#endif
#endif
