// SPDX-License-Identifier: MIT
// Collectives by messages, and the MPI library's element types and all-reduce algorithm.
#include "comm/comm_state.h"
#include "comm/pairwise.h"
#include "comm/request.h"
#include "comm/traffic.h"

#include <config.h>
#include <stdatomic.h>
#include <string.h>

#define ALGORITHM_VARIABLE "coll_libnbc_iallreduce_algorithm"
// Values of ISO_IALLREDUCE that are none of Open MPI's: pairwise.h.
enum { PAIRWISE = ISO_SUM_PAIRWISE, HALVING = ISO_SUM_HALVING };
// The chunk size of a long exchange, and the number of chunks under way: enough to fill a link, and
// little for a short exchange to wait behind. Chunks do not change the bits of the result.
#define CHUNK_BYTES      (512 * 1024)
#define CHUNKS_UNDER_WAY 2
// The same for blocks, which travel directly between ranks. From 64 KB on, Open MPI's TCP transport
// asks the receiver before it sends, and the answers wait behind the data of the other direction;
// exchanges were measured to take half as long again.
#define BLOCK_BYTES      (60 * 1024)
#define BLOCKS_UNDER_WAY 8

MPI_Datatype iso__mpi_type(iso_dtype dtype) {
    switch (dtype) {
    case ISO_F32: return MPI_FLOAT;
    case ISO_F64: return MPI_DOUBLE;
    case ISO_BF16:
    case ISO_F16: return MPI_UINT16_T; // as bits, for the operation of sum16.c
    default: return MPI_DATATYPE_NULL;
    }
}

MPI_Op iso__mpi_sum(const iso__engine *engine, iso_dtype dtype) {
    switch (dtype) {
    case ISO_BF16: return engine->sum_bf16;
    case ISO_F16: return engine->sum_f16;
    default: return MPI_SUM;
    }
}

static const char *algorithm_name(int value) {
    static const char *const name[] = {"Open MPI's own choice", "ring", "binomial", "Rabenseifner",
                                       "recursive doubling"};
    return value >= 0 && value < 5 ? name[value] : "unknown";
}

#ifdef ISO_HAVE_MPI_T
static bool find_variable(int *index) {
    int count = 0;
    if (MPI_T_cvar_get_num(&count) != MPI_SUCCESS) return false;
    for (int i = 0; i < count; i++) {
        char name[128];
        int room = sizeof(name), verbosity, bind, scope;
        MPI_Datatype type;
        MPI_T_enum values;
        if (MPI_T_cvar_get_info(i, name, &room, &verbosity, &type, &values, NULL, NULL, &bind,
                                &scope) != MPI_SUCCESS)
            continue;
        if (strcmp(name, ALGORITHM_VARIABLE) != 0) continue;
        *index = i;
        return true;
    }
    return false;
}

static int set_variable(int index, int wanted, bool may_set, char *text, size_t room) {
    MPI_T_cvar_handle handle;
    int count, value = 0;
    if (MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS || count != 1) {
        snprintf(text, room, "MPI's own choice (" ALGORITHM_VARIABLE " cannot be accessed)");
        return 0;
    }
    MPI_T_cvar_read(handle, &value);
    const char *why = wanted == 3 ? "set through MPI_T: results do not depend on the chunks"
                                  : "set through MPI_T, as ISO_IALLREDUCE says";
    if (value == wanted)
        why = wanted ? "set before" : "ISO_IALLREDUCE";
    else if (value != 0)
        why = "set by the user"; // OMPI_MCA_ variable, --mca or a parameter file
    else if (!may_set)
        why = "not every process of the job can set another now";
    else if (MPI_T_cvar_write(handle, &wanted) != MPI_SUCCESS)
        why = "MPI refused another";
    MPI_T_cvar_read(handle, &value);
    snprintf(text, room, "%d, %s (%s)", value, algorithm_name(value), why);
    MPI_T_cvar_handle_free(&handle);
    return value >= 0 && value < 5 ? value : 0;
}

// MPICH 4.0.2 crashes when MPI_T is initialised a second time. Since MPICH has no such variable,
// this function asks it only once.
static int ask_mpi(int wanted, bool may_set, char *text, size_t room) {
    static atomic_bool absent;
    int level = MPI_THREAD_SINGLE, index = 0, value = 0;
    snprintf(text, room, "MPI's own choice (it has no " ALGORITHM_VARIABLE ")");
    if (absent) return 0;
    // After MPI_T_init_thread, Open MPI's MPI_Query_thread returns the level requested here.
    MPI_Query_thread(&level);
    if (MPI_T_init_thread(level, &level) != MPI_SUCCESS) {
        snprintf(text, room, "MPI's own choice (no MPI_T)");
        return 0;
    }
    absent = !find_variable(&index);
    if (!absent) value = set_variable(index, wanted, may_set, text, room);
    MPI_T_finalize();
    return value;
}

// The OMPI_MCA_ variable; NULL: not set, or not read by this MPI.
static const char *user_algorithm(void) {
#ifdef OPEN_MPI
    return getenv("OMPI_MCA_" ALGORITHM_VARIABLE);
#else
    return NULL;
#endif
}

// Reads the number or the name of an algorithm. Returns 0 for other text.
static int read_algorithm(const char *text) {
    static const char *const word[] = {"ignore", "ring", "binomial", "rabenseifner",
                                       "recursive_doubling"};
    for (int i = 0; i < 5; i++)
        if (strcmp(text, word[i]) == 0) return i;
    return text[0] >= '0' && text[0] <= '4' && !text[1] ? text[0] - '0' : 0;
}

int iso__choose_algorithm(bool may_set, char *text, size_t room) {
    double wanted = PAIRWISE;
    if (iso__env_number(ISO_ENV_IALLREDUCE, PAIRWISE, &wanted) < 0)
        iso__log(ISO_LOG_WARN, "%s", iso_last_error()->message);
    if (wanted == PAIRWISE || wanted == HALVING) wanted = 3;
    const char *given = user_algorithm();
    if (!given) return ask_mpi((int)wanted, may_set, text, room);
    int number = read_algorithm(given);
    snprintf(text, room, "%d, %s (set by the user)", number, algorithm_name(number));
    return number;
}
#else
// An MPI library without the interface for tools.
int iso__choose_algorithm(bool may_set, char *text, size_t room) {
    (void)algorithm_name;
    (void)may_set;
    snprintf(text, room, "MPI's own choice (no MPI_T)");
    return 0;
}
#endif

// Pairwise exchange gives the same bits as Rabenseifner's algorithm, so it may replace that
// algorithm even if the user has set it.
int iso__pairwise_allowed(int number) {
    double wanted = PAIRWISE;
    bool same = number == 0 || number == 3;
    if (!same || iso__env_number(ISO_ENV_IALLREDUCE, PAIRWISE, &wanted) < 0) return 0;
    return wanted == PAIRWISE || wanted == HALVING ? (int)wanted : 0;
}

// ---- Post -----------------------------------------------------------------------------------------

int iso__mpi_allreduce(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out) {
    return MPI_Iallreduce(MPI_IN_PLACE, request->next, count, iso__mpi_type(request->dtype),
                          iso__mpi_sum(request->engine, request->dtype), mpi, out);
}

// The number of elements of the next chunk; if there are blocks, of each block. Chunks are nearly
// equal, as Open MPI adds in another order if there are fewer elements than ranks.
static size_t chunk_of(const iso_request *request) {
    size_t most = (request->block > 0 ? BLOCK_BYTES : CHUNK_BYTES) / request->unit;
    if (request->whole || request->left <= most) return request->left;
    size_t chunks = (request->left + most - 1) / most;
    return iso__round_up((request->left + chunks - 1) / chunks, 64 / request->unit);
}

static int under_way(const iso_request *request) {
    return request->block > 0 ? BLOCKS_UNDER_WAY : CHUNKS_UNDER_WAY;
}

// Posts the next chunk of the request; returns an MPI return code.
static int post_chunk(iso_request *request, MPI_Comm mpi, int slot) {
    return iso__request_post_part(request, chunk_of(request), mpi, slot);
}

// A chunk could not be posted here. The other ranks have posted it, so no later one would match.
static void fail_queued(iso_comm *comm) {
    while (comm->bulk_first) {
        iso_request *request = comm->bulk_first;
        comm->bulk_first = request->next_in_line;
        request->mpi_error = comm->bulk_error;
        request->left = 0;
        if (request->under_way == 0) iso__request_complete(request);
    }
}

// Posts the next chunk of the first request in the queue into this slot. Returns false if the queue
// is empty.
static bool post_queued(iso_comm *comm, int slot) {
    iso_request *request = comm->bulk_first;
    if (!request) return false;
    if (comm->bulk_error == MPI_SUCCESS) comm->bulk_error = post_chunk(request, comm->bulk, slot);
    if (comm->bulk_error != MPI_SUCCESS) {
        fail_queued(comm);
        return false;
    }
    if (request->left == 0) comm->bulk_first = request->next_in_line;
    comm->bulk_under_way++;
    return true;
}

static void post_bulk(iso_request *request) {
    iso_comm *comm = request->comm;
    iso__engine *engine = request->engine;
    if (comm->bulk_first)
        comm->bulk_last->next_in_line = request;
    else
        comm->bulk_first = request;
    comm->bulk_last = request;
    while (comm->bulk_under_way < under_way(request) && post_queued(comm, engine->in_flight))
        engine->in_flight++;
}

static iso_status post_messages(iso_request *request) {
    iso__engine *engine = request->engine;
    if (request->message) return iso__message_post(request);
    request->bulk = request->left > chunk_of(request);
    ISO_CHECK(!request->bulk || request->comm->bulk != MPI_COMM_NULL, ISO_ERR_STATE,
              "the exchange of \"%s\" is too long for its communicator, which was made for short "
              "exchanges",
              request->name);
    ISO_TRY(iso__engine_reserve(engine, under_way(request)));
    if (request->bulk) {
        post_bulk(request);
        return ISO_OK;
    }
    ISO_TRY_MPI(post_chunk(request, request->mpi, engine->in_flight));
    engine->in_flight++;
    return ISO_OK;
}

// ---- Progress -------------------------------------------------------------------------------------

static void complete_chunk(iso__engine *engine, int slot, int error) {
    iso_request *request = engine->owner[slot].request;
    engine->mpi[slot] = MPI_REQUEST_NULL;
    if (engine->owner[slot].stages) {
        iso__stages_count(engine->owner[slot].stages, error);
        return;
    }
    if (error != MPI_SUCCESS) request->mpi_error = error;
    request->under_way--;
    if (request->bulk) {
        request->comm->bulk_under_way--;
        post_queued(request->comm, slot);
    }
    if (request->message) iso__message_continue(request, slot);
    if (request->hierarchy) return; // coll_hierarchy.c still has to copy the slice
    if (request->under_way == 0 && request->left == 0 && request->state == ISO_REQUEST_POSTED)
        iso__request_complete(request);
}

static void close_gaps(iso__engine *engine) {
    int kept = 0;
    for (int i = 0; i < engine->in_flight; i++) {
        if (engine->mpi[i] == MPI_REQUEST_NULL) continue;
        engine->mpi[kept] = engine->mpi[i];
        engine->owner[kept++] = engine->owner[i];
    }
    engine->in_flight = kept;
}

static bool test_messages(iso__engine *engine) {
    if (engine->in_flight == 0) return false;
    int count = 0;
    int rc =
        MPI_Testsome(engine->in_flight, engine->mpi, &count, engine->completed, engine->statuses);
    if (count == 0 || count == MPI_UNDEFINED) return false;
    for (int i = 0; i < count; i++)
        complete_chunk(engine, engine->completed[i],
                       rc == MPI_ERR_IN_STATUS ? engine->statuses[i].MPI_ERROR : rc);
    close_gaps(engine);
    return false; // progress happens in the MPI library
}

const iso__collective_ops iso__collective_mpi = {.post = post_messages, .progress = test_messages};
