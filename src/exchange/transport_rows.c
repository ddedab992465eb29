// SPDX-License-Identifier: MIT
// Sparse buckets: a matrix of gradients of which each rank has few non-zero rows, such as those of
// an embedding. The ranks gather these rows, and each rank adds them up in the order of the ranks.
// All other buckets go through an inner transport.
//
// Why no rank waits for ever: each sparse bucket is one item of a channel of its own. In lazy mode
// all buckets are posted before the first wait; otherwise a bucket is awaited before the next one
// is posted, in the order of the items (channel.h). A wait for a sparse bucket needs no call of the
// other ranks' programs after they have posted it, so it does not wait for the inner transport. The
// waits of the inner transport are for its own channels only.
#include "exchange/sparse_rows.h"
#include "exchange/transports.h"

#include "comm/traffic.h"

// As in transport_zero.c, for the same reason.
#define CHUNK_BYTES  ((size_t)60 * 1024)
#define WINDOW_BYTES (8 * CHUNK_BYTES)

typedef struct parcel {
    int item;    // of the channel
    char *block; // [ranks]: one of each rank
    bool posted;
    bool unread;               // the blocks of all ranks are here, or will be
    double left;               // makes the sum an average
    iso__exchange_times times; // of the latest exchange, until reported
} parcel;

typedef struct rows {
    iso__transport base;
    iso__transport_setup with;
    iso_comm *comm;
    iso__transport *inner;
    iso__channel *channel;
    parcel *parcel;     // [buckets]
    size_t *wire_bytes; // [buckets]
    char *memory;       // of all blocks
    uint32_t *seen;     // see iso__rows_add; as long as the largest bucket needs
} rows;

static rows *rows_of(iso__transport *t) { return iso_container_of(t, rows, base); }
static const rows *const_rows_of(const iso__transport *t) {
    return iso_container_of(t, const rows, base);
}

static const iso__bucket *bucket_of(const rows *self, int i) {
    return &self->with.buckets->item[i];
}
static bool is_sparse(const rows *self, int i) { return iso__bucket_is_sparse(bucket_of(self, i)); }
static char *gradient_of(const rows *self, int i) {
    return self->with.store->arena + bucket_of(self, i)->offset;
}

// ---- Post -------------------------------------------------------------------------------------------

static void count_bucket(const rows *self, int i) {
    iso__exchange_stats *stats = self->with.stats;
    stats->exchanges++;
    *(self->with.over_world ? &stats->bytes_world : &stats->bytes_node) +=
        (long long)self->wire_bytes[i];
    iso__channel_count(self->channel, self->parcel[i].item, &stats->traffic);
}

// While exchanges are measured, old blocks travel.
static void write_own_block(const rows *self, int i, double factor) {
    const iso__bucket *b = bucket_of(self, i);
    char *own = self->parcel[i].block + (size_t)iso_comm_rank(self->comm) * iso__rows_bytes(b);
    if (!self->with.coder->off)
        iso__rows_write(b, gradient_of(self, i), factor, iso_comm_rank(self->with.world), own);
}

static iso_status post_bucket(iso__transport *t, int i, double before, double after) {
    rows *self = rows_of(t);
    parcel *p = &self->parcel[i];
    if (!is_sparse(self, i)) return self->inner->ops->post(self->inner, i, before, after);
    ISO_CHECK(!p->posted, ISO_ERR_STATE,
              "the gradients of \"%s\" were posted again while their exchange is under way",
              bucket_of(self, i)->label);
    write_own_block(self, i, before);
    p->posted = true; // even if the call below fails, chunks may be under way
    p->unread = !self->with.coder->off;
    p->left = after;
    p->times = (iso__exchange_times){.known = false};
    ISO_TRY(iso__channel_ready(self->channel, p->item));
    count_bucket(self, i);
    return ISO_OK;
}

// ---- Arrive -----------------------------------------------------------------------------------------

static iso_status await_bucket(rows *self, int i, const iso__idle *idle) {
    parcel *p = &self->parcel[i];
    iso__times_begin_wait(&p->times);
    iso_status status = iso__channel_wait(self->channel, p->item, idle ? idle->call : NULL,
                                          idle ? idle->user : NULL);
    p->times.wait_end_ns = iso_now();
    ISO_TRY(status);
    p->posted = false;
    iso__times_of_channel(&p->times, self->channel, p->item);
    return ISO_OK;
}

static iso_status read_blocks(rows *self, int i) {
    const iso__bucket *b = bucket_of(self, i);
    parcel *p = &self->parcel[i];
    int ranks = iso_comm_size(self->comm);
    ISO_TRY(iso__rows_check(b, p->block, ranks));
    iso__rows_add(b, p->block, ranks, self->seen, gradient_of(self, i));
    p->unread = false;
    return ISO_OK;
}

static iso_status arrive_bucket(iso__transport *t, int i, const iso__idle *idle, double *left,
                                iso__exchange_times *times) {
    rows *self = rows_of(t);
    const iso__bucket *b = bucket_of(self, i);
    parcel *p = &self->parcel[i];
    if (!is_sparse(self, i)) return self->inner->ops->arrive(self->inner, i, idle, left, times);
    if (p->posted) ISO_TRY(await_bucket(self, i, idle));
    if (p->unread) ISO_TRY(read_blocks(self, i));
    iso__times_tell(&p->times, times);
    if (left) {
        *left = p->left;
        return ISO_OK;
    }
    iso__store_scale_arena(self->with.store, b->offset, b->bytes, b->dtype, p->left);
    p->left = 1;
    return ISO_OK;
}

static bool is_back(const iso__transport *t, int i) {
    const rows *self = const_rows_of(t);
    const parcel *p = &self->parcel[i];
    if (!is_sparse(self, i)) return self->inner->ops->is_back(self->inner, i);
    return !p->posted || iso__channel_is_done(self->channel, p->item);
}

// ---- What the inner transport does ------------------------------------------------------------------

// A transport of the host has no flush and no finish.

static iso_status advance_inner(iso__transport *t) {
    return iso__transport_advance(rows_of(t)->inner);
}
static iso_status settle_inner(iso__transport *t) {
    return iso__transport_settle(rows_of(t)->inner);
}
static iso__channel *plan_of_inner(const iso__transport *t, int *bucket, int *count) {
    const iso__transport *inner = const_rows_of(t)->inner;
    *count = 0;
    return inner->ops->plan ? inner->ops->plan(inner, bucket, count) : NULL;
}

// ---- Life -------------------------------------------------------------------------------------------

static bool destroy_rows(iso__transport *t) {
    rows *self = rows_of(t);
    bool all = iso__channel_destroy(&self->channel);
    if (!iso__transport_destroy(&self->inner)) all = false;
    if (!all) return false;
    iso_comm_destroy(&self->comm);
    iso__free(self->parcel);
    iso__free(self->wire_bytes);
    iso__free(self->memory);
    iso__free(self->seen);
    iso__free(self);
    return true;
}

static const iso__transport_ops rows_ops = {.name = "rows",
                                            .post = post_bucket,
                                            .advance = advance_inner,
                                            .is_back = is_back,
                                            .arrive = arrive_bucket,
                                            .settle = settle_inner,
                                            .plan = plan_of_inner,
                                            .destroy = destroy_rows};

// Gives the sparse buckets their blocks, and lists them as items; returns how many there are.
static int list_items(rows *self, iso__channel_item *item) {
    char *next = self->memory;
    int count = 0;
    for (int i = 0; i < self->with.buckets->count; i++) {
        if (!is_sparse(self, i)) continue;
        self->parcel[i] = (parcel){.item = count, .block = next};
        item[count++] = (iso__channel_item){.data = next,
                                            .bytes = self->wire_bytes[i],
                                            .dtype = ISO_U8,
                                            .label = bucket_of(self, i)->label,
                                            .operation = ISO__GATHER};
        next += self->wire_bytes[i] * (size_t)iso_comm_size(self->comm);
    }
    return count;
}

static iso_status allocate_blocks(rows *self) {
    size_t bytes = 0, most = 0;
    for (int i = 0; i < self->with.buckets->count; i++) {
        if (!is_sparse(self, i)) continue;
        size_t count = iso__rows_count(bucket_of(self, i));
        self->wire_bytes[i] = iso__rows_bytes(bucket_of(self, i));
        bytes += self->wire_bytes[i] * (size_t)iso_comm_size(self->comm);
        if (count > most) most = count;
    }
    ISO_TRY(iso__alloc_zero(bytes, (void **)&self->memory));
    return iso__alloc_zero(most * sizeof(*self->seen), (void **)&self->seen);
}

static iso_status allocate_rows(const iso__transport_setup *setup, iso_comm *comm,
                                const iso__transport *inner, rows **out, iso__channel_item **item,
                                int *items) {
    size_t count = (size_t)setup->buckets->count;
    ISO_TRY(iso__alloc_zero(count * sizeof(**item), (void **)item));
    ISO_TRY(iso__alloc_zero(sizeof(rows), (void **)out));
    rows *self = *out;
    *self = (rows){.base = {.ops = &rows_ops,
                            .in_order = inner->in_order,
                            .travels = true,
                            .shared_memory = inner->shared_memory,
                            .two_levels = inner->two_levels,
                            .pairwise = inner->pairwise},
                   .with = *setup};
    self->comm = iso_comm_retain(comm);
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->parcel), (void **)&self->parcel));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->wire_bytes), (void **)&self->wire_bytes));
    for (size_t i = 0; i < count; i++) self->wire_bytes[i] = inner->wire_bytes[i];
    self->base.wire_bytes = self->wire_bytes;
    ISO_TRY(allocate_blocks(self));
    *items = list_items(self, *item);
    return ISO_OK;
}

iso_status iso__transport_rows(const iso__transport_setup *setup, iso_comm *comm,
                               iso__transport *inner, iso__transport **out) {
    iso_status status;
    rows *self = NULL;
    iso__channel_item *item = NULL;
    int items = 0;
    ISO_TRY_GOTO(iso_comm_agree(comm, allocate_rows(setup, comm, inner, &self, &item, &items)));
    if (items > 0)
        ISO_TRY_GOTO(
            iso__channel_create(comm, item, items, CHUNK_BYTES, WINDOW_BYTES, &self->channel));
    iso__free(item);
    self->inner = inner;
    *out = &self->base;
    return ISO_OK;
fail:
    iso__free(item);
    if (self) destroy_rows(&self->base); // without inner
    return status;
}
