// SPDX-License-Identifier: MIT
// Communicators and exchanges on 1 to 4 ranks: sums, order of completion, life and death.
#define _GNU_SOURCE // sets of processors
#include "common/mpi_fixture.h"
#include "comm/comm_calls.h"
#include "comm/comm_state.h"
#include "comm/request.h"

#include <criterion/criterion.h>
#include <isotherm/topology.h>
#include <isotherm/trace.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_comm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_comm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_comm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np4_comm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np5_comm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np1_life, .init = test_mpi_setup_bare, .timeout = 60);
TestSuite(np2_life, .init = test_mpi_setup_bare, .timeout = 60);
TestSuite(np3_life, .init = test_mpi_setup_bare, .timeout = 60);

Test(np1_comm, nothing_can_be_destroyed) {
    iso_comm *none = NULL;
    iso_comm_destroy(&none);
    iso_comm_destroy(NULL);
    cr_expect_null(none);
}

static float value_of(int rank, int exchange, size_t i) {
    return (float)((rank + 1) * (exchange % 7 + 1)) + (float)(i % 5);
}

static bool sum_is_right(const float *data, size_t count, int exchange) {
    for (size_t i = 0; i < count; i++) {
        float expected = 0;
        for (int r = 0; r < test_size; r++) expected += value_of(r, exchange, i);
        if (data[i] != expected) return false; // small whole numbers: exact in any order
    }
    return true;
}

static void exchange_sizes(void) {
    static float data[70000];
    const size_t counts[] = {1, 2, 3, 63, 64, 65, 1000, 16384, 70000};
    for (int c = 0; c < (int)(sizeof(counts) / sizeof(counts[0])); c++) {
        for (size_t i = 0; i < counts[c]; i++) data[i] = value_of(test_rank, c, i);
        iso_request *request;
        iso_assert_ok(iso_comm_iallreduce(test_comm, data, counts[c], ISO_F32, "test", &request));
        iso_assert_ok(iso_request_wait(&request));
        iso_assert_all(request == NULL && sum_is_right(data, counts[c], c));
    }
}

Test(np1_comm, sums_of_every_size) { exchange_sizes(); }
Test(np2_comm, sums_of_every_size) { exchange_sizes(); }
Test(np3_comm, sums_of_every_size) { exchange_sizes(); }
Test(np4_comm, sums_of_every_size) { exchange_sizes(); }

// Many exchanges of mixed sizes, up to WINDOW in flight, waited for and tested in mixed order.
enum { WINDOW = 8, MOST = 3000 };
static void mixed_exchanges(int total) {
    static float data[WINDOW][MOST];
    iso_request *request[WINDOW] = {NULL};
    size_t count[WINDOW] = {0};
    bool right = true;
    for (int e = 0; e < total + WINDOW && right; e++) {
        int w = e % WINDOW;
        if (request[w]) {
            iso_status status = ISO_PENDING;
            if (e % 3 == 0) status = iso_request_test(&request[w]);
            if (status == ISO_PENDING) status = iso_request_wait(&request[w]);
            right = status == ISO_OK && sum_is_right(data[w], count[w], e - WINDOW);
        }
        if (e >= total) continue;
        count[w] = (size_t)(e * 37 % 11 == 0 ? e * 131 % MOST + 1 : e % 50 + 1);
        for (size_t i = 0; i < count[w]; i++) data[w][i] = value_of(test_rank, e, i);
        right = right && iso_comm_iallreduce(test_comm, data[w], count[w], ISO_F32, "mixed",
                                             &request[w]) == ISO_OK;
    }
    iso_assert_all(right);
}

Test(np2_comm, hundred_thousand_mixed_exchanges_under_the_helper) {
    bool asked = getenv("ISO_PROGRESS"); // for none, as with MPICH
    iso_assert_all(asked || iso_comm_progress(test_comm) == ISO_PROGRESS_THREAD);
    mixed_exchanges(100000);
}
Test(np3_comm, mixed_exchanges_under_the_helper) { mixed_exchanges(2000); }

// Long exchanges travel in parts and in line; short ones issued after them are not behind them.
static void long_and_short_exchanges(void) {
    enum { LONG = 700001, SHORT = 1000, PAIRS = 3 };
    static float longs[PAIRS][LONG], shorts[PAIRS][SHORT];
    iso_request *l[PAIRS], *s[PAIRS];
    iso_status status = ISO_OK;
    for (int round = 0; round < 3; round++) {
        for (int p = 0; p < PAIRS && status == ISO_OK; p++) {
            for (size_t i = 0; i < LONG; i++) longs[p][i] = value_of(test_rank, p, i);
            for (size_t i = 0; i < SHORT; i++) shorts[p][i] = value_of(test_rank, p + 3, i);
            usleep((unsigned)(test_rank * 700)); // ranks are at different parts
            status = iso_comm_iallreduce(test_comm, longs[p], LONG, ISO_F32, "long", &l[p]);
            if (status == ISO_OK)
                status = iso_comm_iallreduce(test_comm, shorts[p], SHORT, ISO_F32, "short", &s[p]);
        }
        bool right = status == ISO_OK;
        for (int p = PAIRS - 1; p >= 0 && right; p--) {
            right = iso_request_wait(&s[p]) == ISO_OK && sum_is_right(shorts[p], SHORT, p + 3);
            right = right && iso_request_wait(&l[p]) == ISO_OK && sum_is_right(longs[p], LONG, p);
        }
        iso_assert_all(right);
    }
}

Test(np1_comm, long_and_short_exchanges) { long_and_short_exchanges(); }
Test(np2_comm, long_and_short_exchanges) { long_and_short_exchanges(); }

// A communicator with one duplicate of MPI's refuses what would travel in parts. A maximum goes
// whole, however long it is.
Test(np2_comm, communicator_for_short_exchanges) {
    enum { LONG = 200000, SHORT = 1000 };
    static float numbers[LONG];
    static double most[LONG];
    iso_comm *comm;
    iso_request *request = NULL;
    iso_assert_ok(iso__comm_create_like(test_comm, iso_comm_mpi(test_comm), false, &comm));
    iso_status status = iso_comm_iallreduce(comm, numbers, LONG, ISO_F32, "long", &request);
    iso_assert_all(status == ISO_ERR_STATE && strstr(iso_last_error()->message, "\"long\""));
    for (size_t i = 0; i < SHORT; i++) numbers[i] = value_of(test_rank, 0, i);
    iso_assert_ok(iso_comm_iallreduce(comm, numbers, SHORT, ISO_F32, "short", &request));
    iso_assert_ok(iso_request_wait(&request));
    for (int i = 0; i < LONG; i++) most[i] = i % 2 == test_rank ? i : -1;
    iso_assert_ok(iso__comm_iallreduce_max(comm, most, LONG, "most", &request));
    iso_assert_ok(iso_request_wait(&request));
    bool right = sum_is_right(numbers, SHORT, 0);
    for (int i = 0; i < LONG; i++) right = right && most[i] == i;
    iso_assert_all(right);
    iso_comm_destroy(&comm);
}
Test(np3_comm, long_and_short_exchanges) { long_and_short_exchanges(); }

// With nobody waiting, only the helper can complete an exchange.
Test(np2_comm, helper_completes_without_a_wait) {
    static float data[1 << 20]; // several parts
    iso_request *request;
    if (getenv("ISO_PROGRESS")) return; // there is no helper with MPICH
    iso_assert_ok(iso_comm_iallreduce(test_comm, data, 1 << 20, ISO_F32, "alone", &request));
    bool done = false;
    for (int64_t start = iso_now(); !done && iso_now() - start < 5000000000;) {
        usleep(1000);
        pthread_mutex_lock(&request->engine->lock);
        done = request->state == ISO_REQUEST_DONE;
        pthread_mutex_unlock(&request->engine->lock);
    }
    iso_assert_all(done);
    iso_assert_ok(iso_request_wait(&request));
}

static int first_core(const cpu_set_t *set) {
    int cpu = 0;
    while (cpu < CPU_SETSIZE && !CPU_ISSET((size_t)cpu, set)) cpu++;
    return cpu;
}

Test(np2_comm, the_progress_thread_is_pinned_alone) {
    cpu_set_t before, mine, helper;
    iso_cores cores = {.progress = {0}};
    if (getenv("ISO_PROGRESS")) return; // there is no helper with MPICH
    iso_assert_all(sched_getaffinity(0, sizeof(before), &before) == 0);
    iso_assert_all(!iso_cores_pin_progress(test_comm, &cores));
    int cpu = first_core(&before);
    iso_assert_all(cpu < 64 * 16);
    cores.progress[cpu / 64] = UINT64_C(1) << cpu % 64;
    iso_assert_all(iso_cores_pin_progress(test_comm, &cores));
    pthread_t thread = test_comm->engine->thread;
    iso_assert_all(pthread_getaffinity_np(thread, sizeof(helper), &helper) == 0);
    iso_assert_all(CPU_COUNT(&helper) == 1 && CPU_ISSET((size_t)cpu, &helper));
    iso_assert_all(sched_getaffinity(0, sizeof(mine), &mine) == 0 && CPU_EQUAL(&mine, &before));
    float one[1] = {1};
    iso_request *request;
    iso_assert_ok(iso_comm_iallreduce(test_comm, one, 1, ISO_F32, "pinned", &request));
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_all(one[0] == 2);
}

Test(np2_comm, helper_sleeps_when_nothing_is_in_flight) {
    struct timespec before, after;
    MPI_Barrier(MPI_COMM_WORLD);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(500000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double used =
        (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
    iso_assert_all(used < 0.005);
}

Test(np2_comm, time_out_names_what_is_pending) {
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    static float data[64];
    iso_request *request;
    if (test_rank == 0) usleep(SLOW); // the slow one
    iso_status status = iso_comm_iallreduce(comm, data, 64, ISO_F32, "conv1", &request);
    if (status == ISO_OK) status = iso_request_wait(&request);
    const char *said = iso_last_error()->message;
    iso_assert_all(status == (test_rank == 1 ? ISO_ERR_TIMEOUT : ISO_OK));
    iso_assert_all(test_rank == 0 ||
                   (strstr(said, "rank 1 of 2") && strstr(said, "\"conv1\" (256 bytes)")));
    if (test_rank == 1) cr_expect_eq(iso_request_wait(&request), ISO_OK); // late, but whole
    iso_comm_destroy(&comm);
}

Test(np2_life, blocking_collectives_time_out_too) {
    iso_comm *comm = test_comm_with_limit(IMPATIENT), *other = test_comm_with_limit(IMPATIENT);
    double x = 1;
    if (test_rank == 0) usleep(SLOW); // the slow one
    iso_status status = iso_comm_allreduce_f64(comm, &x, 1, ISO_SUM);
    iso_assert_all(status == (test_rank == 1 ? ISO_ERR_TIMEOUT : ISO_OK));
    cr_expect(test_rank == 0 || strstr(iso_last_error()->message, "waited 1 s in a reduction"));
    // It has given up on the communicator, and says so without a further wait.
    if (test_rank == 1) {
        cr_expect(iso_comm_barrier(comm) == ISO_ERR_TIMEOUT);
        cr_expect(strstr(iso_last_error()->message, "cannot wait in a barrier: an earlier wait on "
                                                    "this communicator has failed"));
        // Nor does it wait on another one to agree with ranks that do not come.
        int64_t start = iso_now();
        cr_expect(iso_comm_agree(other, ISO_ERR_TIMEOUT) == ISO_ERR_TIMEOUT);
        cr_expect(iso_now() - start < 500000000);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == 0) cr_expect(iso_comm_barrier(comm) == ISO_OK);
    MPI_Finalize(); // completes what rank 1 gave up; freeing the communicator would wait for it
}

// Rank 0 waits in vain for a rank that makes no communicator; what it gave up then completes.
Test(np2_life, creating_times_out_too) {
    iso_comm_config config = {.timeout_s = IMPATIENT};
    iso_comm *comm = NULL;
    MPI_Request request;
    iso_status status = ISO_OK;
    if (test_rank == 0) status = iso_comm_create(MPI_COMM_WORLD, &config, &comm);
    cr_expect(test_rank == 1 ||
              (status == ISO_ERR_TIMEOUT && !comm &&
               strstr(iso_last_error()->message,
                      "rank 0 of 2 waited 1 s in the barrier before MPI_Comm_dup")));
    if (test_rank == 1) usleep(SLOW);
    int64_t well = 2; // as all ranks that come later say
    if (test_rank == 1)
        MPI_Ireduce(&well, NULL, 1, MPI_INT64_T, MPI_MIN, 0, MPI_COMM_WORLD, &request);
    if (test_rank == 1) MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}

// As large as a topology's table of ranks, and freed by the caller: it must not be written to.
Test(np2_life, what_times_out_leaves_the_callers_memory_alone) {
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    enum { COUNT = 3000 };
    static int64_t numbers[COUNT];
    for (int i = 0; i < COUNT; i++) numbers[i] = test_rank + 1;
    if (test_rank == 1) usleep(SLOW);
    iso_status status = iso_comm_allreduce_i64(comm, numbers, COUNT, ISO_SUM);
    cr_expect(status == (test_rank == 0 ? ISO_ERR_TIMEOUT : ISO_OK));
    for (int i = 0; i < COUNT && test_rank == 0; i++) numbers[i] = 7;
    MPI_Barrier(MPI_COMM_WORLD); // completes what rank 0 gave up
    usleep(100000);
    MPI_Barrier(MPI_COMM_WORLD);
    bool left_alone = true;
    for (int i = 0; i < COUNT; i++) left_alone = left_alone && numbers[i] == (test_rank ? 3 : 7);
    cr_expect(left_alone);
    MPI_Finalize();
}

Test(np2_comm, handles_of_fortran_become_communicators) {
    iso_comm *comm, *none = NULL;
    MPI_Comm part;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank, 0, &part);
    iso_assert_ok(iso_comm_create_fortran(MPI_Comm_c2f(part), NULL, &comm));
    iso_assert_all(iso_comm_size(comm) == 1 && iso_comm_rank(comm) == 0);
    iso_comm_destroy(&comm);
    iso_assert_all(iso_comm_create_fortran(MPI_Comm_c2f(MPI_COMM_NULL), NULL, &none) ==
                   ISO_ERR_ARG);
    MPI_Comm_free(&part);
}

Test(np1_life, impossible_settings_are_refused) {
    iso_comm *comm = NULL;
    iso_comm_config mode = {.progress = (iso_progress)77}, time_out = {.timeout_s = -1};
    cr_expect(iso_comm_create(MPI_COMM_WORLD, &mode, &comm) == ISO_ERR_ARG);
    cr_expect(iso_comm_create(MPI_COMM_WORLD, &time_out, &comm) == ISO_ERR_ARG);
    test_mpi_teardown();
}

Test(np3_comm, agree_repeats_the_failing_ranks_message) {
    iso_status mine = test_rank == 1 ? ISO_FAIL(ISO_ERR_FORMAT, "the file is damaged") : ISO_OK;
    iso_status status = iso_comm_agree(test_comm, mine);
    iso_assert_all(status == ISO_ERR_FORMAT &&
                   strstr(iso_last_error()->message, "the file is damaged"));
    iso_assert_all(test_rank == 1 || strstr(iso_last_error()->message, "rank 1"));
    iso_assert_ok(iso_comm_agree(test_comm, ISO_OK));
}

Test(np3_comm, agree_names_a_rank_once) {
    iso_status mine = test_rank == 1 ? ISO_FAIL(ISO_ERR_TIMEOUT, "rank 1 of 3 waited") : ISO_OK;
    iso_assert_all(iso_comm_agree(test_comm, mine) == ISO_ERR_TIMEOUT);
    iso_assert_all(strcmp(iso_last_error()->message, "rank 1 of 3 waited") == 0);
}

// What ranks add so that a reduction has as many numbers as ranks changes none of the results, of
// numbers of either sign.
static bool reduces_right(size_t count, iso_reduce op) {
    int64_t whole[9];
    double real[9];
    bool right = true;
    for (int64_t i = 0; i < 9; i++) whole[i] = (i - 4) * (test_rank + 1);
    for (int64_t i = 0; i < 9; i++) real[i] = 0.5 * (double)whole[i];
    right = iso_comm_allreduce_i64(test_comm, whole, count, op) == ISO_OK;
    right = iso_comm_allreduce_f64(test_comm, real, count, op) == ISO_OK && right;
    for (int64_t i = 0; i < 9; i++) {
        int64_t low = i < 4 ? 5 * (i - 4) : i - 4, high = i < 4 ? i - 4 : 5 * (i - 4);
        int64_t expected = op == ISO_SUM ? 15 * (i - 4) : op == ISO_MAX ? high : low;
        if ((size_t)i >= count) expected = (i - 4) * (test_rank + 1); // untouched
        right = right && whole[i] == expected && real[i] == 0.5 * (double)expected;
    }
    return right;
}

Test(np5_comm, few_numbers_are_reduced_among_more_ranks) {
    bool right = true;
    for (size_t count = 0; count <= 9; count++)
        right = reduces_right(count, ISO_SUM) && reduces_right(count, ISO_MAX) &&
                reduces_right(count, ISO_MIN) && right;
    iso_assert_all(right);
}

Test(np3_comm, gather_keeps_order_and_lengths) {
    char mine[8], *all;
    size_t *sizes;
    memset(mine, 'a' + test_rank, sizeof(mine));
    iso_assert_ok(iso_comm_gather(test_comm, mine, (size_t)test_rank * 2, 0, &all, &sizes));
    if (test_rank == 0) cr_expect(memcmp(all, "bbcccc", 6) == 0 && sizes[0] == 0 && sizes[2] == 4);
    iso_comm_free(all);
    iso_comm_free(sizes);
}

Test(np2_comm, algorithm_is_set_unless_the_user_did) {
    const char *text = iso_comm_algorithm_text(test_comm);
    iso_assert_all(strncmp(text, "3, Rabenseifner", 15) == 0 ||
                   strncmp(text, "MPI's own choice", 16) == 0);
}

// Ranks from `first` on have another number than those below it.
static void expect_difference(int first, const char *words) {
    uint64_t number = test_rank < first ? UINT64_MAX : 7;
    iso_status status = iso_comm_check_same(test_comm, number, "the sum");
    iso_assert_all(status == ISO_ERR_MISMATCH);
    iso_assert_all(strstr(iso_last_error()->message, words) != NULL);
}

Test(np4_comm, ranks_with_another_number_are_listed) {
    iso_assert_ok(iso_comm_check_same(test_comm, UINT64_MAX, "the sum"));
    iso_assert_ok(iso_comm_check_same(test_comm, 0, "the sum"));
    expect_difference(3,
                      "the sum is not the same on all ranks: rank 3 has other contents than rank "
                      "0: give every rank the same");
    expect_difference(2, "all ranks: ranks 2 and 3 have other");
    expect_difference(1, "all ranks: ranks 1, 2 and 3 have other");
}

// MPI_Finalize with communicators alive and an exchange still in flight must neither crash nor
// hang.
Test(np2_life, finalize_without_destroy) {
    iso_comm *comm;
    static float data[1 << 16];
    iso_request *request;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_assert_ok(iso_comm_iallreduce(comm, data, 1 << 16, ISO_F32, "left over", &request));
    MPI_Finalize();
    iso_comm_destroy(&comm);
}

Test(np2_life, subset_of_the_world) {
    iso_comm *comm;
    MPI_Comm alone;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank, 0, &alone);
    iso_assert_ok(iso_comm_create(alone, NULL, &comm));
    MPI_Comm_free(&alone); // ours is a duplicate
    float x = 3;
    iso_request *request;
    iso_assert_ok(iso_comm_iallreduce(comm, &x, 1, ISO_F32, "one", &request));
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_all(x == 3 && iso_comm_size(comm) == 1);
    iso_comm_destroy(&comm);
    test_mpi_teardown();
}

Test(np2_life, explicit_modes) {
    iso_comm *comm;
    iso_comm_config config = {.progress = ISO_PROGRESS_POLL};
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, &config, &comm));
    iso_assert_all(iso_comm_progress(comm) == ISO_PROGRESS_POLL &&
                   strstr(iso_comm_progress_text(comm), "asked for"));
    iso_comm_destroy(&comm);
    test_mpi_teardown();
}

Test(np1_life, a_refused_setting_leaves_nothing_behind) {
    iso_comm *comm = NULL;
    setenv("ISO_PROGRESS", "nonsense", 1);
    cr_expect(iso_comm_create(MPI_COMM_WORLD, NULL, &comm) == ISO_ERR_ARG);
    unsetenv("ISO_PROGRESS");
    test_mpi_teardown();
}

// Rank 1 has a value of its own: every rank learns which.
static void differ(const char *name, const char *value, iso_status expected, const char *said) {
    iso_comm *comm = NULL;
    if (test_rank == 1) setenv(name, value, 1);
    iso_status status = iso_comm_create(MPI_COMM_WORLD, NULL, &comm);
    unsetenv(name);
    bool right = status == expected && !comm && strstr(iso_last_error()->message, said);
    if (!right) fprintf(stderr, "rank %d: %d, %s\n", test_rank, status, iso_last_error()->message);
    cr_expect(right);
}

static void differ_in_all(void) {
    differ("ISO_IALLREDUCE", "2", ISO_ERR_MISMATCH,
           "environment variable ISO_IALLREDUCE is 5 on rank 0 and 2 on rank 1");
    differ("ISO_NODE_COLLECTIVE", "mpi", ISO_ERR_MISMATCH,
           "environment variable ISO_NODE_COLLECTIVE is auto on rank 0 and mpi on rank 1");
    differ("ISO_RANKS_PER_NODE", "1", ISO_ERR_MISMATCH,
           "environment variable ISO_RANKS_PER_NODE is not set on rank 0 and 1 on rank 1");
    differ("ISO_CPU_KERNELS", "reference", ISO_ERR_MISMATCH,
           "environment variable ISO_CPU_KERNELS is not set on rank 0 and reference on rank 1");
    differ("ISO_CUDA_CONV", "gemm", ISO_ERR_MISMATCH,
           "environment variable ISO_CUDA_CONV is not set on rank 0 and gemm on rank 1");
    differ("ISO_IALLREDUCE", "many", ISO_ERR_ARG, "ISO_IALLREDUCE is \"many\"");
    differ("ISO_LOG", "loud", ISO_ERR_ARG, "ISO_LOG is \"loud\"");
    differ("ISO_CPU_KERNELS", "fast", ISO_ERR_ARG, "ISO_CPU_KERNELS is \"fast\"");
}

Test(np3_life, environments_that_differ_are_refused_on_all_ranks) {
    iso_comm *alone, *comm;
    int64_t sum = 1;
    differ_in_all();
    // A communicator of its own was made with another value before: nothing is set by it alone.
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    differ_in_all();
    iso_comm_destroy(&alone);
    if (test_rank == 1) setenv("ISO_IALLREDUCE", "5.0", 1); // the same
    if (test_rank == 1) setenv("ISO_PROGRESS", "poll", 1);  // changes no exchange
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_assert_ok(iso_comm_allreduce_i64(comm, &sum, 1, ISO_SUM));
    iso_assert_all(sum == 3);
    iso_comm_destroy(&comm);
    test_mpi_teardown();
}

// As where the mpirun of another MPI has started two processes.
Test(np1_life, alone_though_the_launcher_started_two) {
    iso_comm *comm = NULL;
    setenv("PMI_SIZE", "2", 1);
    cr_assert_eq(iso_comm_create(MPI_COMM_WORLD, NULL, &comm), ISO_ERR_STATE);
    cr_assert_null(comm);
    cr_assert(strstr(iso_last_error()->message, "started 2 processes (PMI_SIZE)"), "%s",
              iso_last_error()->message);
    setenv("PMI_SIZE", "1", 1);
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_comm_destroy(&comm);
    test_mpi_teardown();
}

// ---- Mistakes ---------------------------------------------------------------------------------------

Test(np3_comm, a_broadcast_names_a_root_that_is_none) {
    char byte = 0;
    cr_assert(iso_comm_bcast(test_comm, &byte, 1, 3) == ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "ranks 0 to 2"), "%s", iso_last_error()->message);
    cr_assert(iso_comm_bcast(test_comm, &byte, 1, -1) == ISO_ERR_ARG);
    char *all;
    size_t *each;
    cr_assert(iso_comm_gather(test_comm, &byte, 1, 3, &all, &each) == ISO_ERR_ARG);
    double x = 1;
    cr_assert(iso_comm_allreduce_f64(test_comm, &x, 1, (iso_reduce)7) == ISO_ERR_ARG);
    cr_assert(iso_comm_allreduce_f64(test_comm, &x, SIZE_MAX, ISO_SUM) == ISO_ERR_ARG);
    iso_assert_ok(iso_comm_barrier(test_comm));
}

Test(np2_comm, a_request_that_is_gone_is_complete) {
    float x = 1;
    iso_request *request;
    iso_assert_ok(iso_comm_iallreduce(test_comm, &x, 1, ISO_F32, "x", &request));
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_ok(iso_request_test(&request));
}
