// SPDX-License-Identifier: MIT
// The mean of all ranks that adds up inside nodes first, against the same arithmetic in one
// process.
#include "base/base.h"
#include "common/mpi_fixture.h"
#include "exchange/average.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUITE(ranks)                                                                               \
    TestSuite(np##ranks##_average_ranks, .init = test_mpi_setup, .fini = test_mpi_teardown,        \
              .timeout = 60)
SUITE(2);
SUITE(3);
SUITE(4);
SUITE(5);
SUITE(6);

enum { MOST = 5000 };

typedef struct rig {
    iso__routes *routes;
    iso__average *average;
    int per_node, nodes;
    iso__flat size;
    float *values; // a flat array
} rig;

static void create_rig(rig *r, int per_node, iso__flat size) {
    char text[16];
    iso__average_config config = {.wire = &iso__codec_f32, .f64 = size.f64, .each_rank = true};
    *r = (rig){.per_node = per_node, .nodes = (test_size + per_node - 1) / per_node, .size = size};
    snprintf(text, sizeof(text), "%d", per_node);
    setenv("ISO_RANKS_PER_NODE", text, 1);
    r->values = calloc(1, iso__flat_bytes(size));
    iso_assert_ok(iso__routes_create(test_comm, NULL, 1, &r->routes));
    iso_assert_ok(iso__average_create(r->routes, size.f32, &config, &r->average));
}

static void destroy_rig(rig *r) {
    iso__average_destroy(&r->average);
    iso__routes_destroy(&r->routes);
    free(r->values);
}

// ---- The model ------------------------------------------------------------------------------------

static double value_of(int rank, int t, size_t i) {
    uint32_t counter[4] = {(uint32_t)i, (uint32_t)rank, (uint32_t)t}, bits[4];
    iso__philox(iso__philox_key_make(9, ISO_RNG_TEST, 0), counter, bits);
    return ldexp(iso__uniform(bits[0]) - 0.5, (int)(bits[1] % 10));
}

static float f32_mean(const rig *r, int t, size_t i) {
    volatile float sum = 0, node = 0;
    for (int rank = 0; rank < test_size; rank++) {
        float x = (float)value_of(rank, t, i);
        node = rank % r->per_node == 0 ? x : node + x;
        if ((rank + 1) % r->per_node != 0 && rank + 1 < test_size) continue;
        volatile float share = node * (float)((double)r->nodes / test_size);
        sum = rank < r->per_node ? share : sum + share;
    }
    return sum / (float)r->nodes;
}

static double f64_mean(const rig *r, int t, size_t i) {
    volatile double sum = 0, node = 0;
    for (int rank = 0; rank < test_size; rank++) {
        double x = value_of(rank, t, MOST + i);
        node = rank % r->per_node == 0 ? x : node + x;
        if ((rank + 1) % r->per_node != 0 && rank + 1 < test_size) continue;
        volatile double share = node * ((double)r->nodes / test_size);
        sum = rank < r->per_node ? share : sum + share;
    }
    return sum / r->nodes;
}

static double *f64_of(const rig *r, const float *flat) {
    return (double *)(void *)((char *)(uintptr_t)flat + iso__flat_f64(r->size));
}

// ---- Exchanges ------------------------------------------------------------------------------------

static iso_status exchange(rig *r, int t, const float **mean) {
    double metrics[ISO__METRICS] = {0};
    for (size_t i = 0; i < r->size.f32; i++) r->values[i] = (float)value_of(test_rank, t, i);
    for (size_t i = 0; i < r->size.f64; i++)
        f64_of(r, r->values)[i] = value_of(test_rank, t, MOST + i);
    if ((test_rank + t) % 3 == 0) usleep(2000);
    ISO_TRY(iso__average_start(r->average, r->values, ISO__SHARDS, metrics));
    memset(r->values, 0x55, iso__flat_bytes(r->size)); // it was copied
    for (int poll = 0; poll < (test_rank + t) % 4; poll++) ISO_TRY(iso__average_poll(r->average));
    return iso__average_finish(r->average, mean, metrics);
}

static bool is_mean(const rig *r, int t, const float *mean) {
    for (size_t i = 0; i < r->size.f32; i++)
        if (mean[i] != f32_mean(r, t, i)) return false;
    for (size_t i = 0; i < r->size.f64; i++)
        if (f64_of(r, mean)[i] != f64_mean(r, t, i)) return false;
    return true;
}

static void equals_the_model(void) {
    static const iso__flat sizes[] = {{1, 0}, {5, 3}, {33, 0}, {0, 70}, {1000, 65}, {4099, 1}};
    for (int per_node = 1; per_node < test_size; per_node++)
        for (int k = 0; k < 6; k++) {
            rig r;
            bool right = true;
            iso_status status = ISO_OK;
            create_rig(&r, per_node, sizes[k]);
            for (int t = 0; t < 4 && status == ISO_OK; t++) {
                const float *mean = NULL;
                status = exchange(&r, t, &mean);
                right = right && status == ISO_OK && is_mean(&r, t, mean);
            }
            iso_assert_ok(status);
            iso_assert_all(right);
            destroy_rig(&r);
        }
}

Test(np2_average_ranks, equals_the_model) { equals_the_model(); }
Test(np3_average_ranks, equals_the_model) { equals_the_model(); }
Test(np4_average_ranks, equals_the_model) { equals_the_model(); }
Test(np5_average_ranks, equals_the_model) { equals_the_model(); }
Test(np6_average_ranks, equals_the_model) { equals_the_model(); }

// ---- Bytes ----------------------------------------------------------------------------------------

// Over N nodes, an array of n bytes crosses 2 (N - 1) times, however many ranks a node has.
static void no_more_crosses(int per_node) {
    enum { COUNT = 3840 }; // of whole shards
    rig r;
    const float *mean;
    iso__average_stats stats;
    create_rig(&r, per_node, (iso__flat){COUNT, 0});
    iso_assert_ok(exchange(&r, 0, &mean));
    iso__average_get_stats(r.average, &stats);
    int64_t crossed = stats.bytes_between_nodes;
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, &crossed, 1, ISO_SUM));
    iso_assert_all(crossed == (int64_t)sizeof(float) * COUNT * 2 * (r.nodes - 1));
    destroy_rig(&r);
}

Test(np4_average_ranks, no_more_crosses) { no_more_crosses(2); }
Test(np5_average_ranks, no_more_crosses) { no_more_crosses(3); }
Test(np6_average_ranks, no_more_crosses_of_two_nodes) { no_more_crosses(3); }
Test(np6_average_ranks, no_more_crosses_of_three_nodes) { no_more_crosses(2); }

// ---- Faults ---------------------------------------------------------------------------------------

// The rank whose values are not finite reports it, not the one that would add them.
Test(np4_average_ranks, a_rank_with_nan_is_named) {
    rig r;
    double metrics[ISO__METRICS] = {0};
    const float *mean = NULL;
    create_rig(&r, 2, (iso__flat){100, 0});
    for (int i = 0; i < 100; i++) r.values[i] = i == 3 && test_rank == 2 ? NAN : 1;
    iso_assert_ok(iso__average_start(r.average, r.values, ISO__SHARDS, metrics));
    iso_status status = iso__average_finish(r.average, &mean, metrics);
    const char *said = iso_last_error()->message;
    iso_assert_all(status == ISO_ERR_STATE && strstr(said, "rank 2: parameters are not finite"));
    iso_assert_ok(exchange(&r, 1, &mean));
    iso_assert_all(is_mean(&r, 1, mean));
    destroy_rig(&r);
}

Test(np4_average_ranks, what_cannot_be_added_so_is_refused) {
    iso__routes *routes;
    iso__average *average = NULL;
    iso__average_config config = {.wire = &iso__codec_bf16, .each_rank = true};
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_assert_ok(iso__routes_create(test_comm, NULL, 1, &routes));
    iso_assert_all(iso__average_create(routes, 10, &config, &average) == ISO_ERR_ARG);
    config = (iso__average_config){.wire = &iso__codec_f32, .each_rank = true, .chunk = 4};
    iso_assert_all(iso__average_create(routes, 10, &config, &average) == ISO_ERR_ARG);
    iso__routes_destroy(&routes);
}
