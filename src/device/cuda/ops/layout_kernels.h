// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of kernels that reorder tensors and weights.
#ifndef ISO_LAYOUT_KERNELS_H
#define ISO_LAYOUT_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// to[m][j][i] = from[m][i][j] for i < rows and j < columns. A line of `from` is from_line elements
// long; its first `columns` are taken. A line of `to` is to_line long, with zeros from `rows` on.
// size: bytes of an element, 2, 4 or 8.
typedef struct iso__cuda_matrices {
    int64_t matrices, rows, columns, from_line, to_line;
} iso__cuda_matrices;
iso_status iso__cuda_transpose(iso__cuda *cuda, size_t size, const iso__cuda_matrices *m,
                               const void *from, void *to);

// Weights in logical order [filters, channels, taps], and with channels last [padded_filters, taps,
// padded_channels], whose padding is zero.
typedef struct iso__cuda_filters {
    int64_t filters, channels, taps, padded_filters, padded_channels;
} iso__cuda_filters;
// Logical order to channels last: of one type of 4 or 2 bytes, or f32 rounded
// to bf16 or f16.
iso_status iso__cuda_filters_last(iso__cuda *cuda, const iso__cuda_filters *f, iso_dtype from_dtype,
                                  const void *w, iso_dtype to_dtype, void *last);
// Adds the padding to weights [filters, taps, channels]; size: 2 or 4.
iso_status iso__cuda_filters_pad(iso__cuda *cuda, const iso__cuda_filters *f, size_t size,
                                 const void *w, void *last);
// dw (f32) = `last` (f32, bf16 or f16); accumulate: +=.
iso_status iso__cuda_filters_logical(iso__cuda *cuda, const iso__cuda_filters *f, iso_dtype dtype,
                                     const void *last, bool accumulate, void *dw);

#ifdef __cplusplus
}
#endif
#endif
