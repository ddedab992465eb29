// SPDX-License-Identifier: MIT
// Private to the library: an exchange that goes on in rounds.
//
// In every round each item (a buffer) is exchanged between the ranks once.
// Items become ready in any order, at each rank's own speed. Their chunks leave in the order of one
// plan that all ranks share, as many at a time as its window allows; whoever drives progress posts
// what follows. Items of a later phase may be made of what earlier ones have brought: every plan
// puts all chunks of a phase before those of the next.
//
// Why no rank can wait for ever: all ranks post the same chunks in the same order on a communicator
// that carries nothing else, so MPI matches them. A program waits for an item only when it has made
// ready itself all items of which a chunk leaves before the last one of that item (to make the
// whole round ready before the first wait is enough; otherwise the wait is refused). Take the first
// chunk, in the order of the plan, that is not complete on every rank. All chunks before it are
// complete and take no room in any window. A rank that waits does so for an item whose last chunk
// is this one or a later one; so it has made the item of this chunk ready, and posted the chunk. A
// rank that does not wait runs on until it does. Hence everybody posts the chunk, it completes, and
// so does every one after it, by induction. How large the window is and how fast a rank is make no
// difference.
//
// Phases preserve the proof. They only restrict the plan, and the proof needs only that all ranks
// have the same plan. Waits stay possible, too: before the last chunk of an item, a round sends
// nothing of a later phase. So a program may make all of a phase ready, wait for it, and only then
// make the next phase ready.
#ifndef ISO_CHANNEL_H
#define ISO_CHANNEL_H

#include "base/base.h"

#include <isotherm/comm.h>

typedef struct iso__channel iso__channel;

// What is done with an item. SCATTER and GATHER are of items that hold a block of each rank, one
// behind the other.
typedef enum iso__operation {
    ISO__SUM,     // every rank gets the sum of all ranks
    ISO__SCATTER, // this rank's block becomes the sum of that block of all ranks, added in their
                  // order
    ISO__GATHER   // block r becomes that of rank r
} iso__operation;

typedef struct iso__channel_item {
    void *data;
    size_t bytes; // > 0, whole elements; SCATTER, GATHER: of a block, as are chunks and the window
    iso_dtype dtype;
    const char *label; // by reference; what a time-out names
    iso__operation operation;
    int phase; // >= 0
} iso__channel_item;

typedef struct iso__chunk {
    int item;
    size_t offset, bytes; // in the item; whole elements
} iso__chunk;

// An item is cut into so many chunks of at most `most` bytes, all but the last of whole units,
// where chunk k begins at iso__cut_at. They are nearly equal: of a rest of fewer elements than
// ranks MPI adds up the ranks in another order, which would show in the bits.
size_t iso__cut_count(size_t bytes, size_t unit, size_t most);
size_t iso__cut_at(size_t bytes, size_t unit, size_t count, size_t k); // k <= count

// When an item's latest round happened, on the clock of iso_now.
typedef struct iso__channel_times {
    int64_t ready_ns, posted_ns, done_ns; // made ready; first chunk posted; last chunk complete
} iso__channel_times;

// Collective over comm, which it retains; it has an MPI communicator of its own.
// ISO_ERR_UNSUPPORTED for elements that cannot be summed: SCATTER takes f32 and f64. The plan to
// begin with: items by phase and then in the order given, each in chunks of at most chunk_bytes,
// `window` bytes under way. At most seven channels of a communicator use its shared memory; further
// ones send messages.
iso_status iso__channel_create(iso_comm *comm, const iso__channel_item *item, int count,
                               size_t chunk_bytes, size_t window, iso__channel **out);
// Collective. Nothing may be pending: otherwise it stays, with its items, and says so in the log.
// Accepts NULL. May be called after MPI_Finalize.
bool iso__channel_destroy(iso__channel **channel);

// Local; every rank gives the same. Nothing may be pending. Copies. ISO_ERR_ARG unless phases
// ascend and the chunks of each item cover it exactly, in ascending order.
iso_status iso__channel_set_plan(iso__channel *channel, const iso__chunk *chunk, int count,
                                 size_t window);

// Local. The item is final for this round: it belongs to the channel until it is done. At most once
// per round and item (ISO_ERR_STATE): all items of a round leave before any of the next round.
iso_status iso__channel_ready(iso__channel *channel, int item);
// What a waiting thread does between two tests: called without the lock; true: it did something.
// After false it is called again when another exchange is complete.
typedef bool (*iso__channel_idle)(void *user);
// Blocks, driving progress itself, until the item is done (at once, if it was never made ready);
// ISO_ERR_TIMEOUT as iso_request_wait, and it may be waited for again. An error of the exchange is
// given again and again. ISO_ERR_STATE if a chunk that leaves before it is of an item that is
// not ready on this rank. idle may be NULL.
iso_status iso__channel_wait(iso__channel *channel, int item, iso__channel_idle idle, void *user);
// Local, cheap (no lock, no progress): whether the item is not under way.
bool iso__channel_is_done(const iso__channel *channel, int item);
// Valid when the item is done.
iso__channel_times iso__channel_times_of(const iso__channel *channel, int item);

// Of all complete chunks: bytes that were summed, and the time during which anything was under way.
typedef struct iso__channel_load {
    int64_t bytes, busy_ns;
} iso__channel_load;
iso__channel_load iso__channel_load_of(iso__channel *channel);

// Adds what a round of this item moves. Local; the channel's communicator has been located.
void iso__channel_count(const iso__channel *channel, int item, iso_traffic *to);

#endif
