// Private to src/comm and, for completion times, to the reducer: communicators, requests, the
// progress engine.
#ifndef ISO_COMM_IMPL_H
#define ISO_COMM_IMPL_H

#include "base/base.h"

#include <isotherm/topology.h>
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
    iso_dtype dtype; // all-reduce
    int under_way;   // parts begun and not complete
    bool bulk;       // MPI: longer than a part, its parts go through the communicator's queue
    struct iso__channel *channel; // whose part it is: goes whole, and back into the pool; or NULL
    int channel_item;
    int mpi_error;   // MPI
    int queue;       // shared memory: which one
    uint64_t number; // shared memory: among the exchanges of that queue
    size_t offset;   // shared memory: bytes, where its data begins
    bool taken;      // shared memory: this rank sums its slice
    iso__request_state state;
    iso_request *older, *newer; // those that are not complete
    iso_request *next_in_line;  // of the communicator's or the memory's queue, or of the free list
};

typedef struct iso__shared iso__shared;

// Of exchanges in the shared memory of a communicator, each in an order that all ranks share: one
// for iso_comm_iallreduce, others for channels.
#define ISO_QUEUES 8

// One per process, attached to MPI_COMM_SELF so that MPI_Finalize stops it before MPI goes away.
typedef struct iso__engine {
    pthread_mutex_t lock; // guards everything below
    pthread_cond_t wake;  // something is in flight and nobody waits, or stop
    pthread_t thread;
    bool thread_runs, stop, finalized;
    int references;
    iso_progress mode;
    char why[96];
    char algorithm[128];  // of all-reduces, and why; chosen by the first communicator
    int algorithm_number; // Open MPI's; 0: not known
    int waiters;          // threads inside a wait: they drive progress, the helper stands back
    double sleep_us;      // of the helper between tests, adapted within [ISO_SLEEP_MIN_US,
                          // ISO_SLEEP_MAX_US]
    bool sleep_fixed;
    // Parallel arrays: what MPI_Testsome takes, and whose each entry is.
    int in_flight, capacity;
    MPI_Request *mpi;
    iso_request **owner;
    int *completed;
    MPI_Status *statuses;
    iso_request *oldest, *newest;  // everything that is not complete
    uint64_t completions;          // of requests, so far
    iso__shared *shared;           // all memory that is shared with other ranks
    struct iso__channel *channels; // all that there are
    iso_request *free_list;
    int promised;             // requests that iso__request_reserve has made room for
    MPI_Op sum_bf16, sum_f16; // sum16.c
} iso__engine;

// Gives the process's engine, starting it on first use with the wanted mode. Adds a reference.
iso_status iso__engine_acquire(iso_progress wanted, iso__engine **out);
void iso__engine_release(iso__engine **engine);
// With the lock held, which may be released in between: everything that can be done without
// waiting.
void iso__engine_test_all(iso__engine *engine);
// With the lock held: room for `more` further MPI requests.
iso_status iso__engine_reserve(iso__engine *engine, int more);
// Wakes the helper if there is work and nobody waits; with the lock held.
void iso__engine_kick(iso__engine *engine);
// A wait begins for what began at that time: adapts the helper's sleep. With the lock held.
void iso__engine_adapt(iso__engine *engine, int64_t began_ns, bool done);
// What a thread that waits for something else does meanwhile, where no helper does it.
void iso__engine_assist(iso__engine *engine);

// All with the lock held. A request that is posted from here on; complete: DONE, or FAILED with an
// mpi_error; back into the pool.
// Room for `more` further requests, and for MPI's, so that posting them will allocate nothing.
iso_status iso__request_reserve(iso__engine *engine, int more);
void iso__request_unreserve(iso__engine *engine, int count); // of what was reserved
iso_status iso__request_begin(iso_comm *comm, const char *name, size_t bytes, iso_request **out);
void iso__request_complete(iso_request *request);
void iso__request_release(iso__engine *engine, iso_request **request);

// What a thread waits for.
typedef struct iso__awaited {
    iso_comm *comm;
    const char *name;
    int64_t began_ns;
    const void *what;
    bool (*is_done)(const void *what);
    bool (*idle)(void *user); // as of iso__channel_wait; may be NULL
    void *user;
} iso__awaited;
// With the lock held, which is released between tests: drives progress until it is done.
iso_status iso__engine_wait(iso__engine *engine, const iso__awaited *awaited);

// How all-reduces are carried out: messages (coll_mpi.c) or shared memory (coll_shm.c). With the
// lock held.
typedef struct iso__collective_ops {
    // The request says where the data is (next) and how many elements it has (left, > 0).
    iso_status (*post)(iso_request *request);
    // Does a part of what can be done now; true if there may be more of it. May release the lock.
    bool (*progress)(iso__engine *engine);
} iso__collective_ops;
extern const iso__collective_ops iso__collective_mpi, iso__collective_shm;
const iso__collective_ops *iso__collective_choose(const iso_comm *comm, const void *data,
                                                  size_t bytes, iso_dtype dtype);
// The call of an all-reduce, a sum.
int iso__mpi_allreduce(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out);

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
    // A blocking collective has timed out: MPI goes on with it, so nothing of this is freed.
    bool lost;
    void *scratch; // that blocking collectives go through
    size_t scratch_bytes;
    iso__engine *engine;
    iso__shared *shared;          // memory that all its ranks can reach; NULL: none
    bool queue_taken[ISO_QUEUES]; // by channels
    // Of what traffic.c counts. [size]: equal for ranks that share a node; NULL: not asked for.
    int64_t *node_of;
    double sum_all, sum_between; // what a sum moves, in multiples of the bytes of one rank
    int elsewhere;               // ranks on other nodes
    iso_traffic traffic;         // of layers that have no statistics of their own
    bool counted;                // of those, by a count that is going on
};

// ISO_ERR_STATE where an mpirun of another MPI has started several, each of which is alone.
iso_status iso__check_launcher(void);
// Collective over mpi, whose rank and size comm has. Of ISO_* variables, bad values are ISO_ERR_ARG
// and values that must be equal and are not ISO_ERR_MISMATCH, on every rank; warns of unknown ones.
iso_status iso__comm_check_environment(iso_comm *comm, MPI_Comm mpi);
// Waits for what an MPI call that returned rc has started, giving up after the time-out: MPI then
// goes on with the buffers, and comm->lost says that nothing of it may be freed. what: as below.
iso_status iso__comm_await(iso_comm *comm, int rc, MPI_Request *request, const char *what);
// Collective. All ranks meet, under the time-out, before a call that can only block: what follows
// waits for no rank that is stuck. what: "the barrier before MPI_Comm_split".
iso_status iso__comm_meet(iso_comm *comm, const char *what);
// A communicator made of `from`: by MPI_Comm_dup; MPI_Comm_split with color and key;
// MPI_Comm_split_type by shared memory, with key; MPI_Comm_create_group with group and the tag key.
typedef enum iso__make {
    ISO_MAKE_DUP,
    ISO_MAKE_SPLIT,
    ISO_MAKE_SPLIT_SHARED,
    ISO_MAKE_GROUP
} iso__make;
typedef struct iso__comm_recipe {
    iso__make kind;
    MPI_Comm from;
    int color, key;
    MPI_Group group;
} iso__comm_recipe;
// Collective over those who become members. With MPI_THREAD_MULTIPLE it is under comm's time-out,
// after which MPI still uses what the recipe names.
iso_status iso__comm_make(iso_comm *comm, const iso__comm_recipe *recipe, MPI_Comm *out);
// ISO_ERR_MISMATCH, naming `what`, unless all ranks give the same number. Collective.
iso_status iso__comm_check_equal(iso_comm *comm, int64_t number, const char *what);

// Collective. Zeroed memory of equal length on every rank, aligned to 64 bytes. All-reduces of f32
// at equal places in it go through shared memory where the ranks share memory and
// ISO_NODE_COLLECTIVE allows it; otherwise (and for a second such memory of one communicator) it is
// like any other memory.
iso_status iso__comm_shared_alloc(iso_comm *comm, size_t bytes, void **memory);
// Local. No exchange in it may be pending. Accepts NULL, and is called before the communicator is
// destroyed, also after MPI_Finalize.
void iso__comm_shared_free(iso_comm *comm, void **memory);
// Whether it is what shared_alloc gave and exchanges in it go through shared memory.
bool iso__comm_is_shared(const iso_comm *comm, const void *data, size_t bytes);

// What ISO_NODE_COLLECTIVE says; ISO_ERR_ARG for nonsense. NCCL is for memory of GPUs; for other
// memory it is AUTO.
enum { ISO_NODE_AUTO, ISO_NODE_SHM, ISO_NODE_MPI, ISO_NODE_NCCL };
iso_status iso__node_collective(int *out);
// Collective. A communicator of the ranks of this rank's unit; the caller's.
iso_status iso__comm_create_node(iso_comm *comm, iso_scope unit, iso_comm **out);

// Like iso_request_wait; also gives when the exchange was seen to be complete (iso_now clock).
iso_status iso__request_finish(iso_request **request, int64_t *done_ns);
iso_status iso__request_test(iso_request **request, int64_t *done_ns); // like iso_request_test
// Sets Open MPI's all-reduce algorithm through MPI_T; writes what holds and why. Gives its number,
// 0 where that is MPI's own choice.
int iso__choose_algorithm(char *text, size_t room);

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

MPI_Datatype iso__mpi_type(iso_dtype dtype); // MPI_DATATYPE_NULL where nothing can be summed
// The engine's sums of 16-bit elements (sum16.c); freed before MPI goes away.
iso_status iso__sum16_create(iso__engine *engine);
void iso__sum16_free(iso__engine *engine);

#endif
