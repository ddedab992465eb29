// SPDX-License-Identifier: MIT
// Buckets that travel through the host's memory: by channels, as messages or as sums in memory that
// the ranks of a node share.
#include "exchange/transports.h"

#include "comm/traffic.h"

// Short buckets have their own channel, so that they do not wait behind the chunks of long ones.
enum { SHORT, LONG, CHANNELS };

// The size of a chunk of a long bucket, and the bytes that may be under way, until a plan replaces
// them: enough to fill a link, and little for a short bucket to wait behind. An all-reduce sends
// half a chunk at a time. From 64 KB on, Open MPI's TCP transport asks the receiver before it
// sends, and the answers wait behind the data of the other direction: with chunks of 128 KB,
// exchanges were measured to take 20 % longer on 2 hosts, and 40 % on 4.
#define CHUNK_BYTES  ((size_t)120 * 1024)
#define WINDOW_BYTES (4 * CHUNK_BYTES)

typedef struct parcel {
    int channel, item; // the bucket is item `item` of channel `channel`
    bool posted;
    bool failed;               // posting failed in the hook
    bool coded;                // the sum is in the wire
    double left;               // makes the sum an average
    iso__exchange_times times; // of the latest exchange, until reported
} parcel;

typedef struct host {
    iso__transport base;
    iso__transport_setup with;
    iso_comm *comm;
    iso__channel *channel[CHANNELS]; // NULL: there are no such buckets
    parcel *parcel;                  // [buckets]
    size_t *wire_bytes;              // [buckets]
} host;

static host *host_of(iso__transport *t) { return iso_container_of(t, host, base); }
static const host *const_host_of(const iso__transport *t) {
    return iso_container_of(t, const host, base);
}

static iso__channel *channel_of(const host *self, int i) {
    return self->channel[self->parcel[i].channel];
}

// ---- Post -------------------------------------------------------------------------------------------

static iso_status prepare_bucket(host *self, int i, double before) {
    const iso__bucket *b = &self->with.buckets->item[i];
    const iso__coder *coder = self->with.coder;
    bool converts = iso__coder_converts(coder, b);
    if (!converts)
        iso__store_scale_arena(self->with.store, b->offset, b->bytes - b->tail, b->dtype, before);
    if (!converts || coder->off) return ISO_OK;
    self->parcel[i].coded = true;
    return iso__coder_encode(coder, i, b, self->with.store->arena + b->offset, before);
}

static void count_bucket(const host *self, int i) {
    iso__exchange_stats *stats = self->with.stats;
    long long *bytes = self->with.over_world ? &stats->bytes_world : &stats->bytes_node;
    stats->exchanges++;
    *bytes += (long long)self->wire_bytes[i];
    iso__channel_count(channel_of(self, i), self->parcel[i].item, &stats->traffic);
}

static iso_status post_bucket(iso__transport *t, int i, double before, double after) {
    host *self = host_of(t);
    parcel *p = &self->parcel[i];
    ISO_CHECK(!p->posted, ISO_ERR_STATE,
              "the gradients of \"%s\" were posted again while their exchange is under way",
              self->with.buckets->item[i].label);
    p->coded = false;
    p->failed = true;
    ISO_TRY(prepare_bucket(self, i, before));
    p->failed = false;
    p->posted = true; // even if the call below fails, chunks may be under way
    p->left = after;
    p->times = (iso__exchange_times){.known = false};
    ISO_TRY(iso__channel_ready(channel_of(self, i), p->item));
    count_bucket(self, i);
    return ISO_OK;
}

// ---- Arrive -----------------------------------------------------------------------------------------

static bool is_back(const iso__transport *t, int i) {
    const host *self = const_host_of(t);
    const parcel *p = &self->parcel[i];
    if (p->failed) return false; // else a thread that waits for another bucket would get the error
    return !p->posted || iso__channel_is_done(channel_of(self, i), p->item);
}

static iso_status await_bucket(host *self, int i, const iso__idle *idle) {
    parcel *p = &self->parcel[i];
    iso__exchange_times *t = &p->times;
    iso__times_begin_wait(t);
    iso_status status = iso__channel_wait(channel_of(self, i), p->item, idle ? idle->call : NULL,
                                          idle ? idle->user : NULL);
    t->wait_end_ns = iso_now();
    ISO_TRY(status);
    p->posted = false;
    iso__times_of_channel(t, channel_of(self, i), p->item);
    return ISO_OK;
}

static iso_status decode_bucket(host *self, int i) {
    const iso__bucket *b = &self->with.buckets->item[i];
    parcel *p = &self->parcel[i];
    ISO_TRY(
        iso__coder_decode(self->with.coder, i, b, self->with.store->arena + b->offset, p->left));
    p->coded = false;
    p->left = 1;
    return ISO_OK;
}

static iso_status arrive_bucket(iso__transport *t, int i, const iso__idle *idle, double *left,
                                iso__exchange_times *times) {
    host *self = host_of(t);
    const iso__bucket *b = &self->with.buckets->item[i];
    parcel *p = &self->parcel[i];
    ISO_CHECK(!p->failed, ISO_ERR_STATE,
              "the gradients of \"%s\" were never exchanged: communication hook %s failed before",
              b->label, self->with.coder->hook.name);
    if (p->posted) ISO_TRY(await_bucket(self, i, idle));
    if (p->coded) ISO_TRY(decode_bucket(self, i));
    iso__times_tell(&p->times, times);
    if (left) {
        *left = p->left;
        return ISO_OK;
    }
    iso__store_scale_arena(self->with.store, b->offset, b->bytes - b->tail, b->dtype, p->left);
    p->left = 1;
    return ISO_OK;
}

static iso__channel *long_buckets(const iso__transport *t, int *bucket, int *count) {
    const host *self = const_host_of(t);
    *count = 0;
    for (int i = 0; i < self->with.buckets->count; i++)
        if (iso__bucket_is_dense(&self->with.buckets->item[i]) && self->parcel[i].channel == LONG)
            bucket[(*count)++] = i;
    return self->channel[LONG];
}

// ---- Life -------------------------------------------------------------------------------------------

// The channel of a bucket depends on its length alone. Shared memory sums everything in the order
// in which it was posted, so it needs one channel for all buckets.
static int choose_channel(const host *self, int i) {
    return !self->base.shared_memory && self->wire_bytes[i] > CHUNK_BYTES ? LONG : SHORT;
}

static iso__channel_item item_of(const host *self, int i) {
    const iso__bucket *b = &self->with.buckets->item[i];
    const iso__coder *coder = self->with.coder;
    bool converts = iso__coder_converts(coder, b);
    char *plain = self->with.store->arena + b->offset;
    return (iso__channel_item){.data = converts ? coder->wire + coder->place[i].wire : plain,
                               .bytes = self->wire_bytes[i],
                               .dtype = converts ? coder->hook.wire : b->dtype,
                               .label = b->label};
}

// Assigns items of a channel to its buckets, fills in their descriptions, and returns their number.
static int list_items(host *self, int c, iso__channel_item *item) {
    int count = 0;
    for (int i = 0; i < self->with.buckets->count; i++) {
        bool dense = iso__bucket_is_dense(&self->with.buckets->item[i]);
        if (!dense || choose_channel(self, i) != c) continue;
        self->parcel[i].channel = c;
        self->parcel[i].item = count;
        item[count++] = item_of(self, i);
    }
    return count;
}

static iso_status open_channel(host *self, int c, iso__channel_item *item) {
    int count = list_items(self, c, item);
    size_t window = c == LONG ? WINDOW_BYTES : SIZE_MAX;
    size_t chunk = c == LONG ? CHUNK_BYTES : SIZE_MAX;
    const iso__channel_nodes *nodes = self->with.nodes;
    bool slices = nodes && c == LONG; // a rank then sends only its slice of f32 data
    for (int k = 0; k < count; k++) slices = slices && item[k].dtype == ISO_F32;
    if (count == 0) return ISO_OK;
    if (slices) {
        chunk *= (size_t)nodes->slices;
        window *= (size_t)nodes->slices;
    }
    iso__channel_needs needs = iso__channel_needs_for(self->comm, slices ? nodes : NULL);
    if (chunk < needs.chunk) chunk = needs.chunk;
    if (c == LONG && window < (size_t)needs.under_way * chunk)
        window = (size_t)needs.under_way * chunk;
    ISO_TRY(iso__channel_create(self->comm, item, count, chunk, window, &self->channel[c]));
    return nodes ? iso__channel_use_nodes(self->channel[c], nodes) : ISO_OK;
}

// For statistics.
static void note_ways(host *self) {
    for (int i = 0; i < self->with.buckets->count; i++) {
        const parcel *p = &self->parcel[i];
        if (!iso__bucket_is_dense(&self->with.buckets->item[i])) continue;
        const iso__channel *channel = self->channel[p->channel];
        self->base.two_levels |= iso__channel_in_two_levels(channel, p->item);
        self->base.pairwise |= iso__channel_in_pairs(channel, p->item);
    }
}

static bool destroy_host(iso__transport *t) {
    host *self = host_of(t);
    bool all = true;
    for (int c = 0; c < CHANNELS; c++)
        if (!iso__channel_destroy(&self->channel[c])) all = false;
    if (!all) return false;
    iso_comm_destroy(&self->comm);
    iso__free(self->parcel);
    iso__free(self->wire_bytes);
    iso__free(self);
    return true;
}

static const iso__transport_ops host_ops = {.name = "host",
                                            .post = post_bucket,
                                            .is_back = is_back,
                                            .arrive = arrive_bucket,
                                            .plan = long_buckets,
                                            .destroy = destroy_host};

static iso_status allocate_host(const iso__transport_setup *setup, iso_comm *comm, host **out,
                                iso__channel_item **item) {
    size_t count = (size_t)setup->buckets->count;
    ISO_TRY(iso__alloc_zero(count * sizeof(**item), (void **)item));
    ISO_TRY(iso__alloc_zero(sizeof(host), (void **)out));
    host *self = *out;
    *self = (host){.base = {.ops = &host_ops, .travels = true}, .with = *setup};
    self->comm = iso_comm_retain(comm);
    self->base.shared_memory = iso__comm_is_shared(comm, setup->store->arena, setup->store->bytes);
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->parcel), (void **)&self->parcel));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->wire_bytes), (void **)&self->wire_bytes));
    for (size_t i = 0; i < count; i++)
        self->wire_bytes[i] = iso__coder_wire_bytes(setup->coder, (int)i, &setup->buckets->item[i]);
    self->base.wire_bytes = self->wire_bytes;
    return ISO_OK;
}

iso_status iso__transport_host(const iso__transport_setup *setup, iso_comm *comm,
                               iso__transport **out) {
    iso_status status;
    host *self = NULL;
    iso__channel_item *item = NULL;
    ISO_TRY_GOTO(iso_comm_agree(comm, allocate_host(setup, comm, &self, &item)));
    for (int c = 0; c < CHANNELS; c++) ISO_TRY_GOTO(open_channel(self, c, item));
    iso__free(item);
    note_ways(self);
    *out = &self->base;
    return ISO_OK;
fail:
    iso__free(item);
    if (self) destroy_host(&self->base);
    return status;
}
