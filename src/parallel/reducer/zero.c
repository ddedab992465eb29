// SPDX-License-Identifier: MIT
// ZeRO: which elements this rank updates, which gradients it keeps, and how new values reach the
// other ranks.
#include "parallel/reducer/zero.h"

#include "parallel/reducer/slot_types.h"

// Buckets of this size in all may be under way even if no bucket is that large.
#define ROOM_BYTES ((size_t)4 << 20)

struct iso__zero {
    const iso__layout *layout;
    const iso__store *store;
    iso__transport *transport;
    bool *holds; // [buckets]: left, and holds the shards of other ranks; NULL: stage 1
    // A ring of the buckets that left, in this order, until they are trimmed: [buckets].
    int *left;
    int first, count;
    // whole: the bytes of the buckets that hold the shards of other ranks. published: those of the
    // buckets whose values are under way. Neither should exceed `room`. Every bucket fits into it.
    size_t whole, published, room;
    bool divides_values; // stage 3
    bool watched;
    size_t peak; // the most bytes that were resident at a look
};

static iso_status hold_gradients(iso__zero *z) {
    size_t buckets = (size_t)z->layout->bucket_count;
    ISO_TRY(iso__alloc_zero(buckets * sizeof(*z->holds), (void **)&z->holds));
    ISO_TRY(iso__alloc_zero(buckets * sizeof(*z->left), (void **)&z->left));
    z->room = ROOM_BYTES;
    for (size_t b = 0; b < buckets; b++)
        if (z->layout->bucket[b].bytes > z->room) z->room = z->layout->bucket[b].bytes;
    return ISO_OK;
}

iso_status iso__zero_create(const iso__layout *layout, const iso__store *store,
                            iso__transport *transport, iso__zero **out) {
    iso__zero *z;
    ISO_TRY(iso__alloc_zero(sizeof(*z), (void **)&z));
    *z = (iso__zero){.layout = layout, .store = store, .transport = transport};
    iso_status status = store->pages ? hold_gradients(z) : ISO_OK;
    if (status < 0) iso__zero_destroy(&z);
    ISO_TRY(status);
    *out = z;
    return ISO_OK;
}

void iso__zero_destroy(iso__zero **pointer) {
    iso__zero *z = *pointer;
    *pointer = NULL;
    if (!z) return;
    iso__free(z->holds);
    iso__free(z->left);
    iso__free(z);
}

void iso__zero_set_transport(iso__zero *z, iso__transport *transport) { z->transport = transport; }

// ---- Shards -----------------------------------------------------------------------------------------

static size_t clamp_size(size_t at, size_t low, size_t high) {
    return at < low ? low : at > high ? high : at;
}

iso__own iso__zero_shard(const iso__zero *z, const iso__layout *l, int slot, int shard) {
    const iso__grad_slot *s = &l->slot[slot];
    size_t size = iso_dtype_size(s->dtype), end = s->offset + s->count * size;
    if (!z || s->local) return (iso__own){0, s->count};
    iso__shard p = iso__shard_of(z->transport, &l->bucket[s->bucket], shard);
    size_t from = clamp_size(p.offset, s->offset, end),
           to = clamp_size(p.offset + p.bytes, s->offset, end);
    return (iso__own){(from - s->offset) / size, (to - from) / size};
}

iso__own iso__zero_own(const iso__zero *z, const iso__layout *l, int slot) {
    return iso__zero_shard(z, l, slot, z ? z->transport->shard : 0);
}

// ---- Gradients, in stages 2 and 3 -------------------------------------------------------------------

bool iso__zero_divides_gradients(const iso__zero *z) { return z && z->holds; }

bool iso__zero_has_room(const iso__zero *z, int bucket) {
    return !iso__zero_divides_gradients(z) ||
           z->published + z->layout->bucket[bucket].bytes <= z->room;
}

void iso__zero_watch(iso__zero *z) {
    if (z) z->watched = true;
}

size_t iso__zero_peak(const iso__zero *z) { return z ? z->peak : 0; }

// Counts the resident pages of all buckets at once, so that the number belongs to one moment.
static void look_around(iso__zero *z) {
    if (!z->holds || !z->watched) return;
    size_t bytes = iso__pages_resident(z->store->arena, z->store->bytes);
    if (bytes > z->peak) z->peak = bytes;
}

void iso__zero_leaves(iso__zero *z, int bucket) {
    if (!iso__zero_divides_gradients(z)) return;
    iso__zero_trim(z);
    look_around(z);
    if (z->layout->bucket[bucket].local) return;
    z->holds[bucket] = true;
    z->whole += z->layout->bucket[bucket].bytes;
    if (z->count < z->layout->bucket_count)
        z->left[(z->first + z->count++) % z->layout->bucket_count] = bucket;
}

static void drop_others(iso__zero *z, int bucket) {
    const iso__bucket *b = &z->layout->bucket[bucket];
    iso__shard own = iso__shard_of(z->transport, b, z->transport->shard);
    size_t end = own.offset + own.bytes;
    iso__store_drop(z->store, b->offset, own.offset - b->offset);
    iso__store_drop(z->store, end, b->offset + b->bytes - end);
    z->holds[bucket] = false;
    z->whole -= b->bytes;
}

void iso__zero_trim(iso__zero *z) {
    iso__transport *t = z->transport;
    while (z->holds && z->count > 0) {
        int bucket = z->left[z->first];
        bool whole = z->holds[bucket];
        if (whole && (t->whole || !t->ops->is_back(t, bucket))) return;
        if (whole) drop_others(z, bucket);
        z->first = (z->first + 1) % z->layout->bucket_count;
        z->count--;
    }
}

int iso__zero_crowded_by(const iso__zero *z) {
    bool crowded = z && z->holds && z->whole > z->room && z->count > 0 && !z->transport->whole;
    return crowded ? z->left[z->first] : -1;
}

iso_status iso__zero_await_back(iso__zero *z, int bucket) {
    ISO_TRY(z->transport->ops->await_back(z->transport, bucket));
    iso__zero_trim(z);
    return ISO_OK;
}

void iso__zero_arrived(iso__zero *z, int bucket) {
    if (z->holds && z->holds[bucket]) drop_others(z, bucket);
}

// ---- Stage 3 ----------------------------------------------------------------------------------------

void iso__zero_divide_values(iso__zero *z) { z->divides_values = true; }

bool iso__zero_divides_values(const iso__zero *z) { return z && z->divides_values; }

void iso__zero_updated(iso__zero *z, int bucket) {
    const iso__bucket *b = &z->layout->bucket[bucket];
    iso__store_drop(z->store, b->offset, b->bytes);
}

// ---- Values, in stages 1 and 2 ----------------------------------------------------------------------

// Copies elements of a slot from its value to where its gradient lies, or back.
static iso_status copy_elements(const iso__zero *z, int slot, iso__own which, bool out) {
    const iso__grad_slot *s = &z->layout->slot[slot];
    size_t size = iso_dtype_size(s->dtype), offset = s->offset + which.first * size;
    char *value = (char *)s->value + which.first * size;
    if (which.count == 0) return ISO_OK;
    if (iso__slot_converts(s))
        return out ? iso__slot_widen(s, z->store, which, s->value)
                   : iso__slot_narrow(s, z->store, which, s->value);
    return out ? iso__store_load(z->store, offset, which.count * size, value)
               : iso__store_save(z->store, offset, which.count * size, value);
}

iso_status iso__zero_publish(iso__zero *z, int bucket) {
    const iso__layout *l = z->layout;
    const iso__range *range = &l->range[bucket];
    for (int k = range->first; k <= range->last; k++)
        ISO_TRY(copy_elements(z, l->order[k], iso__zero_own(z, l, l->order[k]), true));
    z->published += l->bucket[bucket].bytes;
    return z->transport->ops->publish(z->transport, bucket);
}

iso_status iso__zero_collect(iso__zero *z, int bucket, const iso__idle *idle,
                             iso__exchange_times *times) {
    const iso__layout *l = z->layout;
    const iso__range *range = &l->range[bucket];
    ISO_TRY(z->transport->ops->collect(z->transport, bucket, idle, times));
    look_around(z);
    for (int k = range->first; k <= range->last; k++) {
        int s = l->order[k];
        iso__own own = iso__zero_own(z, l, s);
        size_t behind = own.first + own.count;
        ISO_TRY(copy_elements(z, s, (iso__own){0, own.first}, false));
        ISO_TRY(copy_elements(z, s, (iso__own){behind, l->slot[s].count - behind}, false));
    }
    z->published -= l->bucket[bucket].bytes;
    iso__store_drop(z->store, l->bucket[bucket].offset, l->bucket[bucket].bytes);
    return ISO_OK;
}

bool iso__zero_is_collected(const iso__zero *z, int bucket) {
    return z->transport->ops->is_collected(z->transport, bucket);
}
