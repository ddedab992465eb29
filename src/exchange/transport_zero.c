// SPDX-License-Identifier: MIT
// Buckets whose updates are divided among the ranks (ZeRO): a reduce-scatter and, after the
// caller has made the updates, an all-gather. Where the ranks of each of several nodes divide
// updates, the ranks with the same shard sum it between nodes after the reduce-scatter. With a
// communication hook, and in memory that a node shares, another transport brings the whole average
// instead.
//
// Why no rank waits for ever: scatters and gathers each have a channel. All ranks post all scatters
// before they wait for one, so scatters complete (channel.h). The plan of the gathers is from the
// last bucket down, and a rank publishes a bucket and all later ones before it waits for its
// values. So gathers complete, too. Sums over more ranks than those that divide updates do not wait
// for gathers. Sums between nodes have a channel, too, in the order of the buckets. Before a rank
// waits for one of them, it awaits the scatters of this bucket and of all earlier ones, and makes
// their sums ready. A rank that waits for values makes ready what is scattered meanwhile. With a
// hook in phases, a rank that waits for the values of a bucket has awaited the last phases of this
// bucket and of all later ones. Thereby it has made ready all that leaves before these phases
// (transport_phases.c). While it waits, it begins later phases of other buckets. So a rank that
// first awaits all buckets gets there, too.
#include "exchange/transports.h"

#include "comm/traffic.h"

#include <isotherm/trace.h>

// The bytes of each rank's block in one chunk, and the bytes that may be under way. Blocks travel
// directly between ranks. Above 64 KB, Open MPI's TCP transport asks the receiver before it sends,
// and the answers wait behind the data of the other direction.
#define CHUNK_BYTES  ((size_t)60 * 1024)
#define WINDOW_BYTES (8 * CHUNK_BYTES)
// The same for sums between nodes, which send half a chunk at a time (transport_host.c).
#define ACROSS_BYTES (2 * CHUNK_BYTES)

enum { SCATTER, ACROSS, GATHER, CHANNELS };

// One of a bucket's exchanges.
typedef struct leg {
    int item; // of its channel
    bool posted;
    iso__exchange_times times; // of the latest exchange, until reported
} leg;

typedef struct zero {
    iso__transport base;
    iso__transport_setup with;
    iso_comm *comm;
    iso_comm *across; // the ranks with the same shard of all nodes; NULL: comm has all ranks
    int next;         // all earlier buckets that are scattered go across
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

static void count_bucket(const zero *self, int i) {
    iso__exchange_stats *stats = self->with.stats;
    size_t bytes = bucket_of(self, i)->bytes;
    bool over_world = self->with.over_world && !self->across;
    stats->exchanges++;
    *(over_world ? &stats->bytes_world : &stats->bytes_node) += (long long)bytes;
    if (self->across) stats->bytes_world += (long long)(bytes / (size_t)self->base.shards);
}

static iso_status post_bucket(iso__transport *t, int i, double before, double after) {
    zero *self = zero_of(t);
    const iso__bucket *b = bucket_of(self, i);
    if (self->sums) return self->sums->ops->post(self->sums, i, before, after);
    if (!self->leg[SCATTER][i].posted)
        iso__store_scale_arena(self->with.store, b->offset, b->bytes, b->dtype, before);
    self->left[i] = after;
    if (i < self->next) self->next = i;
    ISO_TRY(begin_leg(self, SCATTER, i));
    count_bucket(self, i);
    return ISO_OK;
}

static bool is_scattered(const iso__transport *t, int i) {
    return leg_is_done(const_zero_of(t), SCATTER, i);
}

// Leaves the times to arrive().
static iso_status await_scattered(iso__transport *t, int i) {
    zero *self = zero_of(t);
    const leg *l = &self->leg[SCATTER][i];
    if (!l->posted) return ISO_OK;
    return iso__channel_wait(self->channel[SCATTER], l->item, NULL, NULL);
}

// ---- Shards go to the other nodes -------------------------------------------------------------------

// The scatter is done: this rank's shard joins those of the other nodes.
static iso_status go_across(zero *self, int i) {
    leg *from = &self->leg[SCATTER][i];
    ISO_TRY(iso__channel_wait(self->channel[SCATTER], from->item, NULL, NULL)); // its error
    from->posted = false;
    iso__times_of_channel(&from->times, self->channel[SCATTER], from->item);
    return begin_leg(self, ACROSS, i);
}

// Shards of buckets that are scattered, without waiting.
static iso_status advance_across(zero *self) {
    int count = self->across ? self->with.buckets->count : 0;
    for (; self->next < count; self->next++) {
        int i = self->next;
        bool leaves = self->leg[SCATTER][i].posted;
        if (bucket_of(self, i)->local || (!leaves && self->leg[ACROSS][i].posted)) continue;
        if (!leaves || !leg_is_done(self, SCATTER, i)) break;
        ISO_TRY(go_across(self, i));
    }
    return ISO_OK;
}

// Those of buckets up to `last`, which waits for their scatters.
static iso_status send_across(zero *self, int last, const iso__idle *idle) {
    if (!self->across) return ISO_OK;
    for (int i = self->next; i <= last; i++) {
        const leg *l = &self->leg[SCATTER][i];
        if (!l->posted) continue;
        ISO_TRY(iso__channel_wait(self->channel[SCATTER], l->item, idle ? idle->call : NULL,
                                  idle ? idle->user : NULL));
        if (l->posted) ISO_TRY(go_across(self, i)); // else meanwhile
    }
    return ISO_OK;
}

static iso_status await_across(zero *self, int i, const iso__idle *idle) {
    leg *l = &self->leg[ACROSS][i];
    int64_t start = iso_now();
    ISO_TRY(send_across(self, i, idle));
    if (l->posted && l->times.wait_start_ns == 0) l->times.wait_start_ns = start;
    ISO_TRY(await_leg(self, ACROSS, i, idle));
    const iso__exchange_times *first = &self->leg[SCATTER][i].times;
    l->times.ready_ns = first->ready_ns;
    l->times.posted_ns = first->posted_ns;
    return ISO_OK;
}

// ---- Averages come back -----------------------------------------------------------------------------

static iso_status advance_averages(iso__transport *t) {
    zero *self = zero_of(t);
    return self->sums ? iso__transport_advance(self->sums) : advance_across(self);
}

static iso_status settle_averages(iso__transport *t) {
    zero *self = zero_of(t);
    return self->sums ? iso__transport_settle(self->sums)
                      : send_across(self, self->with.buckets->count - 1, NULL);
}

static bool is_back(const iso__transport *t, int i) {
    const zero *self = const_zero_of(t);
    if (self->sums) return self->sums->ops->is_back(self->sums, i);
    if (self->across && self->leg[SCATTER][i].posted) return false;
    return leg_is_done(self, self->across ? ACROSS : SCATTER, i);
}

static iso_status arrive_bucket(iso__transport *t, int i, const iso__idle *idle, double *left,
                                iso__exchange_times *times) {
    zero *self = zero_of(t);
    const iso__bucket *b = bucket_of(self, i);
    if (self->sums) return self->sums->ops->arrive(self->sums, i, idle, left, times);
    ISO_TRY(self->across ? await_across(self, i, idle) : await_leg(self, SCATTER, i, idle));
    iso__times_tell(&self->leg[self->across ? ACROSS : SCATTER][i].times, times);
    if (left) {
        *left = self->left[i];
        return ISO_OK;
    }
    iso__shard own = iso__shard_of(t, b, t->shard);
    iso__store_scale_arena(self->with.store, own.offset, own.bytes, b->dtype, self->left[i]);
    self->left[i] = 1;
    return ISO_OK;
}

// ---- What was made of them --------------------------------------------------------------------------

static iso_status publish_bucket(iso__transport *t, int i) {
    return begin_leg(zero_of(t), GATHER, i);
}

// What a thread that waits for values does meanwhile: a rank that has yet to publish may wait for
// later phases of a hook on this rank, or for its shards.
typedef struct meanwhile {
    iso__transport *transport;
    const iso__idle *idle;
    iso_status status;
} meanwhile;

static bool do_meanwhile(void *user) {
    meanwhile *m = user;
    if (m->status == ISO_OK) m->status = iso__transport_advance(m->transport);
    return m->status == ISO_OK && m->idle && m->idle->call(m->idle->user);
}

static iso_status collect_bucket(iso__transport *t, int i, const iso__idle *idle,
                                 iso__exchange_times *times) {
    zero *self = zero_of(t);
    meanwhile m = {t, idle, ISO_OK};
    const iso__idle both = {.call = do_meanwhile, .user = &m};
    ISO_TRY(await_leg(self, GATHER, i, self->sums || self->across ? &both : idle));
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
    iso_comm_destroy(&self->across);
    iso_comm_destroy(&self->comm);
    for (int c = 0; c < CHANNELS; c++) iso__free(self->leg[c]);
    iso__free(self->left);
    iso__free(self->wire_bytes);
    iso__free(self);
    return true;
}

static const iso__transport_ops zero_ops = {.name = "zero",
                                            .post = post_bucket,
                                            .advance = advance_averages,
                                            .is_back = is_back,
                                            .arrive = arrive_bucket,
                                            .is_scattered = is_scattered,
                                            .await_scattered = await_scattered,
                                            .publish = publish_bucket,
                                            .collect = collect_bucket,
                                            .is_collected = is_collected,
                                            .settle = settle_averages,
                                            .destroy = destroy_zero};

static iso_status allocate_zero(const iso__transport_setup *setup, iso_comm *comm, zero **out,
                                iso__channel_item **item) {
    size_t count = (size_t)setup->buckets->count;
    ISO_TRY(iso__alloc_zero(count * sizeof(**item), (void **)item));
    ISO_TRY(iso__alloc_zero(sizeof(zero), (void **)out));
    zero *self = *out;
    *self = (zero){.base = {.ops = &zero_ops, .travels = true}, .with = *setup};
    self->comm = iso_comm_retain(comm);
    self->base.shards = iso_comm_size(comm);
    self->base.shard = iso_comm_rank(comm);
    self->base.shared_memory = iso__comm_is_shared(comm, setup->store->arena, setup->store->bytes);
    for (int c = 0; c < CHANNELS; c++)
        ISO_TRY(iso__alloc_zero(count * sizeof(leg), (void **)&self->leg[c]));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->left), (void **)&self->left));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->wire_bytes), (void **)&self->wire_bytes));
    for (size_t i = 0; i < count; i++) self->wire_bytes[i] = setup->buckets->item[i].bytes;
    self->base.wire_bytes = self->wire_bytes;
    return ISO_OK;
}

static iso__channel_item item_of(const zero *self, int which, int i) {
    static const iso__operation operations[] = {ISO__SCATTER, ISO__SUM, ISO__GATHER};
    const iso__bucket *b = bucket_of(self, i);
    iso__shard shard = iso__shard_of(&self->base, b, which == ACROSS ? self->base.shard : 0);
    return (iso__channel_item){.data = self->with.store->arena + shard.offset,
                               .bytes = shard.bytes,
                               .dtype = b->dtype,
                               .label = b->label,
                               .operation = operations[which]};
}

// Gradients leave in the order in which backward completes buckets; gathers from the last bucket
// down, the order in which forward needs them.
static int list_items(zero *self, int which, iso__channel_item *item) {
    int buckets = self->with.buckets->count, count = 0;
    for (int k = 0; k < buckets; k++) {
        int i = which == GATHER ? buckets - 1 - k : k;
        if (bucket_of(self, i)->local) continue;
        self->leg[which][i].item = count;
        item[count++] = item_of(self, which, i);
    }
    return count;
}

static iso_status open_channel(zero *self, int which, iso__channel_item *item) {
    int count = list_items(self, which, item);
    if (count == 0) return ISO_OK;
    return iso__channel_create(self->comm, item, count, CHUNK_BYTES, WINDOW_BYTES,
                               &self->channel[which]);
}

static iso_status open_channels(zero *self, iso__channel_item *item) {
    if (!self->sums) ISO_TRY(open_channel(self, SCATTER, item));
    return open_channel(self, GATHER, item);
}

// Collective over the ranks of all nodes, which may have failed before, each for itself.
static iso_status open_across(zero *self, const iso__zero_ranks *ranks, iso__channel_item *item) {
    int count = list_items(self, ACROSS, item);
    iso__channel_needs needs = iso__channel_needs_for(ranks->across, NULL);
    size_t chunk = needs.chunk > ACROSS_BYTES ? needs.chunk : ACROSS_BYTES;
    size_t window = (size_t)needs.under_way * chunk;
    self->across = iso_comm_retain(ranks->across);
    if (count == 0) return ISO_OK;
    ISO_TRY(iso__channel_create(ranks->across, item, count, chunk, window, &self->channel[ACROSS]));
    self->base.two_levels = true;
    for (int k = 0; k < count; k++)
        self->base.pairwise |= iso__channel_in_pairs(self->channel[ACROSS], k);
    return ISO_OK;
}

static void take_ways_of(iso__transport *t, const iso__transport *sums) {
    t->whole = true;
    t->wire_bytes = sums->wire_bytes;
    t->shared_memory = sums->shared_memory;
    t->two_levels = sums->two_levels;
    t->pairwise = sums->pairwise;
}

static iso_status create_zero(const iso__transport_setup *setup, const iso__zero_ranks *ranks,
                              iso__transport *sums, zero **out, iso__channel_item **item) {
    iso_comm *comm = ranks->owners;
    ISO_TRY(iso_comm_agree(comm, allocate_zero(setup, comm, out, item)));
    (*out)->sums = sums;
    if (sums) take_ways_of(&(*out)->base, sums);
    return open_channels(*out, *item);
}

iso_status iso__transport_zero(const iso__transport_setup *setup, const iso__zero_ranks *ranks,
                               iso__transport *sums, iso__transport **out) {
    zero *self = NULL;
    iso__channel_item *item = NULL;
    iso_status status = create_zero(setup, ranks, sums, &self, &item);
    if (ranks->across) {
        status = iso_comm_agree(setup->world, status);
        if (status == ISO_OK) status = open_across(self, ranks, item);
    }
    iso__free(item);
    if (status >= 0) *out = &self->base;
    if (status >= 0 || !self) return status;
    self->sums = NULL; // the caller's
    destroy_zero(&self->base);
    return status;
}
