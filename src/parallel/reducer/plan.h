// SPDX-License-Identifier: MIT
// Private to the reducer: the order in which chunks of buckets leave.
//
// Backward finishes the first layer's gradient last, though the next forward needs it first. From
// the times at which each bucket becomes ready and is needed, and from the speed of the wire, the
// plan always sends the ready chunk that is needed earliest (preemptive earliest-deadline-first on
// one machine with release times, which minimises the maximum lateness: Horn 1974). One rank
// computes it once, and all ranks use it.
#ifndef ISO_PLAN_H
#define ISO_PLAN_H

#include "comm/channel.h"

// A bucket as rank 0 measured it, in ms since the beginning of a backward, on a clock that stops
// during waits.
typedef struct iso__plan_item {
    size_t bytes, unit;       // unit: chunks are whole multiples of it
    double ready_ms, need_ms; // need_ms > ready_ms: in the next forward
} iso__plan_item;

typedef struct iso__plan_config {
    double bytes_per_ms; // of the wire
    size_t chunk_bytes,
        window; // as iso__channel_set_plan takes them; chunks are at most chunk_bytes
} iso__plan_config;

// Chooses chunks and window for a wire of that speed, and for what the channel needs.
iso__plan_config iso__plan_choose(double bytes_per_ms, iso__channel_needs needs);
// Writes the chunks in the order in which they leave; free them with iso__free. On a tie, the item
// with the lower index leaves first. The chunks of an item are nearly equal, in ascending order,
// and cover it.
iso_status iso__plan_make(const iso__plan_item *item, int count, const iso__plan_config *config,
                          iso__chunk **chunks, int *chunk_count);

#endif
