// SPDX-License-Identifier: MIT
// Host access to the memory that a periodic engine exchanges. On a device with its own memory, it
// is copied through pinned arrays while the device computes.
#include "optim/periodic/periodic.h"

#include <string.h>

static const iso__remote_ops *remote_of(const iso__periodic *p) { return p->device->ops->remote; }

// ---- Life -----------------------------------------------------------------------------------------

iso_status iso__periodic_memory_open(iso__periodic *p) {
    const iso__remote_ops *remote = remote_of(p);
    if (!remote) return ISO_OK;
    ISO_TRY(remote->event_create(p->device, &p->computed));
    ISO_TRY(remote->event_create(p->device, &p->fetched));
    ISO_TRY(remote->event_create(p->device, &p->put));
    return ISO_OK;
}

// A copy from the stage must be complete before it is written again, or freed.
static iso_status wait_for_stage(const iso__periodic *p) {
    if (p->put) ISO_TRY(remote_of(p)->wait(p->device, p->put));
    return ISO_OK;
}

void iso__periodic_memory_close(iso__periodic *p) {
    const iso__remote_ops *remote = p->device ? remote_of(p) : NULL;
    if (!remote) return;
    wait_for_stage(p);
    iso__pinned_free(p->device, p->stage);
    remote->event_destroy(p->device, &p->computed);
    remote->event_destroy(p->device, &p->fetched);
    remote->event_destroy(p->device, &p->put);
}

// ---- Copies beside the device -----------------------------------------------------------------------

static size_t elements_of(const iso__periodic *p, int first, int last) {
    size_t elements = 0;
    for (int i = first; i < last; i++) elements += p->span[i].count;
    return elements;
}

static iso_status reserve_stage(iso__periodic *p, size_t elements) {
    ISO_TRY(wait_for_stage(p));
    if (elements <= p->stage_elements) return ISO_OK;
    iso__pinned_free(p->device, p->stage);
    p->stage = NULL;
    p->stage_elements = 0;
    ISO_TRY(iso__pinned_alloc(p->device, elements * sizeof(float), (void **)&p->stage));
    p->stage_elements = elements;
    return ISO_OK;
}

// Copies that follow in `queue` find what was computed so far, and do not come before it.
static iso_status follow_compute(const iso__periodic *p, iso__queue queue) {
    ISO_TRY(remote_of(p)->record(p->device, ISO__QUEUE_COMPUTE, p->computed));
    return remote_of(p)->follow(p->device, queue, p->computed);
}

static iso_status copy_out(const iso__periodic *p, int first, int last, float *to) {
    const iso__remote_ops *remote = remote_of(p);
    ISO_TRY(follow_compute(p, ISO__QUEUE_OUT));
    for (int i = first; i < last; to += p->span[i++].count)
        ISO_TRY(remote->copy(p->device, ISO__QUEUE_OUT, p->span[i].data, to,
                             p->span[i].count * sizeof(float)));
    ISO_TRY(remote->record(p->device, ISO__QUEUE_OUT, p->fetched));
    return remote->wait(p->device, p->fetched);
}

static iso_status copy_in(const iso__periodic *p, int first, int last) {
    const iso__remote_ops *remote = remote_of(p);
    const float *from = p->stage;
    ISO_TRY(follow_compute(p, ISO__QUEUE_IN));
    for (int i = first; i < last; from += p->span[i++].count)
        ISO_TRY(remote->copy(p->device, ISO__QUEUE_IN, from, p->span[i].data,
                             p->span[i].count * sizeof(float)));
    ISO_TRY(remote->record(p->device, ISO__QUEUE_IN, p->put));
    return remote->follow(p->device, ISO__QUEUE_COMPUTE, p->put);
}

// ---- Spans ------------------------------------------------------------------------------------------

iso_status iso__periodic_fetch(const iso__periodic *p, int first, int last, float *to) {
    if (remote_of(p)) return copy_out(p, first, last, to);
    for (int i = first; i < last; to += p->span[i++].count)
        memcpy(to, p->span[i].data, p->span[i].count * sizeof(float));
    return ISO_OK;
}

iso_status iso__periodic_put(iso__periodic *p, int first, int last, const float *from) {
    if (remote_of(p)) {
        size_t elements = elements_of(p, first, last);
        ISO_TRY(reserve_stage(p, elements));
        memcpy(p->stage, from, elements * sizeof(float));
        return copy_in(p, first, last);
    }
    for (int i = first; i < last; from += p->span[i++].count)
        memcpy(p->span[i].data, from, p->span[i].count * sizeof(float));
    return ISO_OK;
}

iso_status iso__periodic_clear(const iso__periodic *p, int first, int last) {
    const iso__remote_ops *remote = remote_of(p);
    for (int i = first; i < last; i++) {
        size_t bytes = p->span[i].count * sizeof(float);
        if (remote)
            ISO_TRY(remote->fill_zero(p->device, ISO__QUEUE_COMPUTE, p->span[i].data, bytes));
        else
            memset(p->span[i].data, 0, bytes);
    }
    return ISO_OK;
}

iso_status iso__periodic_map(iso__periodic *p, int first, int last) {
    bool remote = remote_of(p) != NULL;
    if (remote) {
        ISO_TRY(reserve_stage(p, elements_of(p, first, last)));
        ISO_TRY(copy_out(p, first, last, p->stage));
    }
    float *at = p->stage;
    for (int i = first; i < last; at += remote ? p->span[i].count : 0, i++)
        p->span[i].host = remote ? at : p->span[i].data;
    return ISO_OK;
}

iso_status iso__periodic_unmap(iso__periodic *p, int first, int last) {
    return remote_of(p) ? copy_in(p, first, last) : ISO_OK;
}
