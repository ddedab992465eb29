// SPDX-License-Identifier: MIT
// Sums in shared memory: each rank sums one slice of everybody's data, in place.
//
// A rank that issues an exchange counts it on its board. Once all ranks have done so, rank r of g
// adds up elements [r n / g, (r + 1) n / g) of all ranks, in the order of the ranks, and writes the
// sum into every rank's memory; no other rank touches that slice. (If r has no helper and its
// program is busy, a rank that waits sums the slice instead.) The exchange is complete when the
// boards count all slices as summed. Nothing is copied, and the bits are the same on every rank.
//
// The other operations of channels work in the same way. A scatter writes the sum of rank r's block
// into r's memory alone. In a gather, rank r copies the blocks of the others into its memory.
//
// This requires that all ranks issue exchanges in the same order. The exchanges of a channel have
// no common order with others, so each channel has its own queue, with its own counters on the
// boards.
#include "comm/comm_calls.h"
#include "comm/shared_impl.h"

#include <string.h>

#define SLICE_UNIT 16    // elements: slices begin on cache lines
#define CHUNK      32768 // elements summed at a time; messages make progress in between
#define BLOCK      1024  // elements that stay in the first-level cache while ranks are added up

static size_t slice_start(size_t count, int rank, int size) {
    size_t units = (count + SLICE_UNIT - 1) / SLICE_UNIT;
    size_t start = units * (size_t)rank / (size_t)size * SLICE_UNIT;
    return start < count ? start : count;
}

// The slice of an exchange that a rank sums: elements from an offset into every rank's data.
typedef struct share {
    size_t offset, count;
} share;

static share share_of(const iso_request *request, int rank) {
    int size = request->comm->size;
    size_t count = request->bytes / request->unit, at = request->offset;
    if (request->operation == ISO__GATHER) return (share){at, count};
    if (request->operation == ISO__SCATTER)
        return (share){at + (size_t)rank * request->block, count};
    size_t first = slice_start(count, rank, size);
    return (share){at + first * sizeof(float), slice_start(count, rank + 1, size) - first};
}

static iso_status post_shared(iso_request *request) {
    const iso_comm *comm = request->comm;
    iso__shared *s = comm->shared;
    iso__shared_queue *q = &s->queue[request->queue];
    request->offset = (size_t)(request->next - iso__shared_data(s, comm->rank));
    share own = share_of(request, comm->rank);
    request->next = iso__shared_data(s, comm->rank) + own.offset;
    request->left = own.count;
    request->number = q->posted++;
    *(q->first ? &q->last->next_in_line : &q->first) = request;
    q->last = request;
    if (!q->next) q->next = request;
    iso__shared_tell_posted(s, request->queue, q->posted);
    return ISO_OK;
}

bool iso__shared_all_posted(const iso__shared *s, const iso_request *request) {
    for (int r = 0; r < s->comm->size; r++)
        if (atomic_load_explicit(&s->board[r]->queue[request->queue].posted,
                                 memory_order_acquire) <= request->number)
            return false;
    return true;
}

bool iso__shared_all_summed(const iso__shared *s, const iso_request *request) {
    for (int r = 0; r < s->comm->size; r++)
        if (atomic_load_explicit(&s->board[r]->queue[request->queue].summed,
                                 memory_order_acquire) <= request->number)
            return false;
    return true;
}

// The sum goes to the ranks from `first` to before `end`.
static void sum_block(const iso__shared *s, size_t offset, size_t count, int first, int end) {
    float sum[BLOCK];
    memcpy(sum, iso__shared_data(s, 0) + offset, count * sizeof(float));
    for (int r = 1; r < s->comm->size; r++) {
        const float *x = (const float *)(void *)(iso__shared_data(s, r) + offset);
        for (size_t k = 0; k < count; k++) sum[k] += x[k];
    }
    for (int r = first; r < end; r++)
        memcpy(iso__shared_data(s, r) + offset, sum, count * sizeof(float));
}

void iso__shared_sum(const iso__shared *s, size_t offset, size_t count, int first, int end) {
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t block = count - done < BLOCK ? count - done : BLOCK;
        sum_block(s, offset + done * sizeof(float), block, first, end);
    }
}

static void copy_blocks(const iso__shared *s, size_t offset, size_t count, size_t stride,
                        int rank) {
    for (int r = 0; r < s->comm->size; r++) {
        size_t at = offset + (size_t)r * stride;
        if (r != rank)
            memcpy(iso__shared_data(s, rank) + at, iso__shared_data(s, r) + at,
                   count * sizeof(float));
    }
}

// Executes `count` elements of a rank's share.
static void do_chunk(const iso__shared *s, const iso_request *request, int rank, size_t offset,
                     size_t count) {
    bool all = request->operation == ISO__SUM;
    if (request->operation == ISO__GATHER)
        copy_blocks(s, offset, count, request->block, rank);
    else
        iso__shared_sum(s, offset, count, all ? 0 : rank, all ? s->comm->size : rank + 1);
}

// Claims a slice for the caller to sum. Returns false if the slices of earlier exchanges are not
// summed yet, or if another rank has claimed it.
static bool take_slice(iso__tally *tally, uint64_t number) {
    uint64_t expected = number;
    return atomic_load_explicit(&tally->summed, memory_order_acquire) == number &&
           atomic_compare_exchange_strong(&tally->taken, &expected, number + 1);
}

// Claims this rank's slice of the next exchange. Returns false if it cannot be summed yet, or if
// another rank sums it.
static bool take_own(iso__shared *s, iso__shared_queue *q, iso_request *request) {
    iso__tally *tally = &s->board[s->comm->rank]->queue[request->queue];
    if (!request->taken) request->taken = take_slice(tally, request->number);
    if (!request->taken && atomic_load(&tally->taken) > request->number)
        q->next = request->next_in_line; // another rank sums it
    return request->taken;
}

// Sums the next chunk with the lock released, so that others can issue and complete exchanges, or
// sum the chunk after it.
static bool sum_next(iso__shared *s, iso__shared_queue *q, iso__engine *engine) {
    iso_request *request = q->next;
    if (!request || !iso__shared_all_posted(s, request) || !take_own(s, q, request)) return false;
    if (request->left == 0 && request->under_way > 0) return false; // others sum the last chunks
    size_t chunk = request->left < CHUNK ? request->left : CHUNK;
    size_t offset = (size_t)(request->next - iso__shared_data(s, s->comm->rank));
    request->next += chunk * sizeof(float);
    request->left -= chunk;
    request->under_way++;
    pthread_mutex_unlock(&engine->lock);
    do_chunk(s, request, s->comm->rank, offset, chunk);
    pthread_mutex_lock(&engine->lock);
    if (--request->under_way > 0 || request->left > 0) return true;
    q->next = request->next_in_line;
    iso__shared_tell_summed(s, request->queue, request->number + 1);
    return true;
}

static void do_share(const iso__shared *s, const iso_request *request, int rank) {
    share all = share_of(request, rank);
    for (size_t at = 0; at < all.count; at += CHUNK)
        do_chunk(s, request, rank, all.offset + at * sizeof(float),
                 all.count - at < CHUNK ? all.count - at : CHUNK);
}

// While this rank waits, sums slices for ranks without a helper, whose programs may be busy.
// Releases the lock while it sums.
static bool sum_for_others(iso__shared *s, const iso__shared_queue *q, iso__engine *engine) {
    const iso_request *request = q->first;
    if (!request || request == q->next || engine->waiters == 0) return false;
    for (int r = 0; r < s->comm->size; r++) {
        iso__tally *tally = &s->board[r]->queue[request->queue];
        uint64_t number = request->number;
        if (r == s->comm->rank || s->board[r]->helped || !take_slice(tally, number)) continue;
        pthread_mutex_unlock(&engine->lock);
        do_share(s, request, r);
        pthread_mutex_lock(&engine->lock);
        atomic_store_explicit(&tally->summed, number + 1, memory_order_release);
        return true;
    }
    return false;
}

static void complete_summed(iso__shared *s, iso__shared_queue *q) {
    while (q->first && q->first != q->next && iso__shared_all_summed(s, q->first)) {
        iso_request *request = q->first;
        q->first = request->next_in_line;
        iso__request_complete(request);
    }
}

// The queues take turns: a long exchange in one does not hold up a short one in another.
static bool progress_queues(iso__shared *s, iso__engine *engine) {
    int turn = s->turn;
    for (int k = 0; k < ISO_QUEUES; k++) {
        int i = (turn + k) % ISO_QUEUES;
        iso__shared_queue *q = &s->queue[i];
        if (!q->first) continue;
        s->turn = (i + 1) % ISO_QUEUES;
        if (sum_next(s, q, engine)) return true;
        complete_summed(s, q);
        if (sum_for_others(s, q, engine)) return true;
    }
    return false;
}

static bool sum_shared(iso__engine *engine) {
    for (iso__shared *s = engine->shared; s; s = s->older)
        // Stop after progress: the list may have changed while the lock was released.
        if (progress_queues(s, engine)) return true;
    return false;
}

const iso__collective_ops iso__collective_shm = {.post = post_shared, .progress = sum_shared};

// ---- Or messages ----------------------------------------------------------------------------------

bool iso__comm_is_shared(const iso_comm *comm, const void *data, size_t bytes) {
    const iso__shared *s = comm->shared;
    if (!s) return false;
    uintptr_t first = (uintptr_t)iso__shared_data(s, comm->rank), at = (uintptr_t)data;
    return at >= first && at - first <= s->bytes && bytes <= s->bytes - (at - first);
}

const iso__collective_ops *iso__collective_choose(const iso_comm *comm, const void *data,
                                                  size_t bytes, iso_dtype dtype) {
    bool shared = dtype == ISO_F32 && iso__comm_is_shared(comm, data, bytes);
    return shared ? &iso__collective_shm : &iso__collective_mpi;
}
