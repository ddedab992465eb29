// SPDX-License-Identifier: MIT
// Private to the CUDA device: launcher of the kernel that rounds many arrays to 16 bits.
#ifndef ISO_ROUND_KERNELS_H
#define ISO_ROUND_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// From f32 to bf16 or f16. taps 0: the `count` elements keep their order. Otherwise they are
// filters with this many channels and taps in logical order, and become channels last.
typedef struct iso__cuda_rounding {
    int64_t count, channels, taps;
    const void *from;
    void *to;
} iso__cuda_rounding;

// The table is a parameter of the kernel: every GPU accepts 4 KiB of parameters.
enum { ISO_CUDA_ROUNDINGS = 64, ISO_CUDA_ROUND_TAPS = 64 };

typedef struct iso__cuda_roundings {
    iso__cuda_rounding item[ISO_CUDA_ROUNDINGS];
    unsigned first[ISO_CUDA_ROUNDINGS + 1]; // first block of each, then the number of blocks;
                                            // filled in by the launcher
    unsigned count;
} iso__cuda_roundings;

// To dtype. The arrays that are written must not overlap any of the others. At most
// ISO_CUDA_ROUNDINGS arrays, and at most ISO_CUDA_ROUND_TAPS taps in each filter.
iso_status iso__cuda_round_all(iso__cuda *cuda, iso_dtype dtype, iso__cuda_roundings *r);

#ifdef __cplusplus
}
#endif
#endif
