// SPDX-License-Identifier: MIT
// Memory that ranks share, 1 to 4 ranks: when there is none, its use in training, and MPI_Finalize.
#include "comm/comm_calls.h"
#include "comm/shared_impl.h"
#include "common/balance.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

static void setup_off(void) {
    setenv("ISO_PROGRESS", "off", 1);
    test_mpi_setup();
}

TestSuite(np1_shared, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_shared, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_shared, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_shared_off, .init = setup_off, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_shared_life, .init = test_mpi_setup_bare, .timeout = 60);

enum { MOST = 300000 };

static void sum_once(float *memory, size_t count, int exchange) {
    iso_request *request;
    shared_fill(memory, count, exchange);
    iso_assert_ok(iso_comm_iallreduce(test_comm, memory, count, ISO_F32, "exchange", &request));
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_all(shared_is_summed(memory, count, exchange));
}

// Memory that has been in use becomes shared where it lies.
Test(np3_shared, memory_keeps_its_address_and_contents) {
    enum { COUNT = 5000 };
    void *memory = NULL;
    iso_assert_ok(iso__shareable_alloc(COUNT * sizeof(float), &memory));
    iso_assert_all((uintptr_t)memory % 64 == 0 && shared_is_all(memory, COUNT, 0));
    shared_fill(memory, COUNT, 3);
    iso_assert_ok(iso__comm_share(test_comm, memory));
    iso_assert_all(iso__comm_is_shared(test_comm, memory, COUNT * sizeof(float)));
    iso_request *request;
    iso_assert_ok(iso_comm_iallreduce(test_comm, memory, COUNT, ISO_F32, "kept", &request));
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_all(shared_is_summed(memory, COUNT, 3));
    shared_free(test_comm, &memory);
}

// ---- Where memory is not shared ---------------------------------------------------------------------

static void expect_messages(void) {
    enum { COUNT = 1000 };
    void *memory = NULL;
    iso_assert_ok(shared_alloc(test_comm, COUNT * sizeof(float), &memory));
    iso_assert_all((uintptr_t)memory % 64 == 0 && shared_is_all(memory, COUNT, 0));
    iso_assert_all(!iso__comm_is_shared(test_comm, memory, 4));
    shared_fill(memory, COUNT, 5);
    iso_request *request;
    iso_assert_ok(iso_comm_iallreduce(test_comm, memory, COUNT, ISO_F32, "messages", &request));
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_all(shared_is_summed(memory, COUNT, 5)); // two ranks at most: one order only
    shared_free(test_comm, &memory);
    iso_assert_all(memory == NULL);
}

Test(np1_shared, one_rank_shares_nothing) {
    expect_messages();
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    expect_messages();
}

Test(np2_shared, mpi_can_be_asked_for) {
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    expect_messages();
}

Test(np2_shared, a_second_memory_of_a_communicator_is_like_any_other) {
    float *memory = shared_create(test_comm, 10);
    expect_messages();
    sum_once(memory, 10, 1);
    shared_destroy(test_comm, &memory);
    memory = shared_create(test_comm, 100); // once it is gone there can be another one
    sum_once(memory, 100, 2);
    shared_destroy(test_comm, &memory);
}

Test(np2_shared, settings_that_differ_or_mean_nothing_are_refused) {
    void *memory = NULL;
    setenv("ISO_NODE_COLLECTIVE", test_rank ? "shm" : "mpi", 1);
    iso_assert_all(shared_alloc(test_comm, 64, &memory) == ISO_ERR_MISMATCH);
    setenv("ISO_NODE_COLLECTIVE", test_rank ? "auto" : "nonsense", 1);
    iso_assert_all(shared_alloc(test_comm, 64, &memory) == ISO_ERR_ARG);
    cr_expect(strstr(iso_last_error()->message, "auto, nccl, nccl-all, shm or mpi"));
    unsetenv("ISO_NODE_COLLECTIVE");
    iso_assert_all(shared_alloc(test_comm, test_rank ? 64 : 128, &memory) == ISO_ERR_MISMATCH);
    iso_assert_all(memory == NULL);
}

static iso_status ask_for_a_megabyte(bool without_room, void **memory) {
    struct rlimit before, low;
    getrlimit(RLIMIT_FSIZE, &before);
    low = (struct rlimit){.rlim_cur = 100000, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    if (without_room) setrlimit(RLIMIT_FSIZE, &low);
    iso_status status = shared_alloc(test_comm, 1 << 20, memory);
    setrlimit(RLIMIT_FSIZE, &before);
    return status;
}

Test(np3_shared, no_room_on_one_rank_is_messages_for_all) {
    void *memory = NULL;
    iso_assert_ok(ask_for_a_megabyte(test_rank == 1, &memory));
    iso_assert_all(memory && !iso__comm_is_shared(test_comm, memory, 4));
    shared_free(test_comm, &memory);
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    iso_assert_all(ask_for_a_megabyte(test_rank == 1, &memory) == ISO_ERR_UNSUPPORTED);
    cr_expect(strstr(iso_last_error()->message, "no room"));
    iso_assert_ok(ask_for_a_megabyte(false, &memory));
    iso_assert_all(iso__comm_is_shared(test_comm, memory, 1 << 20));
    shared_free(test_comm, &memory);
}

Test(np2_shared, what_lies_elsewhere_goes_by_messages) {
    enum { COUNT = 100 };
    float *memory = shared_create(test_comm, COUNT), other[COUNT];
    size_t all = COUNT * sizeof(float);
    iso_assert_all(iso__comm_is_shared(test_comm, memory, all) &&
                   iso__comm_is_shared(test_comm, memory + COUNT - 1, 4) &&
                   !iso__comm_is_shared(test_comm, memory, all + 64) &&
                   !iso__comm_is_shared(test_comm, memory + 1, all) &&
                   !iso__comm_is_shared(test_comm, memory - 1, 4) &&
                   !iso__comm_is_shared(test_comm, other, 4));
    // Doubles in shared memory: by messages, and right.
    double *numbers = (double *)(void *)memory;
    iso_request *request;
    for (int i = 0; i < COUNT / 2; i++) numbers[i] = test_rank + i;
    iso_assert_ok(iso_comm_iallreduce(test_comm, numbers, COUNT / 2, ISO_F64, "f64", &request));
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_all(numbers[0] == 1 && numbers[COUNT / 2 - 1] == 2 * (COUNT / 2 - 1) + 1);
    shared_destroy(test_comm, &memory);
}

// Nothing is left behind on the host, also if the program is killed from here on.
Test(np3_shared, the_memory_has_no_name_any_more) {
    float *memory = shared_create(test_comm, 100);
    bool found = false;
    for (int r = 0; r < test_size; r++) {
        char name[32];
        snprintf(name, sizeof(name), "/isotherm.%016llx",
                 (unsigned long long)test_comm->shared->board[r]->id);
        found = found || test_comm->shared->board[r]->id == 0 || shm_open(name, O_RDWR, 0) >= 0;
    }
    iso_assert_all(!found);
    shared_destroy(test_comm, &memory);
}

// ---- In training ------------------------------------------------------------------------------------

static uint64_t train_in_node(const char *collective) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash;
    config.scope = ISO_SCOPE_NODE;
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(t.model), &stats);
    iso_assert_all(stats.shared_memory == (strcmp(collective, "mpi") != 0));
    iso_assert_ok(trainer_train(&t, 20));
    iso_assert_ok(trainer_hash(&t, &hash)); // and the ranks are equal
    trainer_destroy(&t);
    return hash;
}

Test(np2_shared, training_gives_the_bits_of_mpi) {
    uint64_t shm = train_in_node("shm"), mpi = train_in_node("mpi"); // of two, a + b = b + a
    iso_assert_all(shm == mpi);
}
Test(np3_shared, training_keeps_ranks_equal) { (void)train_in_node("auto"); }
Test(np4_shared_off, training_keeps_ranks_equal) { (void)train_in_node("auto"); }

// ---- MPI_Finalize -----------------------------------------------------------------------------------

// With an exchange in flight and the memory still in use afterwards.
Test(np2_shared_life, memory_outlives_mpi) {
    iso_comm *comm;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    float *memory = shared_create(comm, MOST);
    shared_fill(memory, MOST, 6);
    iso_request *request;
    iso_assert_ok(iso_comm_iallreduce(comm, memory, MOST, ISO_F32, "left over", &request));
    MPI_Finalize();
    cr_expect(iso_request_wait(&request) == ISO_OK && shared_is_summed(memory, MOST, 6));
    memory[0] = 1;
    shared_destroy(comm, &memory);
    iso_comm_destroy(&comm);
    balance_check();
}

Test(np2_shared_life, a_reducer_outlives_mpi) {
    iso_comm *comm;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    trainer_config config = trainer_default();
    config.scope = ISO_SCOPE_NODE;
    trainer t;
    iso_assert_ok(trainer_create(&t, comm, &config));
    iso_assert_ok(trainer_train(&t, 2));
    MPI_Finalize();
    trainer_destroy(&t); // applies the last step's updates
    iso_comm_destroy(&comm);
    balance_check();
}
