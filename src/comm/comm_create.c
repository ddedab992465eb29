// SPDX-License-Identifier: MIT
// Creates communicators.
#include "base/recording.h"
#include "comm/comm_calls.h"
#include "comm/comm_state.h"
#include "comm/debug.h"

#include <stdatomic.h>

static void log_choices(const iso_comm *comm) {
    static atomic_bool said;
    if (atomic_exchange(&said, true)) return;
    if (comm->rank == 0)
        iso__log(ISO_LOG_INFO, "all-reduce algorithm: %s", comm->engine->algorithm);
}

// Sets the time-out before the first wait. If ISO_TIMEOUT is invalid, the default applies until all
// ranks have met, and the error is reported then.
static iso_status read_timeout(iso_comm *comm, const iso_comm_config *config) {
    comm->timeout_s = 300;
    if (config && config->timeout_s > 0) {
        comm->timeout_s = config->timeout_s;
        return ISO_OK;
    }
    ISO_TRY(iso__env_number(ISO_ENV_TIMEOUT, 300, &comm->timeout_s));
    return ISO_OK;
}

// MPI_Comm_dup blocks without a limit. So all ranks first meet in a barrier with the time-out, and
// then compare their environments.
static iso_status duplicate_comm(iso_comm *comm, MPI_Comm mpi_comm) {
    MPI_Request request;
    ISO_TRY_MPI(MPI_Comm_rank(mpi_comm, &comm->rank));
    ISO_TRY_MPI(MPI_Comm_size(mpi_comm, &comm->size));
    if (iso__log_rank() < 0) iso_log_set_rank(comm->rank);
    ISO_TRY(iso__debug_arrive(comm, mpi_comm));
    int rc = MPI_Ibarrier(mpi_comm, &request);
    iso_status met = iso__comm_await(comm, rc, &request, "the barrier before MPI_Comm_dup");
    ISO_TRY(iso__debug_name_missing(comm, met));
    ISO_TRY(iso__comm_check_environment(comm, mpi_comm)); // MPI_Comm_dup sums by ISO_IALLREDUCE
    ISO_TRY(iso__comm_make(comm, &(iso__comm_recipe){.from = mpi_comm}, &comm->mpi));
    ISO_TRY_MPI(MPI_Comm_set_errhandler(comm->mpi, MPI_ERRORS_RETURN));
    return iso__debug_open(comm);
}

static iso_status duplicate_for_bulk(iso_comm *comm) {
    ISO_TRY(iso__comm_meet(comm, "the barrier before MPI_Comm_dup"));
    ISO_TRY(iso__comm_make(comm, &(iso__comm_recipe){.from = comm->mpi}, &comm->bulk));
    return ISO_OK;
}

static iso_status connect_ranks(iso_comm *comm, MPI_Comm mpi_comm, const iso_comm_config *config,
                                bool long_requests) {
    iso_status limit = read_timeout(comm, config);
    ISO_TRY(duplicate_comm(comm, mpi_comm));
    if (long_requests) ISO_TRY(duplicate_for_bulk(comm));
    comm->sums.record =
        iso__recorder_stream(comm->group, comm->rank, comm->size, "exchanges and calls");
    ISO_TRY(limit);
    ISO_TRY(iso__engine_acquire(config ? config->progress : ISO_PROGRESS_AUTO, &comm->engine));
    // Once per process, because the search takes Open MPI a fifth of a second.
    if (!comm->engine->algorithm[0])
        comm->engine->algorithm_number =
            iso__choose_algorithm(comm->engine->algorithm, sizeof(comm->engine->algorithm));
    log_choices(comm);
    iso__debug_environment();
    return iso__watch_join(comm);
}

static iso_status create_comm(MPI_Comm mpi_comm, const iso_comm_config *config, bool long_requests,
                              iso_comm **out) {
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_comm), &memory));
    iso_comm *comm = memory;
    comm->references = 1;
    comm->mpi = comm->bulk = MPI_COMM_NULL;
    iso_status status;
    ISO_TRY_GOTO(connect_ranks(comm, mpi_comm, config, long_requests));
    *out = comm;
    return ISO_OK;
fail:
    iso_comm_destroy(&comm);
    return status;
}

iso_status iso__comm_create_like(const iso_comm *like, MPI_Comm mpi_comm, bool long_requests,
                                 iso_comm **out) {
    iso_comm_config config = {.progress = like->engine->mode, .timeout_s = like->timeout_s};
    return create_comm(mpi_comm, &config, long_requests, out);
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
    return create_comm(mpi_comm, config, true, out);
}

iso_status iso_comm_create_fortran(int mpi_comm, const iso_comm_config *config, iso_comm **out) {
    int initialized = 0, finalized = 0; // handles can be converted only in between
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    bool runs = initialized && !finalized;
    return iso_comm_create(runs ? MPI_Comm_f2c(mpi_comm) : MPI_COMM_NULL, config, out);
}
