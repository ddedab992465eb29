// SPDX-License-Identifier: MIT
// Private to the reducer: ZeRO stage 1 (Rajbhandari et al., SC 2020). Each rank updates its shard
// of every bucket. The new values go to the other ranks in the bucket's memory, in place of the
// gradients.
#ifndef ISO_ZERO_H
#define ISO_ZERO_H

#include "exchange/store.h"
#include "parallel/reducer/layout.h"

typedef struct iso__zero iso__zero;

// Borrows its arguments. transport: one for ZeRO (publish, collect).
iso_status iso__zero_create(const iso__layout *layout, const iso__store *store,
                            iso__transport *transport, iso__zero **out);
void iso__zero_destroy(iso__zero **zero); // accepts NULL

// Elements of a slot.
typedef struct iso__own {
    size_t first, count;
} iso__own;
// The elements that rank `shard` updates. Without ZeRO (z NULL), and if the slot is not exchanged,
// every rank updates all of them.
iso__own iso__zero_shard(const iso__zero *z, const iso__layout *l, int slot, int shard);
iso__own iso__zero_own(const iso__zero *z, const iso__layout *l, int slot); // for this rank

// Sends the new values of this rank's shard to the other ranks.
iso_status iso__zero_publish(iso__zero *z, int bucket);
// Waits for the values of all shards and puts them in place.
iso_status iso__zero_collect(iso__zero *z, int bucket, const iso__idle *idle,
                             iso__exchange_times *times);
bool iso__zero_is_collected(const iso__zero *z, int bucket); // collect would not wait

#endif
