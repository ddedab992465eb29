// SPDX-License-Identifier: MIT
// Private to src/exchange and src/parallel/reducer: how a bucket of gradients gets from "ready on
// this rank" to "the sum over the ranks is here".
//
// A transport serves one scope. All transports have the same table of calls, so callers need not
// know which one they use. A bucket is posted, arrives, and may then be posted again. Between
// post() and arrive() its memory belongs to the transport.
//
// One thread makes all calls. The caller posts every bucket of a list that is not local, and posts
// none of the next list before all of them are back. If a post fails, the caller still posts the
// remaining buckets. If ranks pair their calls by order, a transport that could not post a bucket
// refuses all later posts: otherwise its next call would be summed with a different bucket of the
// other ranks.
#ifndef ISO_TRANSPORT_H
#define ISO_TRANSPORT_H

#include "comm/channel.h"

#include <isotherm/comm_hook.h>
#include <isotherm/trace.h>

// A range of the store that travels as one. It is the same on all ranks, and does not change during
// the life of the reducer.
typedef struct iso__bucket {
    const char *label; // borrowed; its name in traces and time-outs
    size_t offset, bytes;
    iso_dtype dtype;
    bool local; // never posted to a transport between ranks
    // The last `tail` bytes are not gradients: they are summed but not scaled. 0 if a hook changes
    // how the bucket travels.
    size_t tail;
    // The last `filler` bytes are zeros that make the shards of ZeRO equally long. Hooks do not see
    // them, so that a bucket has the same result as without ZeRO.
    size_t filler;
    // > 0: sparse. It holds one matrix (tensor[0].row). Each rank has at most this many non-zero
    // rows, and only these travel.
    size_t sparse_rows;
    const iso_comm_hook_tensor *tensor; // [tensor_count]: what it holds
    int tensor_count;
} iso__bucket;

static inline bool iso__bucket_is_sparse(const iso__bucket *b) {
    return b->sparse_rows > 0 && !b->local;
}
// Whether it travels as a whole.
static inline bool iso__bucket_is_dense(const iso__bucket *b) {
    return b->sparse_rows == 0 && !b->local;
}

typedef struct iso__buckets {
    const iso__bucket *item;
    int count;
} iso__buckets;

// What all transports of a reducer have sent so far.
typedef struct iso__exchange_stats {
    long long exchanges;               // sums of buckets between ranks
    long long bytes_world, bytes_node; // of buckets summed over all ranks, over the ranks of a node
    iso_traffic traffic;
} iso__exchange_stats;

// When a bucket's latest exchange happened, on the clock of iso_now.
typedef struct iso__exchange_times {
    bool left_device; // ready_ns is when the device had copied the bucket out, not when it was
                      // posted
    bool known;       // false: the host did not see it, or an earlier call has reported it
    int64_t ready_ns, posted_ns, done_ns; // as iso__channel_times
    // The first call of arrive() began, even if it failed; the last one ended.
    int64_t wait_start_ns, wait_end_ns;
    int64_t away_ns; // of this time, spent between calls
} iso__exchange_times;

// Keeps the times of an exchange until a call can report them.
static inline void iso__times_keep(iso__exchange_times *kept, const iso__exchange_times *learnt) {
    if (learnt->known) *kept = *learnt;
}
// A wait begins, or continues if an earlier wait for the same bucket failed.
static inline void iso__times_begin_wait(iso__exchange_times *t) {
    int64_t now = iso_now();
    if (t->wait_start_ns == 0)
        t->wait_start_ns = now;
    else
        t->away_ns += now - t->wait_end_ns;
}
// Takes the times of the item's latest round, which must be complete.
static inline void iso__times_of_channel(iso__exchange_times *t, const iso__channel *channel,
                                         int item) {
    iso__channel_times when = iso__channel_times_of(channel, item);
    t->ready_ns = when.ready_ns;
    t->posted_ns = when.posted_ns;
    t->done_ns = when.done_ns;
    t->known = true;
}
static inline void iso__times_tell(iso__exchange_times *kept, iso__exchange_times *out) {
    if (out) *out = *kept;
    kept->known = false;
}

// A waiting thread calls its idle function (iso__idle) without a lock. That function may call
// is_back(), and arrive() for other buckets that are back.
typedef struct iso__transport iso__transport;

typedef struct iso__transport_ops {
    const char *name;
    // Local. Call it when the bucket is final on this rank: in the order of the buckets if in_order
    // is set, otherwise in any order. The transport multiplies the elements by `before` ahead of
    // the sum, and the sum by `after`. An error does not affect other buckets.
    iso_status (*post)(iso__transport *self, int bucket, double before, double after);
    // Makes progress without waiting. NULL: there is nothing to do between calls.
    iso_status (*advance)(iso__transport *self);
    // Whether arrive() would return without waiting. Takes no lock. False if the host cannot know.
    bool (*is_back)(const iso__transport *self, int bucket);
    // Waits for the result, in the store's gradients. If the transport launches, the result need
    // not be there yet, but work that is launched from now on finds it there. left NULL: all
    // factors are applied. Otherwise *left is the factor by which the caller must still multiply
    // the result (1: none). May be called again, even after an error, with or without left: after a
    // time-out it waits again; any other error is returned again until the bucket is posted again.
    // Does nothing for a bucket that was not posted. idle and times may be NULL; only the first
    // call that succeeds reports times.
    iso_status (*arrive)(iso__transport *self, int bucket, const iso__idle *idle, double *left,
                         iso__exchange_times *times);
    // For stage 2 of ZeRO, so NULL with a device. Waits until is_back(); then arrive() must follow.
    // All buckets before this one must be posted.
    iso_status (*await_back)(iso__transport *self, int bucket);
    // Only if the transport divides updates among the ranks (ZeRO: shards > 0). Then arrive()
    // brings only the result of this rank's shard of the bucket. publish() is local: it sends what
    // the caller has written into the shard to all ranks. The bucket must have arrived, and must be
    // collected before it is published again. All ranks publish every bucket that is not local, or
    // none. collect() waits, as arrive() does, until the shards of all ranks are here. Before that,
    // the caller must publish all later buckets of the list. is_collected(): as is_back().
    iso_status (*publish)(iso__transport *self, int bucket);
    iso_status (*collect)(iso__transport *self, int bucket, const iso__idle *idle,
                          iso__exchange_times *times);
    bool (*is_collected)(const iso__transport *self, int bucket);
    // Waits until no posted bucket depends on this rank's program any more. May be NULL.
    iso_status (*flush)(iso__transport *self);
    // The whole list is posted. Waits until the other ranks can complete it without further calls
    // of this rank's program. May be NULL: they can already, once flush() has returned.
    iso_status (*settle)(iso__transport *self);
    // Waits on the host until all that has arrived is complete on the device. May be NULL.
    iso_status (*finish)(iso__transport *self);
    // Returns the channel of long buckets, whose order may be planned, or NULL; its item k is
    // bucket bucket[k]. The entry is NULL if the transport never has such a channel.
    iso__channel *(*plan)(const iso__transport *self, int *bucket, int *count);
    // Collective. Returns false if exchanges are under way; the caller must then keep all memory
    // that they use.
    bool (*destroy)(iso__transport *self);
} iso__transport_ops;

struct iso__transport {
    const iso__transport_ops *ops;
    bool in_order;            // all ranks post in the order of the buckets
    bool launches;            // arrive() only enqueues work on the device
    bool travels;             // between ranks; false if nothing leaves the rank
    bool shared_memory, nccl, two_levels, pairwise; // for statistics: how sums are made
    // [buckets]: the bytes that go through the host or the GPUs' link. Required even if nothing
    // travels, because statistics and the plan read it.
    const size_t *wire_bytes;
    // With ZeRO: the number of equal shards of a bucket, and which one this rank updates. Without
    // ZeRO, shards is 0.
    int shards, shard;
    bool whole; // with ZeRO: arrive() makes the result from the whole bucket, as a hook does;
                // false: once is_back(), nothing needs the other ranks' shards of it
};

// A shard of a bucket: bytes of the store.
typedef struct iso__shard {
    size_t offset, bytes;
} iso__shard;
static inline iso__shard iso__shard_of(const iso__transport *t, const iso__bucket *b, int shard) {
    size_t bytes = b->bytes / (size_t)t->shards;
    return (iso__shard){b->offset + (size_t)shard * bytes, bytes};
}

static inline iso_status iso__transport_advance(iso__transport *t) {
    return t->ops->advance ? t->ops->advance(t) : ISO_OK;
}
static inline iso_status iso__transport_flush(iso__transport *t) {
    return t->ops->flush ? t->ops->flush(t) : ISO_OK;
}
static inline iso_status iso__transport_settle(iso__transport *t) {
    return t->ops->settle ? t->ops->settle(t) : ISO_OK;
}
static inline iso_status iso__transport_finish(iso__transport *t) {
    return t->ops->finish ? t->ops->finish(t) : ISO_OK;
}
// Accepts NULL.
static inline bool iso__transport_destroy(iso__transport **t) {
    iso__transport *old = *t;
    *t = NULL;
    return old ? old->ops->destroy(old) : true;
}

#endif
