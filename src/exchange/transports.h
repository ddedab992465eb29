// SPDX-License-Identifier: MIT
// Private to src/exchange: the functions that create the transports. All of them take the same
// setup and borrow what it names.
#ifndef ISO_TRANSPORTS_H
#define ISO_TRANSPORTS_H

#include "exchange/coder.h"
#include "exchange/coll_nccl.h"
#include "exchange/store.h"
#include "exchange/transport.h"

// The error of arrive() for a bucket whose post() failed.
#define ISO__NEVER_EXCHANGED "the gradients of \"%s\" were never exchanged: posting them failed"

// The error of post() after a failed post() if ranks pair their calls by order: this rank's next
// call would be summed with a different bucket of the other ranks.
#define ISO__OUT_OF_STEP                                                                           \
    "the gradients of \"%s\" are not exchanged: this rank could not post those of another bucket " \
    "before, so its calls no longer match the other ranks'; end the program"

typedef struct iso__transport_setup {
    iso__store *store;
    iso__coder *coder;
    const iso__buckets *buckets; // borrowed, like its items
    iso__exchange_stats *stats;
    iso_comm *world;                 // its ranks appear in messages; waits drive its engine
    bool over_world;                 // true: sums are over all ranks; false: over those of a node
    bool one_by_one;                 // the caller awaits each bucket before it posts the next one
    const iso__channel_nodes *nodes; // sums of f32 go in two levels; NULL: they do not
} iso__transport_setup;

// Multiplies a bucket in place, except its tail.
static inline iso_status iso__scale_bucket(iso__store *s, const iso__bucket *b, double factor) {
    return iso__store_scale(s, b->offset, b->bytes - b->tail, b->dtype, factor);
}
// Hands a factor that is not applied yet to the caller in *left, or applies it to the bucket if
// left is NULL, as arrive() does.
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

// Local. Nothing travels: a bucket is only multiplied by `after`.
iso_status iso__transport_none(const iso__transport_setup *setup, iso__transport **out);

// Collective over comm. Buckets travel through the arena, by channels over comm: as sums in memory
// that the ranks share, or as messages.
iso_status iso__transport_host(const iso__transport_setup *setup, iso_comm *comm,
                               iso__transport **out);

// With ZeRO, `owners` divide updates, and the gradients of `all` are averaged. Either both are the
// same ranks, or owners are the ranks of one node, and all those of several nodes with equally many
// ranks. Both communicators are located.
typedef struct iso__zero_ranks {
    iso_comm *owners, *all;
} iso__zero_ranks;

// Collective over all. As iso__transport_host, with updates divided among the ranks (ZeRO): each
// rank gets the sum of its shard, and the transport gathers the values that the ranks compute from
// these sums. No bucket may have a tail, and the size of every bucket must be a multiple of 64
// bytes times the number of all ranks. If `sums` is not NULL, it brings the whole average instead:
// one of the two transports of the host, over all. Owns sums on success. On failure the caller
// still owns it.
iso_status iso__transport_zero(const iso__transport_setup *setup, const iso__zero_ranks *ranks,
                               iso__transport *sums, iso__transport **out);

// Collective over comm. As iso__transport_host, but by messages only, for a hook that owns its
// exchange, in the phases that it has declared.
iso_status iso__transport_phases(const iso__transport_setup *setup, iso_comm *comm,
                                 iso__transport **out);

// Collective over comm. Exchanges the non-zero rows of sparse buckets by messages, around a
// transport of the host, `inner`, for all others. Owns inner on success. On failure the caller
// still owns it.
iso_status iso__transport_rows(const iso__transport_setup *setup, iso_comm *comm,
                               iso__transport *inner, iso__transport **out);

// Local. Copies buckets between a device and the arena, around a transport of the host, `inner`.
// Owns inner on success. On failure the caller still owns it, so that all ranks can destroy theirs
// together.
typedef struct iso__staged_config {
    double limit_s;                  // the time after which flush() gives up; 0: never
    iso_status (*check)(void *user); // fails if data from the device is invalid; may be NULL
    void *user;
} iso__staged_config;
iso_status iso__transport_staged(const iso__transport_setup *setup,
                                 const iso__staged_config *config, iso__transport *inner,
                                 iso__transport **out);
// For a transport that wraps staged. iso__staged_post_behind is post(), except that the caller has
// already recorded the end of the device's work in the bucket's event. iso__staged_fetch is
// arrive(), except that the compute queue does not wait for that event.
iso__device_event *iso__staged_event(const iso__transport *staged, int bucket);
iso_status iso__staged_post_behind(iso__transport *staged, int bucket, double before, double after);
iso_status iso__staged_fetch(iso__transport *staged, int bucket, double *left,
                             iso__exchange_times *times);

// Local. Between the GPUs of the scope's ranks. comm: the communicator that nccl was created over.
iso_status iso__transport_nccl(const iso__transport_setup *setup, iso__nccl *nccl, iso_comm *comm,
                               iso__transport **out);

// Collective over across, the ranks with the same local rank on all nodes. NCCL sums inside nodes,
// which must have equally many ranks. Between nodes, each rank exchanges one shard of every bucket.
iso_status iso__transport_shards(const iso__transport_setup *setup, iso__nccl *nccl, iso_comm *node,
                                 iso_comm *across, iso__transport **out);

#endif
