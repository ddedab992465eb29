// SPDX-License-Identifier: MIT
// Communicators: their end, blocking collectives, and agreement of all ranks on an error.
#include "comm/comm_calls.h"
#include "base/recording.h"
#include "comm/comm_state.h"
#include "comm/debug.h"

#include <string.h>

iso_status iso_comm_barrier(iso_comm *comm) {
    ISO_TRY(iso__debug_match(comm, "a barrier"));
    return iso__comm_meet(comm, "a barrier");
}

// Lends memory that MPI uses in place of the caller's, which may no longer exist after a time-out.
// *out is NULL if the scratch memory is too short and cannot grow. That is not an error, because
// this rank must not leave the others alone in a collective.
static iso_status borrow_memory(iso_comm *comm, size_t bytes, void **out) {
    *out = NULL;
    if (comm->lost || bytes > comm->scratch_bytes) {
        size_t room = bytes < ISO_SCRATCH_LEAST ? ISO_SCRATCH_LEAST : bytes;
        void *larger = NULL;
        iso_status status = iso__alloc(room, &larger);
        if (status < 0) return comm->lost ? status : ISO_OK;
        if (!comm->lost) iso__free(comm->scratch);
        comm->scratch = larger;
        comm->scratch_bytes = room;
    }
    *out = comm->scratch;
    return ISO_OK;
}

// ---- Life -----------------------------------------------------------------------------------------

iso_comm *iso_comm_retain(iso_comm *comm) {
    comm->references++;
    return comm;
}

static void close_streams(iso_comm *comm) {
    if (comm->sums.recorded) iso__recorder_close(comm->sums.record);
    if (!comm->engine) return;
    pthread_mutex_lock(&comm->engine->lock);
    iso__stream_close(&comm->meetings);
    iso__stream_close(&comm->sums);
    pthread_mutex_unlock(&comm->engine->lock);
}

void iso_comm_destroy(iso_comm **pointer) {
    iso_comm *comm = pointer ? *pointer : NULL;
    if (pointer) *pointer = NULL;
    if (!comm || --comm->references > 0) return;
    iso__comm_forget(comm);
    if (comm->lost) return; // MPI still uses it: freeing it would crash, here or in MPI_Finalize
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && comm->bulk != MPI_COMM_NULL) MPI_Comm_free(&comm->bulk);
    if (!finalized && comm->mpi != MPI_COMM_NULL) MPI_Comm_free(&comm->mpi);
    iso__debug_close(comm);
    close_streams(comm);
    iso__engine_release(&comm->engine);
    iso__free(comm->node_of);
    iso__free(comm->seat_of);
    iso__free(comm->scratch);
    iso__free(comm);
}

double iso__comm_timeout(const iso_comm *comm) { return comm->timeout_s; }
bool iso__comm_is_finalized(const iso_comm *comm) { return comm->engine->finalized; }
int iso_comm_rank(const iso_comm *comm) { return comm->rank; }
int iso_comm_size(const iso_comm *comm) { return comm->size; }
MPI_Comm iso_comm_mpi(const iso_comm *comm) { return comm->mpi; }
int iso_comm_mpi_fortran(const iso_comm *comm) { return MPI_Comm_c2f(comm->mpi); }
const char *iso_comm_progress_text(const iso_comm *comm) { return comm->engine->why; }
const char *iso_comm_algorithm_text(const iso_comm *comm) { return comm->engine->algorithm; }
iso_progress iso_comm_progress(const iso_comm *comm) { return comm->engine->mode; }

bool iso__comm_same_ranks(const iso_comm *a, const iso_comm *b) {
    int how = MPI_UNEQUAL;
    if (MPI_Comm_compare(a->mpi, b->mpi, &how) != MPI_SUCCESS) return false;
    return how == MPI_IDENT || how == MPI_CONGRUENT;
}

// ---- Blocking collectives -------------------------------------------------------------------------

#define CHUNK_BYTES ((size_t)16 << 20) // the maximum that one MPI call moves
#define LONG_BYTES  ((size_t)1 << 16)  // from here on Open MPI broadcasts along a chain...
#define FEW_RANKS   4                  // ...except over so few ranks, to which the root sends

static size_t chunk_of(size_t bytes) { return bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES; }

static iso_status bcast_memory(iso_comm *comm, void *memory, size_t bytes, int root) {
    MPI_Request request;
    if (bytes > LONG_BYTES && comm->size > FEW_RANKS)
        return iso__bcast_long(comm, memory, bytes, root);
    int rc = MPI_Ibcast(memory, (int)bytes, MPI_BYTE, root, comm->mpi, &request);
    return iso__comm_await(comm, rc, &request, "a broadcast");
}

static iso_status bcast_chunk(iso_comm *comm, void *data, size_t bytes, int root) {
    void *memory;
    ISO_TRY(borrow_memory(comm, bytes, &memory));
    if (!memory) return bcast_memory(comm, data, bytes, root);
    if (comm->rank == root) memcpy(memory, data, bytes);
    ISO_TRY(bcast_memory(comm, memory, bytes, root));
    if (comm->rank != root) memcpy(data, memory, bytes);
    return ISO_OK;
}

static iso_status check_root(const iso_comm *comm, const char *what, int root) {
    ISO_CHECK(root >= 0 && root < comm->size, ISO_ERR_ARG,
              "%s rank %d: the communicator has ranks 0 to %d", what, root, comm->size - 1);
    return ISO_OK;
}

iso_status iso_comm_bcast(iso_comm *comm, void *data, size_t bytes, int root) {
    ISO_TRY(check_root(comm, "a broadcast from", root));
    ISO_TRY(iso__debug_match(comm, "a broadcast of %zu byte%s from rank %d", bytes,
                             ISO_PLURAL(bytes), root));
    for (size_t done = 0, chunk; done < bytes; done += chunk) {
        chunk = chunk_of(bytes - done);
        ISO_TRY(bcast_chunk(comm, (char *)data + done, chunk, root));
    }
    return ISO_OK;
}

size_t iso__comm_reduction_room(const iso_comm *comm, size_t count) {
    size_t power = 1;
    while (2 * power <= (size_t)comm->size) power *= 2;
    return count > power || count == 0 ? count : power;
}

// Pads with numbers that do not change the result: zeros for a sum, else copies of the first one.
static void fill_up(int64_t *number, size_t count, size_t room, MPI_Op op) {
    for (size_t i = count; i < room; i++) number[i] = op == MPI_SUM ? 0 : number[0];
}

static iso_status reduce_chunk(iso_comm *comm, int64_t *data, size_t count, MPI_Datatype type,
                               MPI_Op op) {
    MPI_Request request;
    void *memory;
    size_t room = iso__comm_reduction_room(comm, count);
    ISO_TRY(borrow_memory(comm, room * 8, &memory));
    if (!memory) room = count;
    if (memory && count > 0) memcpy(memory, data, count * 8);
    fill_up(memory, count, room, op);
    int rc = MPI_Iallreduce(MPI_IN_PLACE, memory ? memory : data, (int)room, type, op, comm->mpi,
                            &request);
    ISO_TRY(iso__comm_await(comm, rc, &request, "a reduction"));
    if (memory && count > 0) memcpy(data, memory, count * 8);
    return ISO_OK;
}

// For doubles, or for 64-bit integers.
static iso_status reduce_numbers(iso_comm *comm, void *data, size_t count, MPI_Datatype type,
                                 iso_reduce op) {
    MPI_Op mpi_op = op == ISO_SUM ? MPI_SUM : op == ISO_MAX ? MPI_MAX : MPI_MIN;
    ISO_TRY(iso__debug_match(comm, "a reduction (%s) of %zu %s numbers",
                             op == ISO_SUM   ? "sum"
                             : op == ISO_MAX ? "maximum"
                                             : "minimum",
                             count, type == MPI_DOUBLE ? "f64" : "i64"));
    ISO_CHECK((int)op >= ISO_SUM && op <= ISO_MIN, ISO_ERR_ARG, "unknown reduction %d", (int)op);
    ISO_CHECK(count <= PTRDIFF_MAX / 8, ISO_ERR_ARG, "%zu numbers are too many for a reduction",
              count);
    size_t done = 0, chunk;
    do { // once even without numbers, so that all ranks meet
        chunk = chunk_of((count - done) * 8) / 8;
        ISO_TRY(reduce_chunk(comm, (int64_t *)data + done, chunk, type, mpi_op));
        done += chunk;
    } while (done < count);
    return ISO_OK;
}

iso_status iso_comm_allreduce_f64(iso_comm *comm, double *data, size_t count, iso_reduce op) {
    return reduce_numbers(comm, data, count, MPI_DOUBLE, op);
}

iso_status iso_comm_allreduce_i64(iso_comm *comm, int64_t *data, size_t count, iso_reduce op) {
    return reduce_numbers(comm, data, count, MPI_INT64_T, op);
}

static iso_status send_bytes(iso_comm *comm, const char *data, size_t bytes, int to) {
    for (size_t done = 0, chunk; done < bytes; done += chunk) {
        MPI_Request request;
        void *memory;
        chunk = chunk_of(bytes - done);
        ISO_TRY(borrow_memory(comm, chunk, &memory));
        if (memory) memcpy(memory, data + done, chunk);
        int rc = MPI_Isend(memory ? memory : data + done, (int)chunk, MPI_BYTE, to, 0, comm->mpi,
                           &request);
        ISO_TRY(iso__comm_await_message(comm, rc, &request, "a gather"));
    }
    return ISO_OK;
}

static iso_status receive_bytes(iso_comm *comm, char *data, size_t bytes, int from) {
    for (size_t done = 0, chunk; done < bytes; done += chunk) {
        MPI_Request request;
        chunk = chunk_of(bytes - done);
        int rc = MPI_Irecv(data + done, (int)chunk, MPI_BYTE, from, 0, comm->mpi, &request);
        ISO_TRY(iso__comm_await_message(comm, rc, &request, "a gather"));
    }
    return ISO_OK;
}

static iso_status receive_all(iso_comm *comm, const void *data, const size_t *each, char *all) {
    size_t at = 0;
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank)
            memcpy(all + at, data, each[r]);
        else
            ISO_TRY(receive_bytes(comm, all + at, each[r], r));
        at += each[r];
    }
    return ISO_OK;
}

// On root, *wire points to the lengths of all ranks, in the scratch memory.
static iso_status gather_sizes(iso_comm *comm, size_t bytes, int root, uint64_t **wire) {
    MPI_Request request;
    void *memory;
    bool here = comm->rank == root;
    ISO_TRY(borrow_memory(comm, (size_t)comm->size * sizeof(uint64_t), &memory));
    ISO_CHECK(memory, ISO_ERR_NOMEM, "no memory for the lengths of %d ranks", comm->size);
    uint64_t *mine = *wire = memory;
    if (here) mine += root;
    *mine = bytes;
    int rc = MPI_Igather(here ? MPI_IN_PLACE : mine, 1, MPI_UINT64_T, here ? *wire : NULL, 1,
                         MPI_UINT64_T, root, comm->mpi, &request);
    return iso__comm_await(comm, rc, &request, "a gather");
}

static iso_status allocate_gather(const iso_comm *comm, const uint64_t *wire, char **all,
                                  size_t **each) {
    size_t total = 0;
    ISO_TRY(iso__alloc((size_t)comm->size * sizeof(**each), (void **)each));
    for (int r = 0; r < comm->size; r++) total += (*each)[r] = wire[r];
    return iso__alloc(total, (void **)all);
}

iso_status iso_comm_gather(iso_comm *comm, const void *data, size_t bytes, int root, char **out,
                           size_t **sizes) {
    char *all = NULL;
    size_t *each = NULL;
    uint64_t *wire = NULL;
    *out = NULL;
    *sizes = NULL;
    ISO_TRY(check_root(comm, "a gather on", root));
    ISO_TRY(iso__debug_match(comm, "a gather on rank %d", root));
    ISO_TRY(gather_sizes(comm, bytes, root, &wire));
    iso_status status = comm->rank == root ? allocate_gather(comm, wire, &all, &each) : ISO_OK;
    status = iso_comm_agree(comm, status);
    if (status == ISO_OK)
        status = comm->rank == root ? receive_all(comm, data, each, all)
                                    : send_bytes(comm, data, bytes, root);
    if (status < 0) {
        if (!comm->lost) iso__free(all); // after a time-out MPI may still write into it
        iso__free(each);
    }
    ISO_TRY(status);
    *out = all;
    *sizes = each;
    return ISO_OK;
}

void iso_comm_free(void *data) { iso__free(data); }

iso_status iso_comm_agree(iso_comm *comm, iso_status mine) {
    // This rank cannot reach the others: they wait here, or in an operation that failed on another
    // communicator.
    if (mine < 0 && comm->lost) return mine;
    bool alone = mine == ISO_ERR_MPI || mine == ISO_ERR_TIMEOUT;
    if (alone && iso__comm_any_lost()) return mine;
    int64_t lowest = mine < 0 ? comm->rank : comm->size;
    ISO_TRY(iso_comm_allreduce_i64(comm, &lowest, 1, ISO_MIN));
    if (lowest == comm->size) return ISO_OK;
    struct {
        int32_t code;
        char message[sizeof(((iso_error *)0)->message)];
    } said = {.code = mine};
    if (comm->rank == lowest) memcpy(said.message, iso_last_error()->message, sizeof(said.message));
    // A rank that failed keeps its own error record, which is more precise.
    ISO_TRY(iso_comm_bcast(comm, &said, sizeof(said), (int)lowest));
    if (mine < 0) return mine;
    if (iso__names_rank(said.message)) return ISO_FAIL((iso_status)said.code, "%s", said.message);
    return ISO_FAIL((iso_status)said.code, "rank %d: %.480s", (int)lowest, said.message);
}

iso_status iso__comm_alloc_zero(iso_comm *comm, size_t bytes, void **out) {
    *out = NULL;
    iso_status status = iso_comm_agree(comm, iso__alloc_zero(bytes, out));
    if (status < 0) {
        iso__free(*out);
        *out = NULL;
    }
    ISO_TRY(status);
    return ISO_OK;
}

enum { RANKS_SHOWN = 8 };

// Writes "rank 3 has" or "ranks 1, 3 and 5 have" for the ranks whose number differs from rank 0's;
// ", ..." stands for the rest of a long list.
static void list_others(const uint64_t *numbers, int size, char *text, size_t room) {
    int others = 0, shown = 0;
    size_t used = 0;
    for (int r = 1; r < size; r++) others += numbers[r] != numbers[0];
    used += (size_t)snprintf(text, room, others == 1 ? "rank" : "ranks");
    for (int r = 1; r < size && shown < RANKS_SHOWN; r++) {
        if (numbers[r] == numbers[0]) continue;
        const char *before = shown == 0 ? "" : shown == others - 1 ? " and" : ",";
        used += (size_t)snprintf(text + used, room - used, "%s %d", before, r);
        shown++;
    }
    snprintf(text + used, room - used, "%s %s", shown < others ? ", ..." : "",
             others == 1 ? "has" : "have");
}

iso_status iso__comm_all_same(iso_comm *comm, uint64_t number, bool *out) {
    int64_t ends[2] = {(int64_t)number, (int64_t)~number}; // ~ reverses the order
    ISO_TRY(iso_comm_allreduce_i64(comm, ends, 2, ISO_MIN));
    *out = ends[0] == ~ends[1];
    return ISO_OK;
}

static iso_status name_others(iso_comm *comm, uint64_t number, const char *what) {
    void *memory = NULL;
    size_t size = (size_t)comm->size;
    ISO_TRY(iso__comm_alloc_zero(comm, size * sizeof(uint64_t), &memory));
    uint64_t *numbers = memory;
    numbers[comm->rank] = number; // zeros elsewhere: the sum is a gather
    iso_status status = iso_comm_allreduce_i64(comm, memory, size, ISO_SUM);
    char others[160] = "";
    if (status >= 0) list_others(numbers, comm->size, others, sizeof(others));
    iso__free(memory);
    ISO_TRY(status);
    return ISO_FAIL(ISO_ERR_MISMATCH,
                    "%s is not the same on all ranks: %s other contents than rank 0: give every "
                    "rank the same",
                    what, others);
}

iso_status iso_comm_check_same(iso_comm *comm, uint64_t number, const char *what) {
    bool same = false;
    ISO_TRY(iso__comm_all_same(comm, number, &same));
    if (!same) ISO_TRY(name_others(comm, number, what));
    return ISO_OK;
}

iso_status iso__comm_check_equal(iso_comm *comm, int64_t number, const char *what) {
    int64_t first = number; // rank 0's
    ISO_TRY(iso_comm_bcast(comm, &first, sizeof(first), 0));
    int64_t odd = number == first ? comm->size : comm->rank, other = number;
    ISO_TRY(iso_comm_allreduce_i64(comm, &odd, 1, ISO_MIN));
    if (odd == comm->size) return ISO_OK;
    ISO_TRY(iso_comm_bcast(comm, &other, sizeof(other), (int)odd));
    return ISO_FAIL(ISO_ERR_MISMATCH,
                    "%s: %lld on rank 0 and %lld on rank %lld: give every rank the same", what,
                    (long long)first, (long long)other, (long long)odd);
}
