// SPDX-License-Identifier: MIT
// Hooks that own their exchange on plain arrays: scopes that change, ranks that wait for each
// other, padding, types on the wire, statistics.
#include "common/hook_fixture.h"
#include "common/mpi_fixture.h"
#include "parallel/reducer/reducer_calls.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np2_own_rules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_own_rules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_own_rules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Two layers in one bucket, with padding between them: 10 elements and a matrix.
enum { ROW = 40, ROWS = 30, SHORT = 10, PARAMS = 2 };
static float value[PARAMS][ROW * ROWS];

static iso_reducer *create(const iso_comm_hook *hook, iso_reducer_config config) {
    const iso_reducer_param params[PARAMS] = {
        {.name = "a", .value = value[0], .count = SHORT, .dtype = ISO_F32, .layer = 0},
        {.name = "b",
         .value = value[1],
         .count = ROW * ROWS,
         .dtype = ISO_F32,
         .layer = 1,
         .row = ROW}};
    iso_reducer *r;
    config.hook = hook;
    config.bucket_bytes = 1 << 20;
    iso_assert_ok(iso_reducer_create(test_comm, params, PARAMS, &config, &r));
    return r;
}

static float *grad(iso_reducer *r, int i) { return iso_reducer_grad(r, i); }
static size_t count_of(int i) { return i ? ROW * ROWS : SHORT; }

// Every rank's gradients are x, times 1 + its rank.
static iso_status backward(iso_reducer *r, float x) {
    for (int i = PARAMS - 1; i >= 0; i--) {
        for (size_t k = 0; k < count_of(i); k++) grad(r, i)[k] = x * (float)(1 + test_rank);
        ISO_TRY(iso_reducer_grad_ready(r, i));
    }
    return ISO_OK;
}

static bool all_are(iso_reducer *r, double want, double bound) {
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < count_of(i); k++)
            if (!(fabs((double)grad(r, i)[k] - want) <= bound)) return false;
    return true;
}

static double mean_rank(void) { return (test_size + 1) / 2.0; }

// ---- Scopes -------------------------------------------------------------------------------------------

// Of nodes of two ranks and one, of which the one has nothing to exchange for a while. All ranks
// begin with the hook at the same step nevertheless.
Test(np3_own_rules, all_ranks_start_with_one_step) {
    iso_powersgd_config config = {.rank = 1, .start = 4, .least_saving = 1};
    iso_comm_hook hook = iso_hook_powersgd(&config);
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    setenv("ISO_TIMEOUT", "20", 1);
    iso_reducer *r = create(&hook, (iso_reducer_config){.unused = ISO_UNUSED_ERROR});
    for (int step = 0; step < 9; step++) {
        if (step == 2) iso_assert_ok(iso__reducer_set_scope(r, ISO_SCOPE_NODE));
        if (step == 5) iso_assert_ok(iso__reducer_set_scope(r, ISO_SCOPE_WORLD));
        iso_status status = backward(r, 1);
        if (status == ISO_OK) status = iso_reducer_finish(r);
        iso_assert_ok(status);
        double node = test_rank < 2 ? 1.5 : 3;
        iso_assert_all(all_are(r, step >= 2 && step < 5 ? node : mean_rank(), 1e-5));
    }
    iso_reducer_destroy(&r);
}

static bool equal_on_ranks(iso_reducer *r) {
    static float first[ROW * ROWS];
    memcpy(first, grad(r, 1), sizeof(first));
    MPI_Bcast(first, ROW * ROWS, MPI_FLOAT, 0, MPI_COMM_WORLD);
    return memcmp(first, grad(r, 1), sizeof(first)) == 0;
}

// On the same nodes: randomk draws the same elements on all ranks once they exchange again.
Test(np3_own_rules, all_ranks_draw_the_same_after_a_scope) {
    iso_randomk_config config = {.ratio = .01};
    iso_comm_hook hook = iso_hook_randomk(&config);
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    setenv("ISO_TIMEOUT", "20", 1);
    iso_reducer *r = create(&hook, (iso_reducer_config){.unused = ISO_UNUSED_ERROR});
    for (int step = 0; step < 12; step++) {
        if (step == 2) iso_assert_ok(iso__reducer_set_scope(r, ISO_SCOPE_NODE));
        if (step == 5) iso_assert_ok(iso__reducer_set_scope(r, ISO_SCOPE_WORLD));
        iso_status status = backward(r, 1);
        if (status == ISO_OK) status = iso_reducer_finish(r);
        iso_assert_ok(status);
        bool equal = equal_on_ranks(r); // collective
        iso_assert_all(equal || (step >= 2 && step < 5));
    }
    iso_reducer_destroy(&r);
}

// ---- One rank goes ahead --------------------------------------------------------------------------------

// The last rank has posted, and then only says that it needs nothing. The others complete.
static void a_rank_that_settles_is_not_missed(const iso_comm_hook *hook) {
    setenv("ISO_TIMEOUT", "20", 1);
    iso_reducer *r = create(hook, (iso_reducer_config){0});
    bool last = test_rank == test_size - 1;
    for (int step = 0; step < 3; step++) {
        iso_status status = backward(r, 1);
        if (status == ISO_OK && last) status = iso__reducer_publish(r, true);
        if (status == ISO_OK && !last) status = iso_reducer_finish(r);
        iso_assert_ok(status); // a reduction over all ranks
        if (last) cr_assert_eq(iso_reducer_finish(r), ISO_OK);
        iso_assert_all(all_are(r, mean_rank(), 2e-2));
    }
    iso_reducer_destroy(&r);
}

static void settling_ranks(void) {
    hook_user user;
    iso_comm_hook exchange = hook_of_way(&user, HOOK_EXCHANGE);
    a_rank_that_settles_is_not_missed(&iso_hook_int8);
    a_rank_that_settles_is_not_missed(&exchange);
}

Test(np2_own_rules, settling_ranks) { settling_ranks(); }
Test(np3_own_rules, settling_ranks) { settling_ranks(); }

// ---- Padding ------------------------------------------------------------------------------------------

// NaN of one step are gone with the next one, also between parameters.
static void nan_is_gone(const iso_comm_hook *hook) {
    iso_reducer *r = create(hook, (iso_reducer_config){0});
    for (int step = 0; step < 4; step++) {
        iso_assert_ok(backward(r, step == 1 && test_rank == 0 ? NAN : 1));
        iso_assert_ok(iso_reducer_finish(r));
        bool finite = true;
        for (int i = 0; i < PARAMS; i++)
            for (size_t k = 0; k < count_of(i); k++) finite = finite && isfinite(grad(r, i)[k]);
        iso_assert_all(finite == (step != 1));
    }
    iso_reducer_destroy(&r);
}

Test(np2_own_rules, nan_is_gone_with_the_next_step) {
    iso_topk_config topk = {.ratio = .01};
    iso_powersgd_config powersgd = {.rank = 1, .least_saving = 1};
    const iso_comm_hook hook[] = {iso_hook_int8, iso_hook_topk(&topk),
                                  iso_hook_powersgd(&powersgd)};
    for (int h = 0; h < 3; h++) nan_is_gone(&hook[h]);
}

// Of ranks that draw with different seeds, each would take the sums for other elements.
Test(np3_own_rules, seeds_must_be_the_same) {
    iso_randomk_config randomk = {.ratio = .01, .seed = 42 + (uint64_t)test_rank};
    iso_powersgd_config powersgd = {
        .rank = 1, .least_saving = 1, .seed = (uint64_t)(test_rank == 2)};
    const iso_comm_hook hook[] = {iso_hook_randomk(&randomk), iso_hook_powersgd(&powersgd)};
    const iso_reducer_param param = {
        .name = "b", .value = value[1], .count = ROW * ROWS, .dtype = ISO_F32, .row = ROW};
    for (int h = 0; h < 2; h++) {
        iso_reducer *r = NULL;
        iso_reducer_config config = {.hook = &hook[h]};
        iso_status status = iso_reducer_create(test_comm, &param, 1, &config, &r);
        iso_assert_all(status == ISO_ERR_MISMATCH && !r);
        iso_assert_all(strstr(iso_last_error()->message, "seed of the hook") != NULL);
    }
}

// ---- Averages and types on the wire ---------------------------------------------------------------------

static void averages(iso_sync sync) {
    hook_user user;
    for (int way = 0; way < HOOK_WAYS; way++)
        for (int mode = 0; mode <= ISO_AVERAGE_SUM; mode++)
            for (int kind = 0; kind < 4; kind++) {
                iso_comm_hook hook = hook_of_way(&user, (hook_way)way);
                hook.divides = kind & 1;
                hook.wire = kind & 2 ? ISO_BF16 : ISO_F32;
                iso_reducer *r = create(
                    &hook, (iso_reducer_config){
                               .sync = sync, .average = (iso_average_mode)mode, .split_factor = 2});
                iso_assert_ok(backward(r, 8));
                iso_assert_ok(iso_reducer_finish(r));
                double factor = mode == ISO_AVERAGE_SUM ? test_size : 1;
                iso_assert_all(all_are(r, 8 * factor * mean_rank(), kind & 2 ? .3 : 1e-5));
                iso_reducer_destroy(&r);
            }
}

Test(np2_own_rules, averages_of_every_mode) { averages(ISO_SYNC_LAZY); }
Test(np3_own_rules, averages_of_every_mode) { averages(ISO_SYNC_LAZY); }
Test(np4_own_rules, averages_of_every_mode) { averages(ISO_SYNC_BLOCKING); }

// ---- Statistics ---------------------------------------------------------------------------------------

// What a rank contributes; and what is measured exchanges the same without a call of the hook.
Test(np4_own_rules, bytes_are_what_a_rank_contributes) {
    iso_reducer_stats stats;
    double ms = 0;
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    iso_reducer *r = create(&iso_hook_int8, (iso_reducer_config){0});
    iso_assert_ok(iso_reducer_measure_exchange(r, 2, &ms));
    iso_assert_ok(backward(r, 1));
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_get_stats(r, &stats);
    // 1216 elements with padding: shards of 512, in two groups of 260 bytes.
    iso_assert_all(stats.bytes_per_step == 5 * 520);
    iso_assert_all(stats.bytes_sent == 2 * 3 * 520);
    iso_assert_all(ms > 0 && all_are(r, mean_rank(), 2e-2));
    iso_reducer_destroy(&r);
}
