// SPDX-License-Identifier: MIT
// Private to the CUDA device: convolutions from very few channels whose outputs have their channels
// last. *done false: the convolution is not of this kind, and nothing was launched.
#ifndef ISO_CUDA_STEM_H
#define ISO_CUDA_STEM_H

#include "device/cuda/runtime/cuda_impl.h"

iso_status iso__cuda_stem_try_forward(iso__cuda *cuda, const iso_conv2d_config *c,
                                      const iso_tensor *x, const iso_tensor *w, const iso_tensor *b,
                                      bool relu, iso_tensor *y, bool *done);
iso_status iso__cuda_stem_try_filter(iso__cuda *cuda, const iso_conv2d_config *c,
                                     const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                     bool accumulate, bool *done);

#endif
