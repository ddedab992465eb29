// SPDX-License-Identifier: MIT
// Private to the reducer: ZeRO (Rajbhandari et al., SC 2020). Each rank updates its shard of every
// bucket. The new values go to the other ranks in the bucket's memory, in place of the gradients.
//
// In stage 2 a rank keeps only the gradients of its shard: the memory of the other shards goes back
// to the system once a bucket's sum is here, and that of the whole bucket once the values are in
// place. Since new values use the memory of gradients again, few buckets at a time may be under
// way to the other ranks. Nor may a backward run far ahead of the exchange.
//
// In stage 3 new values stay where they are until a rank needs them, see value_shards.h.
#ifndef ISO_ZERO_H
#define ISO_ZERO_H

#include "exchange/store.h"
#include "parallel/reducer/layout.h"

typedef struct iso__zero iso__zero;

// Borrows its arguments. transport: one for ZeRO (publish, collect). The stage is 2 if the store
// can give back memory (pages), otherwise 1; iso__zero_divide_values makes it 3.
iso_status iso__zero_create(const iso__layout *layout, const iso__store *store,
                            iso__transport *transport, iso__zero **out);
void iso__zero_destroy(iso__zero **zero); // accepts NULL
// Another transport for ZeRO, with the same shards. Nothing may be under way.
void iso__zero_set_transport(iso__zero *z, iso__transport *transport);

// Elements of a slot.
typedef struct iso__own {
    size_t first, count;
} iso__own;
// The elements that rank `shard` updates. Without ZeRO (z NULL), and if the slot is not exchanged,
// every rank updates all of them.
iso__own iso__zero_shard(const iso__zero *z, const iso__layout *l, int slot, int shard);
iso__own iso__zero_own(const iso__zero *z, const iso__layout *l, int slot); // for this rank

// ---- Stages 2 and 3; in stage 1 these calls do nothing ----

// A bucket is about to be posted.
void iso__zero_leaves(iso__zero *z, int bucket);
// Drops the shards of other ranks of the buckets that are back. Local, never waits.
void iso__zero_trim(iso__zero *z);
// A bucket has arrived: drops the shards of the other ranks.
void iso__zero_arrived(iso__zero *z, int bucket);
// If the buckets that still hold the shards of other ranks have more bytes than permitted, returns
// the bucket to wait for (iso__zero_await_back), otherwise -1.
int iso__zero_crowded_by(const iso__zero *z); // accepts NULL
iso_status iso__zero_await_back(iso__zero *z, int bucket);
// Whether gradients are divided.
bool iso__zero_divides_gradients(const iso__zero *z); // accepts NULL
// Whether there is room to publish this bucket, beside those whose values are under way. If no
// values are under way, there is room for any bucket. Always true in stage 1.
bool iso__zero_has_room(const iso__zero *z, int bucket); // accepts NULL
// From now on iso__zero_peak is measured.
void iso__zero_watch(iso__zero *z); // accepts NULL
// The most bytes of gradient memory that were resident at one of these moments: a bucket leaves, or
// the values of one have come and are about to be put in place. Each look costs the time of a
// mincore of all gradient memory. 0 in stage 1, and unless watched.
size_t iso__zero_peak(const iso__zero *z); // accepts NULL

// ---- Stage 3 ----

// Values are divided, too: call it before the first step, in stage 2.
void iso__zero_divide_values(iso__zero *z);
bool iso__zero_divides_values(const iso__zero *z); // accepts NULL
// Call it in place of publish and collect, when the values of this rank's shard are updated.
void iso__zero_updated(iso__zero *z, int bucket);

// ---- Values, in stages 1 and 2 ----

// Sends the new values of this rank's shard to the other ranks.
iso_status iso__zero_publish(iso__zero *z, int bucket);
// Waits for the values of all shards and puts them in place.
iso_status iso__zero_collect(iso__zero *z, int bucket, const iso__idle *idle,
                             iso__exchange_times *times);
bool iso__zero_is_collected(const iso__zero *z, int bucket); // collect would not wait

#endif
