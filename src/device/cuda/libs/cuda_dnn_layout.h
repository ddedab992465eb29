// SPDX-License-Identifier: MIT
// Private to cuDNN's files: copies of tensors in scratch memory, for cases in which cuDNN needs
// another order or more channels than a tensor has.
//
// With channels last, tensor cores need a number of channels that is a multiple of 16 bytes (8 in
// 16 bits, 4 in f32). So tensors that are copied anyway are padded with channels of zeros, and so
// are their weights; the results for padding channels are dropped.
#ifndef ISO_CUDA_DNN_LAYOUT_H
#define ISO_CUDA_DNN_LAYOUT_H

#include "device/cuda/libs/cuda_dnn_plan.h"

// The number of channels, with padding, of an activation in a convolution with channels last.
int64_t iso__dnn_padded(const iso_tensor *t, int64_t groups);

// For activations. last, channels: the order and the channels that cuDNN sees. copy_bytes returns
// the size of the copy; 0: none is needed.
size_t iso__dnn_copy_bytes(const iso_tensor *t, bool last, int64_t channels);
iso_status iso__dnn_bring(iso__cuda *cuda, const iso_tensor *t, bool last, int64_t channels,
                          void *copy);
iso_status iso__dnn_return(iso__cuda *cuda, const void *copy, bool last, int64_t channels,
                           const iso_tensor *t);

// For weights, in either layout, and for their gradients, which are logical and f32 even if weights
// have 16 bits.
size_t iso__dnn_weights_bytes(const iso__dnn_key *k, const iso_tensor *w);
iso_status iso__dnn_bring_weights(iso__cuda *cuda, const iso__dnn_key *k, const iso_tensor *w,
                                  void *copy);
iso_status iso__dnn_return_weights(iso__cuda *cuda, const iso__dnn_key *k, const void *copy,
                                   bool accumulate, const iso_tensor *dw);

#endif
