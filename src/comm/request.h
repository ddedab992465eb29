// SPDX-License-Identifier: MIT
// Private to src/comm: one exchange, and how it is carried out.
#ifndef ISO_REQUEST_H
#define ISO_REQUEST_H

#include "comm/channel.h"
#include "comm/engine.h"

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
    MPI_Comm mpi; // what it goes through, unless it is bulk
    char *next;   // what is not yet posted (MPI) or summed (shared memory: of this rank's slice)
    size_t left;  // elements from there
    size_t unit;  // bytes of an element
    // MPI: posts so many elements from next on; an MPI return code.
    int (*call)(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);
    const char *send; // alltoall: as next
    size_t block; // alltoall, allgather: bytes from one rank's block to the next's; elements are of
                  // a block
    int root;     // bcast
    iso_dtype dtype;                // all-reduce
    iso__operation operation;       // of a channel's chunk
    struct iso__channel_cell *cell; // of a channel's chunk; or NULL
    int under_way;                  // chunks begun and not complete
    bool bulk;  // MPI: longer than a chunk, its chunks go through the communicator's queue
    bool whole; // MPI: goes in one chunk, however long it is
    struct iso__channel *channel; // whose chunk it is, which takes it back; or NULL
    int channel_chunk;            // of its plan
    int mpi_error;                // MPI
    int queue;                    // shared memory: which one
    uint64_t number;              // shared memory: among the exchanges of that queue
    size_t offset;                // shared memory: bytes, where its data begins
    bool taken;                   // shared memory: this rank sums its slice
    iso__request_state state;
    iso_request *older, *newer; // those that are not complete
    iso_request *next_in_line;  // of the communicator's or the memory's queue, or of the free list
};

// ---- engine.c ----
// All with the lock held. A request that is posted from here on; complete: DONE, or FAILED with an
// mpi_error; back into the pool.
// Room for `more` further requests, and for MPI's, so that posting them will allocate nothing.
iso_status iso__request_reserve(iso__engine *engine, int more);
void iso__request_unreserve(iso__engine *engine, int count); // of what was reserved
iso_status iso__request_begin(iso_comm *comm, const char *name, size_t bytes, iso_request **out);
void iso__request_complete(iso_request *request);
void iso__request_release(iso__engine *engine, iso_request **request);

// ---- coll_mpi.c, coll_shm.c ----
// How all-reduces are carried out: messages (coll_mpi.c) or shared memory (coll_shm.c). With the
// lock held.
typedef struct iso__collective_ops {
    // The request says where the data is (next) and how many elements it has (left, > 0).
    iso_status (*post)(iso_request *request);
    // Does some of what can be done now; true if there may be more of it. May release the lock.
    bool (*progress)(iso__engine *engine);
} iso__collective_ops;
extern const iso__collective_ops iso__collective_mpi, iso__collective_shm;
const iso__collective_ops *iso__collective_choose(const iso_comm *comm, const void *data,
                                                  size_t bytes, iso_dtype dtype);
// The calls of a channel's operations: a sum; of the blocks at `send` this rank's one of all ranks,
// adjacent, to `next`; all blocks in place.
int iso__mpi_allreduce(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);
int iso__mpi_scatter(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);
int iso__mpi_gather(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);
// out = block 0 + block 1 + ..., which are adjacent, of f32 or f64.
void iso__sum_blocks(void *out, const void *blocks, size_t bytes, int count, iso_dtype dtype);
MPI_Datatype iso__mpi_type(iso_dtype dtype); // MPI_DATATYPE_NULL where nothing can be summed

#endif
