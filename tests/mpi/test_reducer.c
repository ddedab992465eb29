// SPDX-License-Identifier: MIT
// The reducer on plain arrays, 1 to 4 ranks, against the arithmetic that it must equal.
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/reducer.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_reducer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { PARAMS = 5, MOST = 40000 };
static const size_t counts[PARAMS] = {3, 700, 16, MOST, 10};
static const int layers[PARAMS] = {0, 1, 1, 2, 3};
static const char *const names[PARAMS] = {"a.weight", "b.weight", "b.bias", "c.weight", "d.weight"};
static float value[PARAMS][MOST];

typedef struct hyper {
    double lr;
} hyper;

static iso_status descend(int i, void *gradient, double scale, const void *frozen, void *user) {
    (void)user;
    const float *g = gradient;
    for (size_t k = 0; k < counts[i]; k++)
        value[i][k] -= (float)(((const hyper *)frozen)->lr * scale) * g[k];
    return ISO_OK;
}

static void describe(iso_reducer_param *params) {
    for (int i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++)
            value[i][k] = test_rank == 0 ? (float)i : -1; // rank 0's hold
        params[i] = (iso_reducer_param){.name = names[i],
                                        .value = value[i],
                                        .count = counts[i],
                                        .dtype = ISO_F32,
                                        .layer = layers[i]};
    }
}

static iso_reducer *make_reducer(iso_sync sync, size_t bucket_bytes) {
    iso_reducer_param params[PARAMS];
    describe(params);
    iso_reducer_config config = {
        .sync = sync, .bucket_bytes = bucket_bytes, .unused = ISO_UNUSED_ZERO};
    iso_reducer *r = NULL;
    iso_assert_ok(iso_reducer_create(test_comm, params, PARAMS, &config, &r));
    iso_assert_ok(iso_reducer_set_apply(r, descend, sizeof(hyper), NULL));
    return r;
}

Test(np1_reducer, says_which_calls_say_how_to_update) {
    iso_reducer_param params[PARAMS];
    iso_reducer *r = NULL;
    double lr = 1;
    describe(params);
    iso_assert_ok(iso_reducer_create(test_comm, params, PARAMS, NULL, &r));
    for (int i = 0; i < PARAMS; i++) iso_assert_ok(iso_reducer_param_needed(r, i));
    for (int i = PARAMS - 1; i >= 0; i--) iso_assert_ok(iso_reducer_grad_ready(r, i));
    cr_expect_eq(iso_reducer_step(r, &lr), ISO_ERR_STATE);
    const char *said = iso_last_error()->message;
    cr_expect(strstr(said, "iso_reducer_set_apply") && strstr(said, "iso_reducer_set_update") &&
                  strstr(said, "iso_reducer_set_optimizer"),
              "%s", said);
    iso_reducer_destroy(&r);
}

// Gradients are whole numbers, and their sum is divided by a power of two or multiplied back, so
// that what is expected is exact.
static float gradient_of(int rank, int step, int i) { return (float)((rank + 1) * (step + 1) + i); }

static void write_gradient(iso_reducer *r, int step, int i) {
    float *g = iso_reducer_grad(r, i);
    for (size_t k = 0; k < counts[i]; k++) g[k] = gradient_of(test_rank, step, i);
}

static int order_of(int step, int k) {
    return (k * 2 + step + test_rank) % PARAMS;
} // another one on each rank

// lr = ranks, so that lr * mean = sum. No collective verdict inside: ranks are at different places.
static iso_status train_step(iso_reducer *r, int step, int unused) {
    iso_status status = ISO_OK;
    for (int i = 0; status == ISO_OK && i < PARAMS; i++) status = iso_reducer_param_needed(r, i);
    iso_reducer_zero_grad(r);
    for (int k = 0; status == ISO_OK && k < PARAMS; k++) {
        int i = order_of(step, k);
        if (i == unused) continue;
        write_gradient(r, step, i);
        status = iso_reducer_grad_ready(r, i);
        if (test_rank == step % test_size) usleep(300);
    }
    hyper h = {.lr = test_size};
    if (status == ISO_OK) status = iso_reducer_step(r, &h);
    h.lr = 1e9; // frozen at step(): changing it now must change nothing
    return status;
}

static void train(iso_reducer *r, int steps, int unused) {
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < steps; step++)
        status = train_step(r, step, unused);
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_ok(status);
}

static bool trained(int steps, int unused) {
    for (int i = 0; i < PARAMS; i++) {
        double expected = i;
        for (int step = 0; i != unused && step < steps; step++)
            for (int rank = 0; rank < test_size; rank++) expected -= gradient_of(rank, step, i);
        for (size_t k = 0; k < counts[i]; k++)
            if (value[i][k] < expected - 1e-3 || value[i][k] > expected + 1e-3) return false;
    }
    return true;
}

static void equals_the_serial_sum(iso_sync sync, size_t bucket_bytes) {
    iso_reducer *r = make_reducer(sync, bucket_bytes);
    train(r, 6, -1);
    iso_assert_all(trained(6, -1));
    iso_reducer_destroy(&r);
}

Test(np1_reducer, lazy_equals_the_serial_sum) { equals_the_serial_sum(ISO_SYNC_LAZY, 0); }
Test(np2_reducer, lazy_equals_the_serial_sum) { equals_the_serial_sum(ISO_SYNC_LAZY, 0); }
Test(np3_reducer, lazy_equals_the_serial_sum) { equals_the_serial_sum(ISO_SYNC_LAZY, 0); }
Test(np4_reducer, lazy_equals_the_serial_sum) { equals_the_serial_sum(ISO_SYNC_LAZY, 0); }
Test(np3_reducer, fused_buckets_equal_the_serial_sum) {
    equals_the_serial_sum(ISO_SYNC_LAZY, 100000);
}
Test(np3_reducer, blocking_equals_the_serial_sum) {
    equals_the_serial_sum(ISO_SYNC_BLOCKING, 4096);
}

Test(np3_reducer, unused_parameter_contributes_zeros) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    train(r, 1, -1);
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++) value[i][k] = (float)i;
    train(r, 4, 3); // its memory still holds the gradients of the step before
    iso_assert_all(trained(4, 3));
    iso_reducer_destroy(&r);
}

// lr = ranks: trains as if each gradient were counted twice and the sum were of eight ranks.
static void weights_count(iso_sync sync) {
    iso_reducer *r = make_reducer(sync, 0);
    iso_assert_ok(iso_reducer_set_weight(r, 2, 8));
    iso_assert_ok(train_step(r, 0, -1));
    iso_assert_ok(iso_reducer_finish(r));
    bool right = true;
    for (int i = 0; i < PARAMS; i++) {
        double expected = i;
        for (int rank = 0; rank < test_size; rank++)
            expected -= gradient_of(rank, 0, i) * test_size * 2 / 8;
        for (size_t k = 0; k < counts[i]; k++) right = right && fabs(value[i][k] - expected) < 1e-4;
    }
    iso_assert_all(right);
    iso_reducer_destroy(&r);
}
Test(np1_reducer, weights_count) { weights_count(ISO_SYNC_LAZY); }
Test(np1_reducer, weights_count_blocking) { weights_count(ISO_SYNC_BLOCKING); }
Test(np2_reducer, weights_count) { weights_count(ISO_SYNC_LAZY); }

Test(np2_reducer, without_step_averages_stay_in_place) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    for (int i = PARAMS - 1; i >= 0; i--) {
        write_gradient(r, 0, i);
        iso_assert_ok(iso_reducer_grad_ready(r, i));
    }
    iso_assert_ok(iso_reducer_finish(r));
    for (int i = 0; i < PARAMS; i++) {
        float mean = (gradient_of(0, 0, i) + gradient_of(1, 0, i)) / 2;
        const float *g = iso_reducer_grad(r, i);
        iso_assert_all(g[0] == mean && g[counts[i] - 1] == mean && value[i][0] == (float)i);
    }
    iso_reducer_destroy(&r);
}

Test(np2_reducer, step_twice_applies_both) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    train(r, 1, -1);
    for (int i = 0; i < PARAMS; i++) {
        write_gradient(r, 1, i);
        iso_assert_ok(iso_reducer_grad_ready(r, i));
    }
    hyper h = {.lr = test_size}, none = {.lr = 0};
    iso_assert_ok(iso_reducer_step(r, &h));
    iso_assert_ok(
        iso_reducer_step(r, &none)); // no backward between: the first update must not be lost
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(trained(2, -1));
    iso_reducer_destroy(&r);
}

// A backward of some parameters while the step before is still pending for others.
Test(np2_reducer, finish_takes_a_backward_that_began_behind_pending_updates) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    train(r, 1, -1);
    hyper h = {.lr = 0};
    iso_assert_ok(iso_reducer_step(r, &h));
    iso_assert_ok(iso_reducer_param_needed(r, 0)); // the others are still out
    write_gradient(r, 0, 0);
    iso_assert_ok(iso_reducer_grad_ready(r, 0));
    iso_assert_ok(iso_reducer_finish(r));
    const float *g = iso_reducer_grad(r, 0);
    iso_assert_all(g[0] == (gradient_of(0, 0, 0) + gradient_of(1, 0, 0)) / 2);
    iso_reducer_destroy(&r);
}

Test(np2_reducer, step_after_a_part_came_back_applies_all) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    for (int i = PARAMS - 1; i >= 0; i--) {
        write_gradient(r, 0, i);
        iso_assert_ok(iso_reducer_grad_ready(r, i));
    }
    iso_assert_ok(iso_reducer_param_needed(r, 0));
    hyper h = {.lr = test_size};
    iso_assert_ok(iso_reducer_step(r, &h));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(trained(1, -1));
    iso_reducer_destroy(&r);
}

Test(np1_reducer, ready_twice_is_refused) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    cr_assert_eq(iso_reducer_grad_ready(r, 4), ISO_OK);
    cr_assert_eq(iso_reducer_grad_ready(r, 4), ISO_ERR_STATE);
    cr_assert(strstr(iso_last_error()->message, "d.weight"));
    iso_reducer_destroy(&r);
}

Test(np2_reducer, destroy_applies_what_is_pending) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    for (int i = PARAMS - 1; i >= 0; i--) {
        write_gradient(r, 0, i);
        iso_assert_ok(iso_reducer_grad_ready(r, i));
    }
    hyper h = {.lr = test_size};
    iso_assert_ok(iso_reducer_step(r, &h));
    iso_reducer_destroy(&r);
    iso_assert_all(trained(1, -1));
}

Test(np2_reducer, buckets_follow_the_size) {
    iso_reducer_stats stats;
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    iso_reducer_get_stats(r, &stats);
    iso_assert_all(stats.bucket_count == 4); // strictly one per layer
    iso_reducer_destroy(&r);
    r = make_reducer(ISO_SYNC_LAZY, 1 << 30);
    iso_reducer_get_stats(r, &stats);
    iso_assert_all(stats.bucket_count == 1 &&
                   stats.bytes_per_step >= (3 + 700 + 16 + MOST + 10) * sizeof(float));
    iso_reducer_destroy(&r);
    r = make_reducer(ISO_SYNC_LAZY, 1000); // {d, c}, {b, a}: 40 bytes are too few, 160,040 enough
    iso_reducer_get_stats(r, &stats);
    iso_assert_all(stats.bucket_count == 3);
    iso_reducer_destroy(&r);
}

Test(np2_reducer, steps_allocate_nothing) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    train(r, 12, -1); // until the order of messages was planned
    long long before, after;
    iso_memory_balance(NULL, NULL, &before);
    train(r, 10, -1);
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    iso_reducer_destroy(&r);
}

// ---- Ranks that disagree ----------------------------------------------------------------------------

static void expect_mismatch(const iso_reducer_param *params, int count, const char *said_1,
                            const char *said_2) {
    iso_reducer_config config = {.sync = ISO_SYNC_LAZY};
    iso_reducer *r = NULL;
    iso_status status = iso_reducer_create(test_comm, params, count, &config, &r);
    const char *said = iso_last_error()->message;
    iso_assert_all(status == ISO_ERR_MISMATCH && r == NULL);
    cr_expect(strstr(said, said_1) && strstr(said, said_2), "%s", said);
}

Test(np3_reducer, mismatch_names_the_odd_rank_and_the_parameter) {
    iso_reducer_param params[PARAMS];
    describe(params);
    for (int i = 0; i < PARAMS; i++) params[i].shape_text = "[7]";
    if (test_rank == 2) {
        params[3].count = 10;
        params[3].shape_text = "[10]";
    }
    expect_mismatch(params, PARAMS, "rank 2 has parameter \"c.weight\" [10]",
                    "rank 0 has parameter \"c.weight\" [7]");
}

Test(np3_reducer, mismatch_without_shape_texts_tells_the_counts) {
    iso_reducer_param params[PARAMS];
    describe(params);
    if (test_rank == 2) params[3].count = 10;
    expect_mismatch(params, PARAMS, "rank 2 has parameter \"c.weight\" 10 elements",
                    "40000 elements");
}

Test(np2_reducer, mismatch_sees_the_end_of_a_long_name) {
    iso_reducer_param params[PARAMS];
    describe(params);
    char name[140];
    memset(name, 'x', sizeof(name));
    snprintf(name + 130, sizeof(name) - 130, "%d", test_rank);
    params[0].name = name;
    iso_reducer_config config = {.sync = ISO_SYNC_LAZY};
    iso_reducer *r = NULL;
    iso_assert_all(iso_reducer_create(test_comm, params, PARAMS, &config, &r) == ISO_ERR_MISMATCH);
}

Test(np3_reducer, mismatch_sees_that_rank_0_is_the_odd_one) {
    iso_reducer_param params[PARAMS];
    describe(params);
    if (test_rank == 0) params[1].name = "other";
    expect_mismatch(params, PARAMS, "rank 0 has parameter \"other\"",
                    "rank 1 has parameter \"b.weight\"");
}

Test(np4_reducer, mismatch_of_the_count) {
    iso_reducer_param params[PARAMS];
    describe(params);
    expect_mismatch(params, test_rank == 3 ? PARAMS - 1 : PARAMS, "rank 3 has no further parameter",
                    "\"d.weight\"");
}

Test(np2_reducer, a_rank_that_fails_alone_takes_all_along) {
    iso_reducer_param params[PARAMS];
    describe(params);
    if (test_rank == 1) params[0].dtype = ISO_I32;
    iso_reducer_config config = {.sync = ISO_SYNC_LAZY};
    iso_reducer *r = NULL;
    iso_assert_all(iso_reducer_create(test_comm, params, PARAMS, &config, &r) == ISO_ERR_TYPE);
}

// ---- Times of overlapping backwards -----------------------------------------------------------------

enum { LATE_US = 400000, OVERLAPS = 3 };

// Rank 1 has its last gradient when rank 0 has begun the next backward.
static void await_rank_0(iso_reducer *r) {
    int word, there = 0;
    MPI_Request request;
    MPI_Irecv(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &request);
    while (!there) {
        iso_reducer_poll(r);
        MPI_Test(&request, &there, MPI_STATUS_IGNORE);
    }
}

static iso_status report_gradient(iso_reducer *r, int step, int i) {
    write_gradient(r, step, i);
    return iso_reducer_grad_ready(r, i);
}

// On rank 0, d.weight has its gradient already, but for the first step.
static iso_status overlapping_step(iso_reducer *r, int step) {
    iso_status status = ISO_OK;
    hyper h = {.lr = test_size};
    int late = PARAMS - 1, word = 0;
    for (int i = 0; status == ISO_OK && i < late; i++) status = iso_reducer_param_needed(r, i);
    if (test_rank == 1 && status == ISO_OK) status = iso_reducer_param_needed(r, late);
    iso_reducer_zero_grad(r);
    for (int i = late; status == ISO_OK && i >= 0; i--) {
        if (test_rank == 1 && i == 0 && step < OVERLAPS) await_rank_0(r);
        if (test_rank == 1 || i != late || step == 0) status = report_gradient(r, step, i);
    }
    if (status == ISO_OK) status = iso_reducer_step(r, &h);
    if (test_rank == 1 || step == OVERLAPS) return status;
    if (status == ISO_OK) status = iso_reducer_param_needed(r, late);
    usleep(LATE_US);
    if (status == ISO_OK) status = report_gradient(r, step + 1, late);
    MPI_Send(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    return status;
}

// Its gradient is the first of each backward, whose time begins there.
Test(np2_reducer, a_backward_that_overlaps_the_last_exchange_has_times_of_its_own) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    iso_status status = ISO_OK;
    iso_bucket_stats first;
    for (int step = 0; status == ISO_OK && step <= OVERLAPS; step++)
        status = overlapping_step(r, step);
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_ok(status);
    iso_assert_all(trained(OVERLAPS + 1, -1));
    iso_assert_ok(iso_reducer_get_bucket_stats(r, 0, &first));
    iso_assert_all(first.exchanges == OVERLAPS + 1);
    iso_assert_all(first.ready_ms >= 0 && first.ready_ms < LATE_US * 1e-3 / 4);
    iso_reducer_destroy(&r);
}

Test(np2_reducer, measures_an_exchange) {
    iso_reducer *r = make_reducer(ISO_SYNC_LAZY, 0);
    double ms = -1;
    iso_assert_ok(iso_reducer_measure_exchange(r, 5, &ms));
    iso_assert_all(ms > 0 && ms < 10000);
    train(r, 2, -1); // and leaves the reducer fit for use
    iso_assert_all(trained(2, -1));
    iso_reducer_destroy(&r);
}
