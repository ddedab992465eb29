// SPDX-License-Identifier: MIT
// Private to the CUDA device: what convolutions share with linear layers.
#ifndef ISO_CUDA_LINEAR_H
#define ISO_CUDA_LINEAR_H

#include "device/cuda/runtime/cuda_impl.h"

// db [C] = sums of dy [N, C, ...] over everything else, += where accumulate; in a fixed order.
iso_status iso__cuda_bias_gradient(iso__cuda *cuda, const iso_tensor *dy, iso_tensor *db,
                                   bool accumulate);

#endif
