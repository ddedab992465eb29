// SPDX-License-Identifier: MIT
// Private to the reducer: when buckets are ready and needed (statistics), and the plan of the order
// in which they leave, which is made of that once.
#ifndef ISO_PLANNER_H
#define ISO_PLANNER_H

#include "exchange/transport.h"
#include "parallel/reducer/layout.h"

typedef struct iso__planner iso__planner;

// Borrows the layout and world. wanted: a plan is to be made.
iso_status iso__planner_create(const iso__layout *layout, iso_comm *world, bool wanted,
                               iso__planner **out);
void iso__planner_destroy(iso__planner **planner); // accepts NULL

// A backward began; a bucket was reported in list number `list`, was needed, has arrived with these
// times. spent_ns: how long the thread that waited worked on other buckets meanwhile.
void iso__planner_begin(iso__planner *p);
void iso__planner_ready(iso__planner *p, int bucket, long long list);
void iso__planner_need(iso__planner *p, int bucket);
void iso__planner_arrived(iso__planner *p, int bucket, const iso__exchange_times *times,
                          int64_t spent_ns);
// With ZeRO: the values of all ranks have arrived, in an exchange that follows.
void iso__planner_collected(iso__planner *p, int bucket, const iso__exchange_times *times,
                            int64_t spent_ns);
void iso__planner_waited(iso__planner *p, int64_t start_ns); // from then until now, for a device

// Fills in what it knows: wait_ms, exchange_ms, planned; all but name, bytes and wire_bytes.
void iso__planner_add_stats(const iso__planner *p, iso_reducer_stats *out);
void iso__planner_bucket_stats(const iso__planner *p, int bucket, iso_bucket_stats *out);

// Whether the plan is to be made now, with `lists` issued whole so far. By what all ranks know
// alike; true once.
bool iso__planner_is_due(iso__planner *p, const iso__transport *transport, long long lists);
// Collective over world; nothing is pending. mine: whether this rank has come here well.
iso_status iso__planner_plan(iso__planner *p, const iso__transport *transport, iso_status mine);

#endif
