// SPDX-License-Identifier: MIT
// Several means over nodes under way at once: the same bits as one after the other, and what
// happens when there is no route left.
#include "common/average_fixture.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_routes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_routes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_routes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_routes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static mean_case many[MOST_MEANS + 1];
static const double none[ISO__METRICS];

// The first case makes the routes, and all use them.
static void open_cases(int count, int per_node) {
    static const iso__average_config configs[] = {{.wire = &iso__codec_f32},
                                                  {.wire = &iso__codec_bf16, .differences = true},
                                                  {.wire = &iso__codec_f16, .chunk = 64},
                                                  {.wire = &iso__codec_f32, .chunk = 100}};
    for (int i = 0; i < count; i++) {
        if (i > 0 && !many[i].routes) {
            many[i].routes = iso__routes_retain(many[0].routes);
            many[i].layout = many[0].layout;
            many[i].per_node = per_node;
            many[i].nodes = many[0].nodes;
        }
        mean_case_create(&many[i], per_node, (size_t)(33 + 900 * i), &configs[i]);
    }
}

static void close_cases(int count) {
    for (int i = count - 1; i >= 0; i--) mean_case_close(&many[i]);
}

// A number below n, the same on every rank.
static unsigned draw_same(unsigned n) {
    static uint32_t calls;
    uint32_t counter[4] = {calls++}, bits[4];
    iso__philox(iso__philox_key_make(5, ISO_RNG_TEST, 0), counter, bits);
    return bits[0] % n;
}

static iso_status start_mean(mean_case *c, int t) {
    static float own[MOST_VALUES];
    mean_case_values(c, ISO__SHARDS, test_rank, t, own);
    ISO_TRY(iso__average_start(c->average, own, ISO__SHARDS, none));
    return ISO_OK;
}

static bool finish_mean(mean_case *c, int t) {
    static float expected[MOST_VALUES];
    const float *mean = NULL;
    double metrics[ISO__METRICS];
    mean_case_model(c, ISO__SHARDS, t, expected);
    if (iso__average_finish(c->average, &mean, metrics) < 0) return false;
    return memcmp(mean, expected, c->count * sizeof(float)) == 0;
}

// ---- The same bits --------------------------------------------------------------------------------

// Starts and finishes in one random order that all ranks share; polls and delays of each rank's
// own.
static bool run_at_random(int actions) {
    bool same = true;
    int most = 0, under_way = 0, started[MOST_MEANS] = {0};
    for (int a = 0; a < actions; a++) {
        int i = (int)draw_same(MOST_MEANS), t = 10 * i + started[i];
        if (mean_case_random(4) == 0) usleep(mean_case_random(800));
        for (unsigned k = mean_case_random(6); k > 0; k--) {
            mean_case *other = &many[mean_case_random(MOST_MEANS)];
            if (iso__average_poll(other->average) < 0) return false;
        }
        if (iso__average_busy(many[i].average)) {
            same = finish_mean(&many[i], t) && same;
            started[i]++;
            under_way--;
        } else {
            same = start_mean(&many[i], t) == ISO_OK && same;
            most = ++under_way > most ? under_way : most;
        }
    }
    for (int i = 0; i < MOST_MEANS; i++)
        if (iso__average_busy(many[i].average))
            same = finish_mean(&many[i], 10 * i + started[i]) && same;
    return same && most == MOST_MEANS;
}

static void several_at_once_are_as_one_by_one(void) {
    for (int per_node = 1; per_node <= test_size; per_node++) {
        open_cases(MOST_MEANS, per_node);
        iso_assert_all(run_at_random(60));
        close_cases(MOST_MEANS);
    }
}

Test(np1_routes, several_at_once_are_as_one_by_one) { several_at_once_are_as_one_by_one(); }
Test(np2_routes, several_at_once_are_as_one_by_one) { several_at_once_are_as_one_by_one(); }
Test(np3_routes, several_at_once_are_as_one_by_one) { several_at_once_are_as_one_by_one(); }
Test(np4_routes, several_at_once_are_as_one_by_one) { several_at_once_are_as_one_by_one(); }

// ---- No route -------------------------------------------------------------------------------------

Test(np2_routes, one_mean_more_than_routes_is_refused_until_one_is_finished) {
    open_cases(MOST_MEANS + 1, 1);
    for (int i = 0; i < MOST_MEANS; i++) iso_assert_ok(start_mean(&many[i], 0));
    iso_assert_all(start_mean(&many[MOST_MEANS], 0) == ISO_ERR_STATE);
    cr_expect(strstr(iso_last_error()->message, "3 means over nodes are under way"));
    iso_assert_all(!iso__average_busy(many[MOST_MEANS].average));
    iso_assert_all(finish_mean(&many[1], 0));
    iso_assert_ok(start_mean(&many[MOST_MEANS], 0));
    for (int i = 0; i <= MOST_MEANS; i++)
        if (i != 1) iso_assert_all(finish_mean(&many[i], 0));
    close_cases(MOST_MEANS + 1);
}

Test(np2_routes, there_is_at_least_one) {
    iso__routes *routes = NULL;
    iso_assert_all(iso__routes_create(test_comm, NULL, 0, &routes) == ISO_ERR_ARG && !routes);
}

// A rank whose finish() timed out holds a route that the others have returned: it must not take
// another one in its place.
Test(np2_routes, a_mean_that_timed_out_is_finished_before_another_starts) {
    iso_comm *all = test_comm;
    test_comm = test_comm_with_limit(IMPATIENT);
    open_cases(2, 1);
    iso_comm_destroy(&test_comm);
    test_comm = all;
    const float *mean;
    double metrics[ISO__METRICS];
    if (test_rank == 1) MPI_Recv(NULL, 0, MPI_INT, 0, 78, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    iso_status status = start_mean(&many[0], 0);
    bool timed_out = false, refused = true;
    while (status == ISO_OK || status == ISO_ERR_TIMEOUT) {
        status = iso__average_finish(many[0].average, &mean, metrics);
        if (status != ISO_ERR_TIMEOUT) break;
        refused = refused && start_mean(&many[1], 0) == ISO_ERR_STATE;
        if (!timed_out && test_rank == 0) MPI_Send(NULL, 0, MPI_INT, 1, 78, MPI_COMM_WORLD);
        timed_out = true;
    }
    iso_assert_ok(status);
    iso_assert_all((timed_out || test_rank == 1) && refused);
    iso_assert_ok(start_mean(&many[1], 0));
    iso_assert_all(finish_mean(&many[1], 0));
    close_cases(2);
}
