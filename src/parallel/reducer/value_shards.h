// SPDX-License-Identifier: MIT
// Private to the reducer: ZeRO stage 3 (Rajbhandari et al., SC 2020). Between its uses, a rank
// holds only its shard of each bucket's values. The values of all shards come by an all-gather
// before a use; afterwards the memory of the other shards goes back to the system.
//
// A pass is a forward or a backward. In each, the ranks gather every bucket once, in one order: a
// forward from the last bucket down, a backward from the first one up. A bucket is ABSENT while
// only this rank's shard is here, COMING while the others are under way, and HERE. One bucket
// beyond the one that is needed is COMING, too. Buckets that no rank uses come at the end of the
// pass, and are dropped at once. All values can also be gathered ahead of the next forward, which
// then gathers nothing. So a rank that reads values after a step waits for the other ranks' next
// forward at most. (Before the step, one rank must not read alone: the next forward of the others
// uses later values.) If a pass needs a bucket again after it has dropped it, all values are
// gathered once more, and stay until the end of the pass. All ranks must do so in the same pass.
//
// Why no rank waits for ever: each order has a channel, whose plan is the order. A rank makes ready
// all buckets up to the one that it waits for, and all of them before a pass ends, even if it
// fails. (channel.h has the proof for one channel.) Ranks begin the same passes in the same order,
// and end the gathers of each before the next one.
#ifndef ISO_VALUE_SHARDS_H
#define ISO_VALUE_SHARDS_H

#include "parallel/reducer/round.h"

typedef struct iso__value_shards iso__value_shards;

typedef struct iso__value_shards_config {
    const iso__layout *layout; // all borrowed
    iso__round *round;
    iso__planner *planner;
    iso__transport *transport; // whose shards are used
    iso_comm *owners;          // the ranks that have them
    iso_traffic *traffic;      // to which gathers are added
} iso__value_shards_config;

// Collective. Values lie in the order of their gradients, in memory of pages. The values of a
// bucket have one type.
iso_status iso__value_shards_create(const iso__value_shards_config *config,
                                    iso__value_shards **out);
// Collective. Accepts NULL. Returns false if a gather is under way; the caller must then keep all
// that it uses.
bool iso__value_shards_destroy(iso__value_shards **shards);

// Values outlive the shards: destruction does not free their memory.
void iso__value_shards_leave(iso__value_shards *v);

// Where the value of a slot lies.
void *iso__value_shards_at(const iso__value_shards *v, int slot);
// The size of the pages that are in memory, as the system says.
size_t iso__value_shards_resident(const iso__value_shards *v);

iso__pass iso__value_shards_pass(const iso__value_shards *v);

// Begins a forward or a backward. First completes the gathers of a pass that has failed. But if a
// forward has timed out before it dropped anything, the next forward resumes it, because the other
// ranks make this forward only once.
iso_status iso__value_shards_begin(iso__value_shards *v, iso__pass pass);
// Waits for all values of a bucket. Outside a pass, for all buckets.
iso_status iso__value_shards_need(iso__value_shards *v, int bucket);
// The pass needs the bucket no more.
void iso__value_shards_release(iso__value_shards *v, int bucket);
// The pass needs no further bucket. Sends what other ranks may need. Completes the updates of this
// rank's shards first; otherwise never waits.
iso_status iso__value_shards_rest(iso__value_shards *v);
// The pass has failed, by a time-out or otherwise. Sends what other ranks may need; after a
// time-out only what can leave at once.
iso_status iso__value_shards_fail(iso__value_shards *v, bool timed_out);
// Ends a pass after iso__value_shards_rest: waits for what is under way, and drops everything.
iso_status iso__value_shards_end(iso__value_shards *v);

// Completes the gathers of a pass that has failed, or of a call that timed out.
iso_status iso__value_shards_settle(iso__value_shards *v);
// Waits for all values. In a pass they then stay until it ends, outside until the next one.
iso_status iso__value_shards_gather(iso__value_shards *v);
// The values of other ranks are out of date: a step updates them.
iso_status iso__value_shards_expire(iso__value_shards *v);
bool iso__value_shards_is_here(const iso__value_shards *v, int bucket);
bool iso__value_shards_are_whole(const iso__value_shards *v);

#endif
