// SPDX-License-Identifier: MIT
// Rounds of a shuffle that fail on one rank: all ranks get an error, and no sample moves.
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/parallel.h>
#include <isotherm/shuffle.h>
#include <string.h>

TestSuite(np2_shuffle_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_shuffle_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_shuffle_late, .init = test_mpi_setup_bare, .timeout = 60);

// ---- In MPI's place -------------------------------------------------------------------------------

static _Atomic bool fail_post, fail_completion, holding;
static int freed;

// The others' exchange comes to its end, so that nothing is left under way.
int MPI_Ialltoall(const void *send, int send_count, MPI_Datatype send_type, void *recv,
                  int recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request *request) {
    int rc =
        PMPI_Ialltoall(send, send_count, send_type, recv, recv_count, recv_type, comm, request);
    if (!fail_post) return rc;
    fail_post = false;
    PMPI_Wait(request, MPI_STATUS_IGNORE);
    return MPI_ERR_INTERN;
}

int MPI_Testsome(int count, MPI_Request *request, int *done, int *index, MPI_Status *status) {
    if (holding) return *done = 0, MPI_SUCCESS;
    int rc = PMPI_Testsome(count, request, done, index, status);
    if (!fail_completion || *done == MPI_UNDEFINED || *done == 0) return rc;
    fail_completion = false;
    for (int i = 0; i < *done; i++) status[i].MPI_ERROR = i == 0 ? MPI_ERR_TRUNCATE : MPI_SUCCESS;
    return MPI_ERR_IN_STATUS;
}

int MPI_Comm_free(MPI_Comm *comm) {
    freed++;
    return PMPI_Comm_free(comm);
}

// ---- Shards ---------------------------------------------------------------------------------------

enum { COUNT = 12 };
static const iso_tensor_spec spec = {.dtype = ISO_I64};

static int64_t id_of(int64_t i) { return 100 * test_rank + i; }

static void create_shuffle(iso_comm *comm, iso_dataset **set, iso_shuffle **shuffle) {
    int64_t id[COUNT];
    const iso_dataset_config config = {.count = COUNT, .inputs = 1, .tensors = &spec};
    for (int64_t i = 0; i < COUNT; i++) id[i] = id_of(i);
    iso_assert_ok(iso_dataset_create_arrays(&config, (const void *const[]){id}, true, set));
    iso_assert_ok(iso_dataset_set_shard(*set, comm, "the set"));
    iso_assert_ok(iso_shuffle_create(*set, comm, 1, shuffle));
}

static int64_t count_moved(const iso_dataset *set) {
    int64_t moved = 0, id = -1;
    for (int64_t i = 0; i < COUNT; i++)
        moved += iso_dataset_sample(set, i, (void *const[]){&id}) != ISO_OK || id != id_of(i);
    return moved;
}

static void expect_end(iso_shuffle *shuffle) {
    iso_assert_all(iso_shuffle_finish(shuffle) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "an earlier round of the shuffle failed"));
    iso_assert_all(iso_shuffle_start(shuffle) == ISO_ERR_STATE);
    iso_assert_all(iso_shuffle_rounds(shuffle) == 0);
}

// ---- Tests ----------------------------------------------------------------------------------------

Test(np2_shuffle_faults, a_rank_that_cannot_send_fails_all) {
    iso_dataset *set = NULL;
    iso_shuffle *shuffle = NULL;
    create_shuffle(test_comm, &set, &shuffle);
    fail_post = test_rank == 1;
    iso_assert_all(iso_shuffle_start(shuffle) == ISO_ERR_MPI);
    expect_end(shuffle);
    iso_assert_all(count_moved(set) == 0);
    iso_shuffle_destroy(&shuffle);
    iso_dataset_destroy(&set);
}

Test(np3_shuffle_faults, an_exchange_that_fails_on_one_rank_moves_nothing) {
    iso_dataset *set = NULL;
    iso_shuffle *shuffle = NULL;
    create_shuffle(test_comm, &set, &shuffle);
    fail_completion = test_rank == 1;
    iso_assert_ok(iso_shuffle_start(shuffle));
    iso_assert_all(iso_shuffle_finish(shuffle) == ISO_ERR_MPI);
    expect_end(shuffle);
    iso_assert_all(count_moved(set) == 0);
    iso_shuffle_destroy(&shuffle);
    iso_dataset_destroy(&set);
}

Test(np3_shuffle_faults, a_loader_within_an_epoch_on_one_rank_refuses_all) {
    iso_dataset *set = NULL;
    iso_shuffle *shuffle = NULL;
    iso_device *device;
    iso_loader *loader;
    iso_batch batch;
    const iso_sampler_config order = {.batch = 2, .rank = test_rank, .ranks = 3};
    create_shuffle(test_comm, &set, &shuffle);
    iso_assert_ok(iso_device_create("cpu", &device));
    iso_assert_ok(iso_loader_create_take(device, iso_dataset_retain(set), &order, NULL, &loader));
    iso_assert_ok(iso_shuffle_start(shuffle));
    if (test_rank == 2) cr_expect_eq(iso_loader_start(loader, 0, 0), ISO_OK);
    iso_assert_all(iso_shuffle_finish(shuffle) == ISO_ERR_STATE);
    iso_assert_all(count_moved(set) == 0);
    while (test_rank == 2 && iso_loader_next(loader, &batch) == ISO_OK) continue;
    iso_assert_ok(iso_shuffle_finish(shuffle));
    iso_assert_all(count_moved(set) > 0);
    iso_shuffle_destroy(&shuffle);
    iso_loader_destroy(&loader);
    iso_dataset_destroy(&set);
    iso_device_destroy(&device);
}

// The request of a round that timed out still needs its communicator.
Test(np2_shuffle_late, a_round_that_timed_out_keeps_its_communicator) {
    iso_dataset *set = NULL;
    iso_shuffle *shuffle = NULL;
    test_comm = test_comm_with_limit(IMPATIENT);
    create_shuffle(test_comm, &set, &shuffle);
    holding = true;
    iso_assert_ok(iso_shuffle_start(shuffle));
    int before = freed;
    iso_shuffle_destroy(&shuffle);
    iso_assert_all(freed == before && !shuffle);
    holding = false;
    iso_assert_ok(iso_comm_barrier(test_comm));
    iso_dataset_destroy(&set);
    MPI_Finalize();
}
