// SPDX-License-Identifier: MIT
// Private to the loader: where the images of a batch are made, and how they get to its device.
#ifndef ISO_LOADER_UPLOAD_H
#define ISO_LOADER_UPLOAD_H

#include "device/device_impl.h"

// On a device with memory of its own, images are made in page-locked memory and copied beside what
// the device computes; elsewhere they are made where they are used, and all but open and close does
// nothing.
typedef struct iso__upload {
    iso_device *device;
    iso_tensor *images;
    void *host;                // NULL: the memory of images
    iso__device_event *done;   // the last copy, which read host and wrote images
    iso__device_event *unused; // what was computed from images
} iso__upload;

// `shape`: of the largest batch. On failure what is there is for destroy, which waits for copies.
iso_status iso__upload_create(iso_device *device, iso_dtype dtype, const int64_t shape[4],
                              iso__upload *out);
void iso__upload_destroy(iso__upload *self);

// Of who makes images, in any thread. open waits until the memory may be written.
iso_status iso__upload_open(iso__upload *self, const int64_t shape[4], void **out);
iso_status iso__upload_close(iso__upload *self);

// Of who uses them, in the device's thread; none waits. send: starts the copy; take: what is
// launched from here on finds the images; give_back: nothing that is launched from here on uses
// them.
iso_status iso__upload_send(iso__upload *self, const int64_t shape[4]);
iso_status iso__upload_take(iso__upload *self);
iso_status iso__upload_give_back(iso__upload *self);

#endif
