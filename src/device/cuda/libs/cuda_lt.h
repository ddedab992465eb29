// SPDX-License-Identifier: MIT
// Private to the CUDA device: linear layers with bias and activation in one call, by cuBLASLt.
#ifndef ISO_CUDA_LT_H
#define ISO_CUDA_LT_H

#include "device/cuda/runtime/cuda_impl.h"

// y = act(x w^T + b). *done false: cuBLASLt has no such kernel, and nothing was launched.
iso_status iso__cuda_lt_linear(iso__cuda *cuda, const iso_tensor *x, const iso_tensor *w,
                               const iso_tensor *b, iso_activation act, iso_tensor *y, bool *done);
void iso__cuda_lt_destroy(iso__cuda *cuda);

#endif
