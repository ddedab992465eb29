// SPDX-License-Identifier: MIT
// The environment of a communicator's ranks: all ranks refuse invalid values, and differing values
// of variables that must be equal, because ranks would otherwise exchange in different ways or
// compute different bits.
#include "base/recording.h"
#include "comm/comm_state.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define VALUE_ROOM 32

// The variable after those of the table: one of Open MPI that replaces ISO_IALLREDUCE.
enum { OPEN_MPIS = ISO_ENV_COUNT, COMPARED };

static const char *name_of(int i) {
    return i == OPEN_MPIS ? "OMPI_MCA_coll_libnbc_iallreduce_algorithm"
                          : iso__env_name((iso__env)i);
}

typedef char text_value[VALUE_ROOM]; // the effective value; empty: not set, or not compared

// Two numbers whose minima over all ranks show whether a number is the same on all ranks.
typedef struct ends {
    int64_t low, high; // high: ~number, which is least where the number is largest
} ends;

// What ranks exchange, in memory that MPI may use. One reduction handles all numbers of `least`.
typedef struct meeting {
    struct {
        int64_t refuses; // the lowest rank with an invalid environment; the number of ranks: none
        ends values;     // of a hash of the values
        int64_t unknown; // a hash of the names of rank 0's unknown variables
    } least;
    int64_t group;
    int64_t odd; // ranks * the first variable that differs + the lowest rank on which it does
    struct {
        int64_t status;
        char said[sizeof(((iso_error *)0)->message)];
    } refusal;
    text_value first[COMPARED]; // rank 0's
    text_value other;
} meeting;

// What this rank has.
typedef struct record {
    iso_status status;
    int64_t unknown;
    int rank; // in the job
    text_value value[COMPARED];
} record;

typedef struct comparison {
    meeting met;
    record mine;
} comparison;

static const char *value_of(int i) {
    if (i == OPEN_MPIS) return getenv(name_of(i));
    return iso__env_is_alike((iso__env)i) ? iso__env_effective((iso__env)i) : NULL;
}

// Writes a number in one form, so that different spellings of it compare equal.
static void read_value(int i, char out[VALUE_ROOM]) {
    const char *text = value_of(i);
    char *end;
    double number = strtod(text ? text : "", &end);
    if (text && end != text && !*end)
        snprintf(out, VALUE_ROOM, "%.10g", number);
    else
        snprintf(out, VALUE_ROOM, "%s", text ? text : "");
}

static void fill_record(record *mine) {
    int size;
    *mine = (record){.status = iso__env_check_all(), .unknown = (int64_t)iso__env_unknown(false)};
    if (mine->status == ISO_OK) mine->status = iso__rank_in_job(&mine->rank, &size);
    if (mine->status == ISO_OK) mine->status = iso__recorder_open(mine->rank, size);
    for (int i = 0; i < COMPARED; i++) read_value(i, mine->value[i]);
}

static const char *text_of(const char *value) { return value[0] ? value : "not set"; }

#define WHAT "the comparison of the ranks' environments"

static iso_status broadcast_bytes(iso_comm *comm, MPI_Comm mpi, void *data, size_t bytes, int root,
                                  const char *what) {
    MPI_Request request;
    int rc = MPI_Ibcast(data, (int)bytes, MPI_BYTE, root, mpi, &request);
    return iso__comm_await(comm, rc, &request, what);
}

// The first variable that is not the same on all ranks, and the lowest rank on which it differs
// from rank 0's.
static iso_status explain_difference(iso_comm *comm, MPI_Comm mpi, meeting *met,
                                     const record *mine) {
    int i = 0;
    if (comm->rank == 0) memcpy(met->first, mine->value, sizeof(met->first));
    ISO_TRY(broadcast_bytes(comm, mpi, met->first, sizeof(met->first), 0, WHAT));
    while (i < COMPARED && strcmp(met->first[i], mine->value[i]) == 0) i++;
    met->odd = (int64_t)i * comm->size + comm->rank;
    ISO_TRY(iso__comm_reduce(comm, mpi, &met->odd, 1, MPI_MIN, WHAT));
    i = (int)(met->odd / comm->size);
    int other = (int)(met->odd % comm->size);
    if (comm->rank == other) memcpy(met->other, mine->value[i], VALUE_ROOM);
    ISO_TRY(broadcast_bytes(comm, mpi, met->other, VALUE_ROOM, other, WHAT));
    return ISO_FAIL(ISO_ERR_MISMATCH,
                    "environment variable %s is %s on rank 0 and %s on rank %d: give every rank "
                    "the same",
                    name_of(i), text_of(met->first[i]), text_of(met->other), other);
}

// The lowest rank with an invalid environment broadcasts its message.
static iso_status share_refusal(iso_comm *comm, MPI_Comm mpi, meeting *met, iso_status mine) {
    int lowest = (int)met->least.refuses;
    met->refusal.status = mine;
    if (lowest == comm->rank)
        memcpy(met->refusal.said, iso_last_error()->message, sizeof(met->refusal.said));
    ISO_TRY(broadcast_bytes(comm, mpi, &met->refusal, sizeof(met->refusal), lowest,
                            "the report of a bad environment variable"));
    // Every other rank with an invalid environment keeps its own error record.
    if (mine < 0) return mine;
    return ISO_FAIL((iso_status)met->refusal.status, "rank %d: %.480s", lowest, met->refusal.said);
}

// Warns once per process, on rank 0 and on ranks whose unknown variables differ from rank 0's.
static void warn_unknown(const iso_comm *comm, bool differs) {
    static atomic_bool said;
    if (atomic_exchange(&said, true)) return;
    if (comm->rank == 0 || differs) (void)iso__env_unknown(true);
}

// The exclusive or of a hash of each rank's place here and in the job.
static iso_status identify_group(iso_comm *comm, MPI_Comm mpi, meeting *met, const record *mine) {
    int place[2] = {comm->rank, mine->rank};
    met->group = (int64_t)iso__hash(ISO_HASH_START, place, sizeof(place));
    ISO_TRY(iso__comm_reduce(comm, mpi, &met->group, 1, MPI_BXOR, WHAT));
    comm->group = (uint64_t)met->group | 1;
    return ISO_OK;
}

static iso_status compare_environments(iso_comm *comm, MPI_Comm mpi, meeting *met, record *mine) {
    fill_record(mine);
    int64_t hash = (int64_t)iso__hash(ISO_HASH_START, mine->value, sizeof(mine->value));
    met->least.refuses = mine->status < 0 ? comm->rank : comm->size;
    met->least.values = (ends){hash, ~hash};
    met->least.unknown = comm->rank == 0 ? mine->unknown : INT64_MAX;
    ISO_TRY(iso__comm_reduce(comm, mpi, &met->least.refuses, sizeof(met->least) / sizeof(int64_t),
                             MPI_MIN, WHAT));
    ISO_TRY(identify_group(comm, mpi, met, mine));
    if (met->least.refuses < comm->size) return share_refusal(comm, mpi, met, mine->status);
    if (met->least.values.low != ~met->least.values.high)
        return explain_difference(comm, mpi, met, mine);
    warn_unknown(comm, mine->unknown != met->least.unknown);
    return ISO_OK;
}

size_t iso__comm_environment_bytes(void) { return sizeof(comparison); }

iso_status iso__comm_check_environment(iso_comm *comm, MPI_Comm mpi, void *memory) {
    comparison *c = memory;
    ISO_TRY(compare_environments(comm, mpi, &c->met, &c->mine));
    return ISO_OK;
}
