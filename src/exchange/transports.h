// SPDX-License-Identifier: MIT
// Private to src/exchange: the transports there are. Each is created over the same things, and
// borrows them.
#ifndef ISO_TRANSPORTS_H
#define ISO_TRANSPORTS_H

#include "exchange/coder.h"
#include "exchange/coll_nccl.h"
#include "exchange/store.h"
#include "exchange/transport.h"

// What arrive() says of a bucket whose post() failed.
#define ISO__NEVER_EXCHANGED "the gradients of \"%s\" were never exchanged: posting them failed"

// What post() says from then on, where ranks pair their calls by order: the next call of this rank
// would be summed with another bucket of the others.
#define ISO__OUT_OF_STEP                                                                           \
    "the gradients of \"%s\" are not exchanged: this rank could not post those of another bucket " \
    "before, so its calls no longer match the other ranks'; end the program"

typedef struct iso__transport_setup {
    iso__store *store;
    iso__coder *coder;
    const iso__buckets *buckets; // it stays, with its items
    iso__exchange_stats *stats;
    iso_comm *world; // messages name its ranks, and waits drive its engine
    bool over_world; // sums are over all ranks, not over those of a node
} iso__transport_setup;

// Multiplies a bucket where it lies, but not its tail.
static inline iso_status iso__scale_bucket(iso__store *s, const iso__bucket *b, double factor) {
    return iso__store_scale(s, b->offset, b->bytes - b->tail, b->dtype, factor);
}
// A factor that is not applied yet goes to the caller, who asks for it with left, or is applied
// where the bucket lies. As arrive() takes left.
static inline iso_status iso__settle_factor(iso__store *s, const iso__bucket *b, double *factor,
                                            double *left) {
    if (left) {
        *left = *factor;
        return ISO_OK;
    }
    ISO_TRY(iso__scale_bucket(s, b, *factor));
    *factor = 1;
    return ISO_OK;
}

// Nothing travels: `after` is all that happens to a bucket. Local.
iso_status iso__transport_none(const iso__transport_setup *setup, iso__transport **out);

// Through the arena, by channels over comm: sums in memory that the ranks share, or messages.
// Collective over comm.
iso_status iso__transport_host(const iso__transport_setup *setup, iso_comm *comm,
                               iso__transport **out);

// The same, sharing out the updates (ZeRO stage 1): each rank gets the sum of its shard, and the
// values that it makes of it are gathered. No coder converts, and no bucket has a tail. Every
// bucket is a multiple of 64 bytes times the number of ranks. Collective over comm.
iso_status iso__transport_zero(const iso__transport_setup *setup, iso_comm *comm,
                               iso__transport **out);

// Between a device and the arena, around a transport of the host. Local: takes inner over on
// success; on failure inner stays the caller's, so that all ranks can destroy theirs together.
typedef struct iso__staged_config {
    double limit_s;                  // after which flush() gives up; 0: never
    iso_status (*check)(void *user); // whether what has come from the device is sound; may be NULL
    void *user;
} iso__staged_config;
iso_status iso__transport_staged(const iso__transport_setup *setup,
                                 const iso__staged_config *config, iso__transport *inner,
                                 iso__transport **out);
// Its parts, for a transport around it: post() without marking where the device's work ends, which
// the bucket's event says already; arrive() without letting the device's work wait for the event
// that is given.
iso__device_event *iso__staged_event(const iso__transport *staged, int bucket);
iso_status iso__staged_post_behind(iso__transport *staged, int bucket, double before, double after);
iso_status iso__staged_fetch(iso__transport *staged, int bucket, double *left,
                             iso__exchange_times *times);

// Between the GPUs of a node, which are all ranks in scope. Local. node: of nccl.
iso_status iso__transport_nccl(const iso__transport_setup *setup, iso__nccl *nccl, iso_comm *node,
                               iso__transport **out);

// NCCL inside nodes of equally many ranks, one shard of each bucket a rank between them. Collective
// over across, which joins the ranks of one place on all nodes.
iso_status iso__transport_shards(const iso__transport_setup *setup, iso__nccl *nccl, iso_comm *node,
                                 iso_comm *across, iso__transport **out);

#endif
