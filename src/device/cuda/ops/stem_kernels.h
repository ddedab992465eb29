// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of convolutions from very few channels, such as the first
// one of a network for images, for which tensor cores are inefficient.
#ifndef ISO_STEM_KERNELS_H
#define ISO_STEM_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// Square kernels of side 3 or 5 and stride 1, without dilation and groups, with at most
// ISO_CUDA_STEM_WEIGHTS weights. y has its channels last, a multiple of iso__cuda_stem_width of
// them, at addresses that are multiples of as many elements. *_step: distance in elements between
// neighbours: samples, channels and pixels of x; filters, channels (of_channel_step) and taps of w.
// x and y have at most INT32_MAX elements each.
enum { ISO_CUDA_STEM_WEIGHTS = 4608, ISO_CUDA_STEM_CHANNELS = 4, ISO_CUDA_STEM_PARTS = 256 };
static inline int iso__cuda_stem_width(int side) { return side == 3 ? 8 : 2; }
typedef struct iso__cuda_stem {
    int samples, channels, height, width, filters, out_height, out_width;
    int side, padding[2];
    int sample_step, channel_step, pixel_step;
    int filter_step, of_channel_step, tap_step;
} iso__cuda_stem;

// y = x * w + bias (NULL: none), with relu; f32, bf16 or f16, sums in f32.
iso_status iso__cuda_stem_forward(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_stem *s,
                                  const void *x, const void *w, const void *bias, bool relu,
                                  void *y);
// dw, logical and f32, from x and dy; dy has the form of y. partial: room for iso__cuda_stem_parts
// times the elements of dw. Sums are in an order that is the same in every run.
int iso__cuda_stem_parts(const iso__cuda_stem *s);
iso_status iso__cuda_stem_filter(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_stem *s,
                                 const void *x, const void *dy, bool accumulate, float *partial,
                                 float *dw);

#ifdef __cplusplus
}
#endif
#endif
