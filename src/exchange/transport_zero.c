// SPDX-License-Identifier: MIT
// Buckets whose updates are divided among the ranks (ZeRO): a reduce-scatter and, after the
// caller has made the updates, an all-gather. Where the ranks of each of several nodes divide
// updates, the scatter sums over all nodes, or another transport brings the whole average. With a
// communication hook the latter always does.
//
// Why no rank waits for ever: scatters and gathers each have a channel. All ranks post all scatters
// before they wait for one, so scatters complete (channel.h). Gathers are planned from the last
// bucket down, and a rank publishes a bucket and all later ones before it waits for the bucket's
// values. So gathers complete, too. Sums over more ranks than those that divide updates do not wait
// for gathers. With a hook in phases, a rank that waits for the values of a bucket has awaited the
// last phases of this bucket and of all later ones. So it has made ready everything that leaves
// before these phases (transport_phases.c). While it waits, it begins later phases of other
// buckets. So a rank that first awaits all buckets does not wait for ever either.
#include "exchange/transports.h"

#include "comm/traffic.h"

#include <isotherm/trace.h>

// The bytes of each rank's block in one chunk, and the bytes that may be under way. Blocks travel
// directly between ranks. Above 64 KB, Open MPI's TCP transport asks the receiver before it sends,
// and the answers wait behind the data of the other direction.
#define CHUNK_BYTES  ((size_t)60 * 1024)
#define WINDOW_BYTES (8 * CHUNK_BYTES)
// A scatter receives a block from each rank. With more than four ranks fewer bytes of each are
// under way, so that the memory for all of them hardly grows with the ranks.
#define SCATTER_BYTES (32 * CHUNK_BYTES) // of all blocks
#define LEAST_CHUNK   ((size_t)8 * 1024)

enum { SCATTER, GATHER, CHANNELS };

// One of a bucket's two exchanges.
typedef struct leg {
    int item; // of its channel
    bool posted;
    iso__exchange_times times; // of the latest exchange, until reported
} leg;

typedef struct zero {
    iso__transport base;
    iso__transport_setup with;
    iso_comm *owners;
    iso_comm *all; // whose gradients scatters sum
    iso__channel *channel[CHANNELS];
    leg *leg[CHANNELS];   // [buckets]
    double *left;         // [buckets]: makes the sum an average
    size_t *wire_bytes;   // [buckets]
    iso__transport *sums; // brings whole averages; NULL: scatters bring those of shards
} zero;

static zero *zero_of(iso__transport *t) { return iso_container_of(t, zero, base); }
static const zero *const_zero_of(const iso__transport *t) {
    return iso_container_of(t, const zero, base);
}

static const iso__bucket *bucket_of(const zero *self, int i) {
    return &self->with.buckets->item[i];
}

// ---- Both exchanges ---------------------------------------------------------------------------------

static iso_status begin_leg(zero *self, int which, int i) {
    leg *l = &self->leg[which][i];
    ISO_CHECK(!l->posted, ISO_ERR_STATE,
              "the %s of \"%s\" were posted again while their exchange is under way",
              which == SCATTER ? "gradients" : "values", bucket_of(self, i)->label);
    l->posted = true; // even if the call below fails, chunks may be under way
    l->times = (iso__exchange_times){.known = false};
    ISO_TRY(iso__channel_ready(self->channel[which], l->item));
    iso__channel_count(self->channel[which], l->item, &self->with.stats->traffic);
    return ISO_OK;
}

static bool leg_is_done(const zero *self, int which, int i) {
    const leg *l = &self->leg[which][i];
    return !l->posted || iso__channel_is_done(self->channel[which], l->item);
}

static iso_status await_leg(zero *self, int which, int i, const iso__idle *idle) {
    leg *l = &self->leg[which][i];
    if (!l->posted) return ISO_OK;
    iso__times_begin_wait(&l->times);
    iso_status status = iso__channel_wait(self->channel[which], l->item, idle ? idle->call : NULL,
                                          idle ? idle->user : NULL);
    l->times.wait_end_ns = iso_now();
    ISO_TRY(status);
    l->posted = false;
    iso__times_of_channel(&l->times, self->channel[which], l->item);
    return ISO_OK;
}

// ---- Gradients --------------------------------------------------------------------------------------

static iso_status post_bucket(iso__transport *t, int i, double before, double after) {
    zero *self = zero_of(t);
    const iso__bucket *b = bucket_of(self, i);
    iso__exchange_stats *stats = self->with.stats;
    if (self->sums) return self->sums->ops->post(self->sums, i, before, after);
    if (!self->leg[SCATTER][i].posted)
        iso__store_scale_arena(self->with.store, b->offset, b->bytes, b->dtype, before);
    self->left[i] = after;
    ISO_TRY(begin_leg(self, SCATTER, i));
    stats->exchanges++;
    *(self->with.over_world ? &stats->bytes_world : &stats->bytes_node) += (long long)b->bytes;
    return ISO_OK;
}

static iso_status advance_sums(iso__transport *t) {
    zero *self = zero_of(t);
    return self->sums ? iso__transport_advance(self->sums) : ISO_OK;
}

static iso_status settle_sums(iso__transport *t) {
    zero *self = zero_of(t);
    return self->sums ? iso__transport_settle(self->sums) : ISO_OK;
}

static bool is_back(const iso__transport *t, int i) {
    const zero *self = const_zero_of(t);
    if (self->sums) return self->sums->ops->is_back(self->sums, i);
    return leg_is_done(self, SCATTER, i);
}

// Leaves the times to arrive().
static iso_status await_back(iso__transport *t, int i) {
    zero *self = zero_of(t);
    const leg *l = &self->leg[SCATTER][i];
    if (self->sums || !l->posted) return ISO_OK;
    return iso__channel_wait(self->channel[SCATTER], l->item, NULL, NULL);
}

static iso_status arrive_bucket(iso__transport *t, int i, const iso__idle *idle, double *left,
                                iso__exchange_times *times) {
    zero *self = zero_of(t);
    const iso__bucket *b = bucket_of(self, i);
    if (self->sums) return self->sums->ops->arrive(self->sums, i, idle, left, times);
    ISO_TRY(await_leg(self, SCATTER, i, idle));
    iso__times_tell(&self->leg[SCATTER][i].times, times);
    if (left) {
        *left = self->left[i];
        return ISO_OK;
    }
    iso__shard own = iso__shard_of(t, b, t->shard);
    iso__store_scale_arena(self->with.store, own.offset, own.bytes, b->dtype, self->left[i]);
    self->left[i] = 1;
    return ISO_OK;
}

// ---- Values -------------------------------------------------------------------------------------

static iso_status publish_bucket(iso__transport *t, int i) {
    return begin_leg(zero_of(t), GATHER, i);
}

// What a thread that waits for values does meanwhile: a rank that has yet to publish may wait for
// later phases of a hook on this rank.
typedef struct meanwhile {
    iso__transport *sums;
    const iso__idle *idle;
    iso_status status;
} meanwhile;

static bool do_meanwhile(void *user) {
    meanwhile *m = user;
    if (m->status == ISO_OK) m->status = iso__transport_advance(m->sums);
    return m->status == ISO_OK && m->idle && m->idle->call(m->idle->user);
}

static iso_status collect_bucket(iso__transport *t, int i, const iso__idle *idle,
                                 iso__exchange_times *times) {
    zero *self = zero_of(t);
    meanwhile m = {self->sums, idle, ISO_OK};
    const iso__idle both = {.call = do_meanwhile, .user = &m};
    ISO_TRY(await_leg(self, GATHER, i, self->sums ? &both : idle));
    ISO_TRY(m.status);
    iso__times_tell(&self->leg[GATHER][i].times, times);
    return ISO_OK;
}

static bool is_collected(const iso__transport *t, int i) {
    return leg_is_done(const_zero_of(t), GATHER, i);
}

// ---- Life -------------------------------------------------------------------------------------------

static bool destroy_zero(iso__transport *t) {
    zero *self = zero_of(t);
    bool all = true;
    for (int c = 0; c < CHANNELS; c++)
        if (!iso__channel_destroy(&self->channel[c])) all = false;
    if (!iso__transport_destroy(&self->sums)) all = false;
    if (!all) return false;
    iso_comm_destroy(&self->all);
    iso_comm_destroy(&self->owners);
    for (int c = 0; c < CHANNELS; c++) iso__free(self->leg[c]);
    iso__free(self->left);
    iso__free(self->wire_bytes);
    iso__free(self);
    return true;
}

static const iso__transport_ops zero_ops = {.name = "zero",
                                            .post = post_bucket,
                                            .advance = advance_sums,
                                            .is_back = is_back,
                                            .arrive = arrive_bucket,
                                            .await_back = await_back,
                                            .publish = publish_bucket,
                                            .collect = collect_bucket,
                                            .is_collected = is_collected,
                                            .settle = settle_sums,
                                            .destroy = destroy_zero};

static iso_status allocate_zero(const iso__transport_setup *setup, const iso__zero_ranks *ranks,
                                zero **out, iso__channel_item **item) {
    size_t count = (size_t)setup->buckets->count;
    ISO_TRY(iso__alloc_zero(count * sizeof(**item), (void **)item));
    ISO_TRY(iso__alloc_zero(sizeof(zero), (void **)out));
    zero *self = *out;
    *self = (zero){.base = {.ops = &zero_ops, .travels = true}, .with = *setup};
    self->owners = iso_comm_retain(ranks->owners);
    self->all = iso_comm_retain(ranks->all);
    self->base.shards = iso_comm_size(self->owners);
    self->base.shard = iso_comm_rank(self->owners);
    self->base.shared_memory =
        iso__comm_is_shared(self->owners, setup->store->arena, setup->store->bytes);
    for (int c = 0; c < CHANNELS; c++)
        ISO_TRY(iso__alloc_zero(count * sizeof(leg), (void **)&self->leg[c]));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->left), (void **)&self->left));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->wire_bytes), (void **)&self->wire_bytes));
    for (size_t i = 0; i < count; i++) self->wire_bytes[i] = setup->buckets->item[i].bytes;
    self->base.wire_bytes = self->wire_bytes;
    return ISO_OK;
}

static iso__channel_item item_of(const zero *self, int which, int i) {
    const iso__bucket *b = bucket_of(self, i);
    iso__operation scatter = self->all == self->owners ? ISO__SCATTER : ISO__NODE_SCATTER;
    int blocks = which == SCATTER ? iso_comm_size(self->all) : self->base.shards;
    return (iso__channel_item){.data = self->with.store->arena + b->offset,
                               .bytes = b->bytes / (size_t)blocks,
                               .dtype = b->dtype,
                               .label = b->label,
                               .operation = which == SCATTER ? scatter : ISO__GATHER};
}

static size_t at_most(size_t a, size_t b) { return a < b ? a : b; }

// Scatters leave in the order in which backward completes buckets; gathers from the last bucket
// down, the order in which forward needs them.
static iso_status open_channel(zero *self, int which, iso__channel_item *item) {
    int buckets = self->with.buckets->count, count = 0;
    for (int k = 0; k < buckets; k++) {
        int i = which == SCATTER ? k : buckets - 1 - k;
        if (bucket_of(self, i)->local) continue;
        self->leg[which][i].item = count;
        item[count++] = item_of(self, which, i);
    }
    if (count == 0) return ISO_OK;
    if (which == GATHER)
        return iso__channel_create(self->owners, item, count, CHUNK_BYTES, WINDOW_BYTES,
                                   &self->channel[GATHER]);
    size_t window = at_most(SCATTER_BYTES / (size_t)iso_comm_size(self->all), WINDOW_BYTES);
    size_t chunk = at_most(window < LEAST_CHUNK ? LEAST_CHUNK : window, CHUNK_BYTES);
    return iso__channel_create(self->all, item, count, chunk, window, &self->channel[SCATTER]);
}

static void note_ways(zero *self) {
    const iso__transport *sums = self->sums;
    const iso__channel *scatters = self->channel[SCATTER];
    self->base.whole = sums != NULL;
    if (scatters) self->base.two_levels = iso__channel_in_two_levels(scatters, 0);
    if (!sums) return;
    self->base.wire_bytes = sums->wire_bytes;
    self->base.shared_memory = sums->shared_memory;
    self->base.two_levels = sums->two_levels;
    self->base.pairwise = sums->pairwise;
}

iso_status iso__transport_zero(const iso__transport_setup *setup, const iso__zero_ranks *ranks,
                               iso__transport *sums, iso__transport **out) {
    iso_status status;
    zero *self = NULL;
    iso__channel_item *item = NULL;
    ISO_TRY_GOTO(iso_comm_agree(ranks->all, allocate_zero(setup, ranks, &self, &item)));
    self->sums = sums;
    if (!sums) ISO_TRY_GOTO(open_channel(self, SCATTER, item));
    ISO_TRY_GOTO(iso_comm_agree(ranks->all, open_channel(self, GATHER, item)));
    iso__free(item);
    note_ways(self);
    *out = &self->base;
    return ISO_OK;
fail:
    iso__free(item);
    if (self) self->sums = NULL; // the caller's
    if (self) destroy_zero(&self->base);
    return status;
}
