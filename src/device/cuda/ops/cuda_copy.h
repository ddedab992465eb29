// SPDX-License-Identifier: MIT
// Private to the CUDA device: copies between layouts.
#ifndef ISO_CUDA_COPY_H
#define ISO_CUDA_COPY_H

#include "device/cuda/runtime/cuda_impl.h"

// Whether the elements of x are in another order than the logical one.
bool iso__cuda_is_ordered_last(const iso_tensor *x);
// Copy from one order to the other; x has the shape and the type.
iso_status iso__cuda_to_logical(iso__cuda *cuda, const iso_tensor *x, const void *from, void *to);
iso_status iso__cuda_from_logical(iso__cuda *cuda, const iso_tensor *x, const void *from, void *to);

// Whether copying from one tensor to the other changes the order of the elements. Shapes may
// differ.
bool iso__cuda_reorders(const iso_tensor *from, const iso_tensor *to);
// Makes such a copy; the element type may change, too, among f32, f64, bf16 and f16.
iso_status iso__cuda_reorder(iso__cuda *cuda, const iso_tensor *from, const iso_tensor *to);

// The slot round_many of the tables of bf16 and f16.
iso_status iso__cuda_round_many(iso_device *self, int count, const iso__rounding *of);

#endif
