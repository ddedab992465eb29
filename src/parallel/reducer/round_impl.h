// SPDX-License-Identifier: MIT
// Private to round.c and round_back.c: the state of a list of gradients.
#ifndef ISO_ROUND_IMPL_H
#define ISO_ROUND_IMPL_H

#include "base/profiler.h"
#include "parallel/reducer/round.h"
#include "parallel/reducer/slot_types.h"
#include "parallel/reducer/used_params.h"

// MEASURED: the first halves of its updates are made, and what they measured is under way. UPDATED:
// its updates are made, and its values have yet to be published.
typedef enum bucket_stage { OPEN, POSTED, ARRIVED, MEASURED, UPDATED, PUBLISHED } bucket_stage;

typedef struct bucket_state {
    bucket_stage stage;
    int missing;         // slots that are not ready
    iso__transport *via; // the transport it was posted to
    bool undivided;      // the sum is not yet divided by the total of the weights
    bool arrived;        // this exchange's sums of the program were read
    int64_t spent_ns;    // spent on other buckets during failed waits for this one
    uint64_t range;      // of its exchange, for a profiler
} bucket_state;

typedef struct slot_state {
    bool ready;   // gradient final for this backward
    bool whole;   // reported with all pieces of the parameter
    bool keep;    // no zero_grad since it was issued: its gradient must become an average
    int64_t turn; // when its gradient was last ready: later ones have larger numbers; 0: never
} slot_state;

struct iso__round {
    iso__round_config with;
    iso__transport *transport; // of the scope in force
    iso_comm *comm;            // over which it sums, or NULL
    bucket_state *bucket;      // [buckets]
    slot_state *slot;          // [slots]
    iso__usage *usage;
    iso__zero *zero;   // NULL: every rank updates everything
    iso__norms *norms; // with zero
    int issued;        // buckets that this backward has issued
    int busy;          // buckets that are not OPEN
    int ready_count;   // slots ready of the list that is being issued; once it is out, of the next
    // The range of the buckets that have become complete since issue_ready looked; last -1: none.
    int complete_first, complete_last;
    int unshared;       // no bucket above it waits to be published; -1: none does
    int looked;         // the bucket at which a wait looks first for others to advance
    long long lists;    // issued whole so far
    int64_t turns;      // gradients that were ready so far
    bool fresh;         // a whole list was issued that no step has used yet
    bool uncounted;     // the list is out, and the hook counts it once all of it is back
    bool shares;        // a step was made, and values go to the other ranks
    bool updating;      // an update function runs
    bool unheld;        // a wait for room failed by time-out: this list is not held any more
    bool always_closed; // its owner closes every backward
    bool excused;       // this rank may lack gradients
    iso__averaging average;
};

static inline const iso__layout *layout_of(const iso__round *r) { return r->with.layout; }
static inline const iso__bucket *bucket_of(const iso__round *r, int b) {
    return &r->with.layout->bucket[b];
}
// Call it for each bucket that leaves OPEN.
static inline void iso__round_note_unshared(iso__round *r, int b) {
    if (b > r->unshared) r->unshared = b;
}
// Shows the exchange of a bucket, which begins here, to a profiler.
static inline void iso__round_show_exchange(iso__round *r, int b) {
    if (iso__profiler_on())
        r->bucket[b].range = iso__profiler_start(ISO_LANE_EXCHANGE, bucket_of(r, b)->label);
}
static inline int slots_in(const iso__round *r, int b) {
    const iso__range *range = &r->with.layout->range[b];
    return range->last - range->first + 1;
}

// ---- round_back.c ----
// Waits until a bucket has arrived. left NULL: the sum becomes an average. idle may be NULL.
iso_status iso__round_arrive(iso__round *r, int b, const iso__idle *idle, double *left);
// On a device, waits for a bucket without making its updates: waits between updates would split
// what the device launches together.
iso_status iso__round_arrive_first(iso__round *r, int b);
// Waits for a bucket, makes its updates, and opens it.
iso_status iso__round_complete(iso__round *r, int b);
// With ZeRO: publishes what has come back. Never waits.
iso_status iso__round_publish_back(iso__round *r);

#endif
