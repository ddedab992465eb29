// SPDX-License-Identifier: MIT
// Private to the loader: the memory in which a tensor of a batch is made, and its copy to the
// device.
#ifndef ISO_LOADER_UPLOAD_H
#define ISO_LOADER_UPLOAD_H

#include "device/device_impl.h"

#include <isotherm/data.h>

// For a device with memory of its own, tensors are made in page-locked memory and copied while the
// device computes. Otherwise they are made in place: take and give_back do nothing, and send only
// resizes the tensor.
typedef struct iso__upload {
    iso_device *device;
    iso_tensor *tensor;
    int ndim; // of the tensor; its first dimension is the number of samples
    int64_t shape[ISO_MAX_DIMS];
    void *host;                // NULL: the memory of tensor
    iso__device_event *done;   // the last copy, which read host and wrote tensor
    iso__device_event *unused; // the last work that reads tensor
} iso__upload;

// samples: of the largest batch. Call destroy also after a failure. destroy waits for copies.
iso_status iso__upload_create(iso_device *device, const iso_tensor_spec *spec, int64_t samples,
                              iso__upload *out);
void iso__upload_destroy(iso__upload *self);

// For the producer of batches; may be called from any thread. open waits until the memory may be
// written.
iso_status iso__upload_open(iso__upload *self, int64_t samples, void **out);
iso_status iso__upload_close(iso__upload *self);

// For the consumer of batches, on the device's thread. These calls do not wait. send starts the
// copy; spec has the shape of a sample, whose dimensions are at most those of create. Work launched
// after take sees the samples. Work launched after give_back must not use them.
iso_status iso__upload_send(iso__upload *self, int64_t samples, const iso_tensor_spec *spec);
iso_status iso__upload_take(iso__upload *self);
iso_status iso__upload_give_back(iso__upload *self);

#endif
