// SPDX-License-Identifier: MIT
// Creates communicators.
#include "base/recording.h"
#include "comm/comm_calls.h"
#include "comm/comm_state.h"
#include "comm/debug.h"
#include "comm/pairwise.h"

#include <stdatomic.h>
#include <string.h>

// Whether the all-reduce algorithm was chosen in a communicator of all processes of the job.
static atomic_bool chosen_for_job;

static void log_choices(const iso_comm *comm, bool for_job) {
    static atomic_bool said[2];
    const iso__engine *engine = comm->engine;
    bool alone = !for_job && comm->size == 1; // it sums nothing
    if (alone || comm->rank > 0 || atomic_exchange(&said[for_job], true)) return;
    iso__log(ISO_LOG_INFO, "all-reduce algorithm: %s", engine->algorithm);
    if (!for_job && engine->algorithm[0] == '0')
        iso__log(ISO_LOG_WARN,
                 "Open MPI's own algorithm sums, because only %d processes of the job share this "
                 "communicator; mpirun --mca coll_libnbc_iallreduce_algorithm 3 sets a faster one",
                 comm->size);
}

// Collective. Open MPI has one algorithm for all communicators of a process. If only a part of the
// job's processes set it, or set it while others have begun an exchange, ranks wait for each other.
static iso_status judge_setting(iso_comm *comm, bool *may_set) {
    int rank, size;
    int64_t *idle = comm->scratch;
    iso__engine *engine = comm->engine;
    *may_set = false;
    ISO_TRY(iso__rank_in_job(&rank, &size));
    if (comm->size < size || atomic_load(&chosen_for_job)) return ISO_OK;
    if (engine) pthread_mutex_lock(&engine->lock);
    *idle = !engine || (engine->in_flight == 0 && !engine->oldest);
    if (engine) pthread_mutex_unlock(&engine->lock);
    ISO_TRY(iso__comm_reduce(comm, comm->mpi, idle, 1, MPI_MIN,
                             "the question whether exchanges are under way"));
    *may_set = *idle == 1;
    if (*may_set) atomic_store(&chosen_for_job, true);
    return ISO_OK;
}

// Open MPI takes a fifth of a second to find the variable, so the search is repeated only to set
// the variable if that was not possible before. A rank that could not get an engine also does this,
// because it still takes part in reductions. *number: Open MPI's number of the algorithm plus ten
// times engine->pairwise.
static iso_status choose_algorithm(iso_comm *comm, int *number) {
    iso__engine *engine = comm->engine;
    char unused[sizeof(engine->algorithm)];
    bool may_set;
    ISO_TRY(judge_setting(comm, &may_set));
    if (!engine) {
        *number = iso__choose_algorithm(may_set, unused, sizeof(unused));
        *number += 10 * iso__pairwise_allowed(*number);
        return ISO_OK;
    }
    if (!engine->algorithm[0] || may_set) {
        engine->algorithm_number =
            iso__choose_algorithm(may_set, engine->algorithm, sizeof(engine->algorithm));
        engine->pairwise = iso__pairwise_allowed(engine->algorithm_number);
    }
    log_choices(comm, atomic_load(&chosen_for_job));
    iso__debug_environment();
    *number = engine->algorithm_number + 10 * engine->pairwise;
    return ISO_OK;
}

// Sets the time-out before the first wait. If ISO_TIMEOUT is invalid, the default applies until all
// ranks have met, and the error is reported then.
static iso_status read_timeout(iso_comm *comm, const iso_comm_config *config) {
    comm->timeout_s = 300;
    if (config && config->timeout_s > 0) {
        comm->timeout_s = config->timeout_s < 1e9 ? config->timeout_s : 1e9; // as nanoseconds
        return ISO_OK;
    }
    ISO_TRY(iso__env_number(ISO_ENV_TIMEOUT, 300, &comm->timeout_s));
    return ISO_OK;
}

// What a rank says if it has failed before all ranks meet.
typedef struct notice {
    // rank: the lowest rank that failed, or the number of ranks if none did. parent: the number of
    // the parent that this rank has found, 0 for none. negative: -parent.
    int64_t rank, parent, negative;
    int64_t code;
    char message[sizeof(((iso_error *)0)->message)];
} notice;
_Static_assert(sizeof(notice) <= ISO_SCRATCH_LEAST, "it stands in the scratch memory");

// A barrier with the time-out, in which all ranks learn whether one of them has failed. *parent:
// the parent that this rank has found. It becomes NULL unless all ranks have found the same one.
static iso_status meet_first(iso_comm *comm, MPI_Comm mpi_comm, iso_status mine,
                             iso_comm **parent) {
    static const char what[] = "the barrier before MPI_Comm_dup";
    notice *said = comm->scratch;
    MPI_Request request;
    int64_t least[3] = {mine < 0 ? comm->rank : comm->size, *parent ? (*parent)->number : 0};
    least[2] = -least[1];
    memcpy(said, least, sizeof(least));
    ISO_TRY(iso__comm_reduce(comm, mpi_comm, &said->rank, 3, MPI_MIN, what));
    if (said->parent != -said->negative) *parent = NULL;
    int lowest = (int)said->rank;
    if (lowest == comm->size) return ISO_OK;
    said->code = mine;
    memcpy(said->message, iso_last_error()->message, sizeof(said->message));
    int rc = MPI_Ibcast(said, sizeof(*said), MPI_BYTE, lowest, mpi_comm, &request);
    ISO_TRY(iso__comm_await(comm, rc, &request, what));
    if (mine < 0) return mine;
    return ISO_FAIL((iso_status)said->code, "rank %d: %.480s", lowest, said->message);
}

// Called before the ranks meet: a rank that had no memory later would send a shorter message than
// the others.
static iso_status widen_scratch(iso_comm *comm) {
    void *wider;
    size_t bytes = (size_t)comm->size * 8;
    if (bytes <= comm->scratch_bytes) return ISO_OK;
    ISO_TRY(iso__alloc_zero(bytes, &wider));
    iso__free(comm->scratch);
    comm->scratch = wider;
    comm->scratch_bytes = bytes;
    return ISO_OK;
}

// MPI_Comm_dup blocks without a limit. So all ranks first meet in a barrier with the time-out, and
// then compare their environments. mine: the error of this rank so far. parent: see meet_first.
static iso_status meet_ranks(iso_comm *comm, MPI_Comm mpi_comm, iso_status mine,
                             iso_comm **parent) {
    void *memory = NULL;
    if (mine == ISO_OK) mine = widen_scratch(comm);
    if (mine == ISO_OK) mine = iso__debug_arrive(comm, mpi_comm);
    if (mine == ISO_OK) mine = iso__alloc_zero(iso__comm_environment_bytes(), &memory);
    iso_status status = iso__debug_name_missing(comm, meet_first(comm, mpi_comm, mine, parent));
    if (status == ISO_OK) status = iso__comm_check_environment(comm, mpi_comm, memory);
    if (!comm->lost) iso__free(memory); // after a time-out MPI may still write into it
    ISO_TRY(status);
    return ISO_OK;
}

// how: ISO_MAKE_DUP or ISO_MAKE_COPY.
static iso_status duplicate_comm(iso_comm *comm, MPI_Comm mpi_comm, iso__make how,
                                 iso_status mine) {
    ISO_TRY_MPI(MPI_Comm_rank(mpi_comm, &comm->rank));
    ISO_TRY_MPI(MPI_Comm_size(mpi_comm, &comm->size));
    if (iso__log_rank() < 0) iso_log_set_rank(comm->rank);
    iso_comm *parent = how == ISO_MAKE_DUP ? iso__comm_find_parent(mpi_comm, comm->size) : NULL;
    ISO_TRY(meet_ranks(comm, mpi_comm, mine, &parent)); // MPI_Comm_dup sums by ISO_IALLREDUCE
    iso__comm_recipe recipe = {how, .from = mpi_comm, .like = mpi_comm};
    if (parent) recipe.kind = ISO_MAKE_COPY, recipe.from = parent->mpi;
    ISO_TRY(iso__comm_make(comm, &recipe, &comm->mpi));
    ISO_TRY_MPI(MPI_Comm_set_errhandler(comm->mpi, MPI_ERRORS_RETURN));
    return iso__debug_open(comm);
}

static iso_status duplicate_for_bulk(iso_comm *comm) {
    ISO_TRY(iso__comm_meet(comm, "the barrier before MPI_Comm_create_group"));
    return iso__comm_copy(comm, comm->mpi, &comm->bulk);
}

// Checks that all ranks sum by the same algorithm: otherwise they would wait for each other in the
// first reduction. Also gives the communicator its number, which rank 0 chooses.
static iso_status compare_algorithms(iso_comm *comm, int own) {
    int rank, size;
    int64_t *ends = comm->scratch; // after the reduction: the minimum, and the negated maximum
    ISO_TRY(iso__rank_in_job(&rank, &size));
    ends[0] = own;
    ends[1] = -own;
    ends[2] = comm->rank == 0 ? iso__comm_number(rank) : INT64_MAX;
    ISO_TRY(iso__comm_reduce(comm, comm->mpi, ends, 3, MPI_MIN,
                             "the comparison of the all-reduce algorithms"));
    comm->number = ends[2];
    if (ends[0] == -ends[1]) return ISO_OK;
    iso__comm_lose(comm); // iso_comm_agree would make a reduction on it
    return ISO_FAIL(
        ISO_ERR_MPI,
        "the ranks sum by different all-reduce algorithms, of numbers from %d to %d (50 or "
        "60 more: with pairwise exchange): ISO_IALLREDUCE differs, or MPI could not set it on some "
        "of them",
        (int)ends[0], (int)-ends[1]);
}

static iso_status connect_ranks(iso_comm *comm, MPI_Comm mpi_comm, const iso_comm_config *config,
                                iso__make how, bool long_requests, iso_status mine) {
    iso_status limit = read_timeout(comm, config);
    ISO_TRY(duplicate_comm(comm, mpi_comm, how, mine));
    if (long_requests) ISO_TRY(duplicate_for_bulk(comm));
    comm->sums.record =
        iso__recorder_stream(comm->group, comm->rank, comm->size, "exchanges and calls");
    comm->sums.recorded = true;
    ISO_TRY(limit);
    mine = iso__engine_acquire(config ? config->progress : ISO_PROGRESS_AUTO, &comm->engine);
    int algorithm = 0;
    ISO_TRY(choose_algorithm(comm, &algorithm));
    ISO_TRY(compare_algorithms(comm, algorithm));
    return iso__watch_join(comm, mine);
}

// Tells the other ranks that this rank has no memory for a communicator. Uses a minimal one.
static iso_status refuse_comm(MPI_Comm mpi_comm, const iso_comm_config *config, iso_status mine) {
    static _Thread_local _Alignas(notice) char memory[ISO_SCRATCH_LEAST];
    iso_comm poor = {.scratch = memory, .scratch_bytes = sizeof(memory)};
    return connect_ranks(&poor, mpi_comm, config, ISO_MAKE_DUP, false, mine);
}

static iso_status create_comm(MPI_Comm mpi_comm, const iso_comm_config *config, iso__make how,
                              bool long_requests, iso_comm **out) {
    void *memory = NULL, *scratch = NULL;
    iso_status status = iso__alloc_zero(ISO_SCRATCH_LEAST, &scratch);
    if (status == ISO_OK) status = iso__alloc_zero(sizeof(iso_comm), &memory);
    if (status < 0) {
        iso__free(scratch);
        return refuse_comm(mpi_comm, config, status);
    }
    iso_comm *comm = memory;
    comm->references = 1;
    comm->scratch = scratch;
    comm->scratch_bytes = ISO_SCRATCH_LEAST;
    comm->mpi = comm->bulk = MPI_COMM_NULL;
    ISO_TRY_GOTO(connect_ranks(comm, mpi_comm, config, how, long_requests, ISO_OK));
    *out = comm;
    return ISO_OK;
fail:
    iso_comm_destroy(&comm);
    return status;
}

iso_status iso__comm_create_like(const iso_comm *like, MPI_Comm mpi_comm, bool long_requests,
                                 iso_comm **out) {
    iso_comm_config config = {.progress = like->engine->mode, .timeout_s = like->timeout_s};
    return create_comm(mpi_comm, &config, ISO_MAKE_COPY, long_requests, out);
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
    ISO_TRY(create_comm(mpi_comm, config, ISO_MAKE_DUP, true, out));
    iso__comm_keep(*out);
    return ISO_OK;
}

iso_status iso_comm_create_fortran(int mpi_comm, const iso_comm_config *config, iso_comm **out) {
    int initialized = 0, finalized = 0; // handles can be converted only in between
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    bool runs = initialized && !finalized;
    return iso_comm_create(runs ? MPI_Comm_f2c(mpi_comm) : MPI_COMM_NULL, config, out);
}
