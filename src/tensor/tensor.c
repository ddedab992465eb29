// SPDX-License-Identifier: MIT
// Tensors: shape and layout over a buffer of a device, and paired host access.
#include "tensor/tensor_impl.h"

#include "device/device_impl.h"

#include <inttypes.h>
#include <string.h>

const char *iso__shape_text(int ndim, const int64_t *shape, char *text, size_t room) {
    size_t n = (size_t)snprintf(text, room, "[");
    for (int i = 0; i < ndim && n < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (n < room) snprintf(text + n, room - n, "]");
    return text;
}

// Elements of a shape; refuses what could not be addressed even with a layout's padding.
static iso_status count_elements(int ndim, const int64_t *shape, int64_t *out) {
    ISO_CHECK(ndim >= 0 && ndim <= ISO_MAX_DIMS, ISO_ERR_ARG,
              "a tensor cannot have %d dimensions: use 0 to %d", ndim, ISO_MAX_DIMS);
    char text[128];
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        ISO_CHECK(shape[i] >= 1, ISO_ERR_ARG, "tensor shape %s: each dimension must be at least 1",
                  iso__shape_text(ndim, shape, text, sizeof(text)));
        ISO_CHECK(!__builtin_mul_overflow(count, shape[i], &count) && count <= INT64_MAX / 512,
                  ISO_ERR_ARG, "tensor shape %s has too many elements",
                  iso__shape_text(ndim, shape, text, sizeof(text)));
    }
    *out = count;
    return ISO_OK;
}

static void set_shape(iso_tensor *tensor, int ndim, const int64_t *shape, int64_t count) {
    tensor->ndim = ndim;
    tensor->count = count;
    if (ndim > 0) memcpy(tensor->shape, shape, (size_t)ndim * sizeof(shape[0]));
}

// A tensor without a buffer.
static iso_status create_empty(iso_device *device, iso_dtype dtype, int ndim, const int64_t *shape,
                               iso_tensor **out) {
    int64_t count;
    ISO_CHECK(dtype >= 0 && dtype < ISO_DTYPE_COUNT, ISO_ERR_ARG, "unknown element type %d",
              (int)dtype);
    ISO_TRY(count_elements(ndim, shape, &count));
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_tensor), &memory));
    iso_tensor *tensor = memory;
    tensor->device = iso_device_retain(device);
    tensor->references = 1;
    tensor->dtype = dtype;
    set_shape(tensor, ndim, shape, count);
    *out = tensor;
    return ISO_OK;
}

iso_status iso_tensor_create(iso_device *device, iso_dtype dtype, int ndim, const int64_t *shape,
                             iso_tensor **out) {
    iso_tensor *tensor = NULL;
    iso_status status;
    ISO_TRY(create_empty(device, dtype, ndim, shape, &tensor));
    size_t bytes = device->ops->storage_bytes(device, dtype, ndim, shape, ISO_LAYOUT_LOGICAL);
    ISO_TRY_GOTO(device->ops->alloc(device, bytes, &tensor->data));
    tensor->capacity = bytes;
    *out = tensor;
    return ISO_OK;
fail:
    iso_tensor_destroy(&tensor);
    return status;
}

iso_status iso_tensor_borrow(iso_device *device, iso_dtype dtype, int ndim, const int64_t *shape,
                             void *data, iso_tensor **out) {
    ISO_CHECK(data, ISO_ERR_ARG, "a borrowed tensor needs memory, got NULL");
    ISO_TRY(create_empty(device, dtype, ndim, shape, out));
    (*out)->data = data;
    return ISO_OK;
}

iso_tensor *iso_tensor_retain(iso_tensor *tensor) {
    __atomic_add_fetch(&tensor->references, 1, __ATOMIC_RELAXED);
    return tensor;
}

void iso_tensor_destroy(iso_tensor **tensor) {
    iso_tensor *self = *tensor;
    *tensor = NULL;
    if (!self || __atomic_sub_fetch(&self->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (self->capacity > 0) self->device->ops->free(self->device, self->data);
    iso__free(self->host);
    iso_device_destroy(&self->device);
    iso__free(self);
}

// Makes an owned buffer at least this large; contents are lost when it grows.
static iso_status reserve_buffer(iso_tensor *tensor, size_t bytes) {
    if (bytes <= tensor->capacity) return ISO_OK;
    void *data;
    ISO_TRY(tensor->device->ops->alloc(tensor->device, bytes, &data));
    tensor->device->ops->free(tensor->device, tensor->data);
    tensor->data = data;
    tensor->capacity = bytes;
    return ISO_OK;
}

iso_status iso_tensor_resize(iso_tensor *tensor, int ndim, const int64_t *shape,
                             iso_layout layout) {
    int64_t count;
    ISO_CHECK(tensor->capacity > 0, ISO_ERR_STATE,
              "a tensor over borrowed memory cannot be resized");
    ISO_CHECK(!tensor->mapped, ISO_ERR_STATE,
              "a tensor cannot be resized while the host has it mapped");
    ISO_TRY(count_elements(ndim, shape, &count));
    ISO_CHECK(layout == ISO_LAYOUT_LOGICAL || ndim == 4, ISO_ERR_ARG,
              "a blocked layout needs 4 dimensions, not %d", ndim);
    iso_device *device = tensor->device;
    ISO_TRY(reserve_buffer(tensor,
                           device->ops->storage_bytes(device, tensor->dtype, ndim, shape, layout)));
    set_shape(tensor, ndim, shape, count);
    tensor->layout = layout;
    return ISO_OK;
}

iso_device *iso_tensor_device(const iso_tensor *tensor) { return tensor->device; }
iso_dtype iso_tensor_dtype(const iso_tensor *tensor) { return tensor->dtype; }
iso_layout iso_tensor_layout(const iso_tensor *tensor) { return tensor->layout; }
int iso_tensor_ndim(const iso_tensor *tensor) { return tensor->ndim; }
const int64_t *iso_tensor_shape(const iso_tensor *tensor) { return tensor->shape; }
int64_t iso_tensor_count(const iso_tensor *tensor) { return tensor->count; }
void *iso_tensor_data(const iso_tensor *tensor) { return tensor->data; }

bool iso__tensor_same_shape(const iso_tensor *a, const iso_tensor *b) {
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(a->shape[0])) == 0;
}

static bool is_direct(const iso_tensor *tensor) {
    return tensor->layout == ISO_LAYOUT_LOGICAL && tensor->device->ops->host_memory;
}

iso_status iso_tensor_map(iso_tensor *tensor, iso_access access, void **out) {
    ISO_CHECK(access >= ISO_READ && access <= ISO_READ_WRITE, ISO_ERR_ARG,
              "unknown kind of host access %d", (int)access);
    ISO_CHECK(!tensor->mapped, ISO_ERR_STATE, "this tensor is mapped already: unmap it first");
    if (is_direct(tensor)) {
        tensor->mapped = access;
        *out = tensor->data;
        return ISO_OK;
    }
    size_t bytes = iso__tensor_bytes(tensor);
    if (bytes > tensor->host_capacity) {
        ISO_TRY(iso__realloc(&tensor->host, 0, bytes));
        tensor->host_capacity = bytes;
    }
    if (access & ISO_READ)
        ISO_TRY(tensor->device->ops->to_host(tensor->device, tensor, tensor->host));
    tensor->mapped = access;
    *out = tensor->host;
    return ISO_OK;
}

iso_status iso_tensor_unmap(iso_tensor *tensor) {
    ISO_CHECK(tensor->mapped, ISO_ERR_STATE, "this tensor is not mapped");
    iso_access access = tensor->mapped;
    tensor->mapped = (iso_access)0;
    if ((access & ISO_WRITE) && !is_direct(tensor))
        ISO_TRY(tensor->device->ops->from_host(tensor->device, tensor->host, tensor));
    return ISO_OK;
}

iso_status iso_tensor_fill(iso_tensor *tensor, double value) {
    ISO_TRY(tensor->device->ops->fill(tensor->device, tensor, value));
    return ISO_OK;
}

// Copies between devices. Host memory needs no intermediate copy.
static iso_status copy_across(const iso_tensor *from, iso_tensor *to) {
    void *host;
    ISO_CHECK(from->dtype == to->dtype, ISO_ERR_UNSUPPORTED,
              "a tensor of %s cannot be copied to one of %s on another device: convert it first",
              iso_dtype_name(from->dtype), iso_dtype_name(to->dtype));
    if (is_direct(from)) return to->device->ops->from_host(to->device, from->data, to);
    ISO_TRY(iso_tensor_map(to, ISO_WRITE, &host));
    iso_status status = from->device->ops->to_host(from->device, from, host);
    if (status < 0) to->mapped = (iso_access)0;
    ISO_TRY(status);
    return iso_tensor_unmap(to);
}

iso_status iso_tensor_copy(const iso_tensor *from, iso_tensor *to) {
    char a[128], b[128];
    ISO_CHECK(iso__tensor_same_shape(from, to), ISO_ERR_SHAPE,
              "a tensor of shape %s cannot be copied to one of %s",
              iso__shape_text(from->ndim, from->shape, a, sizeof(a)),
              iso__shape_text(to->ndim, to->shape, b, sizeof(b)));
    if (from->device == to->device)
        ISO_TRY(from->device->ops->copy(from->device, from, to));
    else
        ISO_TRY(copy_across(from, to));
    return ISO_OK;
}

iso_status iso_tensor_scale(iso_tensor *tensor, double factor) {
    ISO_CHECK(!iso__is_half(tensor->dtype), ISO_ERR_UNSUPPORTED, "a tensor of %s cannot be scaled",
              iso_dtype_name(tensor->dtype));
    ISO_TRY(iso__device_check_dtype(tensor->device, tensor->dtype));
    ISO_CHECK(tensor->layout == ISO_LAYOUT_LOGICAL, ISO_ERR_UNSUPPORTED,
              "a tensor in a device's blocked layout cannot be scaled: copy it to a logical one");
    ISO_TRY(iso__kernels(tensor)->scale(tensor->device, tensor->count, factor, tensor->data));
    return ISO_OK;
}
