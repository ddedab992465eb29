// SPDX-License-Identifier: MIT
// Gradients of GPUs on several nodes with equally many ranks. A reduce-scatter leaves each rank
// with one shard of its node's sum. The shard goes through the host and is summed with the same
// shard of the other nodes. An all-gather then gives every rank of the node all shards.
//
// Why no rank can wait for ever: all ranks of a node call NCCL in the same order. For each list,
// the reduce-scatters come first, in the order of the buckets, then the all-gathers, from the last
// bucket (which the next forward needs first) to the first. In blocking mode, the all-gather of a
// bucket follows its reduce-scatter immediately. A list begins when the previous one is complete on
// this rank. Take the first call in this order, over all nodes, that some rank has not made or that
// is not complete on some GPU.
//   - A reduce-scatter: between two of a list a rank waits for nothing (in blocking mode: for the
//     previous bucket, which is complete), so all ranks that report their gradients make the call.
//     On the GPU it waits for local compute only, which in turn waits for earlier calls only.
//   - An all-gather: a rank makes it when the shard is back from the other nodes. All sums of its
//     list come earlier, so they are complete, and every rank's shards reach its host. There they
//     travel through channels, whose order no rank violates (channel.h), and come back.
// Hence every rank makes the call, and it completes. The program must meet one condition: after a
// step, a rank may delay its next call, but before that call it must not wait for another rank of
// its node to *read* values of this step. That read waits for the all-gather that the late rank has
// not made. A program is safe if all ranks complete a step (iso_reducer_finish) before anything
// else. A reducer uses one NCCL communicator at a time (transport_nccl.c); programs with several
// reducers must use them in the same order on all ranks in any case.
#include "exchange/transports.h"

#include "comm/traffic.h"

// The state of a bucket: OUT, its shard travels; GATHERED, the all-gather is in the GPU's queue;
// HOME, the compute queue waits for it, or nothing is under way.
typedef enum stage { HOME, OUT, GATHERED } stage;

typedef struct shard {
    stage stage;
    bool failed; // posting failed
    double left;
    iso__exchange_times times; // of its shard's exchange, until reported
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

// Enters the node's sum behind all work launched so far, and the copy of this rank's shard to the
// host behind the sum.
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
    iso__count_node_sum(&self->with.stats->traffic, self->node, b->bytes); // and the all-gather
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

// Copies the summed shard back to the GPU, and enters the all-gather.
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

// Gathers buckets from the last one down to i: in the order of all ranks, whichever bucket this
// rank needs first.
static iso_status gather_down_to(shards *self, int i) {
    for (int k = self->with.buckets->count - 1; k >= i; k--) ISO_TRY(gather_shard(self, k));
    return ISO_OK;
}

static iso_status gather_in(iso__transport *t, int i, const iso__idle *idle, double *left,
                            iso__exchange_times *times) {
    shards *self = shards_of(t);
    shard *s = &self->shard[i];
    (void)idle; // unused: all-gathers have one order, so no other bucket may come in between
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

// The tail of a shard is its overlap with the tail of the bucket, which ends where the bucket ends.
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

// A copy may wait for a sum of NCCL, which has its own time-out and a better message. So copies get
// twice the time-out.
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
