// SPDX-License-Identifier: MIT
// Sums over several nodes in two levels, so that no more bytes cross between nodes than with one
// rank on each, however many ranks a node has and wherever they are in the communicator.
//
// Rank k of a node adds up slice k of its node's data (coll_shm.c), sums the slice with rank k of
// the other nodes by an all-reduce or pairwise exchange, and copies the sum into the memory of the
// node's other ranks. If nodes have different numbers of ranks, there are as many slices as the
// smallest node has ranks. An exchange is complete when the boards count it for all ranks of the
// node.
//
// All ranks issue exchanges in the same order. A rank sums and sends its slices in this order as
// soon as all ranks of its node have issued an exchange, so its messages match. A rank's slice
// needs its own calls of MPI, so no rank can wait for it unless a helper thread makes them.
#include "comm/hierarchy.h"

#include "comm/channel_impl.h"
#include "comm/shared_impl.h"

#include <string.h>

#define SLICE_UNIT 16 // elements: slices begin on cache lines
// ---- Slices ---------------------------------------------------------------------------------------

typedef struct slice {
    size_t first, count; // elements
} slice;

// MPI sums fewer elements than ranks in a different order, so the bits would depend on the length
// of a chunk. So each slice has at least one element per node, unless the data have fewer in all.
static slice slice_of(const iso__hierarchy *h, size_t count, int k) {
    size_t units = count / SLICE_UNIT, least = (size_t)(h->nodes - 1) / SLICE_UNIT + 1;
    size_t slices = units / least, at = (size_t)k;
    if (slices > (size_t)h->slices) slices = (size_t)h->slices;
    if (slices == 0) slices = 1;
    if (at >= slices) return (slice){0};
    size_t first = units * at / slices * SLICE_UNIT;
    size_t end = at + 1 == slices ? count : units * (at + 1) / slices * SLICE_UNIT;
    return (slice){first, end - first};
}

// The number of elements to send next. All pieces of a slice are about equally long.
static size_t next_piece(const iso__hierarchy *h, size_t left) {
    size_t pieces = (left + h->piece - 1) / h->piece;
    size_t piece = pieces > 1 ? (left / pieces + SLICE_UNIT - 1) / SLICE_UNIT * SLICE_UNIT : left;
    return piece < left ? piece : left;
}

// ---- Post -----------------------------------------------------------------------------------------

static iso_status post_slice(iso_request *request) {
    iso__hierarchy *h = request->channel->hierarchy;
    int own = h->node->rank;
    slice s = slice_of(h, request->left, own);
    uint64_t *posted = h->shared ? &h->shared->queue[h->queue].posted : &h->posted;
    ISO_TRY(iso__engine_reserve(request->engine, (int)((s.count + h->piece - 1) / h->piece)));
    request->hierarchy = true;
    request->queue = h->queue;
    if (h->shared) request->offset = (size_t)(request->next - iso__shared_data(h->shared, own));
    request->next += s.first * sizeof(float);
    request->left = s.count;
    request->number = (*posted)++;
    *(h->first ? &h->last->next_in_line : &h->first) = request;
    h->last = request;
    if (!h->summing && !h->stopped) h->summing = request;
    if (!h->spreading) h->spreading = request;
    if (h->shared) iso__shared_tell_posted(h->shared, h->queue, *posted);
    return ISO_OK;
}

// ---- Progress -------------------------------------------------------------------------------------

static int post_piece(const iso__hierarchy *h, iso_request *request, size_t count) {
    iso__engine *engine = request->engine;
    if (iso__engine_reserve(engine, 1) < 0) return MPI_ERR_NO_MEM;
    int slot = engine->in_flight;
    int rc = iso__mpi_allreduce(request, (int)count, h->across, &engine->mpi[slot]);
    if (rc != MPI_SUCCESS) return rc;
    engine->owner[slot] = (iso__owner){.request = request};
    engine->in_flight++;
    request->under_way++;
    return MPI_SUCCESS;
}

// Sends the piece of a slice that is summed in the node.
static void send_piece(iso__hierarchy *h, iso_request *request, size_t count) {
    int rc = h->pairwise ? iso__pairwise_post(h->pairwise, 0, request, count, h->across)
                         : post_piece(h, request, count);
    request->next += count * sizeof(float);
    request->left -= count;
    if (rc != MPI_SUCCESS) { // the other nodes have posted it, so later ones would not match
        request->mpi_error = rc;
        request->left = 0;
        h->stopped = true;
    }
}

// Sums the next piece with the lock released, so that the program can issue exchanges.
static bool sum_next(iso__hierarchy *h, iso__engine *engine) {
    iso_request *request = h->summing;
    if (!request || (h->shared && !iso__shared_all_posted(h->shared, request))) return false;
    size_t count = next_piece(h, request->left);
    if (count > 0 && !iso__pairwise_has_room(h->pairwise, 0)) return false;
    if (count > 0 && h->shared) {
        int own = h->node->rank;
        size_t offset = (size_t)(request->next - iso__shared_data(h->shared, own));
        h->busy = true;
        pthread_mutex_unlock(&engine->lock);
        iso__shared_sum(h->shared, offset, count, own, own + 1);
        pthread_mutex_lock(&engine->lock);
        h->busy = false;
    }
    if (count > 0) send_piece(h, request, count);
    if (request->left == 0) h->summing = h->stopped ? NULL : request->next_in_line;
    return true;
}

// Takes a request that has failed out of the queue. The later ones stay: their channel posts and
// completes nothing any more.
static void fail_request(iso__hierarchy *h, iso_request *request) {
    iso_request **at = &h->first;
    while (*at != request) at = &(*at)->next_in_line;
    *at = request->next_in_line;
    h->broken = true;
    iso__request_complete(request);
}

static void copy_slice(const iso__hierarchy *h, const iso_request *request) {
    int own = h->node->rank;
    slice s = slice_of(h, request->bytes / request->unit, own);
    size_t at = request->offset + s.first * sizeof(float);
    for (int r = 0; r < h->node->size; r++)
        if (r != own)
            memcpy(iso__shared_data(h->shared, r) + at, iso__shared_data(h->shared, own) + at,
                   s.count * sizeof(float));
}

static bool spread_next(iso__hierarchy *h, iso__engine *engine) {
    iso_request *request = h->spreading;
    if (!request || request == h->summing || request->under_way > 0) return false;
    if (request->mpi_error) {
        fail_request(h, request);
        return true;
    }
    if (h->shared) {
        h->busy = true;
        pthread_mutex_unlock(&engine->lock);
        copy_slice(h, request);
        pthread_mutex_lock(&engine->lock);
        h->busy = false;
        iso__shared_tell_taken(h->shared, h->queue, request->number + 1);
        iso__shared_tell_summed(h->shared, h->queue, request->number + 1);
    }
    h->spreading = request->next_in_line;
    return true;
}

static void complete_summed(iso__hierarchy *h) {
    while (h->first && h->first != h->spreading &&
           (!h->shared || iso__shared_all_summed(h->shared, h->first))) {
        iso_request *request = h->first;
        h->first = request->next_in_line;
        iso__request_complete(request);
    }
}

static bool progress_hierarchies(iso__engine *engine) {
    for (iso__hierarchy *h = engine->hierarchies; h; h = h->older) {
        if (!h->first || h->busy || h->broken) continue;
        // Stop after progress: the list may have changed while the lock was released.
        if (sum_next(h, engine) || spread_next(h, engine)) return true;
        complete_summed(h);
    }
    return false;
}

const iso__collective_ops iso__collective_hierarchy = {.post = post_slice,
                                                       .progress = progress_hierarchies};
