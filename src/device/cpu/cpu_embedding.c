// SPDX-License-Identifier: MIT
// The rows of an embedding, which are copied alike in every element type.
#include "device/cpu/cpu_impl.h"

#include <string.h>

iso_status iso__cpu_embedding_forward(iso_device *self, const iso_tensor *indices,
                                      const iso_tensor *w, iso_tensor *y) {
    size_t bytes = (size_t)w->shape[1] * iso_dtype_size(w->dtype);
    (void)self;
    for (int64_t i = 0; i < indices->count; i++) {
        int64_t row = iso__cpu_index_at(indices, i);
        ISO_CHECK(row >= 0 && row < w->shape[0], ISO_ERR_ARG,
                  "element %lld of the input of an Embedding is %lld, which is not in [0, %lld)",
                  (long long)i, (long long)row, (long long)w->shape[0]);
        memcpy((char *)y->data + (size_t)i * bytes, (const char *)w->data + (size_t)row * bytes,
               bytes);
    }
    return ISO_OK;
}
