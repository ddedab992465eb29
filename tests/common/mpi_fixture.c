// SPDX-License-Identifier: MIT
// For tests that run on several ranks: MPI set-up and take-down, and verdicts that all ranks share.
#include "common/mpi_fixture.h"

#include "comm/comm_state.h"

#include "common/balance.h"

#include <stdlib.h>

iso_comm *test_comm;
int test_rank, test_size;

void test_mpi_setup_bare(void) {
    int level;
    // Otherwise what test_env.sh sets would come first.
    if (getenv("ISO_IALLREDUCE")) unsetenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm");
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &test_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &test_size);
}

void test_mpi_setup(void) {
    test_mpi_setup_bare();
    if (iso_comm_create(MPI_COMM_WORLD, NULL, &test_comm) < 0) iso_error_print(stderr);
}

void test_mpi_teardown(void) {
    iso_comm_destroy(&test_comm);
    MPI_Finalize();
    balance_check();
}

bool test_all(bool mine, const char *what) {
    if (!mine) fprintf(stderr, "rank %d: not %s\n", test_rank, what);
    int all = mine;
    MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all != 0;
}

iso_comm *test_comm_with_limit(double seconds) {
    iso_comm *comm = NULL;
    iso_status status = iso_comm_create(MPI_COMM_WORLD, NULL, &comm);
    if (status < 0) iso_error_print(stderr);
    if (!test_all(status >= 0, "iso_comm_create")) abort();
    if (seconds > 0) comm->timeout_s = seconds;
    return comm;
}
