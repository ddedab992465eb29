// SPDX-License-Identifier: MIT
// ISO_DEBUG: compares the collectives of all ranks before they start, and logs the MPI library in
// use.
#include "comm/debug.h"

#include "base/recording.h"
#include "comm/comm_state.h"

#include <isotherm/trace.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

// Before the first duplicate, the lines travel on the program's communicator. So the tag is higher
// than those that programs normally use, and valid in every MPI (MPI_TAG_UB >= 32767).
enum { LINE_ROOM = 192, TAG = 32711 };

typedef struct verdict {
    int32_t status;
    char message[sizeof(((iso_error *)0)->message)];
} verdict;

// The memory of one comparison. It is not freed after a time-out, because MPI still uses it.
struct iso__debug {
    MPI_Comm mpi;
    long long calls;
    bool is_posted; // the operation of iso__debug_arrive is not complete
    MPI_Request sent;
    verdict verdict;
    char mine[LINE_ROOM];
    MPI_Request *request; // [ranks], of rank 0
    char *line;           // [ranks][LINE_ROOM], of rank 0
    bool *came;           // [ranks], of rank 0
};

// ---- Rank 0 -----------------------------------------------------------------------------------------

enum { RANKS_SHOWN = 8 };

static void list_missing(const iso__debug *d, int size, char *text, size_t room) {
    int shown = 0, missing = 0;
    size_t used = 0;
    for (int r = 1; r < size; r++) missing += !d->came[r];
    used += (size_t)snprintf(text, room, missing > 1 ? "ranks" : "rank");
    for (int r = 1; r < size && shown < RANKS_SHOWN && used < room; r++) {
        if (d->came[r]) continue;
        used += (size_t)snprintf(text + used, room - used, "%s %d", shown++ ? "," : "", r);
    }
    if (missing > shown && used < room) snprintf(text + used, room - used, " and others");
}

// *all: whether all lines have arrived.
static iso_status test_lines(iso_comm *comm, iso__debug *d, bool *all) {
    *all = true;
    for (int r = 1; r < comm->size; r++) {
        int done = 0;
        if (d->came[r]) continue;
        ISO_TRY_MPI(MPI_Test(&d->request[r], &done, MPI_STATUS_IGNORE));
        d->came[r] = done;
        *all = *all && done;
    }
    return ISO_OK;
}

static iso_status post_lines(iso_comm *comm, iso__debug *d, MPI_Comm mpi) {
    for (int r = 1; r < comm->size; r++) {
        d->came[r] = false;
        ISO_TRY_MPI(MPI_Irecv(d->line + (size_t)r * LINE_ROOM, LINE_ROOM, MPI_CHAR, r, TAG, mpi,
                              &d->request[r]));
    }
    return ISO_OK;
}

static iso_status missing_error(const iso_comm *comm, const iso__debug *d) {
    char missing[96];
    list_missing(d, comm->size, missing, sizeof(missing));
    return ISO_FAIL(ISO_ERR_TIMEOUT, "%s did not come to %s within %g s (ISO_TIMEOUT)", missing,
                    d->mine, comm->timeout_s);
}

static iso_status receive_lines(iso_comm *comm, iso__debug *d, MPI_Comm mpi) {
    int64_t limit = (int64_t)(comm->timeout_s * 1e9), start = iso_now();
    ISO_TRY(post_lines(comm, d, mpi));
    for (bool all = false; !all;) {
        ISO_TRY(test_lines(comm, d, &all));
        if (all) return ISO_OK;
        if (limit > 0 && iso_now() - start >= limit) return missing_error(comm, d);
        if (comm->engine) iso__engine_assist(comm->engine);
        sched_yield();
    }
    return ISO_OK;
}

static iso_status compare_lines(const iso_comm *comm, const iso__debug *d) {
    for (int r = 1; r < comm->size; r++) {
        const char *other = d->line + (size_t)r * LINE_ROOM;
        ISO_CHECK(strncmp(other, d->mine, LINE_ROOM) == 0, ISO_ERR_MISMATCH,
                  "ranks disagree: rank 0 calls %s where rank %d calls %.*s", d->mine, r,
                  LINE_ROOM - 1, other);
    }
    return ISO_OK;
}

// Compares the lines and answers the ranks whose lines have arrived.
static iso_status judge_lines(iso_comm *comm, iso__debug *d, MPI_Comm mpi) {
    iso_status status = receive_lines(comm, d, mpi);
    if (status == ISO_OK) status = compare_lines(comm, d);
    d->verdict.status = status;
    if (status < 0)
        memcpy(d->verdict.message, iso_last_error()->message, sizeof(d->verdict.message));
    for (int r = 1; r < comm->size; r++) {
        if (!d->came[r]) continue;
        int rc = MPI_Isend(&d->verdict, sizeof(d->verdict), MPI_BYTE, r, TAG, mpi, &d->request[r]);
        ISO_TRY(
            iso__comm_await_message(comm, rc, &d->request[r], "the answer of ISO_DEBUG=detail"));
    }
    if (status == ISO_ERR_TIMEOUT) iso__comm_lose(comm);
    return status;
}

// ---- Other ranks ------------------------------------------------------------------------------------

// Waits for twice the time-out, because rank 0 may wait for other ranks until the time-out before
// it answers.
static iso_status ask_rank_0(iso_comm *comm, iso__debug *d, MPI_Comm mpi) {
    MPI_Request answer;
    double limit = comm->timeout_s;
    int rc = MPI_Isend(d->mine, LINE_ROOM, MPI_CHAR, 0, TAG, mpi, &d->sent);
    ISO_TRY_MPI_CODE(rc, "MPI_Isend");
    comm->timeout_s = limit > 0 ? 2 * limit + 1 : 0;
    rc = MPI_Irecv(&d->verdict, sizeof(d->verdict), MPI_BYTE, 0, TAG, mpi, &answer);
    iso_status status = iso__comm_await_message(comm, rc, &answer, d->mine);
    if (status == ISO_OK) status = iso__comm_await_message(comm, MPI_SUCCESS, &d->sent, d->mine);
    comm->timeout_s = limit;
    ISO_TRY(status);
    ISO_CHECK(d->verdict.status == ISO_OK, (iso_status)d->verdict.status, "%s", d->verdict.message);
    return ISO_OK;
}

static iso_status match_lines(iso_comm *comm, iso__debug *d, MPI_Comm mpi) {
    iso_status status = comm->rank == 0 ? judge_lines(comm, d, mpi) : ask_rank_0(comm, d, mpi);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Life -------------------------------------------------------------------------------------------

static void free_debug(iso__debug *d) {
    iso__free(d->request);
    iso__free(d->line);
    iso__free(d->came);
    iso__free(d);
}

static iso_status allocate_debug(const iso_comm *comm, iso__debug *d) {
    size_t ranks = comm->rank == 0 ? (size_t)comm->size : 1;
    ISO_TRY(iso__alloc_zero(ranks * sizeof(MPI_Request), (void **)&d->request));
    ISO_TRY(iso__alloc_zero(ranks * LINE_ROOM, (void **)&d->line));
    return iso__alloc_zero(ranks * sizeof(bool), (void **)&d->came);
}

static iso_status post_arrival(iso_comm *comm, iso__debug *d, MPI_Comm mpi) {
    snprintf(d->mine, LINE_ROOM, "iso_comm_create");
    d->is_posted = true;
    if (comm->rank == 0) return post_lines(comm, d, mpi);
    ISO_TRY_MPI(MPI_Isend(d->mine, LINE_ROOM, MPI_CHAR, 0, TAG, mpi, &d->sent));
    return ISO_OK;
}

iso_status iso__debug_arrive(iso_comm *comm, MPI_Comm mpi) {
    void *memory;
    if (iso__debug_level() < ISO__DEBUG_DETAIL || comm->size == 1) return ISO_OK;
    ISO_TRY(iso__alloc_zero(sizeof(iso__debug), &memory));
    comm->debug = memory;
    comm->debug->mpi = MPI_COMM_NULL;
    ISO_TRY(allocate_debug(comm, comm->debug));
    return post_arrival(comm, comm->debug, mpi);
}

iso_status iso__debug_name_missing(iso_comm *comm, iso_status barrier) {
    bool all;
    if (barrier != ISO_ERR_TIMEOUT || !comm->debug || comm->rank != 0) return barrier;
    ISO_TRY(test_lines(comm, comm->debug, &all));
    return all ? barrier : missing_error(comm, comm->debug);
}

iso_status iso__debug_open(iso_comm *comm) {
    static const char what[] = "the first barrier of ISO_DEBUG=detail";
    iso__debug *d = comm->debug;
    if (!d) return ISO_OK;
    for (int r = 1; comm->rank == 0 && r < comm->size; r++)
        if (!d->came[r]) ISO_TRY(iso__comm_await_message(comm, MPI_SUCCESS, &d->request[r], what));
    if (comm->rank != 0) ISO_TRY(iso__comm_await_message(comm, MPI_SUCCESS, &d->sent, what));
    d->is_posted = false;
    return iso__comm_copy(comm, comm->mpi, &d->mpi);
}

// Gives up the operations of iso__debug_arrive: ranks with another value of ISO_DEBUG send no
// lines. Returns whether MPI no longer uses the memory.
static bool give_up_arrival(const iso_comm *comm, iso__debug *d) {
    int done = 1;
    for (int r = 1; comm->rank == 0 && r < comm->size; r++) {
        if (d->came[r]) continue;
        MPI_Cancel(&d->request[r]);
        MPI_Wait(&d->request[r], MPI_STATUS_IGNORE);
    }
    if (comm->rank != 0) MPI_Test(&d->sent, &done, MPI_STATUS_IGNORE);
    return done;
}

// Frees nothing after a time-out, because MPI still uses the memory.
void iso__debug_close(iso_comm *comm) {
    iso__debug *d = comm->debug;
    int finalized = 0;
    if (!d) return;
    MPI_Finalized(&finalized);
    if (d->is_posted && (finalized || !give_up_arrival(comm, d))) return;
    if (!finalized && d->mpi != MPI_COMM_NULL) MPI_Comm_free(&d->mpi);
    free_debug(d);
    comm->debug = NULL;
}

iso_status iso__debug_match(iso_comm *comm, const char *format, ...) {
    char line[sizeof(((iso_recorder_entry *)0)->name)];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    iso__record_call(comm->sums.record, line);
    iso__debug *d = comm->debug;
    if (!d || d->mpi == MPI_COMM_NULL) return ISO_OK;
    ISO_CHECK(!comm->lost, ISO_ERR_TIMEOUT,
              "rank %d of %d cannot compare collectives: an earlier wait on this communicator has "
              "failed: end the job (MPI_Abort)",
              comm->rank, comm->size);
    va_start(args, format);
    memset(d->mine, 0, LINE_ROOM);
    int used = snprintf(d->mine, LINE_ROOM, "collective %lld, ", ++d->calls);
    vsnprintf(d->mine + used, LINE_ROOM - (size_t)used, format, args);
    va_end(args);
    return match_lines(comm, d, d->mpi);
}

// ---- Environment ------------------------------------------------------------------------------------

extern char **environ;

static bool begins_with(const char *text, const char *const *begin) {
    for (; *begin; begin++)
        if (strncmp(text, *begin, strlen(*begin)) == 0) return true;
    return false;
}

// Whether a variable affects exchanges; variables by which mpirun identifies its processes do not.
static bool decides_exchange(const char *variable) {
    static const char *const begin[] = {"ISO_", "OMPI_MCA_", "UCX_", "NCCL_",
                                        "FI_",  "MPICH_",    "OMP_", "CUDA_VISIBLE_DEVICES",
                                        NULL};
    static const char *const own[] = {"OMPI_MCA_orte_",         "OMPI_MCA_ess",
                                      "OMPI_MCA_pmix",          "OMPI_MCA_initial_wdir",
                                      "OMPI_MCA_shmem_RUNTIME", NULL};
    return begins_with(variable, begin) && !begins_with(variable, own);
}

// Lists the components that Open MPI has chosen, if they are separate files: it keeps these loaded.
static void list_components(char *text, size_t room) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    text[0] = 0;
    while (maps && fgets(line, sizeof(line), maps)) {
        static const char *const kind[] = {"mca_pml_", "mca_btl_", "mca_mtl_"};
        for (int k = 0; k < 3; k++) {
            char *name = strstr(line, kind[k]);
            if (!name) continue;
            name[strcspn(name, ".\n")] = 0;
            size_t used = strlen(text);
            if (!strstr(text, name + 4)) snprintf(text + used, room - used, " %s", name + 4);
        }
    }
    if (maps) fclose(maps);
}

void iso__debug_environment(void) {
    static atomic_bool said;
    if (iso__debug_level() < ISO__DEBUG_INFO || iso__log_rank() != 0) return;
    if (atomic_exchange(&said, true)) return;
    char version[MPI_MAX_LIBRARY_VERSION_STRING], parts[400];
    int length;
    if (MPI_Get_library_version(version, &length) == MPI_SUCCESS)
        iso__log(ISO_LOG_INFO, "MPI: %.*s", (int)strcspn(version, "\n"), version);
    list_components(parts, sizeof(parts));
    if (parts[0]) iso__log(ISO_LOG_INFO, "MPI's transports:%s", parts);
    for (char **at = environ; at && *at; at++)
        if (decides_exchange(*at)) iso__log(ISO_LOG_INFO, "environment: %.400s", *at);
}
