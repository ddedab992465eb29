// SPDX-License-Identifier: MIT
// Private to cuDNN's files: what cuDNN is given where it wants another order, or more channels,
// than a tensor has: a copy in scratch memory.
//
// Channels last, tensor cores take whole packs of channels. Tensors that are copied anyway are
// filled up with channels of zeros; the weights that meet them too, and what comes out beyond the
// channels that there are is dropped.
#ifndef ISO_CUDA_DNN_LAYOUT_H
#define ISO_CUDA_DNN_LAYOUT_H

#include "device/cuda/libs/cuda_dnn_plan.h"

// Channels of an activation as a convolution with channels last is given them.
int64_t iso__dnn_padded(const iso_tensor *t, int64_t groups);

// An activation; channels: as cuDNN sees it; last: its order. Bytes of the copy, 0: none is needed.
size_t iso__dnn_copy_bytes(const iso_tensor *t, bool last, int64_t channels);
iso_status iso__dnn_bring(iso__cuda *cuda, const iso_tensor *t, bool last, int64_t channels,
                          void *copy);
iso_status iso__dnn_return(iso__cuda *cuda, const void *copy, bool last, int64_t channels,
                           const iso_tensor *t);

// Weights, in either layout, and their gradients: logical and f32, also where weights are bf16.
size_t iso__dnn_weights_bytes(const iso__dnn_key *k, const iso_tensor *w);
iso_status iso__dnn_bring_weights(iso__cuda *cuda, const iso__dnn_key *k, const iso_tensor *w,
                                  void *copy);
iso_status iso__dnn_return_weights(iso__cuda *cuda, const iso__dnn_key *k, const void *copy,
                                   bool accumulate, const iso_tensor *dw);

#endif
