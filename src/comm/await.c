// SPDX-License-Identifier: MIT
// Waits for other ranks in blocking calls, under the time-out.
#include "base/recording.h"
#include "comm/comm_state.h"

#include <isotherm/trace.h>
#include <sched.h>

// The error of a wait that timed out, or that follows one (earlier): after a time-out, no further
// wait on the communicator succeeds.
static iso_status given_up(const iso_comm *comm, bool earlier, const char *what) {
    ISO_CHECK(
        !earlier, ISO_ERR_TIMEOUT,
        "rank %d of %d cannot wait in %s: an earlier wait on this communicator has timed out: "
        "end the job (MPI_Abort)",
        comm->rank, comm->size, what);
    return ISO_FAIL(ISO_ERR_TIMEOUT,
                    "rank %d of %d waited %g s in %s: another rank is stuck, gone or slower than "
                    "that (ISO_TIMEOUT sets the limit)",
                    comm->rank, comm->size, comm->timeout_s, what);
}

static iso_status await_request(iso_comm *comm, MPI_Request *request, const char *what) {
    int64_t start = iso_now(), limit = (int64_t)(comm->timeout_s * 1e9);
    bool earlier = comm->lost;
    for (int done = 0;;) {
        ISO_TRY_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done) return ISO_OK;
        comm->lost = comm->lost || (limit > 0 && iso_now() - start >= limit);
        if (comm->lost) return given_up(comm, earlier, what);
        // The awaited rank may be waiting for this one.
        if (comm->engine) iso__engine_assist(comm->engine);
        sched_yield();
    }
}

iso_status iso__comm_await(iso_comm *comm, int rc, MPI_Request *request, const char *what) {
    ISO_TRY_MPI_CODE(rc, what);
    iso_recorder_wait(what);
    ISO_TRY(await_request(comm, request, what));
    iso_recorder_woke(what);
    return ISO_OK;
}

iso_status iso__comm_meet(iso_comm *comm, const char *what) {
    MPI_Request request;
    return iso__comm_await(comm, MPI_Ibarrier(comm->mpi, &request), &request, what);
}
