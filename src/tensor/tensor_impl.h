// SPDX-License-Identifier: MIT
// Private: the structure of a tensor.
#ifndef ISO_TENSOR_IMPL_H
#define ISO_TENSOR_IMPL_H

#include <isotherm/tensor.h>

struct iso_tensor {
    iso_device *device;
    int references;
    iso_dtype dtype;
    iso_layout layout;
    int ndim;
    int64_t shape[ISO_MAX_DIMS];
    int64_t count;
    void *data;
    size_t capacity; // bytes of an owned buffer; 0 for a borrowed one
    void *host;      // buffer of the current mapping, NULL when not mapped or mapped directly
    size_t host_capacity;
    iso_access mapped; // 0: not mapped
};

static inline size_t iso__tensor_bytes(const iso_tensor *t) {
    return (size_t)t->count * iso_dtype_size(t->dtype);
}
bool iso__tensor_same_shape(const iso_tensor *a, const iso_tensor *b);
// "[64, 1, 28, 28]" into text; returns text.
const char *iso__shape_text(int ndim, const int64_t *shape, char *text, size_t room);

#endif
