// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of the kernels that turn convolutions into matrix products.
#ifndef ISO_CONV_KERNELS_H
#define ISO_CONV_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sizes of a convolution over `samples` samples. Matrices have a row for each channel, or for each
// tap of the kernel on each channel, and a column for each pixel of each sample, so one product
// covers all samples. samples * pixels is at most INT32_MAX, and no size beyond ISO_CUDA_CONV_SIDE.
enum { ISO_CUDA_CONV_SIDE = 1 << 28 };
typedef struct iso__cuda_conv {
    int samples, channels, height, width, out_channels, out_height, out_width;
    int kernel[2], stride[2], padding[2], dilation[2];
    int last; // x has its channels last
} iso__cuda_conv;

// patches [channels * taps, samples * out pixels] of x [samples, channels, height, width]; and the
// reverse: each pixel of dx is the sum, in a fixed order, of all entries of such a matrix that were
// taken from it. Everything is of one type: f32, f64, bf16 or f16.
iso_status iso__cuda_patches(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_conv *c,
                             const void *x, void *patches);
iso_status iso__cuda_patches_back(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_conv *c,
                                  const void *patches, void *dx);
// rows [channels, samples * plane] of y [samples, channels, plane], with channels last [samples,
// plane, channels]; and the reverse, with a bias of each channel (NULL: none) and relu.
typedef struct iso__cuda_samples {
    int samples, channels, plane, last;
} iso__cuda_samples;
iso_status iso__cuda_rows_of(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_samples *s,
                             const void *y, void *rows);
iso_status iso__cuda_from_rows(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_samples *s,
                               const void *rows, const void *bias, bool relu, void *y);

#ifdef __cplusplus
}
#endif
#endif
