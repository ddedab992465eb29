// Private to src/comm and src/parallel: an exchange that goes on in rounds.
//
// In every round each item (a buffer) is summed over the ranks once. Items become ready in any
// order, at each rank's own speed. Their parts leave in the order of one plan that all ranks share,
// as many at a time as its window allows; whoever drives progress posts what follows.
//
// Why no rank can wait for ever: all ranks post the same parts in the same order on a communicator
// that carries nothing else, so MPI matches them. A program waits for an item only when it has made
// ready itself all items of which a part leaves before the last one of that item (to make the whole
// round ready before the first wait is enough; otherwise the wait is refused). Take the first part,
// in the order of the plan, that is not complete on every rank. All parts before it are complete
// and take no room in any window. A rank that waits does so for an item whose last part is this one
// or a later one; so it has made the item of this part ready, and posted the part. A rank that does
// not wait runs on until it does. Hence everybody posts the part, it completes, and so does every
// one after it, by induction. How large the window is and how fast a rank is make no difference.
#ifndef ISO_STREAM_H
#define ISO_STREAM_H

#include "comm/comm_impl.h"

typedef struct iso__stream iso__stream;

typedef struct iso__stream_item {
    void *data;
    size_t bytes; // > 0, whole elements
    iso_dtype dtype;
    const char *label; // by reference; what a time-out names
} iso__stream_item;

typedef struct iso__part {
    int item;
    size_t offset, bytes; // in the item; whole elements
} iso__part;

// An item is cut into so many parts of at most `most` bytes, all but the last of whole units, where
// part k begins at iso__cut_at. They are nearly equal: of a rest of fewer elements than ranks MPI
// adds up the ranks in another order, which would show in the bits.
size_t iso__cut_count(size_t bytes, size_t unit, size_t most);
size_t iso__cut_at(size_t bytes, size_t unit, size_t count, size_t k); // k <= count

// When an item's latest round happened, on the clock of iso_now.
typedef struct iso__stream_times {
    int64_t ready_ns, posted_ns, done_ns; // made ready; first part posted; last part complete
} iso__stream_times;

// Collective over comm, which it retains; it has an MPI communicator of its own. The plan to begin
// with: items in the order given, each in parts of at most part_bytes, `window` bytes under way.
// At most seven streams of a communicator use its shared memory; further ones send messages.
iso_status iso__stream_create(iso_comm *comm, const iso__stream_item *item, int count,
                              size_t part_bytes, size_t window, iso__stream **out);
// Collective. Nothing may be pending: otherwise it stays, with its items, and says so in the log.
// Accepts NULL. May be called after MPI_Finalize.
bool iso__stream_destroy(iso__stream **stream);

// Local; every rank does the same. Nothing may be pending (ISO_ERR_STATE). Data of an item has
// moved; its length and type stay.
iso_status iso__stream_move(iso__stream *stream, int item, void *data);
// Local; every rank gives the same. Nothing may be pending. Copies. ISO_ERR_ARG unless the parts of
// each item cover it exactly, in ascending order.
iso_status iso__stream_set_plan(iso__stream *stream, const iso__part *part, int count,
                                size_t window);
int iso__stream_parts(const iso__stream *stream);

// Local. The item is final for this round: it belongs to the stream until it is done. At most once
// per round and item (ISO_ERR_STATE): all items of a round leave before any of the next round.
iso_status iso__stream_ready(iso__stream *stream, int item);
// Local. ISO_OK: not under way (done, or never made ready). ISO_PENDING: under way; drives progress
// only where that is the caller's task. An error of the exchange is given again and again.
iso_status iso__stream_test(iso__stream *stream, int item);
// What a waiting thread does between two tests: called without the lock; true: it did something.
// After false it is called again when another exchange is complete.
typedef bool (*iso__stream_idle)(void *user);
// Blocks, driving progress itself, until the item is done; ISO_ERR_TIMEOUT as iso_request_wait, and
// it may be waited for again. ISO_ERR_STATE if a part that leaves before it is of an item that is
// not ready on this rank. idle may be NULL.
iso_status iso__stream_wait(iso__stream *stream, int item, iso__stream_idle idle, void *user);
// Local, cheap (no lock, no progress): whether the item is not under way.
bool iso__stream_is_done(const iso__stream *stream, int item);
// Valid when the item is done.
iso__stream_times iso__stream_times_of(const iso__stream *stream, int item);

// Of all complete parts: bytes that were summed, and the time during which anything was under way.
typedef struct iso__stream_load {
    int64_t bytes, busy_ns;
} iso__stream_load;
iso__stream_load iso__stream_load_of(iso__stream *stream);

// Adds what a round of this item moves. Local; the stream's communicator has been located.
void iso__stream_count(const iso__stream *stream, int item, iso_traffic *to);

// For the engine, with its lock held: posts what may be posted, and says whether anything was; a
// part is complete, and released.
bool iso__streams_issue(iso__engine *engine);
void iso__stream_part_done(iso_request *request);

#endif
