// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of norms of many arrays, and of clipping by them.
#ifndef ISO_CLIP_KERNELS_H
#define ISO_CLIP_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// The arrays of one launch, all of one type. Each block processes ISO_CUDA_CLIP_PART elements, so
// that sums have the same order on every GPU.
enum { ISO_CUDA_CLIP_ARRAYS = 128, ISO_CUDA_CLIP_PART = 16384 };
typedef struct iso__cuda_clip_list {
    int64_t arrays;
    void *at[ISO_CUDA_CLIP_ARRAYS];
    int64_t count[ISO_CUDA_CLIP_ARRAYS];
    int32_t first[ISO_CUDA_CLIP_ARRAYS + 1]; // first block of each, then the number of blocks
    int32_t unused;
} iso__cuda_clip_list;

// Writes a number for each block: the largest |x| if p is infinite, else the sum of |x|^p.
iso_status iso__cuda_clip_parts(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_clip_list *list,
                                double p, double *parts);
// The norm, from the numbers of all blocks, and the factor max_norm / (norm + 1e-6).
typedef struct iso__cuda_clip_result {
    double norm, factor;
} iso__cuda_clip_result;
iso_status iso__cuda_clip_result_of(iso__cuda *cuda, int64_t count, const double *parts, double p,
                                    double max_norm, iso__cuda_clip_result *out);
// Multiplies x by the factor if that is below 1 or NaN.
iso_status iso__cuda_clip_scale(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_clip_list *list,
                                const iso__cuda_clip_result *result);
// Clamps every element to [-most, most]; NaN stays NaN.
iso_status iso__cuda_clip_clamp(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_clip_list *list,
                                double most);

#ifdef __cplusplus
}
#endif
#endif
