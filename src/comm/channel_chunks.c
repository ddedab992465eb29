// SPDX-License-Identifier: MIT
// Posts the chunks of channels in the order of their plans, and finishes those that are complete.
// All with the lock of the engine held.
#include "comm/channel_impl.h"

#include <isotherm/trace.h>
#include <stdio.h>

// Keeps what this thread's error record says.
void iso__channel_fail(iso__channel *c, const iso__channel_entry *m, iso_status status) {
    if (iso__channel_has_failed(c)) return;
    snprintf(c->message, sizeof(c->message), "the exchange of \"%s\" failed: %.300s",
             m->given.label, iso_last_error()->message);
    atomic_store_explicit(&c->error, (int)status, memory_order_release);
}

static bool may_post(const iso__channel *c) {
    if (c->chunk_count == 0 || iso__channel_has_failed(c)) return false;
    const iso__chunk *p = &c->chunk[c->next];
    if (c->item[p->item].announced <= c->round) return false;
    return c->in_flight == 0 || (c->in_flight <= c->window && p->bytes <= c->window - c->in_flight);
}

const iso__collective_ops *iso__channel_ops(const iso__channel *c, const iso__channel_entry *m,
                                            const void *data, size_t bytes) {
    bool may_share = c->queue != 0 && m->given.operation == ISO__SUM;
    if (!may_share) return &iso__collective_mpi;
    return iso__collective_choose(c->comm, data, bytes, m->given.dtype);
}

// Of each operation.
static int (*const mpi_call[])(iso_request *, int, MPI_Comm,
                               MPI_Request *) = {[ISO__SUM] = iso__mpi_allreduce};

static iso_status post_chunk(iso__channel *c, const iso__chunk *chunk) {
    iso__channel_entry *m = &c->item[chunk->item];
    char *data = (char *)m->given.data + chunk->offset;
    iso_request *request;
    ISO_TRY(iso__request_begin(c->comm, m->given.label, chunk->bytes, &request));
    request->mpi = c->mpi;
    request->next = data;
    request->unit = iso_dtype_size(m->given.dtype);
    request->left = chunk->bytes / request->unit;
    request->dtype = m->given.dtype;
    request->queue = c->queue;
    request->call = mpi_call[m->given.operation];
    request->whole = true; // its length is the plan's
    request->channel = c;
    request->channel_item = chunk->item;
    if (chunk->offset == 0) m->times.posted_ns = request->posted_ns;
    if (c->in_flight == 0) c->busy_since = request->posted_ns;
    iso_status status = iso__channel_ops(c, m, data, chunk->bytes)->post(request);
    if (status < 0) {
        request->channel = NULL;
        iso__request_release(c->comm->engine, &request);
    }
    ISO_TRY(status);
    c->in_flight += chunk->bytes;
    return ISO_OK;
}

bool iso__channel_issue(iso__channel *c) {
    bool any = false;
    while (may_post(c)) {
        const iso__chunk *chunk = &c->chunk[c->next];
        iso_status status = post_chunk(c, chunk);
        if (status < 0) iso__channel_fail(c, &c->item[chunk->item], status);
        any = any || status >= 0;
        if (status < 0 || ++c->next < c->chunk_count) continue;
        c->next = 0;
        c->round++;
    }
    return any;
}

static void finish_chunk(iso_request *request) {
    iso__channel *c = request->channel;
    iso__channel_entry *m = &c->item[request->channel_item];
    c->in_flight -= request->bytes;
    c->load.bytes += (int64_t)request->bytes;
    if (c->in_flight == 0) c->load.busy_ns += request->done_ns - c->busy_since;
    if (request->mpi_error) {
        iso__channel_fail(
            c, m,
            iso__mpi_error(request->mpi_error, "an all-reduce", __func__, __FILE__, __LINE__));
    } else if (--m->chunks_left == 0) {
        m->times.done_ns = request->done_ns;
        atomic_fetch_add_explicit(&m->completed, 1, memory_order_release);
    }
    iso__request_release(c->comm->engine, &request);
}

bool iso__channels_issue(iso__engine *engine) {
    bool any = false;
    while (engine->chunks_done) {
        iso_request *request = engine->chunks_done;
        engine->chunks_done = request->next_in_line;
        finish_chunk(request);
    }
    for (iso__channel *c = engine->channels; c; c = c->older) any = iso__channel_issue(c) || any;
    return any;
}
