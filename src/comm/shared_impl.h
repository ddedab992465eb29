// Private to shared.c and coll_shm.c: memory that all ranks of a communicator can reach.
#ifndef ISO_SHARED_IMPL_H
#define ISO_SHARED_IMPL_H

#include "comm/comm_impl.h"

#include <stdatomic.h>

// What a rank tells the others of a queue, counters on cache lines of their own.
typedef struct iso__tally {
    _Alignas(64) _Atomic uint64_t posted; // exchanges that this rank has issued
    _Alignas(64) _Atomic uint64_t summed; // of these, whose slice it has summed, for all ranks
} iso__tally;

// Only its rank writes it.
typedef struct iso__board {
    int64_t id; // of the segment
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
