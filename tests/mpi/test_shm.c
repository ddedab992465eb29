// SPDX-License-Identifier: MIT
// All-reduce in memory that ranks share, 1 to 4 ranks: against the sum in the order of the ranks,
// bit for bit, and against MPI.
#include "comm/request.h"
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/reducer.h>
#include <isotherm/trace.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void setup_poll(void) {
    setenv("ISO_PROGRESS", "poll", 1);
    test_mpi_setup();
}
static void setup_off(void) {
    setenv("ISO_PROGRESS", "off", 1);
    test_mpi_setup();
}

TestSuite(np2_shm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_shm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_shm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_shm_poll, .init = setup_poll, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_shm_off, .init = setup_off, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_shm_off, .init = setup_off, .fini = test_mpi_teardown, .timeout = 60);

enum { GUARD = 40, MOST = 300000 };

// ---- Sums -------------------------------------------------------------------------------------------

// The elements around the exchange must not change, in nobody's memory.
static void sum_once(float *memory, size_t at, size_t count, int exchange) {
    for (size_t i = 0; i < at + count + GUARD; i++) memory[i] = 77;
    shared_fill(memory + at, count, exchange);
    iso_request *request;
    iso_assert_ok(
        iso_comm_iallreduce(test_comm, memory + at, count, ISO_F32, "exchange", &request));
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_all(request == NULL && shared_is_summed(memory + at, count, exchange));
    iso_assert_all(shared_is_all(memory, at, 77) && shared_is_all(memory + at + count, GUARD, 77));
}

static void sums_of_every_size(void) {
    float *memory = shared_create(test_comm, MOST + 2 * GUARD);
    size_t g = (size_t)test_size, part = 32768 * g;
    const size_t counts[] = {1,
                             2,
                             3,
                             g - 1,
                             g,
                             g + 1,
                             15,
                             16,
                             17,
                             16 * g,
                             16 * g - 1,
                             16 * g + 1,
                             16 * g - 17,
                             32 * g,
                             32 * g + 1,
                             1023 * g,
                             1024 * g + 1,
                             5000,
                             part - 16,
                             part,
                             part + 1,
                             part + 16 * g};
    for (int c = 0; c < (int)(sizeof(counts) / sizeof(counts[0])); c++)
        if (counts[c] > 0)
            sum_once(memory, (size_t)(c % 3) * 16 + (c % 5 == 4 ? 5 : 0), counts[c], c);
    sum_once(memory, 0, MOST, 99);
    shared_destroy(test_comm, &memory);
}

Test(np2_shm, sums_of_every_size) { sums_of_every_size(); }
Test(np3_shm, sums_of_every_size) { sums_of_every_size(); }
Test(np4_shm, sums_of_every_size) { sums_of_every_size(); }
Test(np3_shm_poll, sums_of_every_size) { sums_of_every_size(); }
Test(np4_shm_off, sums_of_every_size) { sums_of_every_size(); }

Test(np4_shm, equals_mpi_within_rounding) {
    enum { COUNT = 50000 };
    static float plain[COUNT];
    float *memory = shared_create(test_comm, COUNT);
    shared_fill(memory, COUNT, 0);
    shared_fill(plain, COUNT, 0);
    iso_request *a, *b;
    iso_assert_ok(iso_comm_iallreduce(test_comm, memory, COUNT, ISO_F32, "shared", &a));
    iso_assert_ok(iso_comm_iallreduce(test_comm, plain, COUNT, ISO_F32, "messages", &b));
    iso_assert_ok(iso_request_wait(&b));
    iso_assert_ok(iso_request_wait(&a));
    bool close = true;
    for (size_t i = 0; i < COUNT; i++) {
        float size = 0;
        for (int r = 0; r < test_size; r++) size += fabsf(shared_value(r, 0, i));
        close = close && fabsf(memory[i] - plain[i]) <= 3e-7f * size;
    }
    iso_assert_all(close);
    shared_destroy(test_comm, &memory);
}

// ---- Many in flight ---------------------------------------------------------------------------------

enum { IN_FLIGHT = 6, LONGEST = 6000 };
typedef struct lane {
    float *data; // in shared memory, or not
    size_t count;
    int exchange;
    iso_request *request;
} lane;

static uint32_t dice(int rank, int step) {
    uint32_t counter[4] = {(uint32_t)step, (uint32_t)rank, 1, 0}, bits[4];
    iso__philox(iso__philox_key_make(6, ISO_RNG_TEST, 0), counter, bits);
    return bits[0];
}

static iso_status finish_lane(lane *l, uint32_t chance) {
    iso_status status = ISO_PENDING;
    if (chance % 3 == 0) status = iso_request_test(&l->request);
    if (chance % 5 == 0) iso_comm_poll(test_comm);
    if (status == ISO_PENDING) status = iso_request_wait(&l->request);
    if (status < 0) return status;
    for (size_t i = 0; i < l->count; i += 1 + l->count / 16) { // a sample, to be quick
        float wanted = 0;
        for (int r = 0; r < test_size; r++) wanted += (float)(r + l->exchange + (int)(i % 7));
        if (l->data[i] != wanted) return ISO_FAIL(ISO_ERR_MISMATCH, "exchange %d", l->exchange);
    }
    return ISO_OK;
}

static iso_status start_lane(lane *l, int exchange) {
    l->exchange = exchange;
    l->count =
        exchange % 13 == 0 ? (size_t)(exchange * 131 % LONGEST + 1) : (size_t)(exchange % 60 + 1);
    for (size_t i = 0; i < l->count; i++)
        l->data[i] = (float)(test_rank + exchange + (int)(i % 7)); // whole: exact in any order
    return iso_comm_iallreduce(test_comm, l->data, l->count, ISO_F32, "mixed", &l->request);
}

// Every third lane goes by messages. Ranks wait in different orders and dawdle at random.
static void mixed_exchanges(int total) {
    static float plain[IN_FLIGHT][LONGEST];
    float *memory = shared_create(test_comm, (size_t)IN_FLIGHT * LONGEST);
    lane lanes[IN_FLIGHT] = {{0}};
    iso_status status = ISO_OK;
    for (int i = 0; i < IN_FLIGHT; i++)
        lanes[i].data = i % 3 == 2 ? plain[i] : memory + (size_t)i * LONGEST;
    for (int e = 0; e < total && status >= 0; e += IN_FLIGHT) {
        uint32_t chance = dice(test_rank, e);
        for (int i = 0; i < IN_FLIGHT && status >= 0; i++) status = start_lane(&lanes[i], e + i);
        if (chance % 64 == 0) usleep(chance % 977);
        for (int i = 0; i < IN_FLIGHT && status >= 0; i++)
            status = finish_lane(&lanes[(i + (int)(chance % IN_FLIGHT)) % IN_FLIGHT], chance >> i);
    }
    iso_assert_ok(status);
    shared_destroy(test_comm, &memory);
}

Test(np2_shm, twenty_thousand_mixed_exchanges_under_the_helper) { mixed_exchanges(20000); }
Test(np3_shm, mixed_exchanges_under_the_helper) { mixed_exchanges(6000); }
Test(np4_shm, mixed_exchanges_under_the_helper) { mixed_exchanges(3000); }
Test(np3_shm_poll, twenty_thousand_mixed_exchanges_polling) { mixed_exchanges(20000); }
Test(np4_shm_off, twenty_thousand_mixed_exchanges_in_waits_only) { mixed_exchanges(20000); }

// Communicators whose exchanges are waited for in different orders on different ranks.
Test(np3_shm, two_memories_at_once) {
    iso_comm *other;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &other));
    enum { COUNT = 100000 };
    float *a = shared_create(test_comm, COUNT), *b = shared_create(other, COUNT);
    for (int round = 0; round < 20; round++) {
        shared_fill(a, COUNT / 10, round);
        shared_fill(b, COUNT, round + 100);
        iso_request *ra, *rb;
        iso_status status = ISO_OK;
        if (test_rank == round % 3)
            status = iso_comm_iallreduce(other, b, COUNT, ISO_F32, "b", &rb);
        if (status >= 0) status = iso_comm_iallreduce(test_comm, a, COUNT / 10, ISO_F32, "a", &ra);
        if (status >= 0 && test_rank != round % 3)
            status = iso_comm_iallreduce(other, b, COUNT, ISO_F32, "b", &rb);
        if (status >= 0) status = iso_request_wait((test_rank + round) % 2 ? &ra : &rb);
        if (status >= 0) status = iso_request_wait((test_rank + round) % 2 ? &rb : &ra);
        iso_assert_ok(status);
        iso_assert_all(shared_is_summed(a, COUNT / 10, round) &&
                       shared_is_summed(b, 1000, round + 100));
    }
    shared_destroy(test_comm, &a);
    shared_destroy(other, &b);
    iso_comm_destroy(&other);
}

// ---- Who drives it, and who is late -----------------------------------------------------------------

// With nobody waiting, only the helpers can complete an exchange.
Test(np4_shm, helpers_complete_without_a_wait) {
    float *memory = shared_create(test_comm, MOST);
    shared_fill(memory, MOST, 1);
    iso_request *request;
    iso_assert_ok(iso_comm_iallreduce(test_comm, memory, MOST, ISO_F32, "alone", &request));
    bool done = false;
    for (int64_t start = iso_now(); !done && iso_now() - start < 5000000000;) {
        usleep(1000);
        pthread_mutex_lock(&request->engine->lock);
        done = request->state == ISO_REQUEST_DONE;
        pthread_mutex_unlock(&request->engine->lock);
    }
    iso_assert_all(done);
    iso_assert_ok(iso_request_wait(&request));
    iso_assert_all(shared_is_summed(memory, MOST, 1));
    shared_destroy(test_comm, &memory);
}

Test(np2_shm, helper_sleeps_when_nothing_is_in_flight) {
    float *memory = shared_create(test_comm, 100);
    sum_once(memory, 0, 50, 1);
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(500000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double used =
        (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
    iso_assert_all(used < 0.005);
    shared_destroy(test_comm, &memory);
}

// One rank waits for the exchange, the other one meanwhile in a blocking collective.
static void blocking_collective_between(void) {
    enum { COUNT = 100000 };
    float *memory = shared_create(test_comm, COUNT);
    shared_fill(memory, COUNT, 3);
    iso_request *request;
    iso_status status =
        iso_comm_iallreduce(test_comm, memory, COUNT, ISO_F32, "exchange", &request);
    if (status >= 0 && test_rank == 0) status = iso_request_wait(&request);
    if (status >= 0) status = iso_comm_barrier(test_comm);
    if (status >= 0 && test_rank > 0) status = iso_request_wait(&request);
    iso_assert_ok(status);
    iso_assert_all(shared_is_summed(memory, COUNT, 3));
    shared_destroy(test_comm, &memory);
}

Test(np2_shm, blocking_collective_between) { blocking_collective_between(); }
Test(np3_shm_poll, blocking_collective_between) { blocking_collective_between(); }
Test(np4_shm_off, blocking_collective_between) { blocking_collective_between(); }

// Who has issued exchanges and then waits elsewhere, in MPI, holds up nobody.
static void one_rank_waits_alone(void) {
    enum { EXCHANGES = 6 };
    float *memory = shared_create(test_comm, MOST);
    iso_request *request[EXCHANGES];
    size_t each = MOST / EXCHANGES / 16 * 16;
    for (int round = 0; round < 20; round++) {
        iso_status status = ISO_OK;
        for (int k = 0; k < EXCHANGES && status == ISO_OK; k++) {
            float *at = memory + (size_t)k * each;
            shared_fill(at, each, round + k);
            status = iso_comm_iallreduce(test_comm, at, each, ISO_F32, "alone", &request[k]);
        }
        for (int k = 0; k < EXCHANGES && status == ISO_OK; k++) {
            if (test_rank == round % test_size) status = iso_request_wait(&request[k]);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (int k = 0; k < EXCHANGES && status == ISO_OK; k++)
            if (test_rank != round % test_size) status = iso_request_wait(&request[k]);
        iso_assert_ok(status);
        for (int k = 0; k < EXCHANGES; k++)
            iso_assert_all(shared_is_summed(memory + (size_t)k * each, each, round + k));
    }
    shared_destroy(test_comm, &memory);
}

Test(np2_shm_off, one_rank_waits_alone) { one_rank_waits_alone(); }
Test(np3_shm_poll, one_rank_waits_alone) { one_rank_waits_alone(); }
Test(np4_shm_off, one_rank_waits_alone) { one_rank_waits_alone(); }

// As one_rank_waits_alone, but with tests in a loop in place of a wait.
static void one_rank_tests_alone(void) {
    float *memory = shared_create(test_comm, MOST);
    shared_fill(memory, MOST, 5);
    iso_request *request;
    iso_status status = iso_comm_iallreduce(test_comm, memory, MOST, ISO_F32, "alone", &request);
    iso_assert_ok(status);
    int64_t start = iso_now();
    if (test_rank == 0) status = ISO_PENDING;
    while (status == ISO_PENDING && iso_now() - start < 20000000000)
        status = iso_request_test(&request);
    MPI_Barrier(MPI_COMM_WORLD);
    iso_assert_all(status == ISO_OK);
    if (test_rank > 0) status = iso_request_wait(&request);
    iso_assert_ok(status);
    iso_assert_all(shared_is_summed(memory, MOST, 5));
    shared_destroy(test_comm, &memory);
}

Test(np2_shm_off, one_rank_tests_alone) { one_rank_tests_alone(); }
Test(np3_shm_poll, one_rank_tests_alone) { one_rank_tests_alone(); }

static iso_status keep(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)i, (void)gradient, (void)scale, (void)hyper, (void)user;
    return ISO_OK;
}

// As the forward of rank 0 alone, for an evaluation, behind a step of all.
static void one_rank_runs_a_forward(void) {
    enum { PARAMS = 3, COUNT = 20000 };
    static float value[PARAMS][COUNT];
    iso_reducer_param param[PARAMS];
    iso_reducer *r;
    bool right = true;
    for (int i = 0; i < PARAMS; i++)
        param[i] = (iso_reducer_param){
            .name = "w", .value = value[i], .count = COUNT, .dtype = ISO_F32, .layer = i};
    iso_assert_ok(iso_reducer_create(test_comm, param, PARAMS, NULL, &r));
    iso_assert_ok(iso_reducer_set_apply(r, keep, 0, NULL));
    for (int step = 0; step < 8; step++) {
        iso_status status = ISO_OK;
        for (int i = PARAMS - 1; i >= 0 && status == ISO_OK; i--) {
            float *g = iso_reducer_grad(r, i);
            for (int k = 0; k < COUNT; k++) g[k] = (float)(test_rank + 1);
            status = iso_reducer_grad_ready(r, i);
        }
        if (status == ISO_OK) status = iso_reducer_step(r, "");
        for (int i = 0; i < PARAMS && test_rank == 0 && status == ISO_OK; i++)
            status = iso_reducer_param_needed(r, i);
        MPI_Barrier(MPI_COMM_WORLD);
        if (status == ISO_OK) status = iso_reducer_finish(r);
        iso_assert_ok(status);
        for (int i = 0; i < PARAMS; i++)
            right =
                right && ((float *)iso_reducer_grad(r, i))[COUNT - 1] == (float)(test_size + 1) / 2;
    }
    iso_assert_all(right);
    iso_reducer_destroy(&r);
}

Test(np2_shm_off, one_rank_runs_a_forward) { one_rank_runs_a_forward(); }
Test(np3_shm_poll, one_rank_runs_a_forward) { one_rank_runs_a_forward(); }

// Testing alone completes it, and does not before the last rank has come.
Test(np2_shm_off, tests_complete_it_once_the_late_rank_is_there) {
    float *memory = shared_create(test_comm, MOST);
    shared_fill(memory, MOST, 2);
    MPI_Barrier(MPI_COMM_WORLD);
    int64_t start = iso_now();
    if (test_rank == 0) usleep(200000);
    iso_request *request;
    iso_status status = iso_comm_iallreduce(test_comm, memory, MOST, ISO_F32, "late", &request);
    if (status == ISO_OK) status = ISO_PENDING;
    while (status == ISO_PENDING) status = iso_request_test(&request);
    iso_assert_all(status == ISO_OK && request == NULL && iso_now() - start > 150000000);
    iso_assert_all(shared_is_summed(memory, MOST, 2));
    shared_destroy(test_comm, &memory);
}

Test(np3_shm, time_out_names_what_is_pending) {
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    float *memory = shared_create(comm, 64);
    shared_fill(memory, 64, 4);
    iso_request *request;
    if (test_rank == 0) usleep(SLOW); // the slow one
    iso_status status = iso_comm_iallreduce(comm, memory, 64, ISO_F32, "conv1", &request);
    if (status == ISO_OK) status = iso_request_wait(&request);
    const char *said = iso_last_error()->message;
    bool named = strstr(said, "of 3 waited 1 s") && strstr(said, "\"conv1\" (256 bytes)");
    iso_assert_all(status == (test_rank == 0 ? ISO_OK : ISO_ERR_TIMEOUT)); // all are there now
    iso_assert_all(test_rank == 0 || named);
    if (test_rank > 0) status = iso_request_wait(&request);
    iso_assert_all(status == ISO_OK && shared_is_summed(memory, 64, 4)); // late, but whole
    shared_destroy(comm, &memory);
    iso_comm_destroy(&comm);
}
