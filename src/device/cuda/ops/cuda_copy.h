// SPDX-License-Identifier: MIT
// Private to the CUDA device: copies between layouts.
#ifndef ISO_CUDA_COPY_H
#define ISO_CUDA_COPY_H

#include "device/cuda/runtime/cuda_impl.h"

// Its elements lie in another order than the logical one.
bool iso__cuda_is_ordered_last(const iso_tensor *x);
// Into the other order; x gives shape and type.
iso_status iso__cuda_to_logical(iso__cuda *cuda, const iso_tensor *x, const void *from, void *to);
iso_status iso__cuda_from_logical(iso__cuda *cuda, const iso_tensor *x, const void *from, void *to);

// The same logical contents lie in another order. Shapes may differ.
bool iso__cuda_reorders(const iso_tensor *from, const iso_tensor *to);
// For those; the element type may change too, among f32, f64 and bf16.
iso_status iso__cuda_reorder(iso__cuda *cuda, const iso_tensor *from, const iso_tensor *to);

// A slot of the table of bf16.
iso_status iso__cuda_round_many(iso_device *self, int count, const iso__rounding *of);

#endif
