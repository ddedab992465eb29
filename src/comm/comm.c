// Communicators: duplicate, blocking collectives, and a verdict that all ranks share.
#include "comm/comm_impl.h"

#include <isotherm/trace.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

static void log_choices(const iso_comm *comm) {
    static atomic_bool said;
    if (atomic_exchange(&said, true)) return;
    if (comm->rank == 0)
        iso__log(ISO_LOG_INFO, "all-reduce algorithm: %s", comm->engine->algorithm);
}

static iso_status setup(iso_comm *comm, MPI_Comm mpi_comm, const iso_comm_config *config) {
    ISO_TRY_MPI(MPI_Comm_dup(mpi_comm, &comm->mpi));
    ISO_TRY_MPI(MPI_Comm_set_errhandler(comm->mpi, MPI_ERRORS_RETURN));
    ISO_TRY_MPI(MPI_Comm_dup(comm->mpi, &comm->bulk));
    ISO_TRY_MPI(MPI_Comm_rank(comm->mpi, &comm->rank));
    ISO_TRY_MPI(MPI_Comm_size(comm->mpi, &comm->size));
    int mode; // is read later; nonsense is told of while all ranks are together
    ISO_TRY(iso__node_collective(&mode));
    if (iso__log_rank() < 0) iso_log_set_rank(comm->rank);
    if (config && config->timeout_s > 0)
        comm->timeout_s = config->timeout_s;
    else
        ISO_TRY(iso__env_number(ISO_ENV_TIMEOUT, 0, 1e9, 300, &comm->timeout_s));
    ISO_TRY(iso__engine_acquire(config ? config->progress : ISO_PROGRESS_AUTO, &comm->engine));
    // Once per process: looking for it takes Open MPI a fifth of a second.
    if (!comm->engine->algorithm[0])
        iso__choose_algorithm(comm->engine->algorithm, sizeof(comm->engine->algorithm));
    log_choices(comm);
    return ISO_OK;
}

iso_status iso_comm_create(MPI_Comm mpi_comm, const iso_comm_config *config, iso_comm **out) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    ISO_CHECK(initialized && !finalized, ISO_ERR_STATE,
              "MPI is not running: call MPI_Init_thread before iso_comm_create");
    ISO_TRY(iso__check_launcher());
    ISO_CHECK(mpi_comm != MPI_COMM_NULL, ISO_ERR_ARG, "iso_comm_create was given MPI_COMM_NULL");
    ISO_CHECK(!config || ((int)config->progress >= 0 && config->progress <= ISO_PROGRESS_THREAD),
              ISO_ERR_ARG, "unknown progress mode %d", (int)config->progress);
    ISO_CHECK(!config || config->timeout_s >= 0, ISO_ERR_ARG,
              "a time-out of %g s: give a number of at least 0", config->timeout_s);
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_comm), &memory));
    iso_comm *comm = memory;
    comm->references = 1;
    comm->mpi = comm->bulk = MPI_COMM_NULL;
    iso_status status;
    ISO_TRY_GOTO(setup(comm, mpi_comm, config));
    *out = comm;
    return ISO_OK;
fail:
    iso_comm_destroy(&comm);
    return status;
}

iso_status iso_comm_create_fortran(int mpi_comm, const iso_comm_config *config, iso_comm **out) {
    int initialized = 0, finalized = 0; // handles are converted in between alone
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    bool runs = initialized && !finalized;
    return iso_comm_create(runs ? MPI_Comm_f2c(mpi_comm) : MPI_COMM_NULL, config, out);
}

iso_comm *iso_comm_retain(iso_comm *comm) {
    comm->references++;
    return comm;
}

void iso_comm_destroy(iso_comm **pointer) {
    iso_comm *comm = *pointer;
    *pointer = NULL;
    if (!comm || --comm->references > 0) return;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && comm->bulk != MPI_COMM_NULL) MPI_Comm_free(&comm->bulk);
    if (!finalized && comm->mpi != MPI_COMM_NULL) MPI_Comm_free(&comm->mpi);
    iso__engine_release(&comm->engine);
    iso__free(comm);
}

int iso_comm_rank(const iso_comm *comm) { return comm->rank; }
int iso_comm_size(const iso_comm *comm) { return comm->size; }
MPI_Comm iso_comm_mpi(const iso_comm *comm) { return comm->mpi; }
const char *iso_comm_progress_text(const iso_comm *comm) { return comm->engine->why; }
const char *iso_comm_algorithm_text(const iso_comm *comm) { return comm->engine->algorithm; }
iso_progress iso_comm_progress(const iso_comm *comm) { return comm->engine->mode; }

// ---- Blocking collectives -------------------------------------------------------------------------

// Waits for what a call returning rc has started, giving up after the time-out.
static iso_status finish(iso_comm *comm, int rc, MPI_Request *request, const char *what) {
    ISO_TRY_MPI(rc);
    int64_t start = iso_now(), limit = (int64_t)(comm->timeout_s * 1e9);
    for (int done = 0;;) {
        ISO_TRY_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done) return ISO_OK;
        ISO_CHECK(
            limit == 0 || iso_now() - start < limit, ISO_ERR_TIMEOUT,
            "rank %d of %d waited %g s in a %s: another rank is stuck, gone or slower than that "
            "(ISO_TIMEOUT sets the limit)",
            comm->rank, comm->size, comm->timeout_s, what);
        iso__engine_assist(comm->engine); // the rank that is waited for may wait for ours
        sched_yield();
    }
}

iso_status iso_comm_barrier(iso_comm *comm) {
    MPI_Request request;
    return finish(comm, MPI_Ibarrier(comm->mpi, &request), &request, "barrier");
}

#define MOST_BYTES ((size_t)1 << 30) // of one MPI call, whose counts are int

iso_status iso_comm_bcast(iso_comm *comm, void *data, size_t bytes, int root) {
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < MOST_BYTES ? bytes - done : MOST_BYTES;
        MPI_Request request;
        int rc = MPI_Ibcast((char *)data + done, (int)part, MPI_BYTE, root, comm->mpi, &request);
        ISO_TRY(finish(comm, rc, &request, "broadcast"));
        done += part;
    }
    return ISO_OK;
}

static iso_status allreduce(iso_comm *comm, void *data, size_t count, MPI_Datatype type,
                            iso_reduce op) {
    MPI_Op mpi_op = op == ISO_SUM ? MPI_SUM : op == ISO_MAX ? MPI_MAX : MPI_MIN;
    MPI_Request request;
    ISO_CHECK(count < INT_MAX, ISO_ERR_ARG, "%zu numbers are too many for one reduction", count);
    int rc = MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, type, mpi_op, comm->mpi, &request);
    return finish(comm, rc, &request, "reduction");
}

iso_status iso_comm_allreduce_f64(iso_comm *comm, double *data, size_t count, iso_reduce op) {
    return allreduce(comm, data, count, MPI_DOUBLE, op);
}

iso_status iso_comm_allreduce_i64(iso_comm *comm, int64_t *data, size_t count, iso_reduce op) {
    return allreduce(comm, data, count, MPI_INT64_T, op);
}

static iso_status send_bytes(iso_comm *comm, const char *data, size_t bytes, int to) {
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < MOST_BYTES ? bytes - done : MOST_BYTES;
        MPI_Request request;
        int rc = MPI_Isend(data + done, (int)part, MPI_BYTE, to, 0, comm->mpi, &request);
        ISO_TRY(finish(comm, rc, &request, "gather"));
        done += part;
    }
    return ISO_OK;
}

static iso_status receive_bytes(iso_comm *comm, char *data, size_t bytes, int from) {
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < MOST_BYTES ? bytes - done : MOST_BYTES;
        MPI_Request request;
        int rc = MPI_Irecv(data + done, (int)part, MPI_BYTE, from, 0, comm->mpi, &request);
        ISO_TRY(finish(comm, rc, &request, "gather"));
        done += part;
    }
    return ISO_OK;
}

static iso_status gather_on_root(iso_comm *comm, const void *data, const uint64_t *wire, char **out,
                                 size_t **sizes) {
    iso_status status;
    char *all = NULL;
    size_t *each = NULL, total = 0;
    for (int r = 0; r < comm->size; r++) total += wire[r];
    ISO_TRY_GOTO(iso__alloc(total, (void **)&all));
    ISO_TRY_GOTO(iso__alloc((size_t)comm->size * sizeof(*each), (void **)&each));
    size_t at = 0;
    for (int r = 0; r < comm->size; r++) {
        each[r] = wire[r];
        if (r == comm->rank)
            memcpy(all + at, data, each[r]);
        else
            ISO_TRY_GOTO(receive_bytes(comm, all + at, each[r], r));
        at += each[r];
    }
    *out = all;
    *sizes = each;
    return ISO_OK;
fail:
    iso__free(all);
    iso__free(each);
    return status;
}

iso_status iso_comm_gather(iso_comm *comm, const void *data, size_t bytes, int root, char **out,
                           size_t **sizes) {
    *out = NULL;
    *sizes = NULL;
    void *memory;
    ISO_TRY(iso__alloc_zero((size_t)comm->size * sizeof(uint64_t), &memory));
    uint64_t *wire = memory, mine = bytes;
    MPI_Request request;
    int rc = MPI_Igather(&mine, 1, MPI_UINT64_T, wire, 1, MPI_UINT64_T, root, comm->mpi, &request);
    iso_status status = finish(comm, rc, &request, "gather");
    if (status == ISO_OK)
        status = comm->rank == root ? gather_on_root(comm, data, wire, out, sizes)
                                    : send_bytes(comm, data, bytes, root);
    iso__free(wire);
    ISO_TRY(status);
    return ISO_OK;
}

void iso_comm_free(void *data) { iso__free(data); }

iso_status iso_comm_agree(iso_comm *comm, iso_status mine) {
    int64_t lowest = mine < 0 ? comm->rank : comm->size;
    ISO_TRY(iso_comm_allreduce_i64(comm, &lowest, 1, ISO_MIN));
    if (lowest == comm->size) return ISO_OK;
    struct {
        int32_t code;
        char message[sizeof(((iso_error *)0)->message)];
    } said = {.code = mine};
    if (comm->rank == lowest) memcpy(said.message, iso_last_error()->message, sizeof(said.message));
    // The verdict of this rank survives the broadcast: its own record is the better one.
    ISO_TRY(iso_comm_bcast(comm, &said, sizeof(said), (int)lowest));
    if (mine < 0) return mine;
    if (iso__names_rank(said.message)) return ISO_FAIL((iso_status)said.code, "%s", said.message);
    return ISO_FAIL((iso_status)said.code, "rank %d: %.480s", (int)lowest, said.message);
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
