// SPDX-License-Identifier: MIT
// Private to shared.c and coll_shm.c: memory that all ranks of a communicator can reach.
#ifndef ISO_SHARED_IMPL_H
#define ISO_SHARED_IMPL_H

#include "comm/comm_state.h"
#include "comm/request.h"

#include <stdatomic.h>

// What a rank tells the others of a queue, counters on cache lines of their own.
typedef struct iso__tally {
    _Alignas(64) _Atomic uint64_t posted; // exchanges that this rank has issued
    // Of these, whose slice for all ranks is summed, and is being summed. Another rank that waits
    // may do that for one which has no helper; one slice after the other.
    _Alignas(64) _Atomic uint64_t summed;
    _Atomic uint64_t taken;
} iso__tally;

// Its rank writes it, but for what another sums.
typedef struct iso__board {
    int64_t id;   // of the segment
    size_t bytes; // of data behind it
    bool helped;  // there is a thread that sums while the program does something else
    iso__tally queue[ISO_QUEUES];
} iso__board;
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "ranks share counters without a lock");

// In the order of issue, the same on all ranks: everything not complete; from `next` on this rank's
// slice is not summed.
typedef struct iso__shared_queue {
    iso_request *first, *last, *next;
    uint64_t posted;
} iso__shared_queue;

// Each rank's segment is its board, then its data. The engine's lock guards all but the segments.
struct iso__shared {
    iso_comm *comm;
    iso__board *own;    // where this rank's memory lies, which is not the record's
    iso__board **board; // of each rank, as mapped here
    size_t bytes;       // of data of each rank
    iso__shared_queue queue[ISO_QUEUES];
    int turn;           // the queue that is looked at first
    iso__shared *older; // in the engine's list
};

static inline char *iso__shared_data(const iso__shared *shared, int rank) {
    return (char *)shared->board[rank] + sizeof(iso__board);
}

#endif
