// SPDX-License-Identifier: MIT
// Tensors of batches on their way to a device whose memory is not the host's.
#include "data/loader_upload.h"

#include <time.h>

static const iso__remote_ops *remote_of(const iso__upload *self) {
    return self->device->ops->remote;
}

iso_status iso__upload_create(iso_device *device, const iso_tensor_spec *spec, int64_t samples,
                              iso__upload *out) {
    *out = (iso__upload){.device = device, .ndim = spec->ndim + 1, .shape = {samples}};
    for (int d = 0; d < spec->ndim; d++) out->shape[d + 1] = spec->shape[d];
    ISO_TRY(iso_tensor_create(device, spec->dtype, out->ndim, out->shape, &out->tensor));
    const iso__remote_ops *remote = remote_of(out);
    if (!remote) return ISO_OK;
    ISO_TRY(iso__pinned_alloc(device, iso__tensor_bytes(out->tensor), &out->host));
    ISO_TRY(remote->event_create(device, &out->done));
    ISO_TRY(remote->event_create(device, &out->unused));
    // The tensor may reuse the memory of a destroyed one, which launched work still uses.
    return remote->record(device, ISO__QUEUE_COMPUTE, out->unused);
}

void iso__upload_destroy(iso__upload *self) {
    const iso__remote_ops *remote = self->device ? remote_of(self) : NULL;
    if (remote) {
        if (self->done) remote->wait(self->device, self->done);
        remote->event_destroy(self->device, &self->done);
        remote->event_destroy(self->device, &self->unused);
        iso__pinned_free(self->device, self->host);
    }
    iso_tensor_destroy(&self->tensor);
    *self = (iso__upload){0};
}

// ---- Making tensors -----------------------------------------------------------------------------

// Polls, because a thread that waits should not keep a core busy.
static iso_status wait_until_copied(iso__upload *self) {
    static const struct timespec pause = {.tv_nsec = 50 * 1000};
    iso_status status;
    while ((status = remote_of(self)->test(self->device, self->done)) == ISO_PENDING)
        nanosleep(&pause, NULL);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status resize_tensor(iso__upload *self, int64_t samples, const int64_t *sample) {
    int64_t shape[ISO_MAX_DIMS] = {samples};
    for (int d = 1; d < self->ndim; d++) shape[d] = sample[d - 1];
    return iso_tensor_resize(self->tensor, self->ndim, shape, ISO_LAYOUT_LOGICAL);
}

iso_status iso__upload_open(iso__upload *self, int64_t samples, void **out) {
    if (self->host) {
        ISO_TRY(wait_until_copied(self));
        *out = self->host;
        return ISO_OK;
    }
    ISO_TRY(resize_tensor(self, samples, self->shape + 1));
    ISO_TRY(iso_tensor_map(self->tensor, ISO_WRITE, out));
    return ISO_OK;
}

iso_status iso__upload_close(iso__upload *self) {
    return self->host ? ISO_OK : iso_tensor_unmap(self->tensor);
}

// ---- Using them ---------------------------------------------------------------------------------

iso_status iso__upload_send(iso__upload *self, int64_t samples, const iso_tensor_spec *spec) {
    const iso__remote_ops *remote = remote_of(self);
    iso_device *device = self->device;
    ISO_TRY(resize_tensor(self, samples, spec->shape));
    if (!self->host) return ISO_OK;
    ISO_TRY(remote->follow(device, ISO__QUEUE_IN, self->unused));
    ISO_TRY(remote->copy(device, ISO__QUEUE_IN, self->host, self->tensor->data,
                         iso__tensor_bytes(self->tensor)));
    ISO_TRY(remote->record(device, ISO__QUEUE_IN, self->done));
    return ISO_OK;
}

iso_status iso__upload_take(iso__upload *self) {
    if (!self->host) return ISO_OK;
    ISO_TRY(remote_of(self)->follow(self->device, ISO__QUEUE_COMPUTE, self->done));
    return ISO_OK;
}

iso_status iso__upload_give_back(iso__upload *self) {
    if (!self->host) return ISO_OK;
    ISO_TRY(remote_of(self)->record(self->device, ISO__QUEUE_COMPUTE, self->unused));
    return ISO_OK;
}
