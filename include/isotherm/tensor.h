// SPDX-License-Identifier: MIT
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

// The logical layout is row-major: the last dimension is contiguous (N, C, H, W). Between layers a
// device may keep 4-dimensional activations in a blocked layout of its own. Parameters, their
// gradients and optimizer state are always in logical layout. Host access converts.
typedef enum iso_layout { ISO_LAYOUT_LOGICAL, ISO_LAYOUT_BLOCKED } iso_layout;

// Reference-counted: create returns one reference, retain adds one, destroy drops one.
typedef struct iso_tensor iso_tensor;

// Local. Creates a tensor in logical layout with undefined contents. 0 <= ndim <= ISO_MAX_DIMS, and
// each dimension is at least 1 (else ISO_ERR_ARG). ndim 0 (shape NULL): a scalar. The buffer is
// aligned to 64 bytes.
iso_status iso_tensor_create(iso_device *device, iso_dtype dtype, int ndim, const int64_t *shape,
                             iso_tensor **out);
// Local. Creates a tensor in logical layout over the caller's device memory. The memory must
// outlive the tensor and is not freed with it.
iso_status iso_tensor_borrow(iso_device *device, iso_dtype dtype, int ndim, const int64_t *shape,
                             void *data, iso_tensor **out);
iso_tensor *iso_tensor_retain(iso_tensor *tensor);
void iso_tensor_destroy(iso_tensor **tensor);

// Local. Sets a new shape and layout; contents are undefined afterwards. The buffer grows but never
// shrinks, so alternating between batch sizes allocates nothing. ISO_ERR_STATE for a borrowed or a
// mapped tensor; ISO_ERR_ARG for a blocked layout without 4 dimensions.
iso_status iso_tensor_resize(iso_tensor *tensor, int ndim, const int64_t *shape, iso_layout layout);

iso_device *iso_tensor_device(const iso_tensor *tensor); // borrowed
iso_dtype iso_tensor_dtype(const iso_tensor *tensor);
iso_layout iso_tensor_layout(const iso_tensor *tensor);
int iso_tensor_ndim(const iso_tensor *tensor);
const int64_t *iso_tensor_shape(const iso_tensor *tensor); // [ndim], borrowed
int64_t iso_tensor_count(const iso_tensor *tensor);        // elements, without padding of a layout
// The device address of the first element, never NULL. For kernels on the tensor's own device.
void *iso_tensor_data(const iso_tensor *tensor);

// Local. map gives the host access to the elements in logical order, until unmap. ISO_READ provides
// the contents. With ISO_WRITE the contents are undefined at first, and the caller must write every
// element. ISO_READ_WRITE provides the contents and takes changes back. Only map and unmap convert
// and copy; for a logical tensor on the CPU they do neither. A tensor can have only one mapping at
// a time (else ISO_ERR_STATE).
typedef enum iso_access { ISO_READ = 1, ISO_WRITE = 2, ISO_READ_WRITE = 3 } iso_access;
iso_status iso_tensor_map(iso_tensor *tensor, iso_access access, void **out);
iso_status iso_tensor_unmap(iso_tensor *tensor);

// Local. Sets every element to value. ISO_ERR_UNSUPPORTED for types other than f32, f64, bf16, f16
// and i64.
iso_status iso_tensor_fill(iso_tensor *tensor, double value);
// Local. Copies between tensors of one shape (else ISO_ERR_SHAPE). Converts layouts, and on one
// device types between f32, f64, bf16 and f16 (rounded to nearest; on CPUs f64 is rounded
// to f32 first). Other conversions of type are ISO_ERR_UNSUPPORTED. Between two devices (PyTorch:
// tensor.to(device)) the call goes through the host and waits until the copy is complete; `to` must
// not be mapped.
iso_status iso_tensor_copy(const iso_tensor *from, iso_tensor *to);
// Local. Multiplies every element of a logical f32 or f64 tensor by factor. ISO_ERR_UNSUPPORTED for
// other tensors.
iso_status iso_tensor_scale(iso_tensor *tensor, double factor);

#ifdef __cplusplus
}
#endif
#endif
