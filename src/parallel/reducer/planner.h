// SPDX-License-Identifier: MIT
// Private to the reducer: measures when buckets are ready and needed, and makes from these times,
// once, a plan: the order in which buckets leave.
#ifndef ISO_PLANNER_H
#define ISO_PLANNER_H

#include "exchange/transport.h"
#include "parallel/reducer/layout.h"

typedef struct iso__planner iso__planner;

// Borrows the layout and world. wanted: make a plan.
iso_status iso__planner_create(const iso__layout *layout, iso_comm *world, bool wanted,
                               iso__planner **out);
void iso__planner_destroy(iso__planner **planner); // accepts NULL

// Call these when a backward begins, when a bucket is ready in list number `list`, when it is
// needed, and when it has arrived. spent_ns: the time for which the waiting thread worked on other
// buckets.
void iso__planner_begin(iso__planner *p);
void iso__planner_ready(iso__planner *p, int bucket, long long list);
void iso__planner_need(iso__planner *p, int bucket);
void iso__planner_arrived(iso__planner *p, int bucket, const iso__exchange_times *times,
                          int64_t spent_ns);
// With ZeRO, call it when the values of all ranks have arrived, in a second exchange.
void iso__planner_collected(iso__planner *p, int bucket, const iso__exchange_times *times,
                            int64_t spent_ns);
// The program has waited for a device since start_ns.
void iso__planner_waited(iso__planner *p, int64_t start_ns);

// Continues the counts of waits and exchanges of `from`.
void iso__planner_go_on(iso__planner *p, const iso__planner *from);
// The first fills in wait_ms, exchange_ms and planned, the second everything except name, bytes and
// wire_bytes.
void iso__planner_add_stats(const iso__planner *p, iso_reducer_stats *out);
void iso__planner_bucket_stats(const iso__planner *p, int bucket, iso_bucket_stats *out);

// Whether to make the plan now, after `lists` issued lists. True once, and at the same time on all
// ranks.
bool iso__planner_is_due(iso__planner *p, const iso__transport *transport, long long lists);
// Collective over world. Nothing may be pending. mine: the status of this rank so far.
iso_status iso__planner_plan(iso__planner *p, const iso__transport *transport, iso_status mine);

#endif
