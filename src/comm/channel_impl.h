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
    // The number of rounds for which the item was made ready, and the number of its complete
    // rounds. They differ by one while the item is under way. Written with the lock held;
    // `completed` last, after the times.
    _Atomic uint64_t announced, completed;
    int chunks, last; // their number; the index of the last one in the plan
    int chunks_left;  // that are not complete in the round under way
    iso__channel_times times;
} iso__channel_entry;

// Receives the blocks of other ranks, if they cannot be received in place: a scatter by messages
// sums them (in two levels in blocks.h), and an ALLTOALL still sends from the item.
typedef struct iso__channel_cell {
    char *memory; // a chunk's block of each rank
    bool taken;
} iso__channel_cell;

// The engine's lock guards everything that is not atomic.
struct iso__channel {
    iso_comm *comm;
    MPI_Comm mpi;
    iso__stream stream; // of its chunks
    iso__channel_entry *item;
    int count;
    iso__chunk *chunk; // the plan
    int chunk_count;
    int next;                 // the index in the plan of the next chunk to post
    uint64_t round;           // of that chunk
    size_t window, in_flight; // bytes
    int room;                 // requests reserved for its chunks
    iso__channel_cell *cell;  // NULL: no item needs any
    int cell_count;
    int queue;                        // for exchanges in shared memory; 0: none
    struct iso__hierarchy *hierarchy; // for sums of f32 over several nodes; NULL: none
    struct iso__pairwise *pairwise;   // for other sums; NULL: by MPI's all-reduce, or none yet
    bool sums_pairwise;
    int nodes;                  // > 0: scatters and gathers by messages go by node (blocks.h)
    struct iso__blocks *blocks; // for these exchanges; NULL: the plan has none
    int64_t busy_since;
    iso__channel_load load;
    // The first error, and its message, which is written before it. After an error nothing is
    // posted.
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

// channel_places.c: memory, places and requests for the chunks of the plan.
iso_status iso__channel_make_places(iso__channel *channel);
void iso__channel_free_places(iso__channel *channel);

// channel_ways.c: whether sums of comm by messages are made by pairwise exchange.
bool iso__channel_sums_pairwise(const iso_comm *comm);
// This and all functions below need the engine's lock (channel_chunks.c). Stores this thread's
// error record as the channel's error, unless it has one.
void iso__channel_fail(iso__channel *channel, const iso__channel_entry *m, iso_status status);
// The implementation of the item's operation: in shared memory, or by messages.
const iso__collective_ops *iso__channel_ops(const iso__channel *channel,
                                            const iso__channel_entry *m);
// Whether chunks of the item need a cell.
static inline bool iso__channel_uses_cells(const iso__channel *channel,
                                           const iso__channel_entry *m) {
    iso__operation operation = m->given.operation;
    return operation != ISO__SUM && operation != ISO__GATHER &&
           iso__channel_ops(channel, m) != &iso__collective_shm;
}
// Posts all chunks that may be posted. Returns whether it posted any.
bool iso__channel_issue(iso__channel *channel);
// Finishes the complete chunks of all channels, then calls iso__channel_issue for each channel.
bool iso__channels_issue(iso__engine *engine);

#endif
