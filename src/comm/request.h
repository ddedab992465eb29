// SPDX-License-Identifier: MIT
// Private to src/comm: one exchange, and its implementation by messages or shared memory.
#ifndef ISO_REQUEST_H
#define ISO_REQUEST_H

#include "comm/channel.h"
#include "comm/engine.h"
#include "comm/stall.h"

// One exchange. FREE -> POSTED -> DONE (or FAILED) -> FREE; its memory stays in the engine's pool.
typedef enum iso__request_state {
    ISO_REQUEST_FREE,
    ISO_REQUEST_POSTED,
    ISO_REQUEST_DONE,
    ISO_REQUEST_FAILED
} iso__request_state;

struct iso_request {
    struct iso__engine *engine;
    iso_comm *comm; // borrowed: outlives its exchanges
    const char *name;
    size_t bytes;
    int64_t posted_ns, done_ns;
    iso__stream *stream; // the stream that it belongs to; turn: its number there
    uint64_t turn;
    MPI_Comm mpi; // the communicator it uses, unless it is bulk
    char *next;   // MPI: the first data not yet posted. Shared memory: the first data of this
                  // rank's slice not yet summed
    size_t left;  // elements from there
    size_t unit;  // bytes of an element
    // MPI: posts `count` elements starting at next; returns an MPI return code.
    int (*call)(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);
    const char *send; // alltoall: as next
    size_t block; // alltoall, allgather: bytes from a rank's block to the next. Elements are those
                  // of one block
    int root;     // bcast; of a message: the other rank
    int tag;      // of a message
    iso_dtype dtype;                // all-reduce
    iso__operation operation;       // of a channel's chunk
    struct iso__channel_cell *cell; // of a channel's chunk; or NULL
    int under_way;                  // chunks begun and not complete
    bool bulk;    // MPI: longer than a chunk; its chunks go through the communicator's queue
    bool whole;   // MPI: travels as one chunk of any length
    bool message; // between two ranks: travels in pieces, coll_message.c
    struct iso__channel *channel; // whose chunk it is, and which finishes it; or NULL
    int channel_chunk;            // index in the channel's plan
    int mpi_error;                // MPI
    int queue;                    // shared memory: the index of its queue
    uint64_t number;              // shared memory: its number in that queue
    size_t offset;                // shared memory: where its data begins, in bytes
    bool taken;                   // shared memory: this rank sums its slice
    bool hierarchy;               // its messages are those of a slice, hierarchy.h
    iso__request_state state;
    iso_request *older, *newer; // those that are not complete
    iso_request *next_in_line;  // in the queue of the communicator or of the shared memory, or in
                                // the free list
};

// Of messages between two ranks: bytes of a piece, and pieces that are under way at once.
enum { ISO_PIECE_BYTES = 60 * 1024, ISO_PIECES_UNDER_WAY = 8 };

// ---- engine.c ----
// All with the lock held. reserve makes room for `more` further requests, and for those of MPI, so
// that posting them allocates nothing. begin returns a request that counts as POSTED; stream: of
// the communicator or channel. complete makes it DONE, or FAILED if it has an mpi_error. release
// returns it to the pool.
iso_status iso__request_reserve(iso__engine *engine, int more);
void iso__request_unreserve(iso__engine *engine, int count); // gives up reserved room
iso_status iso__request_begin(iso_comm *comm, iso__stream *stream, const char *name, size_t bytes,
                              iso_request **out);
void iso__request_complete(iso_request *request);
// Posts the next elements of the request, `most` at most, into this slot of the engine. Returns an
// MPI return code.
int iso__request_post_part(iso_request *request, size_t most, MPI_Comm mpi, int slot);
void iso__request_release(iso__engine *engine, iso_request **request);

// ---- coll_mpi.c, coll_pairwise.c, coll_blocks.c, coll_shm.c, coll_hierarchy.c ----
// How exchanges are carried out: collectives of MPI (coll_mpi.c), messages (coll_pairwise.c with
// coll_halving.c, coll_blocks.c), shared memory (coll_shm.c), or shared memory in nodes and one of
// the first two between them (coll_hierarchy.c). With the lock held.
typedef struct iso__collective_ops {
    // The request has the address of the data (next) and the number of its elements (left, > 0).
    iso_status (*post)(iso_request *request);
    // Makes some progress without waiting. Returns true if more may be possible. May release the
    // lock.
    bool (*progress)(iso__engine *engine);
} iso__collective_ops;
extern const iso__collective_ops iso__collective_mpi, iso__collective_shm;
const iso__collective_ops *iso__collective_choose(const iso_comm *comm, const void *data,
                                                  size_t bytes, iso_dtype dtype);
// coll_message.c. The first posts a message's first pieces. The second posts the next piece of the
// stream into the slot of a complete piece.
iso_status iso__message_post(iso_request *request);
void iso__message_continue(const iso_request *request, int slot);
// The MPI calls for a channel's operations. allreduce sums. scatter, which all-to-alls use too,
// receives this rank's block of every rank's `send` into `next`. gather exchanges all blocks in
// place.
int iso__mpi_allreduce(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);
int iso__mpi_scatter(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);
int iso__mpi_gather(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);
// out = block 0 + block 1 + ..., which are adjacent, of f32 or f64. out may be block 0.
void iso__sum_blocks(void *out, const void *blocks, size_t bytes, int count, iso_dtype dtype);
MPI_Datatype iso__mpi_type(iso_dtype dtype); // MPI_DATATYPE_NULL if the type cannot be summed
MPI_Op iso__mpi_sum(const iso__engine *engine, iso_dtype dtype);

// ---- sum_order.c ----
// Sums blocks of `count` elements into the first one, in the order of isotherm/comm.h, which gives
// the bits of Rabenseifner's all-reduce. Changes the other blocks, and the array. Returns an MPI
// return code.
int iso__sum_in_order(const iso__engine *engine, char **block, int blocks, int count,
                      iso_dtype dtype);

#endif
