// SPDX-License-Identifier: MIT
// Cuts the tensors of a batch to fewer entries, in place.
#include "data/data_impl.h"

#include <string.h>

iso_status iso_collate_trim(const iso_collate_batch *batch, int t, int d, int64_t size) {
    iso_tensor_spec *spec = &batch->specs[t];
    ISO_CHECK(d >= 0 && d < spec->ndim, ISO_ERR_ARG,
              "tensor %d of a sample has %d dimension%s: dimension %d cannot be cut", t, spec->ndim,
              ISO_PLURAL(spec->ndim), d);
    ISO_CHECK(size >= 1 && size <= spec->shape[d], ISO_ERR_ARG,
              "dimension %d of tensor %d cannot be cut to %lld: it has %lld", d, t, (long long)size,
              (long long)spec->shape[d]);
    int64_t outer = batch->n, before = spec->shape[d];
    size_t inner = iso_dtype_size(spec->dtype);
    for (int i = 0; i < d; i++) outer *= spec->shape[i];
    for (int i = d + 1; i < spec->ndim; i++) inner *= (size_t)spec->shape[i];
    char *at = batch->tensors[t];
    for (int64_t i = 1; i < outer; i++) // the first stays where it is
        memmove(at + (size_t)(i * size) * inner, at + (size_t)(i * before) * inner,
                (size_t)size * inner);
    spec->shape[d] = size;
    return ISO_OK;
}
