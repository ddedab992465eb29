// SPDX-License-Identifier: MIT
// Long exchanges leave in chunks, one after the other. If MPI refuses one on a rank, the later ones
// of this rank would be added to other chunks of the other ranks.
#include "comm/comm_state.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static void setup_by_mpi(void) {
    setenv("ISO_IALLREDUCE", "3", 1);
    test_mpi_setup_bare();
}
TestSuite(np2_bulk_faults, .init = setup_by_mpi, .timeout = 60); // a rank cannot finalize MPI

enum { COUNT = 1 << 20 }; // eight chunks
static int calls, fails;
static float first[COUNT], second[COUNT];

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    if (fails && ++calls == fails) return MPI_ERR_INTERN;
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

static void fill(float *x, float value) {
    for (int i = 0; i < COUNT; i++) x[i] = value;
}

Test(np2_bulk_faults, later_chunks_are_not_added_to_others) {
    iso_comm *comm;
    iso_request *a, *b;
    const iso_comm_config config = {.timeout_s = 1.5, .progress = ISO_PROGRESS_POLL};
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, &config, &comm));
    fill(first, 1);
    fill(second, 100);
    fails = test_rank == 0 ? 4 : 0;
    iso_assert_ok(iso_comm_iallreduce(comm, first, COUNT, ISO_F32, "first", &a));
    iso_assert_ok(iso_comm_iallreduce(comm, second, COUNT, ISO_F32, "second", &b));
    iso_status status = iso_request_wait(&a);
    cr_assert(status == (test_rank == 0 ? ISO_ERR_MPI : ISO_ERR_TIMEOUT), "%d", (int)status);
    status = iso_request_wait(&b);
    cr_assert(status == (test_rank == 0 ? ISO_ERR_MPI : ISO_ERR_TIMEOUT), "%d", (int)status);
    for (int i = 0; i < COUNT; i++) cr_assert(first[i] == 1 || first[i] == 2, "%d", i);
    for (int i = 0; i < COUNT; i++) cr_assert(second[i] == 100, "%d", i);
    MPI_Finalize();
}
