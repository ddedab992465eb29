// SPDX-License-Identifier: MIT
// Open MPI has one all-reduce algorithm for all communicators of a process, those of MPI itself
// included: the library may only set it where all processes of the job do.
#include "../common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static void setup_unset(void) {
    unsetenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm");
    test_mpi_setup_bare();
}
TestSuite(np3_part_of_job, .init = setup_unset, .timeout = 60);

static iso_comm *make_pair(void) { // {0, 1} and {2}
    iso_comm *pair;
    MPI_Comm part;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, test_rank, &part);
    iso_assert_ok(iso_comm_create(part, NULL, &pair));
    MPI_Comm_free(&part);
    return pair;
}

static bool is_set(const iso_comm *comm) {
    return strstr(iso_comm_algorithm_text(comm), "set through MPI_T");
}

// An MPI that has no such algorithm, or no interface to set it.
static bool cannot_set(const iso_comm *comm) {
    return strncmp(iso_comm_algorithm_text(comm), "MPI's own choice", 16) == 0;
}

// The other ranks wait for what these do.
static void expect_started(iso_status status) {
    if (status < 0) iso_error_print(stderr);
    if (status < 0) MPI_Abort(MPI_COMM_WORLD, 1);
}

// Two of three ranks use the library; then all take part in a collective of MPI.
static void exchange_in_a_part(void) {
    iso_comm *comm = NULL;
    MPI_Comm part, whole;
    double x = 3;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank < 2 ? 0 : MPI_UNDEFINED, test_rank, &part);
    bool right = true;
    if (part != MPI_COMM_NULL) {
        right = iso_comm_create(part, NULL, &comm) == ISO_OK && !is_set(comm) &&
                iso_comm_allreduce_f64(comm, &x, 1, ISO_SUM) == ISO_OK && x == 6;
        iso_comm_destroy(&comm);
        MPI_Comm_free(&part);
    }
    MPI_Comm_split(MPI_COMM_WORLD, 0, test_rank, &whole); // whose all-reduces may wait for ever
    MPI_Comm_free(&whole);
    iso_assert_all(right);
}

Test(np3_part_of_job, collectives_of_all_processes_return) {
    exchange_in_a_part();
    exchange_in_a_part();
    test_mpi_teardown();
}

Test(np3_part_of_job, a_communicator_of_all_sets_the_algorithm_afterwards) {
    iso_comm *comm;
    double sum = 1;
    exchange_in_a_part();
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_assert_all(is_set(comm) || cannot_set(comm));
    iso_assert_ok(iso_comm_allreduce_f64(comm, &sum, 1, ISO_SUM));
    iso_assert_all(sum == 3);
    iso_comm_destroy(&comm);
    test_mpi_teardown();
}

// Rank 1 would begin the exchange with another algorithm than rank 0.
Test(np3_part_of_job, the_algorithm_stays_while_an_exchange_is_under_way) {
    iso_comm *pair = make_pair(), *comm;
    iso_request *request = NULL;
    float x = 3;
    if (test_rank == 0) expect_started(iso_comm_iallreduce(pair, &x, 1, ISO_F32, "pair", &request));
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_assert_all(!is_set(comm));
    iso_comm_destroy(&comm);
    if (test_rank == 1) expect_started(iso_comm_iallreduce(pair, &x, 1, ISO_F32, "pair", &request));
    if (request) expect_started(iso_request_wait(&request));
    iso_assert_all(x == (test_rank < 2 ? 6 : 3));
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_assert_all(is_set(comm) || cannot_set(comm));
    iso_comm_destroy(&comm);
    iso_comm_destroy(&pair);
    test_mpi_teardown();
}
