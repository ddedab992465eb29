// SPDX-License-Identifier: MIT
// ZeRO stage 1: which elements this rank updates, and how new values reach the other ranks.
#include "parallel/reducer/zero.h"

#include "parallel/reducer/slot_types.h"

#include <string.h>

struct iso__zero {
    const iso__layout *layout;
    const iso__store *store;
    iso__transport *transport;
};

iso_status iso__zero_create(const iso__layout *layout, const iso__store *store,
                            iso__transport *transport, iso__zero **out) {
    iso__zero *z;
    ISO_TRY(iso__alloc_zero(sizeof(*z), (void **)&z));
    *z = (iso__zero){layout, store, transport};
    *out = z;
    return ISO_OK;
}

void iso__zero_destroy(iso__zero **pointer) {
    iso__free(*pointer);
    *pointer = NULL;
}

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

// ---- Values -----------------------------------------------------------------------------------------

// Copies elements of a slot from its value to where its gradient lies, or back.
static void copy_elements(const iso__zero *z, int slot, iso__own which, bool out) {
    const iso__grad_slot *s = &z->layout->slot[slot];
    size_t size = iso_dtype_size(s->dtype);
    if (iso__slot_converts(s)) {
        if (out)
            iso__slot_widen(s, z->store->arena, which, s->value);
        else
            iso__slot_narrow(s, z->store->arena, which, s->value);
        return;
    }
    char *value = (char *)s->value + which.first * size;
    char *place = z->store->arena + s->offset + which.first * size;
    if (which.count > 0) memcpy(out ? place : value, out ? value : place, which.count * size);
}

iso_status iso__zero_publish(iso__zero *z, int bucket) {
    const iso__layout *l = z->layout;
    const iso__range *range = &l->range[bucket];
    for (int k = range->first; k <= range->last; k++)
        copy_elements(z, l->order[k], iso__zero_own(z, l, l->order[k]), true);
    return z->transport->ops->publish(z->transport, bucket);
}

iso_status iso__zero_collect(iso__zero *z, int bucket, const iso__idle *idle,
                             iso__exchange_times *times) {
    const iso__layout *l = z->layout;
    const iso__range *range = &l->range[bucket];
    ISO_TRY(z->transport->ops->collect(z->transport, bucket, idle, times));
    for (int k = range->first; k <= range->last; k++) {
        int s = l->order[k];
        iso__own own = iso__zero_own(z, l, s);
        size_t behind = own.first + own.count;
        copy_elements(z, s, (iso__own){0, own.first}, false);
        copy_elements(z, s, (iso__own){behind, l->slot[s].count - behind}, false);
    }
    return ISO_OK;
}

bool iso__zero_is_collected(const iso__zero *z, int bucket) {
    return z->transport->ops->is_collected(z->transport, bucket);
}
