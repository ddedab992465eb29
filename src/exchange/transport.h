// SPDX-License-Identifier: MIT
// Private to src/exchange and src/parallel/reducer: how a bucket of gradients gets from "ready on
// this rank" to "the sum over the ranks is here".
//
// A transport serves one scope. Every way to travel is a table of the same calls, and whoever posts
// does not know which one it is. A bucket is posted, arrives, and may then be posted again. Between
// post() and arrive() its memory belongs to the transport.
//
// One thread makes all calls. The caller posts every bucket of a list that is not local, and none
// of the next list before all are back. After a post that failed it posts the others: where ranks
// pair their calls by order, a transport that could not post a bucket refuses all later posts, or
// its next call would be summed with another bucket of the other ranks.
#ifndef ISO_TRANSPORT_H
#define ISO_TRANSPORT_H

#include "comm/channel.h"

#include <isotherm/trace.h>

// A range of the store that travels as one. The same on all ranks, for the life of the reducer.
typedef struct iso__bucket {
    const char *label; // by reference: what traces and time-outs name
    size_t offset, bytes;
    iso_dtype dtype;
    bool local; // never posted to a transport between ranks
    // At its end so many bytes are no gradients: they are summed, but not multiplied. 0 where the
    // coder converts the bucket.
    size_t tail;
} iso__bucket;

typedef struct iso__buckets {
    const iso__bucket *item;
    int count;
} iso__buckets;

// What has travelled, of all transports of a reducer.
typedef struct iso__exchange_stats {
    long long exchanges;               // sums of buckets between ranks
    long long bytes_world, bytes_node; // of buckets that were summed over all ranks, over a node's
    iso_traffic traffic;
} iso__exchange_stats;

// When a bucket's latest exchange happened, on the clock of iso_now.
typedef struct iso__exchange_times {
    bool left_device; // ready_ns is when the device had copied it out, later than post()
    bool known;       // false: the host did not see it, or it was told before
    int64_t ready_ns, posted_ns, done_ns; // as iso__channel_times
    // Of the thread that arrived: from its first call on, also where that failed, to the last one.
    int64_t wait_start_ns, wait_end_ns;
    int64_t away_ns; // of these, between one call and the next
} iso__exchange_times;

// What is learnt of an exchange is kept until a call can tell it.
static inline void iso__times_keep(iso__exchange_times *kept, const iso__exchange_times *learnt) {
    if (learnt->known) *kept = *learnt;
}
// A wait begins. One that failed goes on where the bucket is asked for again.
static inline void iso__times_begin_wait(iso__exchange_times *t) {
    int64_t now = iso_now();
    if (t->wait_start_ns == 0)
        t->wait_start_ns = now;
    else
        t->away_ns += now - t->wait_end_ns;
}
// The item's latest round is done.
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

// What a thread that waits does meanwhile, see iso__channel_idle. It is called without a lock, and
// may call is_back(), and arrive() of other buckets that are back.
typedef struct iso__idle {
    iso__channel_idle call;
    void *user;
} iso__idle;

typedef struct iso__transport iso__transport;

typedef struct iso__transport_ops {
    const char *name;
    // The bucket is final on this rank and, where in_order is not set, may be posted in any order.
    // Its elements are multiplied by `before` ahead of the sum, and the sum by `after`. Local; an
    // error leaves other buckets as they were.
    iso_status (*post)(iso__transport *self, int bucket, double before, double after);
    // Never waits: takes further what can be. NULL: there is nothing to do between calls.
    iso_status (*advance)(iso__transport *self);
    // Whether arrive() would not wait. Takes no lock. False where the host cannot tell.
    bool (*is_back)(const iso__transport *self, int bucket);
    // Waits; where the transport launches, what is launched from now on finds the result in the
    // store's gradients. left NULL: the result is the whole one. Otherwise *left is the factor by
    // which the caller still has to multiply it (1: none). May be called again, after an error too,
    // and with the other choice: after a time-out it waits again, any other error comes again until
    // the bucket is posted again. Does nothing for a bucket that was not posted. idle, times: may
    // be NULL; times are told once, by the first call that succeeds.
    iso_status (*arrive)(iso__transport *self, int bucket, const iso__idle *idle, double *left,
                         iso__exchange_times *times);
    // Of transports that share out updates (ZeRO stage 1), else NULL. There arrive() brings the
    // result of this rank's shard of the bucket only. publish() sends to all ranks what the caller
    // has written into the shard. Local; the bucket has arrived, and is published once at a time.
    // All ranks publish every bucket that is not local, or none. collect() waits until the shards
    // of all ranks are here, as arrive() waits. The caller has published all later buckets of the
    // list before. is_collected(): as is_back().
    iso_status (*publish)(iso__transport *self, int bucket);
    iso_status (*collect)(iso__transport *self, int bucket, const iso__idle *idle,
                          iso__exchange_times *times);
    bool (*is_collected)(const iso__transport *self, int bucket);
    // Waits until all that was posted needs this rank's program no more to be summed. May be NULL.
    iso_status (*flush)(iso__transport *self);
    // Waits on the host until all that has arrived is complete on the device. May be NULL.
    iso_status (*finish)(iso__transport *self);
    // The channel of long buckets, whose order may be planned, or NULL: item k of it is bucket
    // bucket[k]. This entry is NULL where there never is one.
    iso__channel *(*plan)(const iso__transport *self, int *bucket, int *count);
    // False: exchanges are under way, and what they use must stay. Collective.
    bool (*destroy)(iso__transport *self);
} iso__transport_ops;

struct iso__transport {
    const iso__transport_ops *ops;
    bool in_order;            // all ranks post in the order of the buckets
    bool launches;            // arrive() only enqueues work on the device
    bool travels;             // between ranks; false where nothing leaves the rank
    bool shared_memory, nccl; // for statistics: how sums are made
    // [buckets] of what goes through the host or the GPUs' link. Required, also where nothing
    // travels: statistics and the plan read it.
    const size_t *wire_bytes;
    // With ZeRO: the number of equal shards of a bucket, and which one this rank updates. Without
    // ZeRO, shards is 0.
    int shards, shard;
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
