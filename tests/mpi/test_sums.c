// SPDX-License-Identifier: MIT
// Numbers of the program that are summed along with gradients: as MPI_Allreduce would, without a
// message.
#include "base/base.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/reducer.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static void setup_messages(void) {
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    test_mpi_setup();
}

TestSuite(np1_sums, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_sums, .init = setup_messages, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_sums, .init = setup_messages, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_sums, .init = setup_messages, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_sums_shm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static long long calls; // of MPI that sum

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    calls++;
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

enum { PARAMS = 4, COUNT = 50000, SUMS = 5, STEPS = 25 };
static float value[PARAMS][COUNT];
static double wide[COUNT];

static iso_status ignore(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)i, (void)gradient, (void)scale, (void)hyper, (void)user;
    return ISO_OK;
}

// all_wide: f64; otherwise the first parameter, whose bucket is the last, is not exchanged.
static void create(iso_reducer_config config, bool all_wide, iso_reducer **out) {
    static const char *const name[PARAMS] = {"a", "b", "c", "d"};
    iso_reducer_param param[PARAMS];
    for (int i = 0; i < PARAMS; i++)
        param[i] =
            (iso_reducer_param){.name = name[i],
                                .value = all_wide ? (void *)(wide + i * 100) : (void *)value[i],
                                .count = all_wide ? 100 : COUNT,
                                .dtype = all_wide ? ISO_F64 : ISO_F32,
                                .layer = i,
                                .row = i == 1 ? 10 : 0,
                                .local = i == 0 && !all_wide};
    iso_assert_ok(iso_reducer_create(test_comm, param, PARAMS, &config, out));
    iso_assert_ok(iso_reducer_set_apply(*out, ignore, 0, NULL));
}

// Of all sizes and signs, drawn by rank.
static double draw(int step, int k) {
    iso__philox_key key = iso__philox_key_make(5, ISO_RNG_TEST, 0);
    uint32_t counter[4] = {(uint32_t)step, (uint32_t)k, (uint32_t)test_rank, 0}, bits[4];
    iso__philox(key, counter, bits);
    double mantissa = ((double)bits[0] * 0x1p-32 + bits[1]) * 0x1p-32 - 0.5;
    int most = k == 0 ? 0 : k == 1 ? 40 : k == 2 ? 900 : 1; // powers of 2 between ranks
    if (k == 3) return (double)(bits[2] % 1000);            // a count
    return ldexp(mantissa, most ? (int)(bits[2] % (uint32_t)(2 * most)) - most : 0);
}

static iso_status step(iso_reducer *r, int s, double *mine) {
    iso_status status = ISO_OK;
    for (int i = 0; i < PARAMS && status == ISO_OK; i++) status = iso_reducer_param_needed(r, i);
    for (int k = 0; k < SUMS && status == ISO_OK; k++) {
        mine[k] = draw(s, k);
        status = iso_reducer_add_sum(r, k, mine[k]);
    }
    iso_reducer_zero_grad(r);
    for (int i = PARAMS - 1; i >= 0 && status == ISO_OK; i--) status = iso_reducer_grad_ready(r, i);
    return status == ISO_OK ? iso_reducer_step(r, "") : status;
}

// Two doubles are rounded once in any order. Of more, MPI rounds on the way: it is off by less than
// a bit of the largest for each rank.
static bool is_sum(double sum, double mpis, double most) {
    return test_size <= 2 ? sum == mpis : fabs(sum - mpis) <= test_size * most * 0x1p-52;
}

static bool all_are_sums(iso_reducer *r, const double *mine) {
    double all[SUMS], most[SUMS], sum[SUMS], first[SUMS];
    bool right = true;
    MPI_Allreduce(mine, all, SUMS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int k = 0; k < SUMS; k++) most[k] = fabs(mine[k]);
    MPI_Allreduce(MPI_IN_PLACE, most, SUMS, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    for (int k = 0; k < SUMS; k++) {
        right = iso_reducer_get_sum(r, k, &sum[k]) == ISO_OK && right;
        right = right && is_sum(sum[k], all[k], most[k]);
    }
    memcpy(first, sum, sizeof(sum));
    MPI_Bcast(first, SUMS, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return right && memcmp(first, sum, sizeof(sum)) == 0;
}

static void sums_are_mpis(iso_reducer_config config, bool all_wide) {
    iso_reducer *r;
    double mine[SUMS], sum = 1;
    bool right = true;
    config.sums = SUMS;
    create(config, all_wide, &r);
    iso_assert_ok(iso_reducer_get_sum(r, 0, &sum));
    iso_assert_all(sum == 0);
    for (int s = 0; s < STEPS && right; s++) {
        right = step(r, s, mine) == ISO_OK && all_are_sums(r, mine);
        iso_assert_all(right);
    }
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_destroy(&r);
}

static const iso_reducer_config plain = {0};
static const iso_reducer_config weighted = {.average = ISO_AVERAGE_PRE};
static const iso_reducer_config in_pieces = {.piece_bytes = 70000, .bucket_bytes = 100000};
static const iso_reducer_config blocking = {.sync = ISO_SYNC_BLOCKING};
static const iso_reducer_config converted = {.hook = &iso_hook_bf16};

Test(np1_sums, are_mpis) { sums_are_mpis(plain, false); }
Test(np2_sums, are_mpis) { sums_are_mpis(plain, false); }
Test(np3_sums, are_mpis) { sums_are_mpis(plain, false); }
Test(np4_sums, are_mpis) { sums_are_mpis(plain, false); }
Test(np3_sums_shm, are_mpis) { sums_are_mpis(plain, false); }
Test(np2_sums, are_mpis_in_f64) { sums_are_mpis(plain, true); }
Test(np3_sums, are_no_averages) { sums_are_mpis(weighted, false); }
Test(np3_sums, are_mpis_with_pieces) { sums_are_mpis(in_pieces, false); }
Test(np2_sums, are_mpis_when_blocking) { sums_are_mpis(blocking, false); }
Test(np3_sums, are_mpis_beside_a_hook) { sums_are_mpis(converted, false); }

// ---- Messages ---------------------------------------------------------------------------------------

static long long calls_of(iso_reducer_config config) {
    iso_reducer *r;
    double sum;
    bool sums = config.sums > 0;
    create(config, false, &r);
    long long before = calls;
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < PARAMS; i++) iso_assert_ok(iso_reducer_param_needed(r, i));
        if (sums && s > 0) iso_assert_ok(iso_reducer_get_sum(r, 0, &sum));
        if (sums) iso_assert_ok(iso_reducer_add_sum(r, 0, 1));
        for (int i = PARAMS - 1; i >= 0; i--) iso_assert_ok(iso_reducer_grad_ready(r, i));
        iso_assert_ok(iso_reducer_step(r, ""));
    }
    iso_assert_ok(iso_reducer_finish(r));
    long long made = calls - before;
    iso_reducer_destroy(&r);
    return made;
}

static void no_message_more(void) {
    iso_reducer_config config = {.order = ISO_ORDER_REVERSE}; // a plan may cut anew
    long long without = calls_of(config);
    config.sums = SUMS;
    iso_assert_all(without > STEPS && calls_of(config) == without);
    config.hook = &iso_hook_bf16;
    long long with = calls_of(config);
    config.sums = 0;
    iso_assert_all(with == calls_of(config) + STEPS);
}

Test(np2_sums, need_no_message) { no_message_more(); }
Test(np4_sums, need_no_message) { no_message_more(); }

// ---- What is special ----------------------------------------------------------------------------------

// Adds what rank 0, rank 1 and the others give; gives the sum.
static double sum_of(double zero, double one, double other) {
    iso_reducer *r;
    double sum = 0;
    create((iso_reducer_config){.sums = 1}, false, &r);
    iso_assert_ok(iso_reducer_add_sum(r, 0, test_rank == 0 ? zero : test_rank == 1 ? one : other));
    for (int i = PARAMS - 1; i >= 0; i--) iso_assert_ok(iso_reducer_grad_ready(r, i));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_ok(iso_reducer_get_sum(r, 0, &sum));
    iso_reducer_destroy(&r);
    return sum;
}

Test(np3_sums, hold_what_a_double_holds) {
    iso_assert_all(isnan(sum_of(NAN, 1, 2)) && isnan(sum_of(1, INFINITY, -INFINITY)));
    iso_assert_all(sum_of(1, INFINITY, INFINITY) == INFINITY);
    iso_assert_all(sum_of(-INFINITY, 1, 1) == -INFINITY);
    iso_assert_all(sum_of(0x1p-1074, 0x1p-1074, 0) == 0x1p-1073);
    iso_assert_all(sum_of(1e308, 1e308, -1e308) == 1e308); // MPI's may be infinite
    iso_assert_all(sum_of(1e308, 1e308, 1e308) == INFINITY);
    iso_assert_all(sum_of(1e300, 1, -1e300) == 1);
    iso_assert_all(sum_of(1, 0x1p-53, 0) == 1);        // a tie goes to the even one
    iso_assert_all(sum_of(1, 0x1p-53, 0x1p-1000) > 1); // this is none
    iso_assert_all(sum_of(-1, -0x1p-53, -0x1p-1000) < -1);
    iso_assert_all(sum_of(0, -0.0, 0) == 0 && sum_of(-3, 2, 1) == 0);
}

// Added several times, read between: those of the step before, until the next are back.
Test(np2_sums, belong_to_one_exchange) {
    iso_reducer *r;
    double sum;
    create((iso_reducer_config){.sums = 2}, false, &r);
    for (int s = 0; s < STEPS; s++) {
        for (int times = 0; times < 3; times++) iso_assert_ok(iso_reducer_add_sum(r, 1, s));
        for (int i = PARAMS - 1; i > 0; i--) iso_assert_ok(iso_reducer_grad_ready(r, i));
        iso_assert_ok(iso_reducer_get_sum(r, 1, &sum)); // the backward goes on
        iso_assert_all(sum == 3 * test_size * (s > 0 ? s - 1 : 0));
        iso_assert_ok(iso_reducer_grad_ready(r, 0));
        iso_assert_ok(iso_reducer_step(r, ""));
        iso_assert_ok(iso_reducer_get_sum(r, 1, &sum));
        iso_assert_all(sum == 3 * test_size * s);
        iso_assert_ok(iso_reducer_get_sum(r, 0, &sum));
        iso_assert_all(sum == 0);
        iso_assert_ok(iso_reducer_finish(r));
    }
    iso_reducer_destroy(&r);
}

Test(np1_sums, wrong_numbers_are_refused) {
    iso_reducer *r = NULL;
    double sum;
    iso_reducer_param param = {.name = "a", .value = value[0], .count = 1, .dtype = ISO_F32};
    create((iso_reducer_config){.sums = 2}, false, &r);
    cr_expect_eq(iso_reducer_add_sum(r, 2, 1), ISO_ERR_ARG);
    cr_expect_eq(iso_reducer_get_sum(r, -1, &sum), ISO_ERR_ARG);
    iso_reducer_destroy(&r);
    iso_reducer_config many = {.sums = ISO_REDUCER_MAX_SUMS + 1};
    cr_expect_eq(iso_reducer_create(test_comm, &param, 1, &many, &r), ISO_ERR_ARG);
}

// Then no exchange would carry them.
Test(np3_sums, without_exchanged_parameters_are_refused) {
    iso_reducer *r = NULL;
    iso_reducer_param param = {
        .name = "a", .value = value[0], .count = 1, .dtype = ISO_F32, .local = true};
    iso_reducer_config config = {.sums = 1};
    iso_status status = iso_reducer_create(test_comm, &param, 1, &config, &r);
    iso_assert_all(status == ISO_ERR_ARG && strstr(iso_last_error()->message, "all local"));
}
