// SPDX-License-Identifier: MIT
// Waits for other ranks in blocking calls, under the time-out.
#include "base/recording.h"
#include "comm/comm_state.h"

#include <isotherm/trace.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define LONG_WAIT_NS 50000 // between two tests, once a wait is long

static atomic_bool any_lost;

void iso__comm_lose(iso_comm *comm) {
    comm->lost = true;
    any_lost = true;
}

bool iso__comm_any_lost(void) { return any_lost; }

// Returns the error of a wait that has timed out. earlier: a wait on the communicator had failed
// before this one. After such a failure, no wait on the communicator succeeds.
static iso_status given_up(const iso_comm *comm, bool earlier, const iso__patience *patience) {
    char missing[320], self[ISO_SELF_ROOM];
    const char *what = patience->what;
    ISO_CHECK(!earlier, ISO_ERR_TIMEOUT,
              "%s cannot wait in %s: an earlier wait on this communicator has failed: "
              "end the job (MPI_Abort)",
              iso__comm_self_text(comm, self), what);
    return ISO_FAIL(ISO_ERR_TIMEOUT, "%s waited %g s in %s: %s (ISO_TIMEOUT sets the limit)",
                    iso__comm_self_text(comm, self), comm->timeout_s, what,
                    iso__patience_verdict_unlocked(patience, missing, sizeof(missing)));
}

// After an MPI error the state of the operation is unknown: other ranks may still wait in it, and
// MPI may still use its buffers.
static iso_status check_code(iso_comm *comm, int rc, const char *what) {
    if (rc != MPI_SUCCESS) iso__comm_lose(comm);
    ISO_TRY_MPI_CODE(rc, what);
    return ISO_OK;
}

static iso_status await_request(iso_comm *comm, MPI_Request *request, int64_t start,
                                iso__patience *patience) {
    int64_t limit = comm->idle.endless ? 0 : (int64_t)(comm->timeout_s * 1e9);
    bool earlier = comm->lost;
    for (int done = 0;;) {
        ISO_TRY(check_code(comm, MPI_Test(request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
        if (done) return ISO_OK;
        int64_t waited = iso_now() - start;
        if (limit > 0 && waited >= limit) iso__comm_lose(comm);
        if (comm->lost) return given_up(comm, earlier, patience);
        iso__patience_tick_unlocked(patience, waited);
        // The awaited rank may be waiting for this one.
        if (comm->engine) iso__engine_assist(comm->engine);
        if (comm->idle.call) comm->idle.call(comm->idle.user);
        if (patience->shown)
            nanosleep(&(struct timespec){.tv_nsec = LONG_WAIT_NS}, NULL);
        else
            sched_yield();
    }
}

static iso_status await_patiently(iso_comm *comm, MPI_Request *request, int64_t start,
                                  const iso__stream *stream, const char *what) {
    iso__patience patience = iso__patience_begin(comm, stream, what);
    patience.endless = comm->idle.endless;
    iso_recorder_wait(what);
    iso_status status = await_request(comm, request, start, &patience);
    iso__patience_end_unlocked(&patience);
    ISO_TRY(status);
    iso_recorder_woke(what);
    return ISO_OK;
}

iso_status iso__comm_await(iso_comm *comm, int rc, MPI_Request *request, const char *what) {
    ISO_TRY(check_code(comm, rc, what));
    int64_t start = iso_now();
    iso__stream_count(&comm->meetings, start);
    return await_patiently(comm, request, start, &comm->meetings, what);
}

iso_status iso__comm_await_message(iso_comm *comm, int rc, MPI_Request *request, const char *what) {
    ISO_TRY(check_code(comm, rc, what));
    return await_patiently(comm, request, iso_now(), NULL, what);
}

void iso__comm_begin(iso_comm *comm) { iso__stream_count(&comm->meetings, iso_now()); }

iso_status iso__comm_await_part(iso_comm *comm, MPI_Request *request, const char *what) {
    return await_patiently(comm, request, iso_now(), &comm->meetings, what);
}

iso_status iso__comm_meet(iso_comm *comm, const char *what) {
    MPI_Request request;
    return iso__comm_await(comm, MPI_Ibarrier(comm->mpi, &request), &request, what);
}

void iso__comm_set_idle(iso_comm *comm, iso__idle idle) { comm->idle = idle; }

bool iso__comm_is_idle(const iso_comm *comm) { return comm->idle.call != NULL; }

iso_status iso_comm_await(iso_comm *comm, MPI_Request *request, const char *what) {
    return iso__comm_await(comm, MPI_SUCCESS, request, what);
}

iso_status iso__comm_reduce(iso_comm *comm, MPI_Comm mpi_comm, int64_t *numbers, int count,
                            MPI_Op op, const char *what) {
    bool root = comm->rank == 0;
    MPI_Request request;
    int rc = MPI_Ireduce(root ? MPI_IN_PLACE : numbers, root ? numbers : NULL, count, MPI_INT64_T,
                         op, 0, mpi_comm, &request);
    ISO_TRY(iso__comm_await(comm, rc, &request, what));
    rc = MPI_Ibcast(numbers, count, MPI_INT64_T, 0, mpi_comm, &request);
    return iso__comm_await(comm, rc, &request, what);
}
