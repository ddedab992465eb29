// SPDX-License-Identifier: MIT
// Private to the CUDA device: what convolutions share with linear layers.
#ifndef ISO_CUDA_LINEAR_H
#define ISO_CUDA_LINEAR_H

#include "device/cuda/runtime/cuda_impl.h"

// db [C] = sums of dy [N, C, ...] over all other dimensions, in a fixed order (accumulate: +=).
iso_status iso__cuda_bias_gradient(iso__cuda *cuda, const iso_tensor *dy, iso_tensor *db,
                                   bool accumulate);

#endif
