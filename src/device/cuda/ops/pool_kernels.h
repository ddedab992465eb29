// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of pooling kernels.
#ifndef ISO_POOL_KERNELS_H
#define ISO_POOL_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// Height or width of the image and of what its windows give.
typedef struct iso__cuda_pool_axis {
    int64_t in, out;
    int64_t kernel, stride, padding; // kernel 0: windows for an output of the given size
} iso__cuda_pool_axis;

// x[planes, y.in, x.in, beside], y[planes, y.out, x.out, beside].
typedef struct iso__cuda_pool_shape {
    iso_dtype dtype;
    int64_t planes, beside; // beside: channels of an image that is channels last; 1: it is not
    iso__cuda_pool_axis y, x;
    bool relu; // behind the forward of maxima; where it cuts, the place that won is 65535
} iso__cuda_pool_shape;

// where[i], for each of y: the place in its window that won, counted row by row; NULL: not kept.
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
