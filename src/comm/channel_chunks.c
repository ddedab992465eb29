// SPDX-License-Identifier: MIT
// Posts the chunks of channels in the order of their plans, and finishes those that are complete.
// All functions need the engine's lock.
#include "comm/blocks.h"
#include "comm/channel_impl.h"
#include "comm/hierarchy.h"
#include "comm/pairwise.h"

#include <isotherm/trace.h>
#include <stdio.h>
#include <string.h>

// Keeps the message of this thread's error record.
void iso__channel_fail(iso__channel *c, const iso__channel_entry *m, iso_status status) {
    if (iso__channel_has_failed(c)) return;
    snprintf(c->message, sizeof(c->message), "the exchange of \"%s\" failed: %.300s",
             m->given.label, iso_last_error()->message);
    atomic_store_explicit(&c->error, (int)status, memory_order_release);
}

// A cell that is free; NULL: none is.
static iso__channel_cell *free_cell(const iso__channel *c) {
    for (int i = 0; i < c->cell_count; i++)
        if (!c->cell[i].taken) return &c->cell[i];
    return NULL;
}

static bool may_post(const iso__channel *c) {
    if (c->chunk_count == 0 || iso__channel_has_failed(c)) return false;
    const iso__chunk *p = &c->chunk[c->next];
    const iso__channel_entry *m = &c->item[p->item];
    if (m->announced <= c->round) return false;
    if (c->in_flight > 0 && (c->in_flight > c->window || p->bytes > c->window - c->in_flight))
        return false;
    const iso__collective_ops *ops = iso__channel_ops(c, m);
    if (ops == &iso__collective_pairwise) return iso__pairwise_has_room(c->pairwise, c->next);
    if (ops == &iso__collective_blocks && !iso__blocks_have_room(c->blocks)) return false;
    return !iso__channel_uses_cells(c, m) || free_cell(c);
}

// ---- Operations -------------------------------------------------------------------------------------

// How an operation travels by messages.
typedef struct operation {
    const char *name; // of MPI's call
    int (*call)(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);
} operation;
static const operation operations[] = {[ISO__SUM] = {"an all-reduce", iso__mpi_allreduce},
                                       [ISO__SCATTER] = {"an all-to-all", iso__mpi_scatter},
                                       [ISO__NODE_SCATTER] = {"a scatter in nodes", NULL},
                                       [ISO__GATHER] = {"an all-gather", iso__mpi_gather},
                                       [ISO__ALLTOALL] = {"an all-to-all", iso__mpi_scatter}};

// Makes the request send from the item's blocks and receive into a cell.
static void use_cell(iso__channel *c, iso_request *request) {
    iso__channel_cell *cell = free_cell(c);
    cell->taken = true;
    request->cell = cell;
    request->send = request->next;
    request->next = cell->memory;
}

// Moves the received blocks from the cell to the item: sums them, or copies them.
static void empty_cell(const iso__channel *c, const iso_request *request) {
    const iso__chunk *chunk = &c->chunk[request->channel_chunk];
    const iso__channel_item *item = &c->item[chunk->item].given;
    const char *from = request->cell->memory;
    char *to = (char *)item->data + chunk->offset;
    int size = c->comm->size;
    if (item->operation == ISO__SCATTER && c->nodes == 0) // otherwise it has the sum
        iso__sum_blocks(to + (size_t)c->comm->rank * item->bytes, from, chunk->bytes, size,
                        item->dtype);
    for (int r = 0; item->operation == ISO__ALLTOALL && r < size; r++)
        memcpy(to + (size_t)r * item->bytes, from + (size_t)r * chunk->bytes, chunk->bytes);
    request->cell->taken = false;
}

static iso_status post_chunk(iso__channel *c, int index) {
    const iso__chunk *chunk = &c->chunk[index];
    iso__channel_entry *m = &c->item[chunk->item];
    char *data = (char *)m->given.data + chunk->offset;
    iso_request *request;
    ISO_TRY(iso__request_begin(c->comm, &c->stream, m->given.label, chunk->bytes, &request));
    request->mpi = c->mpi;
    request->next = data;
    request->unit = iso_dtype_size(m->given.dtype);
    request->left = chunk->bytes / request->unit;
    request->dtype = m->given.dtype;
    request->queue = c->queue;
    request->call = operations[m->given.operation].call;
    request->operation = m->given.operation;
    request->block = m->given.operation == ISO__SUM ? 0 : m->given.bytes;
    request->whole = true; // the plan determines its length
    request->channel = c;
    request->channel_chunk = index;
    if (iso__channel_uses_cells(c, m)) use_cell(c, request);
    if (chunk->offset == 0) m->times.posted_ns = request->posted_ns;
    if (c->in_flight == 0) c->busy_since = request->posted_ns;
    iso_status status = iso__channel_ops(c, m)->post(request);
    if (status < 0) {
        if (request->cell) request->cell->taken = false;
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
        iso_status status = post_chunk(c, c->next);
        if (status < 0) iso__channel_fail(c, &c->item[c->chunk[c->next].item], status);
        any = any || status >= 0;
        if (status < 0 || ++c->next < c->chunk_count) continue;
        c->next = 0;
        c->round++;
    }
    return any;
}

static void finish_chunk(iso_request *request) {
    iso__channel *c = request->channel;
    iso__channel_entry *m = &c->item[c->chunk[request->channel_chunk].item];
    c->in_flight -= request->bytes;
    c->load.bytes += (int64_t)request->bytes;
    if (c->in_flight == 0) c->load.busy_ns += request->done_ns - c->busy_since;
    if (request->mpi_error) {
        const char *name = operations[m->given.operation].name;
        iso__channel_fail(c, m,
                          iso__mpi_error(request->mpi_error, name, __func__, __FILE__, __LINE__));
        // The cell stays taken, because MPI may still write into it.
    } else {
        if (request->cell) empty_cell(c, request);
        if (--m->chunks_left == 0) {
            m->times.done_ns = request->done_ns;
            atomic_fetch_add_explicit(&m->completed, 1, memory_order_release);
        }
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
