// SPDX-License-Identifier: MIT
// Private to the library: an exchange that is repeated in rounds.
//
// In every round, the ranks exchange each item (a buffer) once. Items become ready in any order, at
// each rank's own speed. Their chunks leave in the order of one plan that all ranks share, and as
// many are under way as the window allows; the thread that drives progress posts the next ones. An
// item of a later phase may be computed from the results of earlier phases: every plan puts all
// chunks of a phase before those of the next.
//
// Why no rank can wait for ever: all ranks post the same chunks in the same order on a communicator
// that carries nothing else, so MPI matches them. Before a program waits for an item, it must make
// ready every item that has a chunk before that item's last chunk in the plan; otherwise the wait
// is refused. (It is sufficient to make the whole round ready before the first wait.) Take the
// first chunk, in the order of the plan, that is not complete on every rank. All chunks before it
// are complete and take no room in any window. A rank that waits, waits for an item whose last
// chunk is this one or a later one, so it has made the item of this chunk ready and posted the
// chunk. A rank that does not wait continues until it does. Hence every rank posts the chunk, and
// it completes; by induction, so do all later chunks. The proof holds for any window and any speed
// of the ranks. It does not depend on when a rank makes an item ready, only on that it does so
// before it waits: a program may hold an item back until its other items are ready.
//
// Phases preserve the proof. They only restrict the plan, and the proof needs only that all ranks
// have the same plan. Waits remain possible, too: a round sends nothing of a later phase before the
// last chunk of an item. So a program may make a whole phase ready, wait for it, and only then make
// the next phase ready.
#ifndef ISO_CHANNEL_H
#define ISO_CHANNEL_H

#include "base/base.h"
#include "comm/idle.h"

#include <isotherm/comm.h>

typedef struct iso__channel iso__channel;

// How an item is exchanged. Except with SUM, an item holds one block for each rank, in the order of
// the ranks.
typedef enum iso__operation {
    ISO__SUM,     // every rank gets the sum of all ranks
    ISO__SCATTER, // this rank's block becomes its sum over all ranks, added in rank order, or over
                  // several equal nodes as SUM adds in two levels
    ISO__NODE_SCATTER, // a scatter among the ranks of each node, of several equal ones. Of P ranks
                       // on N nodes, blocks k N to (k + 1) N - 1 become the sum over all ranks on
                       // the k-th rank of every node. The channel's communicator must be located
    ISO__GATHER,       // block r becomes that of rank r
    ISO__ALLTOALL      // block r becomes the block that rank r holds for this rank
} iso__operation;

typedef struct iso__channel_item {
    void *data;
    size_t bytes; // > 0, whole elements. With SUM the length of the item, otherwise of one block.
                  // Chunks and the window are measured in the same way
    iso_dtype dtype;
    const char *label; // borrowed; its name in a time-out
    iso__operation operation;
    int phase; // >= 0
} iso__channel_item;

typedef struct iso__chunk {
    int item;
    size_t offset, bytes; // in the item; whole elements
} iso__chunk;

// iso__cut_count returns the number of chunks of at most `most` bytes; chunk k begins at
// iso__cut_at. All chunks but the last are multiples of `unit`. Chunks are nearly equal in size:
// MPI would sum a short remainder, with fewer elements than ranks, in a different order, and the
// bits would change.
size_t iso__cut_count(size_t bytes, size_t unit, size_t most);
size_t iso__cut_at(size_t bytes, size_t unit, size_t count, size_t k); // k <= count

// When an item's latest round happened, on the clock of iso_now.
typedef struct iso__channel_times {
    int64_t ready_ns, posted_ns, done_ns; // made ready; first chunk posted; last chunk complete
} iso__channel_times;

// Collective over comm; retains it. The channel has its own MPI communicator. ISO_ERR_UNSUPPORTED
// for elements that cannot be summed: SUM takes f32, f64, bf16 and f16, scatters f32 and f64. The
// initial plan orders items by phase, and within a phase as given, in chunks of at most
// chunk_bytes, with `window` bytes under way. At most seven channels of a communicator use its
// shared memory. Further channels use messages, and ALLTOALL always does.
iso_status iso__channel_create(iso_comm *comm, const iso__channel_item *item, int count,
                               size_t chunk_bytes, size_t window, iso__channel **out);
// Collective. If an exchange is pending, logs an error, frees nothing and returns false; the caller
// must then keep the items. Accepts NULL. May be called after MPI_Finalize.
bool iso__channel_destroy(iso__channel **channel);

// The nodes of a channel's ranks.
typedef struct iso__channel_nodes {
    iso_comm *node;    // the ranks of this rank's node
    iso_comm *across;  // rank k of every node, if this rank is rank k of its own; NULL: k >= slices
    int nodes, slices; // the number of nodes; the number of ranks of the smallest node
} iso__channel_nodes;

// Collective. From now on each SUM of f32 is made in two levels (coll_hierarchy.c), unless some
// rank has no queue left. All such items must be at equal places in memory that the ranks of each
// node share (iso__comm_share; a node with one rank needs none), and every process must have a
// helper thread. The communicator must be located. Nothing may have been made ready. Retains node.
iso_status iso__channel_use_nodes(iso__channel *channel, const iso__channel_nodes *nodes);

// Local; every rank must give the same plan. Nothing may be pending. Copies the chunks. ISO_ERR_ARG
// unless phases ascend and the chunks of each item cover it exactly, in ascending order.
iso_status iso__channel_set_plan(iso__channel *channel, const iso__chunk *chunk, int count,
                                 size_t window);

// Local. Call it when the item is final for this round. The item then belongs to the channel until
// it is done. At most once per round and item (ISO_ERR_STATE): all items of a round leave before
// any of the next round.
iso_status iso__channel_ready(iso__channel *channel, int item);
// Work for a waiting thread between two tests, called without the lock. Returns true if it did
// something. After false, it is called again only when another exchange has completed.
typedef bool (*iso__channel_idle)(void *user);
// Blocks, driving progress itself, until the item is done (at once, if it was never made ready);
// ISO_ERR_TIMEOUT as iso_request_wait; the caller may then wait again. After an exchange has
// failed, every later wait returns its error. ISO_ERR_STATE if an item that is not ready on this
// rank has a chunk that must leave first. idle may be NULL.
iso_status iso__channel_wait(iso__channel *channel, int item, iso__channel_idle idle, void *user);
// Local, cheap (no lock, no progress). Returns false while the item is under way.
bool iso__channel_is_done(const iso__channel *channel, int item);
// Valid when the item is done.
iso__channel_times iso__channel_times_of(const iso__channel *channel, int item);

// The bytes of all complete chunks, and the time during which any chunk was under way.
typedef struct iso__channel_load {
    int64_t bytes, busy_ns;
} iso__channel_load;
iso__channel_load iso__channel_load_of(iso__channel *channel);

// Local. The first returns whether the item travels in two levels, inside nodes and between them.
// SCATTER and GATHER do so over several nodes with equally many ranks, more than one (comm must be
// located). The second returns whether the item's messages are those of pairwise exchange.
bool iso__channel_in_two_levels(const iso__channel *channel, int item);
bool iso__channel_in_pairs(const iso__channel *channel, int item);

// What a channel needs to keep a link busy with sums.
typedef struct iso__channel_needs {
    size_t chunk;  // the minimum length at which to cut long items, so that messages are not short
    int under_way; // chunks at once: a sum by MPI's all-reduce, or by halves, takes 2 log2 P
                   // rounds, each of which waits for the last. Other sums use the link meanwhile
} iso__channel_needs;
// Local. The needs of a channel of comm with these nodes (NULL: none), and of this channel.
iso__channel_needs iso__channel_needs_for(const iso_comm *comm, const iso__channel_nodes *nodes);
iso__channel_needs iso__channel_needs_of(const iso__channel *channel);
// The number of chunks of such sums that should be under way. 2 are enough for 8 ranks. In
// simulations (docs/scale.md), each doubling of the ranks needs 2 more.
int iso__sums_under_way(int ranks);

// Adds what a round of this item moves. Local; the channel's communicator has been located
// (iso__comm_locate).
void iso__channel_count(const iso__channel *channel, int item, iso_traffic *to);

#endif
