// SPDX-License-Identifier: MIT
// Private to the reducer: in which order chunks of buckets leave.
//
// Backward finishes the first layer's gradient last, though the next forward needs it first. Given
// when each bucket becomes ready and when it is needed, and how fast the wire is, the plan sends at
// any moment the ready chunk that is needed earliest (preemptive earliest-deadline-first on one
// machine with release times, which minimises the largest lateness: Horn 1974). It is computed
// once, on one rank, and then the same for all.
#ifndef ISO_PLAN_H
#define ISO_PLAN_H

#include "comm/channel.h"

// A bucket as rank 0 measured it, on a clock that stands still in waits, from the begin of a
// backward.
typedef struct iso__plan_item {
    size_t bytes, unit;       // unit: chunks are whole multiples of it
    double ready_ms, need_ms; // need_ms > ready_ms: in the next forward
} iso__plan_item;

typedef struct iso__plan_config {
    double bytes_per_ms; // of the wire
    size_t chunk_bytes,
        window; // as iso__channel_set_plan takes them; chunks are at most chunk_bytes
} iso__plan_config;

// Chooses chunks and window for a wire of that speed.
iso__plan_config iso__plan_choose(double bytes_per_ms);
// Writes the chunks in their order, to be freed with iso__free. Ties go to the lower item. The
// chunks of an item are nearly equal, in ascending order, and cover it.
iso_status iso__plan_make(const iso__plan_item *item, int count, const iso__plan_config *config,
                          iso__chunk **chunks, int *chunk_count);

#endif
