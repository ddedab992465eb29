// SPDX-License-Identifier: MIT
// Blocking collectives that a rank gives up, because another one is late. The caller may reuse its
// memory at once, although MPI completes them later.
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/parallel.h>
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

TestSuite(np2_left_alone, .init = test_mpi_setup_bare, .timeout = 60);
TestSuite(np5_left_alone, .init = test_mpi_setup_bare, .timeout = 60);

enum { BYTES = 300001, NUMBERS = 100001 };

// Completes what was given up.
static void let_complete(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    usleep(100000);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void fill(char *data, char value) {
    for (int i = 0; i < BYTES; i++) data[i] = value;
}

static bool all_are(const char *data, char value) {
    bool well = true;
    for (int i = 0; i < BYTES; i++) well = well && data[i] == value;
    return well;
}

// Rank 0 is late.
static void broadcast(void) {
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    char *data = malloc(BYTES);
    fill(data, test_rank == 0 ? 1 : 2);
    if (test_rank == 0) usleep(SLOW);
    iso_status status = iso_comm_bcast(comm, data, BYTES, 0);
    cr_expect(test_rank == 0 || status == ISO_ERR_TIMEOUT);
    fill(data, 7);
    let_complete();
    cr_expect(all_are(data, 7));
    free(data);
    MPI_Finalize();
}

Test(np2_left_alone, the_memory_of_a_broadcast) { broadcast(); }
Test(np5_left_alone, the_memory_of_a_broadcast) { broadcast(); } // by scatter and all-gather

Test(np2_left_alone, the_memory_of_a_reduction) {
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    double *number = calloc(NUMBERS, sizeof(*number));
    if (test_rank == 1) usleep(SLOW);
    iso_status status = iso_comm_allreduce_f64(comm, number, NUMBERS, ISO_SUM);
    cr_expect(status == (test_rank == 0 ? ISO_ERR_TIMEOUT : ISO_OK));
    for (int i = 0; i < NUMBERS; i++) number[i] = 7;
    let_complete();
    bool well = true;
    for (int i = 0; i < NUMBERS; i++) well = well && number[i] == 7;
    cr_expect(well);
    free(number);
    MPI_Finalize();
}

// Rank 1 has left the gather before rank 0 receives.
static iso_comm *late;
static bool slept;

int MPI_Irecv(void *into, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request) {
    if (late && comm == iso_comm_mpi(late) && !slept) {
        slept = true;
        usleep(SLOW);
    }
    return PMPI_Irecv(into, count, type, from, tag, comm, request);
}

Test(np2_left_alone, the_memory_of_a_gather) {
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    char *data = malloc(BYTES), *all = NULL;
    size_t *each = NULL;
    fill(data, 1);
    late = test_rank == 0 ? comm : NULL;
    iso_status status = iso_comm_gather(comm, data, BYTES, 0, &all, &each);
    cr_expect(status == (test_rank == 1 ? ISO_ERR_TIMEOUT : ISO_OK));
    if (test_rank == 1) fill(data, 7);
    let_complete();
    if (test_rank == 0) cr_expect(status == ISO_OK && all_are(all + BYTES, 1));
    MPI_Finalize();
}
