// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of relu, sums and dropout.
#ifndef ISO_ELEMENTWISE_KERNELS_H
#define ISO_ELEMENTWISE_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// x *= factor; bf16 or f16.
iso_status iso__cuda_scale_half(iso__cuda *cuda, iso_dtype dtype, int64_t count, double factor,
                                void *x);
iso_status iso__cuda_relu(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *x, void *y);
// dx and copy (may be NULL) = y > 0 ? dy : 0.
iso_status iso__cuda_relu_mask(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *y,
                               const void *dy, void *dx, void *copy);
// y = a + b, then a relu if `relu`.
iso_status iso__cuda_add(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *a,
                         const void *b, bool relu, void *y);

// `rows` rows of `draws` draws, each of which decides on `span` elements that follow one another in
// logical order.
typedef struct iso__cuda_mask {
    int64_t rows, draws, span;
    int64_t channels; // of rows whose channels lie beside each other; 0: logical rows
    uint32_t key[2];
    uint64_t number;    // counter words 2 and 3
    uint32_t first_row; // counter word 1 of row 0
    uint32_t threshold; // of the upper 24 bits; below it an element is dropped
    double kept;        // factor of the others
} iso__cuda_mask;
iso_status iso__cuda_dropout(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_mask *mask,
                             const void *x, void *y);

#ifdef __cplusplus
}
#endif
#endif
