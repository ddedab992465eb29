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

// What each rank sends to the others.
typedef struct record {
    int64_t status;
    uint64_t unknown;
    int rank;                         // in the job
    char value[COMPARED][VALUE_ROOM]; // the effective value; empty: not set, or not compared
} record;

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
        snprintf(out, VALUE_ROOM, "%g", number);
    else
        snprintf(out, VALUE_ROOM, "%s", text ? text : "");
}

static void fill_record(record *mine) {
    int size;
    *mine = (record){.status = iso__env_check_all(), .unknown = iso__env_unknown(false)};
    if (mine->status == ISO_OK) mine->status = iso__rank_in_job(&mine->rank, &size);
    if (mine->status == ISO_OK) mine->status = iso__recorder_open(mine->rank, size);
    for (int i = 0; i < COMPARED; i++) read_value(i, mine->value[i]);
}

static const char *text_of(const char *value) { return value[0] ? value : "not set"; }

static iso_status compare_values(const record *records, int ranks) {
    for (int i = 0; i < COMPARED; i++)
        for (int r = 1; r < ranks; r++) {
            const char *first = records[0].value[i], *other = records[r].value[i];
            ISO_CHECK(strcmp(first, other) == 0, ISO_ERR_MISMATCH,
                      "environment variable %s is %s on rank 0 and %s on rank %d: give every rank "
                      "the same",
                      name_of(i), text_of(first), text_of(other), r);
        }
    return ISO_OK;
}

#define SAID_ROOM sizeof(((iso_error *)0)->message)

// The lowest rank with an invalid environment broadcasts its message.
static iso_status share_refusal(iso_comm *comm, MPI_Comm mpi, const record *records, char *said) {
    MPI_Request request;
    iso_status mine = (iso_status)records[comm->rank].status;
    int lowest = 0;
    while (lowest < comm->size && records[lowest].status >= 0) lowest++;
    if (lowest == comm->size) return ISO_OK;
    if (lowest == comm->rank) memcpy(said, iso_last_error()->message, SAID_ROOM);
    // Every other rank with an invalid environment keeps its own error record.
    int rc = MPI_Ibcast(said, (int)SAID_ROOM, MPI_CHAR, lowest, mpi, &request);
    ISO_TRY(iso__comm_await(comm, rc, &request, "the report of a bad environment variable"));
    if (mine < 0) return mine;
    return ISO_FAIL((iso_status)records[lowest].status, "rank %d: %.480s", lowest, said);
}

// Warns once per process, on rank 0 and on ranks whose unknown variables differ from rank 0's.
static void warn_unknown(const iso_comm *comm, const record *records) {
    static atomic_bool said;
    if (atomic_exchange(&said, true)) return;
    if (comm->rank == 0 || records[comm->rank].unknown != records[0].unknown)
        (void)iso__env_unknown(true);
}

static iso_status compare_environments(iso_comm *comm, MPI_Comm mpi, record *records, char *said) {
    MPI_Request request;
    fill_record(&records[comm->rank]);
    int rc = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, records, sizeof(record), MPI_BYTE,
                            mpi, &request);
    ISO_TRY(iso__comm_await(comm, rc, &request, "the comparison of the ranks' environments"));
    comm->group = ISO_HASH_START;
    for (int r = 0; r < comm->size; r++)
        comm->group = iso__hash(comm->group, &records[r].rank, sizeof(records[r].rank)) | 1;
    ISO_TRY(share_refusal(comm, mpi, records, said));
    ISO_TRY(compare_values(records, comm->size));
    warn_unknown(comm, records);
    return ISO_OK;
}

size_t iso__comm_environment_bytes(int ranks) { return (size_t)ranks * sizeof(record) + SAID_ROOM; }

iso_status iso__comm_check_environment(iso_comm *comm, MPI_Comm mpi, void *memory) {
    size_t bytes = (size_t)comm->size * sizeof(record);
    return compare_environments(comm, mpi, memory, (char *)memory + bytes);
}
