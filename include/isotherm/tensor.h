// Tensors: shape, element type, layout, and a buffer on a device.
#ifndef ISOTHERM_TENSOR_H
#define ISOTHERM_TENSOR_H

#include <isotherm/device.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ISO_MAX_DIMS 5

// Logical layout is row-major with the last dimension contiguous (N, C, H, W). A device may keep
// activations (4-dimensional ones only) in a blocked layout of its own between layers; parameters,
// gradients of parameters and optimizer state are always logical. Host access converts.
typedef enum iso_layout { ISO_LAYOUT_LOGICAL, ISO_LAYOUT_BLOCKED } iso_layout;

typedef struct iso_tensor
    iso_tensor; // shared: create gives one reference, retain adds, destroy drops

// Local. A new tensor in logical layout with undefined contents. 0 <= ndim <= ISO_MAX_DIMS (0: one
// number, shape NULL), each dimension >= 1. The buffer is aligned to 64 bytes.
iso_status iso_tensor_create(iso_device *device, iso_dtype dtype, int ndim, const int64_t *shape,
                             iso_tensor **out);
// Local. A tensor over caller's device memory (logical layout), which must outlive it and is not
// freed.
iso_status iso_tensor_borrow(iso_device *device, iso_dtype dtype, int ndim, const int64_t *shape,
                             void *data, iso_tensor **out);
iso_tensor *iso_tensor_retain(iso_tensor *tensor);
void iso_tensor_destroy(iso_tensor **tensor);

// Local. Gives an owned tensor a new shape and layout, contents undefined; its buffer only ever
// grows, so that alternating between batch sizes allocates nothing.
iso_status iso_tensor_resize(iso_tensor *tensor, int ndim, const int64_t *shape, iso_layout layout);

iso_device *iso_tensor_device(const iso_tensor *tensor);
iso_dtype iso_tensor_dtype(const iso_tensor *tensor);
iso_layout iso_tensor_layout(const iso_tensor *tensor);
int iso_tensor_ndim(const iso_tensor *tensor);
const int64_t *iso_tensor_shape(const iso_tensor *tensor);
int64_t iso_tensor_count(const iso_tensor *tensor); // elements, without padding of a layout
// Device address of the first element; NULL never. For kernels of the tensor's own device.
void *iso_tensor_data(const iso_tensor *tensor);

// Paired host access in logical order. READ gives the contents, WRITE promises to write every
// element (contents undefined before), READ_WRITE both. Conversion and copies happen here and in
// unmap only, and not at all for a logical CPU tensor. One mapping at a time per tensor
// (ISO_ERR_STATE).
typedef enum iso_access { ISO_READ = 1, ISO_WRITE = 2, ISO_READ_WRITE = 3 } iso_access;
iso_status iso_tensor_map(iso_tensor *tensor, iso_access access, void **out);
iso_status iso_tensor_unmap(iso_tensor *tensor);

// Local. Every element = value; copy between tensors of one shape, converting layouts, or between
// f32, f64 and, on GPUs, bf16 (rounded to nearest; ISO_ERR_UNSUPPORTED for others, and on the CPU
// for a blocked layout then).
iso_status iso_tensor_fill(iso_tensor *tensor, double value);
iso_status iso_tensor_copy(const iso_tensor *from, iso_tensor *to);
// Local. Every element of a logical f32 or f64 tensor *= factor.
iso_status iso_tensor_scale(iso_tensor *tensor, double factor);

#ifdef __cplusplus
}
#endif
#endif
