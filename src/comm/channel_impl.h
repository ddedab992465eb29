// SPDX-License-Identifier: MIT
// Private to channel.c, channel_chunks.c and the engine: what a channel is made of.
#ifndef ISO_CHANNEL_IMPL_H
#define ISO_CHANNEL_IMPL_H

#include "comm/channel.h"
#include "comm/comm_state.h"
#include "comm/request.h"

#include <stdatomic.h>

// One item.
typedef struct iso__channel_entry {
    iso__channel_item given;
    // Rounds for which it was made ready, and of these those it is done with: they differ by one
    // while it is under way. Written with the lock held; `completed` last, after the times.
    _Atomic uint64_t announced, completed;
    int chunks, last; // how many; the plan's index of the last one
    int chunks_left;  // of the round under way
    iso__channel_times times;
} iso__channel_entry;

// Where the blocks of other ranks arrive that a SCATTER by messages sums.
typedef struct iso__channel_cell {
    char *memory; // a chunk's block of each rank
    bool taken;
} iso__channel_cell;

// The engine's lock guards everything but what is atomic.
struct iso__channel {
    iso_comm *comm;
    MPI_Comm mpi;
    iso__channel_entry *item;
    int count;
    iso__chunk *chunk; // the plan
    int chunk_count;
    int next;                 // of the plan, to be posted
    uint64_t round;           // of that chunk
    size_t window, in_flight; // bytes
    int room;                 // requests that are there for it
    iso__channel_cell *cell;  // NULL: no item needs any
    int cell_count;
    int queue; // of exchanges in shared memory; 0: it takes no part in them
    int64_t busy_since;
    iso__channel_load load;
    // The first error, and its text, written before it. Nothing is posted any more.
    _Atomic int error;
    char message[400];
    iso__channel *older; // in the engine's list
};

static inline bool iso__entry_is_pending(const iso__channel_entry *m) {
    return atomic_load_explicit(&m->announced, memory_order_relaxed) !=
           atomic_load_explicit(&m->completed, memory_order_acquire);
}

static inline bool iso__channel_has_failed(const iso__channel *c) {
    return atomic_load_explicit(&c->error, memory_order_acquire) != ISO_OK;
}

// With the lock of the engine held, as all of what follows (channel_chunks.c). Keeps what this
// thread's error record says.
void iso__channel_fail(iso__channel *channel, const iso__channel_entry *m, iso_status status);
// How the item's operation is carried out: in shared memory, or by messages.
const iso__collective_ops *iso__channel_ops(const iso__channel *channel,
                                            const iso__channel_entry *m);
// Whether chunks of the item need a cell.
static inline bool iso__channel_uses_cells(const iso__channel *channel,
                                           const iso__channel_entry *m) {
    return m->given.operation == ISO__SCATTER &&
           iso__channel_ops(channel, m) == &iso__collective_mpi;
}
// Posts what may be posted, and says whether anything was.
bool iso__channel_issue(iso__channel *channel);
// The same of all channels, whose complete chunks are taken back before.
bool iso__channels_issue(iso__engine *engine);

#endif
