// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of the kernels around matrix products. Tensors are [rows,
// channels, plane]; the plane is 1 for a linear layer, and for channels that are adjacent in
// memory.
#ifndef ISO_LINEAR_KERNELS_H
#define ISO_LINEAR_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// y = act(y + bias), with a bias for each channel; NULL: none.
iso_status iso__cuda_bias_act(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t channels,
                              int64_t plane, const void *bias, bool relu, void *y);
// The same from sums in f32 to y of dtype, bf16 or f16, so that values are rounded only once.
iso_status iso__cuda_bias_act_of_sums(iso__cuda *cuda, iso_dtype dtype, int64_t rows,
                                      int64_t channels, int64_t plane, const float *sums,
                                      const void *bias, bool relu, void *y);

// out[channel] = sums of x (accumulate: +=); sums of 16 bits are f32. The order of the additions
// depends on type, shape and alignment alone. Unless y is NULL, elements of x are first set to 0
// where y is not above 0. With more than one part, partial has room for parts * channels numbers of
// the type of out, and arrived are the counters of iso__cuda_arrivals. rows * plane is at most
// INT32_MAX.
typedef struct iso__cuda_channels {
    iso_dtype dtype;
    int64_t rows, channels, plane;
    void *x;
    const void *y;
    bool accumulate;
    void *partial, *out;
    unsigned *arrived;
} iso__cuda_channels;
int iso__cuda_channel_sum_parts(iso_dtype dtype, int64_t rows, int64_t channels, int64_t plane);
iso_status iso__cuda_channel_sums(iso__cuda *cuda, const iso__cuda_channels *sums);

#ifdef __cplusplus
}
#endif
#endif
