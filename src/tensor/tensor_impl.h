// Private: what a tensor is.
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
    size_t capacity;    // bytes of an owned buffer; 0 for a borrowed one
    iso_tensor *parent; // retained when this is a view of another tensor's buffer
    void *host;         // buffer of the current mapping, NULL when not mapped or mapped directly
    size_t host_capacity;
    iso_access mapped; // 0: not mapped
};

// A tensor over parent's whole buffer with another logical shape of the same count; retains parent.
iso_status iso__tensor_view(iso_tensor *parent, int ndim, const int64_t *shape, iso_tensor **out);
bool iso__tensor_same_shape(const iso_tensor *a, const iso_tensor *b);
// "[64, 1, 28, 28]" into text; returns text.
const char *iso__shape_text(int ndim, const int64_t *shape, char *text, size_t room);

#endif
