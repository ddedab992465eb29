// SPDX-License-Identifier: MIT
// Sums gradients of GPUs by NCCL, inside a node or between all ranks: the host enters the sums into
// the GPU's queues and does not wait for them.
//
// Why no rank can wait for ever: all ranks of the communicator call NCCL in the same order, that of
// the buckets, and a list begins when the previous one is complete on this rank. Between two calls
// of a list a rank waits for nothing (in blocking mode: for the previous bucket, which is
// complete), so all ranks that report their gradients make the call. On the GPU, the call waits for
// local compute only, which in turn waits for earlier calls only. Before a reducer changes its
// scope, and with it the communicator, all buckets have arrived, so the compute queue follows all
// sums of one before the first of the other.
#include "exchange/transports.h"

#include "comm/traffic.h"

typedef struct sum {
    bool posted; // once its event is reached, the device has the sum
    bool failed; // posting failed
    double left;
    iso__device_event *event;
} sum;

typedef struct gpus {
    iso__transport base;
    iso__transport_setup with;
    iso__nccl *nccl; // borrowed
    iso_comm *comm;  // borrowed: its ranks
    iso__sum_cost cost;
    sum *sum;    // [buckets]
    bool broken; // a sum was not entered
    size_t *wire_bytes;
} gpus;

static gpus *gpus_of(iso__transport *t) { return iso_container_of(t, gpus, base); }

static const iso__remote_ops *remote_of(const gpus *self) {
    return iso__store_remote(self->with.store);
}

static iso_status enter_sum(iso__transport *t, int i, double before, double after) {
    gpus *self = gpus_of(t);
    iso__store *store = self->with.store;
    const iso__bucket *b = &self->with.buckets->item[i];
    iso__exchange_stats *stats = self->with.stats;
    sum *s = &self->sum[i];
    s->failed = true;
    ISO_CHECK(!self->broken, ISO_ERR_STATE, ISO__OUT_OF_STEP, b->label);
    self->broken = true;
    ISO_TRY(iso__scale_bucket(store, b, before));
    ISO_TRY(remote_of(self)->record(store->device, ISO__QUEUE_COMPUTE, s->event));
    ISO_TRY(iso__nccl_all_reduce(self->nccl, store->gradients + b->offset,
                                 b->bytes / iso_dtype_size(b->dtype), b->dtype, b->label,
                                 s->event));
    s->posted = true;
    s->failed = self->broken = false;
    s->left = after;
    stats->exchanges++;
    *(self->with.over_world ? &stats->bytes_world : &stats->bytes_node) += (long long)b->bytes;
    iso__count_cost(&stats->traffic, self->comm, &self->cost, b->bytes);
    return ISO_OK;
}

static iso_status check_nccl(iso__transport *t) { return iso__nccl_check(gpus_of(t)->nccl); }

static bool is_unknown(const iso__transport *t, int i) {
    (void)t;
    (void)i;
    return false;
}

static iso_status let_compute_follow(iso__transport *t, int i, const iso__idle *idle, double *left,
                                     iso__exchange_times *times) {
    gpus *self = gpus_of(t);
    const iso__bucket *b = &self->with.buckets->item[i];
    sum *s = &self->sum[i];
    (void)idle;
    if (times) times->known = false;
    ISO_TRY(iso__nccl_check(self->nccl));
    ISO_CHECK(!s->failed, ISO_ERR_STATE, ISO__NEVER_EXCHANGED, b->label);
    if (s->posted)
        ISO_TRY(remote_of(self)->follow(self->with.store->device, ISO__QUEUE_COMPUTE, s->event));
    s->posted = false;
    return iso__settle_factor(self->with.store, b, &s->left, left);
}

// The program may read the gradients after this call, so errors must be known before.
static iso_status finish_nccl(iso__transport *t) { return iso__nccl_finish(gpus_of(t)->nccl); }

static bool destroy_gpus(iso__transport *t) {
    gpus *self = gpus_of(t);
    for (int i = 0; self->sum && i < self->with.buckets->count; i++)
        remote_of(self)->event_destroy(self->with.store->device, &self->sum[i].event);
    iso__free(self->sum);
    iso__free(self->wire_bytes);
    iso__free(self);
    return true;
}

static const iso__transport_ops nccl_ops = {.name = "nccl",
                                            .post = enter_sum,
                                            .advance = check_nccl,
                                            .is_back = is_unknown,
                                            .arrive = let_compute_follow,
                                            .finish = finish_nccl,
                                            .destroy = destroy_gpus};

iso_status iso__transport_nccl(const iso__transport_setup *setup, iso__nccl *nccl, iso_comm *comm,
                               iso__transport **out) {
    iso_status status;
    size_t count = (size_t)setup->buckets->count;
    gpus *self;
    ISO_TRY(iso__alloc_zero(sizeof(*self), (void **)&self));
    *self = (gpus){.base = {.ops = &nccl_ops,
                            .in_order = true,
                            .launches = true,
                            .travels = true,
                            .nccl = true},
                   .with = *setup,
                   .nccl = nccl,
                   .comm = comm,
                   .cost = iso__ring_cost(comm)};
    ISO_TRY_GOTO(iso__alloc_zero(count * sizeof(*self->sum), (void **)&self->sum));
    ISO_TRY_GOTO(iso__alloc_zero(count * sizeof(*self->wire_bytes), (void **)&self->wire_bytes));
    self->base.wire_bytes = self->wire_bytes;
    for (size_t i = 0; i < count; i++) {
        self->wire_bytes[i] = setup->buckets->item[i].bytes;
        ISO_TRY_GOTO(remote_of(self)->event_create(setup->store->device, &self->sum[i].event));
    }
    *out = &self->base;
    return ISO_OK;
fail:
    destroy_gpus(&self->base);
    return status;
}
