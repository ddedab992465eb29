// SPDX-License-Identifier: MIT
// Gradients of GPUs on several nodes of equally many ranks: a reduce-scatter leaves each rank with
// one shard of its node's sum; shards go through the host and are summed with those of the same
// place on the other nodes; an all-gather shares them out.
//
// Why no rank can wait for ever. Calls of NCCL come in one order on all ranks of a node: for each
// list first the reduce-scatters, in the order of the buckets, then the all-gathers, from the last
// bucket (which the next forward needs first) to the first; a list begins when the one before is
// complete on this rank. (Blocking, each bucket's two follow each other at once.) Take the first
// call in this order, over all nodes, that some rank has not made or that is not complete on some
// GPU.
//   - A reduce-scatter: between two of a list a rank waits for nothing (blocking: for the bucket
//     before, which is complete), so all ranks that report their gradients make the call. What it
//     waits for on the GPU is local compute, and that waits for calls before it.
//   - An all-gather: a rank makes it when the shard has come back from the other nodes. By then all
//     sums of its list are made, so every rank's shards get to its host; there they travel through
//     channels (channel.h), which nobody enters with anything left out, and come back.
// Hence the call is made everywhere, and completes. What this asks of a program: each rank's next
// call after a step may come late, but not only after another rank of its node has *read* values of
// this step (those wait for the all-gather that the late one has not made). A step that all ranks
// complete (iso_reducer_finish) before anything else avoids that.
// A reducer has one communicator of NCCL. Programs with several reducers use them in the same order
// on all ranks anyway.
#include "exchange/transports.h"

#include "comm/traffic.h"

// A bucket: its shard is OUT; GATHERED when the all-gather was entered; HOME: followed.
typedef enum stage { HOME, OUT, GATHERED } stage;

typedef struct shard {
    stage stage;
    bool failed; // to be posted
    double left;
    iso__exchange_times times; // of its shard through the host, until they are told
} shard;

typedef struct shards {
    iso__transport base;
    iso__transport_setup with;
    iso__nccl *nccl;           // borrowed
    iso_comm *node;            // borrowed
    iso__bucket *shard_bucket; // [buckets]: this rank's shard of each
    iso__buckets shard_buckets;
    iso__transport *inner; // staged: shards through the host
    shard *shard;          // [buckets]
    bool broken;           // a sum was not entered
} shards;

static shards *shards_of(iso__transport *t) { return iso_container_of(t, shards, base); }

static const iso__remote_ops *remote_of(const shards *self) {
    return iso__store_remote(self->with.store);
}

static size_t shard_elements(const shards *self, int i) {
    return self->shard_bucket[i].bytes / iso_dtype_size(self->shard_bucket[i].dtype);
}

// ---- Out --------------------------------------------------------------------------------------------

// Enters the node's sum behind what the GPU has been given so far; this rank's shard follows it.
static iso_status scatter_out(iso__transport *t, int i, double before, double after) {
    shards *self = shards_of(t);
    iso__store *store = self->with.store;
    const iso__bucket *b = &self->with.buckets->item[i];
    iso__device_event *event = iso__staged_event(self->inner, i);
    self->shard[i].failed = true;
    ISO_CHECK(!self->broken, ISO_ERR_STATE, ISO__OUT_OF_STEP, b->label);
    self->broken = true;
    ISO_TRY(iso__scale_bucket(store, b, before));
    ISO_TRY(remote_of(self)->record(store->device, ISO__QUEUE_COMPUTE, event));
    ISO_TRY(iso__nccl_reduce_scatter(self->nccl, store->gradients + b->offset,
                                     shard_elements(self, i), b->dtype, b->label, event));
    self->with.stats->bytes_node += (long long)b->bytes;
    iso__count_node_sum(&self->with.stats->traffic, self->node, b->bytes); // and the gather
    ISO_TRY(iso__staged_post_behind(self->inner, i, 1, after));
    self->shard[i] = (shard){.stage = OUT, .left = after};
    self->broken = false;
    return ISO_OK;
}

static iso_status check_nccl(void *user) { return iso__nccl_check(user); }

static iso_status advance_shards(iso__transport *t) {
    shards *self = shards_of(t);
    ISO_TRY(iso__nccl_check(self->nccl));
    return iso__transport_advance(self->inner);
}

static iso_status flush_shards(iso__transport *t) {
    return iso__transport_flush(shards_of(t)->inner);
}

// ---- In ---------------------------------------------------------------------------------------------

static bool is_unknown(const iso__transport *t, int i) {
    (void)t;
    (void)i;
    return false;
}

// The shard comes back into the GPU's memory and goes to all GPUs of the node.
static iso_status gather_shard(shards *self, int i) {
    const iso__bucket *b = &self->with.buckets->item[i];
    shard *s = &self->shard[i];
    iso__exchange_times learnt;
    if (s->stage != OUT) return ISO_OK;
    ISO_TRY(iso__staged_fetch(self->inner, i, &s->left, &learnt));
    iso__times_keep(&s->times, &learnt);
    ISO_TRY(iso__nccl_all_gather(self->nccl, self->with.store->gradients + b->offset,
                                 shard_elements(self, i), b->dtype, b->label,
                                 iso__staged_event(self->inner, i)));
    s->stage = GATHERED;
    return ISO_OK;
}

// In the order that all ranks share, whichever bucket is asked for first on this one.
static iso_status gather_down_to(shards *self, int i) {
    for (int k = self->with.buckets->count - 1; k >= i; k--) ISO_TRY(gather_shard(self, k));
    return ISO_OK;
}

static iso_status gather_in(iso__transport *t, int i, const iso__idle *idle, double *left,
                            iso__exchange_times *times) {
    shards *self = shards_of(t);
    shard *s = &self->shard[i];
    (void)idle; // no other bucket may come between: what comes back is shared out in one order
    ISO_TRY(iso__nccl_check(self->nccl));
    ISO_CHECK(!s->failed, ISO_ERR_STATE, ISO__NEVER_EXCHANGED, self->shard_bucket[i].label);
    ISO_TRY(gather_down_to(self, i));
    if (s->stage == GATHERED)
        ISO_TRY(remote_of(self)->follow(self->with.store->device, ISO__QUEUE_COMPUTE,
                                        iso__staged_event(self->inner, i)));
    s->stage = HOME;
    ISO_TRY(iso__settle_factor(self->with.store, &self->with.buckets->item[i], &s->left, left));
    iso__times_tell(&s->times, times);
    return ISO_OK;
}

static iso_status finish_nccl(iso__transport *t) { return iso__nccl_finish(shards_of(t)->nccl); }

static iso__channel *plan_of_inner(const iso__transport *t, int *bucket, int *count) {
    const iso__transport *inner = iso_container_of(t, const shards, base)->inner;
    return inner->ops->plan(inner, bucket, count);
}

// ---- Life -------------------------------------------------------------------------------------------

static bool destroy_shards(iso__transport *t) {
    shards *self = shards_of(t);
    if (!iso__transport_destroy(&self->inner)) return false;
    iso__free(self->shard_bucket);
    iso__free(self->shard);
    iso__free(self);
    return true;
}

static const iso__transport_ops shards_ops = {.name = "shards",
                                              .post = scatter_out,
                                              .advance = advance_shards,
                                              .is_back = is_unknown,
                                              .arrive = gather_in,
                                              .flush = flush_shards,
                                              .finish = finish_nccl,
                                              .plan = plan_of_inner,
                                              .destroy = destroy_shards};

// Its tail is what it has of the bucket's, at the end of which both end.
static iso__bucket shard_of(const iso__bucket *whole, size_t ranks, size_t rank) {
    iso__bucket own = *whole;
    own.bytes = whole->bytes / ranks;
    own.offset += rank * own.bytes;
    size_t behind = (ranks - rank - 1) * own.bytes;
    own.tail = whole->tail > behind ? whole->tail - behind : 0;
    if (own.tail > own.bytes) own.tail = own.bytes;
    return own;
}

static iso_status make_shard_buckets(shards *self) {
    const iso__buckets *all = self->with.buckets;
    size_t ranks = (size_t)iso_comm_size(self->node), rank = (size_t)iso_comm_rank(self->node);
    size_t count = (size_t)all->count;
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->shard), (void **)&self->shard));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->shard_bucket), (void **)&self->shard_bucket));
    for (int i = 0; i < all->count; i++)
        self->shard_bucket[i] = shard_of(&all->item[i], ranks, rank);
    self->shard_buckets = (iso__buckets){self->shard_bucket, all->count};
    return ISO_OK;
}

// Behind a sum of the node NCCL gives up by itself, and says more: copies get as long again.
static iso_status make_inner(shards *self, iso_comm *across) {
    iso__transport *host = NULL;
    iso__transport_setup setup = self->with;
    setup.buckets = &self->shard_buckets;
    ISO_TRY(iso__transport_host(&setup, across, &host));
    iso__staged_config config = {
        .limit_s = 2 * iso__comm_timeout(self->node), .check = check_nccl, .user = self->nccl};
    self->inner = host; // until staged has taken it: all ranks destroy the same
    return iso_comm_agree(across, iso__transport_staged(&setup, &config, host, &self->inner));
}

iso_status iso__transport_shards(const iso__transport_setup *setup, iso__nccl *nccl, iso_comm *node,
                                 iso_comm *across, iso__transport **out) {
    iso_status status;
    shards *self = NULL;
    ISO_TRY_GOTO(iso_comm_agree(across, iso__alloc_zero(sizeof(*self), (void **)&self)));
    *self = (shards){.with = *setup, .nccl = nccl, .node = node};
    ISO_TRY_GOTO(iso_comm_agree(across, make_shard_buckets(self)));
    ISO_TRY_GOTO(make_inner(self, across));
    self->base = (iso__transport){.ops = &shards_ops,
                                  .in_order = true,
                                  .launches = true,
                                  .travels = true,
                                  .nccl = true,
                                  .wire_bytes = self->inner->wire_bytes};
    *out = &self->base;
    return ISO_OK;
fail:
    if (self) destroy_shards(&self->base);
    return status;
}
