// SPDX-License-Identifier: MIT
// Private to the CUDA device: launcher of the kernel that rounds many arrays to bf16.
#ifndef ISO_ROUND_KERNELS_H
#define ISO_ROUND_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// From f32. taps 0: `count` elements keep their order; else they are filters of so many channels
// and taps, in logical order, which become channels last.
typedef struct iso__cuda_rounding {
    int64_t count, channels, taps;
    const void *from;
    void *to;
} iso__cuda_rounding;

// The table is a parameter of the kernel: every GPU accepts 4 KiB of parameters.
enum { ISO_CUDA_ROUNDINGS = 64, ISO_CUDA_ROUND_TAPS = 64 };

typedef struct iso__cuda_roundings {
    iso__cuda_rounding item[ISO_CUDA_ROUNDINGS];
    unsigned first[ISO_CUDA_ROUNDINGS + 1]; // block of each, and behind them their number; filled
    unsigned count;                         // in by the launcher
} iso__cuda_roundings;

// The arrays that are written must not overlap any of the others. At most ISO_CUDA_ROUND_TAPS.
iso_status iso__cuda_round_all(iso__cuda *cuda, iso__cuda_roundings *r);

#ifdef __cplusplus
}
#endif
#endif
