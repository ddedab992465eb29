// Private to src/comm and, for completion times, to the reducer: communicators, requests, the
// progress engine.
#ifndef ISO_COMM_IMPL_H
#define ISO_COMM_IMPL_H

#include "base/base.h"

#include <isotherm/comm.h>
#include <pthread.h>

// Translates an MPI return code, keeping the library's own words.
iso_status iso__mpi_error(int rc, const char *call, const char *function, const char *file,
                          int line);
#define ISO_TRY_MPI(call)                                                                          \
    do {                                                                                           \
        int mpi_rc_ = (call);                                                                      \
        if (mpi_rc_ != MPI_SUCCESS)                                                                \
            return iso__mpi_error(mpi_rc_, #call, __func__, __FILE__, __LINE__);                   \
    } while (0)

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
    bool bulk;   // longer than a part: its parts go through the communicator's queue
    char *next;  // what is not yet posted
    size_t left; // elements from there
    iso_dtype dtype;
    int under_way; // parts posted and not complete
    int mpi_error;
    iso__request_state state;
    iso_request *next_in_line; // of the communicator's queue, or of the free list
};

// One per process, attached to MPI_COMM_SELF so that MPI_Finalize stops it before MPI goes away.
typedef struct iso__engine {
    pthread_mutex_t lock; // guards everything below
    pthread_cond_t wake;  // something is in flight and nobody waits, or stop
    pthread_t thread;
    bool thread_runs, stop, finalized;
    int references;
    iso_progress mode;
    char why[96];
    int waiters;     // threads inside a wait: they drive progress, the helper stands back
    double sleep_us; // of the helper between tests, adapted within [ISO_SLEEP_MIN_US,
                     // ISO_SLEEP_MAX_US]
    bool sleep_fixed;
    // Parallel arrays: what MPI_Testsome takes, and whose each entry is.
    int in_flight, capacity;
    MPI_Request *mpi;
    iso_request **owner;
    int *completed;
    MPI_Status *statuses;
    iso_request *free_list;
} iso__engine;

// Gives the process's engine, starting it on first use with the wanted mode. Adds a reference.
iso_status iso__engine_acquire(iso_progress wanted, iso__engine **out);
void iso__engine_release(iso__engine **engine);
// With the lock held: one round of tests over everything in flight.
void iso__engine_test_all(iso__engine *engine);
// With the lock held: room for `more` further MPI requests.
iso_status iso__engine_reserve(iso__engine *engine, int more);
// Wakes the helper if there is work and nobody waits; with the lock held.
void iso__engine_kick(iso__engine *engine);
// A wait for this request begins: adapts the helper's sleep. With the lock held.
void iso__engine_adapt(iso__engine *engine, const iso_request *request);
// With the lock held: a request from the pool, contents undefined; back into it.
iso_status iso__request_take(iso__engine *engine, iso_request **out);
void iso__request_release(iso__engine *engine, iso_request **request);
// With the lock held: posts the next part of the first request in the queue into this slot; false
// if the queue is empty.
bool iso__comm_post_part(iso_comm *comm, int slot);

struct iso_comm {
    int references;
    MPI_Comm mpi;
    // Long exchanges leave in parts, strictly one after the other, on a communicator of their own:
    // a short one that is issued later and needed earlier is not behind all of their bytes. Which
    // goes where depends on its length alone, so the order on each communicator is the same on all
    // ranks.
    MPI_Comm bulk;
    iso_request *bulk_first, *bulk_last; // requests that have parts to post
    int bulk_under_way;
    int rank, size;
    double timeout_s;
    iso__engine *engine;
    iso_comm *node; // created on first use
    int node_count, node_index;
    char algorithm[128];
};

// Like iso_request_wait; also gives when the exchange was seen to be complete (iso_now clock).
iso_status iso__request_finish(iso_request **request, int64_t *done_ns);
// When it was issued; valid until released.
int64_t iso__request_posted_ns(const iso_request *request);
// Sets Open MPI's all-reduce algorithm through MPI_T; writes what holds and why.
void iso__choose_algorithm(char *text, size_t room);

// ---- Further non-blocking collectives (exchange.c), waited for like an all-reduce -----------------

// Collective. Block b of `send` goes to rank b; block b of `recv` came from rank b. Blocks are
// multiples of 64 bytes, of any length. Both buffers belong to the operation until it completes.
iso_status iso__comm_ialltoall(iso_comm *comm, const void *send, void *recv, size_t block_bytes,
                               const char *name, iso_request **out);
// Collective. This rank's block is block `rank` of data; all blocks are there at the end.
iso_status iso__comm_iallgather(iso_comm *comm, void *data, size_t block_bytes, const char *name,
                                iso_request **out);
// Collective. bytes: a multiple of 64.
iso_status iso__comm_ibcast(iso_comm *comm, void *data, size_t bytes, int root, const char *name,
                            iso_request **out);
// Collective. The largest of each number, in place.
iso_status iso__comm_iallreduce_max(iso_comm *comm, double *data, int count, const char *name,
                                    iso_request **out);

MPI_Datatype iso__mpi_type(iso_dtype dtype); // MPI_DATATYPE_NULL where MPI has no such type

#endif
