// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of pooling kernels.
#ifndef ISO_POOL_KERNELS_H
#define ISO_POOL_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// The height or width of the image and of the output.
typedef struct iso__cuda_pool_axis {
    int64_t in, out;
    int64_t kernel, stride, padding; // kernel 0: adaptive, for an output of size `out`
} iso__cuda_pool_axis;

// x[planes, y.in, x.in, beside], y[planes, y.out, x.out, beside].
typedef struct iso__cuda_pool_shape {
    iso_dtype dtype;
    int64_t planes, beside; // beside: the channels of an image with channels last; otherwise 1
    iso__cuda_pool_axis y, x;
    bool relu; // apply a relu after max-pooling; `where` is 65535 for outputs that it sets to 0
} iso__cuda_pool_shape;

// where[i], for each element of y: the position of the maximum in its window, counted row by row.
// NULL: not recorded.
iso_status iso__cuda_max_pool_forward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                      const void *x, void *y, uint16_t *where);
iso_status iso__cuda_max_pool_backward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                       const void *dy, const uint16_t *where, void *dx);
iso_status iso__cuda_avg_pool_forward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                      const void *x, void *y);
iso_status iso__cuda_avg_pool_backward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                       const void *dy, void *dx);

#ifdef __cplusplus
}
#endif
#endif
