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

// The stage may be rewritten or freed only after the last copy from it.
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

static iso_status reserve_stage(iso__periodic *p, size_t bytes) {
    ISO_TRY(wait_for_stage(p));
    if (bytes <= p->stage_bytes) return ISO_OK;
    iso__pinned_free(p->device, p->stage);
    p->stage = NULL;
    p->stage_bytes = 0;
    ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->stage));
    p->stage_bytes = bytes;
    return ISO_OK;
}

iso__flat iso__periodic_flat(const iso__periodic *p, int first, int last) {
    iso__flat size = {0};
    for (int i = first; i < last; i++)
        *(p->span[i].f64 ? &size.f64 : &size.f32) += p->span[i].count;
    return size;
}

// Makes later copies in `queue` wait for all computation so far.
static iso_status follow_compute(const iso__periodic *p, iso__queue queue) {
    ISO_TRY(remote_of(p)->record(p->device, ISO__QUEUE_COMPUTE, p->computed));
    return remote_of(p)->follow(p->device, queue, p->computed);
}

static iso_status copy_out(const iso__periodic *p, int first, int last, float *to) {
    const iso__remote_ops *remote = remote_of(p);
    iso__flat_cursor next = iso__flat_begin(iso__periodic_flat(p, first, last));
    ISO_TRY(follow_compute(p, ISO__QUEUE_OUT));
    for (int i = first; i < last; i++)
        ISO_TRY(remote->copy(p->device, ISO__QUEUE_OUT, p->span[i].data,
                             (char *)to + iso__flat_next(&next, &p->span[i]),
                             iso__span_bytes(&p->span[i])));
    ISO_TRY(remote->record(p->device, ISO__QUEUE_OUT, p->fetched));
    return remote->wait(p->device, p->fetched);
}

static iso_status copy_in(const iso__periodic *p, int first, int last) {
    const iso__remote_ops *remote = remote_of(p);
    iso__flat_cursor next = iso__flat_begin(iso__periodic_flat(p, first, last));
    ISO_TRY(follow_compute(p, ISO__QUEUE_IN));
    for (int i = first; i < last; i++)
        ISO_TRY(remote->copy(p->device, ISO__QUEUE_IN,
                             (const char *)p->stage + iso__flat_next(&next, &p->span[i]),
                             p->span[i].data, iso__span_bytes(&p->span[i])));
    ISO_TRY(remote->record(p->device, ISO__QUEUE_IN, p->put));
    return remote->follow(p->device, ISO__QUEUE_COMPUTE, p->put);
}

// ---- Parameters of 16 bits --------------------------------------------------------------------------

// The program may have changed them since their last update.
static iso_status take_rounded(const iso__periodic *p, int first, int last) {
    for (int i = first; i < last; i++) {
        const iso__span *span = &p->span[i];
        const iso_tensor *value = span->rounded;
        if (value)
            ISO_TRY(iso__master_take(value->device, value->dtype, (int64_t)span->count, value->data,
                                     span->data));
    }
    return ISO_OK;
}

static iso_status round_masters(const iso__periodic *p, int first, int last) {
    for (int i = first; i < last; i++) {
        const iso__span *span = &p->span[i];
        const iso_tensor *value = span->rounded;
        if (value)
            ISO_TRY(iso__master_round(value->device, value->dtype, (int64_t)span->count, span->data,
                                      value->data));
    }
    return ISO_OK;
}

// ---- Spans ------------------------------------------------------------------------------------------

iso_status iso__periodic_fetch(const iso__periodic *p, int first, int last, float *to) {
    ISO_TRY(take_rounded(p, first, last));
    if (remote_of(p)) return copy_out(p, first, last, to);
    iso__flat_cursor next = iso__flat_begin(iso__periodic_flat(p, first, last));
    for (int i = first; i < last; i++)
        memcpy((char *)to + iso__flat_next(&next, &p->span[i]), p->span[i].data,
               iso__span_bytes(&p->span[i]));
    return ISO_OK;
}

iso_status iso__periodic_put(iso__periodic *p, int first, int last, const float *from) {
    iso__flat size = iso__periodic_flat(p, first, last);
    if (remote_of(p)) {
        ISO_TRY(reserve_stage(p, iso__flat_bytes(size)));
        memcpy(p->stage, from, iso__flat_bytes(size));
        ISO_TRY(copy_in(p, first, last));
        return round_masters(p, first, last);
    }
    iso__flat_cursor next = iso__flat_begin(size);
    for (int i = first; i < last; i++)
        memcpy(p->span[i].data, (const char *)from + iso__flat_next(&next, &p->span[i]),
               iso__span_bytes(&p->span[i]));
    return round_masters(p, first, last);
}

iso_status iso__periodic_clear(const iso__periodic *p, int first, int last) {
    const iso__remote_ops *remote = remote_of(p);
    for (int i = first; i < last; i++) {
        size_t bytes = iso__span_bytes(&p->span[i]);
        if (remote)
            ISO_TRY(remote->fill_zero(p->device, ISO__QUEUE_COMPUTE, p->span[i].data, bytes));
        else
            memset(p->span[i].data, 0, bytes);
    }
    return ISO_OK;
}

iso_status iso__periodic_map(iso__periodic *p, int first, int last) {
    bool remote = remote_of(p) != NULL;
    iso__flat size = iso__periodic_flat(p, first, last);
    ISO_TRY(take_rounded(p, first, last));
    if (remote) {
        ISO_TRY(reserve_stage(p, iso__flat_bytes(size)));
        ISO_TRY(copy_out(p, first, last, p->stage));
    }
    iso__flat_cursor next = iso__flat_begin(size);
    for (int i = first; i < last; i++) {
        size_t at = iso__flat_next(&next, &p->span[i]);
        p->span[i].host = remote ? (char *)p->stage + at : p->span[i].data;
    }
    return ISO_OK;
}

void iso__periodic_lift(const iso__span *span) {
    float *x = span->host;
    double *y = span->host;
    if (!span->squares) return;
    for (size_t i = 0; i < span->count && !span->f64; i++)
        if (x[i] < 0) x[i] = 0;
    for (size_t i = 0; i < span->count && span->f64; i++)
        if (y[i] < 0) y[i] = 0;
}

iso_status iso__periodic_unmap(iso__periodic *p, int first, int last) {
    if (remote_of(p)) ISO_TRY(copy_in(p, first, last));
    return round_masters(p, first, last);
}
