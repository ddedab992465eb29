// SPDX-License-Identifier: MIT
// Private to shared.c, coll_shm.c and coll_hierarchy.c: memory that all ranks of a communicator can
// reach.
#ifndef ISO_SHARED_IMPL_H
#define ISO_SHARED_IMPL_H

#include "comm/comm_state.h"
#include "comm/request.h"

#include <stdatomic.h>

// The counters of a queue that a rank shares with the others, on separate cache lines.
typedef struct iso__tally {
    _Alignas(64) _Atomic uint64_t posted; // exchanges that this rank has issued
    // summed: exchanges whose slice has been summed. taken: exchanges whose slice some rank has
    // begun to sum. A waiting rank may sum the slice of a rank without a helper, one slice at a
    // time.
    _Alignas(64) _Atomic uint64_t summed;
    _Atomic uint64_t taken;
} iso__tally;

// Written by its rank, except for `summed` and `taken`.
typedef struct iso__board {
    int64_t id;   // of the segment
    size_t bytes; // of data behind it
    bool helped;  // a helper thread sums while the program does something else
    iso__tally queue[ISO_QUEUES];
} iso__board;
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "ranks share counters without a lock");

// The exchanges that are not complete, in the order of issue, which is the same on all ranks. From
// `next` on, this rank's slice is not summed.
typedef struct iso__shared_queue {
    iso_request *first, *last, *next;
    uint64_t posted;
} iso__shared_queue;

// A rank's segment consists of its board, followed by its data. The engine's lock guards everything
// except the segments.
struct iso__shared {
    iso_comm *comm;
    iso__board *own;    // this rank's segment
    iso__board **board; // of each rank, as mapped here
    size_t bytes;       // of data of each rank
    iso__shared_queue queue[ISO_QUEUES];
    int turn;           // the queue to serve first
    iso__shared *older; // in the engine's list
};

static inline char *iso__shared_data(const iso__shared *shared, int rank) {
    return (char *)shared->board[rank] + sizeof(iso__board);
}

// Publish the number of exchanges of a queue that this rank has issued, or whose slice it has
// summed. The stores are release stores: a rank that sees the number also sees the data.
static inline void iso__shared_tell_posted(iso__shared *s, int queue, uint64_t count) {
    atomic_store_explicit(&s->board[s->comm->rank]->queue[queue].posted, count,
                          memory_order_release);
}
// Needed by a later channel that uses the queue: there ranks take slices (coll_shm.c).
static inline void iso__shared_tell_taken(iso__shared *s, int queue, uint64_t count) {
    atomic_store_explicit(&s->board[s->comm->rank]->queue[queue].taken, count,
                          memory_order_release);
}
static inline void iso__shared_tell_summed(iso__shared *s, int queue, uint64_t count) {
    atomic_store_explicit(&s->board[s->comm->rank]->queue[queue].summed, count,
                          memory_order_release);
}

// coll_shm.c. Whether all ranks have issued the request's exchange, or have summed their slices.
bool iso__shared_all_posted(const iso__shared *s, const iso_request *request);
bool iso__shared_all_summed(const iso__shared *s, const iso_request *request);
// Adds up `count` elements at this offset of all ranks, in their order, without the lock. The sum
// goes to the ranks from `first` to before `end`.
void iso__shared_sum(const iso__shared *s, size_t offset, size_t count, int first, int end);

#endif
