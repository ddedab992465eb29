// SPDX-License-Identifier: MIT
// ZeRO stage 3: which values are in memory, and the gathers that bring them.
#include "parallel/reducer/value_shards.h"

#include <isotherm/trace.h>

// As in transport_zero.c, for the same reason.
#define CHUNK_BYTES  ((size_t)60 * 1024)
#define WINDOW_BYTES (8 * CHUNK_BYTES)

typedef enum bucket_values { ABSENT, COMING, HERE } bucket_values;

typedef struct bucket_state {
    bucket_values values;
    int order;     // by which it is coming
    int place;     // in v->list; -1: it is not exchanged
    size_t offset; // of the values in the arena
} bucket_state;

// How buckets are gathered: in the order of a forward, or of a backward.
enum { DOWN, UP, ORDERS };

struct iso__value_shards {
    iso__value_shards_config with;
    char *arena;
    size_t bytes;
    bool left;            // the arena outlives this
    bucket_state *bucket; // [buckets]
    int *list;            // [count]: those that are exchanged, ascending
    int count;
    iso__channel *channel[ORDERS]; // item k is the k-th bucket of the order; NULL: count is 0
    int next[ORDERS];              // the item that leaves next; count: all have left
    iso__pass pass;
    int here;         // buckets that are HERE
    bool held;        // nothing is dropped before the end of the pass
    bool dropped;     // the pass has dropped a bucket
    bool interrupted; // the pass timed out
    bool failed;      // the pass has failed, and only its gathers continue
};

// ---- Life -------------------------------------------------------------------------------------------

static int bucket_at(const iso__value_shards *v, int order, int item) {
    return v->list[order == UP ? item : v->count - 1 - item];
}

static int item_of(const iso__value_shards *v, int order, int bucket) {
    int place = v->bucket[bucket].place;
    return order == UP ? place : v->count - 1 - place;
}

// The bytes of values that belong to these bytes of gradients: 16-bit values have f32 gradients.
static size_t value_bytes(const iso__layout *l, int b, size_t bytes) {
    const iso__grad_slot *s = &l->slot[l->order[l->range[b].first]];
    return bytes / iso_dtype_size(s->dtype) * iso_dtype_size(s->type);
}

// Buckets lie in the order of their gradients, so the pieces of a parameter are adjacent.
static size_t place_buckets(iso__value_shards *v) {
    const iso__layout *l = v->with.layout;
    size_t bytes = 0;
    for (int b = 0; b < l->bucket_count; b++) {
        v->bucket[b].offset = bytes;
        bytes += value_bytes(l, b, l->bucket[b].bytes);
    }
    return bytes;
}

static iso_status allocate_shards(iso__value_shards *v, iso__channel_item **item) {
    const iso__layout *l = v->with.layout;
    size_t buckets = (size_t)l->bucket_count;
    void *arena;
    ISO_TRY(iso__alloc_zero(buckets * sizeof(**item), (void **)item));
    ISO_TRY(iso__alloc_zero(buckets * sizeof(*v->bucket), (void **)&v->bucket));
    ISO_TRY(iso__alloc_zero(buckets * sizeof(*v->list), (void **)&v->list));
    v->bytes = place_buckets(v);
    ISO_TRY(iso__pages_alloc(v->bytes, &arena));
    v->arena = arena;
    for (int b = 0; b < l->bucket_count; b++) {
        v->bucket[b].place = l->bucket[b].local ? -1 : v->count;
        if (!l->bucket[b].local) v->list[v->count++] = b;
    }
    return ISO_OK;
}

static iso_status open_channel(iso__value_shards *v, int order, iso__channel_item *item) {
    for (int k = 0; k < v->count; k++) {
        int i = bucket_at(v, order, k);
        const iso__bucket *b = &v->with.layout->bucket[i];
        size_t shard = b->bytes / (size_t)v->with.transport->shards;
        item[k] = (iso__channel_item){.data = v->arena + v->bucket[i].offset,
                                      .bytes = value_bytes(v->with.layout, i, shard),
                                      .dtype = b->dtype,
                                      .label = b->label,
                                      .operation = ISO__GATHER};
    }
    v->next[order] = v->count;
    if (v->count == 0) return ISO_OK;
    return iso__channel_create(v->with.owners, item, v->count, CHUNK_BYTES, WINDOW_BYTES,
                               &v->channel[order]);
}

iso_status iso__value_shards_create(const iso__value_shards_config *config,
                                    iso__value_shards **out) {
    iso__value_shards *v = NULL;
    iso__channel_item *item = NULL;
    iso_status status = iso__alloc_zero(sizeof(*v), (void **)&v);
    if (v) *v = (iso__value_shards){.with = *config};
    if (v) status = allocate_shards(v, &item);
    ISO_TRY_GOTO(iso_comm_agree(config->owners, status));
    for (int order = 0; order < ORDERS; order++) ISO_TRY_GOTO(open_channel(v, order, item));
    iso__free(item);
    *out = v;
    return ISO_OK;
fail:
    iso__free(item);
    iso__value_shards_destroy(&v);
    return status;
}

bool iso__value_shards_destroy(iso__value_shards **pointer) {
    iso__value_shards *v = *pointer;
    bool over = true;
    *pointer = NULL;
    if (!v) return true;
    for (int order = 0; order < ORDERS; order++)
        if (!iso__channel_destroy(&v->channel[order])) over = false;
    if (!over) return false;
    if (!v->left) iso__pages_free(v->arena, v->bytes);
    iso__free(v->bucket);
    iso__free(v->list);
    iso__free(v);
    return true;
}

void iso__value_shards_leave(iso__value_shards *v) { v->left = true; }

// ---- What it is -------------------------------------------------------------------------------------

void *iso__value_shards_at(const iso__value_shards *v, int slot) {
    const iso__layout *l = v->with.layout;
    const iso__grad_slot *s = &l->slot[slot];
    size_t before = s->offset - l->bucket[s->bucket].offset;
    return v->arena + v->bucket[s->bucket].offset + value_bytes(l, s->bucket, before);
}

size_t iso__value_shards_resident(const iso__value_shards *v) {
    return iso__pages_resident(v->arena, v->bytes);
}

iso__pass iso__value_shards_pass(const iso__value_shards *v) { return v->pass; }

bool iso__value_shards_is_here(const iso__value_shards *v, int bucket) {
    return v->bucket[bucket].place < 0 || v->bucket[bucket].values == HERE;
}

bool iso__value_shards_are_whole(const iso__value_shards *v) { return v->here == v->count; }

// ---- One bucket -------------------------------------------------------------------------------------

static void set_values(iso__value_shards *v, int b, bucket_values values) {
    v->here += (values == HERE) - (v->bucket[b].values == HERE);
    v->bucket[b].values = values;
}

// Begins to gather the next bucket of the order. Outside a backward, updates of this rank's shard
// may be outstanding, and are completed first.
static iso_status begin_gather(iso__value_shards *v, int order) {
    int item = v->next[order], b = bucket_at(v, order, item);
    if (v->pass != ISO__BACKWARD && !iso__round_bucket_is_open(v->with.round, b))
        ISO_TRY(iso__round_finish(v->with.round));
    v->next[order]++; // even if the call below fails, chunks may be under way
    set_values(v, b, COMING);
    v->bucket[b].order = order;
    ISO_TRY(iso__channel_ready(v->channel[order], item));
    iso__channel_count(v->channel[order], item, v->with.traffic);
    return ISO_OK;
}

typedef struct meanwhile {
    iso__round *round;
    iso_status status;
} meanwhile;

// Makes the updates whose sums are back.
static bool do_meanwhile(void *user) {
    meanwhile *m = user;
    if (m->status == ISO_OK) m->status = iso__round_advance(m->round);
    return false;
}

static iso_status await_gather(iso__value_shards *v, int b) {
    meanwhile m = {v->with.round, ISO_OK};
    int order = v->bucket[b].order;
    int64_t start = iso_now();
    if (v->bucket[b].values != COMING) return ISO_OK;
    iso_status status =
        iso__channel_wait(v->channel[order], item_of(v, order, b), do_meanwhile, &m);
    iso__planner_waited(v->with.planner, start);
    ISO_TRY(status);
    set_values(v, b, HERE);
    return m.status;
}

static void drop_others(iso__value_shards *v, int b) {
    const iso__layout *l = v->with.layout;
    const iso__bucket *bucket = &l->bucket[b];
    iso__shard own = iso__shard_of(v->with.transport, bucket, v->with.transport->shard);
    size_t before = own.offset - bucket->offset, end = before + own.bytes;
    char *values = v->arena + v->bucket[b].offset;
    if (v->bucket[b].values != HERE) return;
    iso__pages_clear(values, value_bytes(l, b, before));
    iso__pages_clear(values + value_bytes(l, b, end), value_bytes(l, b, bucket->bytes - end));
    set_values(v, b, ABSENT);
    v->dropped = true;
}

// ---- All buckets ------------------------------------------------------------------------------------

static void drop_all(iso__value_shards *v) {
    for (int k = 0; k < v->count; k++) drop_others(v, v->list[k]);
}

static iso_status await_all(iso__value_shards *v) {
    for (int k = v->count - 1; k >= 0; k--) ISO_TRY(await_gather(v, v->list[k]));
    return ISO_OK;
}

static iso_status send_rest(iso__value_shards *v, int order) {
    while (v->next[order] < v->count) ISO_TRY(begin_gather(v, order));
    return ISO_OK;
}

// A pass that was not ended has failed. Outside a pass, a gather may have timed out.
iso_status iso__value_shards_settle(iso__value_shards *v) {
    for (int order = 0; order < ORDERS; order++) ISO_TRY(send_rest(v, order));
    ISO_TRY(await_all(v));
    if (v->pass != ISO__NO_PASS) drop_all(v);
    v->pass = ISO__NO_PASS;
    v->failed = false;
    return ISO_OK;
}

iso_status iso__value_shards_gather(iso__value_shards *v) {
    // Other ranks may have ended the pass, and dropped what this one has.
    if (v->failed) ISO_TRY(iso__value_shards_settle(v));
    v->held = v->pass != ISO__NO_PASS;
    ISO_TRY(send_rest(v, DOWN)); // of a forward, or of a gather that timed out
    ISO_TRY(await_all(v));
    if (iso__value_shards_are_whole(v)) return ISO_OK;
    v->next[DOWN] = 0;
    ISO_TRY(send_rest(v, DOWN));
    return await_all(v);
}

iso_status iso__value_shards_expire(iso__value_shards *v) {
    ISO_TRY(iso__value_shards_settle(v));
    drop_all(v);
    return ISO_OK;
}

// ---- Passes -----------------------------------------------------------------------------------------

static int order_of(const iso__value_shards *v) { return v->pass == ISO__BACKWARD ? UP : DOWN; }

iso_status iso__value_shards_begin(iso__value_shards *v, iso__pass pass) {
    bool again = v->pass == ISO__FORWARD && pass == ISO__FORWARD && v->interrupted && !v->dropped;
    if (!again) ISO_TRY(iso__value_shards_settle(v));
    v->pass = pass;
    v->held = v->dropped = v->interrupted = false;
    if (!again && !iso__value_shards_are_whole(v)) v->next[order_of(v)] = 0;
    return ISO_OK;
}

// Begins to gather the next bucket while a layer computes, unless it must be updated first.
static iso_status gather_ahead(iso__value_shards *v, int bucket) {
    int order = order_of(v), next = v->next[order];
    if (next == v->count || next != item_of(v, order, bucket) + 1) return ISO_OK;
    bool waits = v->pass == ISO__FORWARD &&
                 !iso__round_bucket_is_open(v->with.round, bucket_at(v, order, next));
    return waits ? ISO_OK : begin_gather(v, order);
}

iso_status iso__value_shards_need(iso__value_shards *v, int bucket) {
    const bucket_state *b = &v->bucket[bucket];
    if (b->place < 0) return ISO_OK;
    if (v->pass == ISO__NO_PASS) return b->values == HERE ? ISO_OK : iso__value_shards_gather(v);
    int order = order_of(v), item = item_of(v, order, bucket);
    if (b->values == ABSENT && item < v->next[order]) return iso__value_shards_gather(v);
    while (v->next[order] <= item) ISO_TRY(begin_gather(v, order));
    ISO_TRY(await_gather(v, bucket));
    return gather_ahead(v, bucket);
}

void iso__value_shards_release(iso__value_shards *v, int bucket) {
    if (v->bucket[bucket].place >= 0 && v->pass != ISO__NO_PASS && !v->held) drop_others(v, bucket);
}

iso_status iso__value_shards_rest(iso__value_shards *v) {
    return v->pass == ISO__NO_PASS ? ISO_OK : send_rest(v, order_of(v));
}

iso_status iso__value_shards_fail(iso__value_shards *v, bool timed_out) {
    int order = order_of(v);
    v->interrupted = timed_out;
    v->failed = v->pass != ISO__NO_PASS && (!timed_out || v->pass == ISO__BACKWARD);
    if (!timed_out) return iso__value_shards_rest(v);
    while (v->pass != ISO__NO_PASS && v->next[order] < v->count) {
        int b = bucket_at(v, order, v->next[order]);
        if (order == DOWN && !iso__round_bucket_is_open(v->with.round, b)) return ISO_OK;
        ISO_TRY(begin_gather(v, order));
    }
    return ISO_OK;
}

iso_status iso__value_shards_end(iso__value_shards *v) {
    if (v->pass == ISO__NO_PASS) return ISO_OK;
    ISO_TRY(await_all(v));
    drop_all(v);
    v->pass = ISO__NO_PASS;
    return ISO_OK;
}
