// SPDX-License-Identifier: MIT
// The weighted mean over nodes against the same arithmetic in one process, bit for bit: all layouts
// of ranks on nodes, all wires, polled at random.
#include "common/average_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_average, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_average, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_average, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_average, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_average, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np6_average, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static mean_case c;

// ---- Equal to the model ---------------------------------------------------------------------------

static const size_t counts[] = {1, 5, 33, 1000, 4099};
static const size_t chunks[] = {0, 7, 64, 1000, 1001}; // some smaller than the number of nodes

static bool all_groups_agree(void) {
    bool agrees = true;
    for (int group = ISO__SHARDS; group < c.layout->groups; group++)
        agrees = mean_case_agrees(&c, group, group + 2) && agrees;
    return agrees && mean_case_agrees(&c, ISO__SHARDS, 77);
}

static void equals_the_serial_mean(const iso__codec *wire, bool round_sums) {
    for (int per_node = 1; per_node <= test_size; per_node++)
        for (int i = per_node % 2; i<5; i += test_size> 3 ? 2 : 1) {
            iso__average_config config = {
                .wire = wire, .round_sums = round_sums, .chunk = chunks[(i + per_node) % 5]};
            mean_case_create(&c, per_node, counts[i], &config);
            iso_assert_all(all_groups_agree());
            mean_case_destroy(&c);
        }
    mean_case_close(&c);
}

Test(np1_average, f32_is_the_serial_mean) { equals_the_serial_mean(&iso__codec_f32, false); }
Test(np2_average, f32_is_the_serial_mean) { equals_the_serial_mean(&iso__codec_f32, false); }
Test(np3_average, f32_is_the_serial_mean) { equals_the_serial_mean(&iso__codec_f32, false); }
Test(np4_average, f32_is_the_serial_mean) { equals_the_serial_mean(&iso__codec_f32, false); }
Test(np5_average, f32_is_the_serial_mean) { equals_the_serial_mean(&iso__codec_f32, false); }
Test(np6_average, f32_is_the_serial_mean) { equals_the_serial_mean(&iso__codec_f32, false); }
Test(np3_average, f16_sums_in_f32) { equals_the_serial_mean(&iso__codec_f16, false); }
Test(np2_average, bf16_rounds_every_sum) { equals_the_serial_mean(&iso__codec_bf16, true); }
Test(np3_average, f16_rounds_every_sum) { equals_the_serial_mean(&iso__codec_f16, true); }
Test(np4_average, bf16_rounds_every_sum) { equals_the_serial_mean(&iso__codec_bf16, true); }

static void differences_equal_the_model(const iso__codec *wire) {
    for (int per_node = 1; per_node <= test_size; per_node++)
        for (int i = per_node % 2; i<5; i += test_size> 3 ? 2 : 1) {
            iso__average_config config = {
                .wire = wire, .differences = true, .chunk = chunks[(i + per_node) % 5]};
            bool agrees = true;
            mean_case_create(&c, per_node, counts[i], &config);
            for (int t = 0; t < 6; t++) agrees = mean_case_agrees(&c, ISO__SHARDS, t) && agrees;
            iso_assert_all(agrees);
            mean_case_destroy(&c);
        }
    mean_case_close(&c);
}

Test(np1_average, bf16_differences_equal_the_model) {
    differences_equal_the_model(&iso__codec_bf16);
}
Test(np2_average, bf16_differences_equal_the_model) {
    differences_equal_the_model(&iso__codec_bf16);
}
Test(np3_average, f16_differences_equal_the_model) { differences_equal_the_model(&iso__codec_f16); }
Test(np4_average, bf16_differences_equal_the_model) {
    differences_equal_the_model(&iso__codec_bf16);
}
Test(np5_average, f16_differences_equal_the_model) { differences_equal_the_model(&iso__codec_f16); }
Test(np6_average, bf16_differences_equal_the_model) {
    differences_equal_the_model(&iso__codec_bf16);
}

// ---- What error feedback is for -------------------------------------------------------------------

// Largest distance from the exact mean of the mean over `exchanges` means of one and the same
// array.
static double bias(bool differences, int exchanges) {
    static double total[MOST_VALUES];
    static float x[MOST_NODES][MOST_VALUES];
    double worst = 0;
    iso__average_config config = {.wire = &iso__codec_bf16, .differences = differences};
    mean_case_create(&c, 1, 500, &config);
    memset(total, 0, sizeof(total));
    const float *mean = NULL;
    iso_status status = ISO_OK;
    for (int t = 0; status >= 0 && t <= exchanges; t++) {
        mean_case_values(&c, ISO__SHARDS, test_rank, 0, x[0]);
        status = mean_case_exchange(&c, ISO__SHARDS, 0, x[0], &mean);
        for (size_t i = 0; status >= 0 && t > 0 && i < 500; i++) total[i] += mean[i];
    }
    iso_assert_ok(status);
    for (int n = 0; n < test_size; n++) mean_case_values(&c, ISO__SHARDS, n, 0, x[n]);
    for (size_t i = 0; i < 500; i++) {
        double exact = 0;
        for (int n = 0; n < test_size; n++) exact += (double)x[n][i] / test_size;
        worst = fmax(worst, fabs(total[i] / exchanges - exact));
    }
    mean_case_destroy(&c);
    return worst;
}

Test(np3_average, feedback_takes_the_bias_away_with_the_number_of_exchanges) {
    double with_10 = bias(true, 10), with_160 = bias(true, 160), without = bias(false, 160);
    iso_assert_all(with_10 < 16.0 / 256 / 10);
    iso_assert_all(with_160 < with_10 / 8 && with_160 < 16.0 / 256 / 160);
    iso_assert_all(without > 10 * with_160);
    mean_case_close(&c);
}

// Replicas walk in small steps around 8, where neighbours in bf16 are 1/32 apart. Gives the largest
// distance from the exact mean, and what one rounding of differences may cost: it cuts off at most
// 2^-9 of what travels, the largest distance of a replica from the last mean; what is left this
// time and what was left last time, on both ways. And f32 itself rounds at 8.
static void walk(iso__average_config config, double *worst, double *bound) {
    static float x[MOST_NODES][MOST_VALUES], step[MOST_VALUES], last[MOST_VALUES];
    double farthest = 0;
    const float *mean = NULL;
    mean_case_create(&c, 1, 500, &config);
    *worst = 0;
    for (size_t i = 0; i < 500; i++) last[i] = 8;
    for (int n = 0; n < test_size; n++) memcpy(x[n], last, sizeof(last));
    iso_assert_ok(iso__average_set_reference(c.average, last));
    for (int t = 0; t < 40; t++) {
        for (int n = 0; n < test_size; n++) {
            mean_case_values(&c, ISO__SHARDS, n, t, step);
            for (size_t i = 0; i < 500; i++) x[n][i] += step[i] / 4000;
            for (size_t i = 0; i < 500; i++) farthest = fmax(farthest, fabsf(x[n][i] - last[i]));
        }
        iso_assert_ok(mean_case_exchange(&c, ISO__SHARDS, t, x[test_rank], &mean));
        memcpy(last, mean, 500 * sizeof(float));
        for (size_t i = 0; i < 500; i++) {
            double exact = 0;
            for (int n = 0; n < test_size; n++) exact += (double)x[n][i] / test_size;
            *worst = fmax(*worst, fabs(mean[i] - exact));
        }
    }
    *bound = 4 * 1.02 * farthest * 0x1p-9 + 2e-6;
    mean_case_destroy(&c);
}

Test(np4_average, walking_replicas_lose_less_than_one_rounding_of_a_difference) {
    iso__average_config config = {.wire = &iso__codec_bf16, .differences = true};
    double worst, bound;
    walk(config, &worst, &bound);
    iso_assert_all(worst < bound && bound < 2e-4);
    config.differences = false;
    walk(config, &worst, &bound);
    iso_assert_all(worst > 20 * bound);
    mean_case_close(&c);
}

Test(np3_average, a_reference_that_was_set_is_travelled_from_at_once) {
    iso__average_config config = {.wire = &iso__codec_bf16, .differences = true, .chunk = 300};
    static float reference[MOST_VALUES];
    mean_case_create(&c, 2, 1000, &config);
    for (int t = 0; t < 3; t++) {
        bool agrees = true;
        mean_case_values(&c, ISO__SHARDS, 0, 50 + t, reference);
        iso_assert_ok(iso__average_set_reference(c.average, reference));
        memset(c.residual, 0, sizeof(c.residual));
        memset(c.share_residual, 0, sizeof(c.share_residual));
        memcpy(c.reference, reference, sizeof(reference));
        c.has_reference = true;
        for (int k = 0; k < 3; k++) agrees = mean_case_agrees(&c, ISO__SHARDS, 3 * t + k) && agrees;
        iso_assert_all(agrees);
    }
    reference[999] = INFINITY;
    iso_assert_all(iso__average_set_reference(c.average, reference) == ISO_ERR_STATE);
    iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, 30)); // and changed nothing
    mean_case_close(&c);
}

// ---- What is kept, counted and measured -----------------------------------------------------------

static void copy_arrays(iso__average *from, iso__average *to) {
    iso__average_array a[ISO__AVERAGE_ARRAYS], b[ISO__AVERAGE_ARRAYS];
    int n = iso__average_arrays(from, a);
    iso_assert_all(iso__average_arrays(to, b) == n);
    for (int i = 0; i < n; i++) {
        cr_assert(strcmp(a[i].name, b[i].name) == 0 && a[i].count == b[i].count);
        memcpy(b[i].data, a[i].data, a[i].count * sizeof(float));
    }
}

// Also before the first exchange, which is another one than the rest.
Test(np5_average, its_arrays_are_all_that_the_next_exchanges_depend_on) {
    iso__average_config config = {.wire = &iso__codec_f16, .differences = true, .chunk = 400};
    mean_case_create(&c, 2, 1000, &config);
    for (int t = 0; t < 5; t++) {
        iso__average *other = NULL;
        iso_assert_ok(iso__average_create(c.routes, 1000, &config, &other));
        copy_arrays(c.average, other);
        iso__average_destroy(&c.average);
        c.average = other;
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
    }
    mean_case_close(&c);
}

Test(np4_average, measuring_changes_nothing) {
    for (int differences = 0; differences < 2; differences++) {
        iso__average_config config = {.wire = &iso__codec_bf16, .differences = differences};
        iso__average_stats before, after;
        mean_case_create(&c, 2, 1000, &config);
        for (int t = 0; t < 4; t++) {
            double ms = 0;
            iso__average_get_stats(c.average, &before);
            iso_assert_ok(iso__average_measure(c.average, 3, &ms));
            iso__average_get_stats(c.average, &after);
            iso_assert_all(ms > 0 && ms < 10000);
            iso_assert_all(memcmp(&before, &after, sizeof(before)) == 0);
            iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
        }
        mean_case_destroy(&c);
    }
    mean_case_close(&c);
}

static void exchange_and_expect(int group, long long sent, long long between_nodes) {
    iso__average_stats before, after;
    iso__average_get_stats(c.average, &before);
    bool agrees = mean_case_agrees(&c, group, 1);
    iso__average_get_stats(c.average, &after);
    iso_assert_all(agrees && after.exchanges == before.exchanges + 1);
    iso_assert_all(after.bytes_sent - before.bytes_sent == sent);
    iso_assert_all(after.bytes_between_nodes - before.bytes_between_nodes == between_nodes);
}

// Shares are padded to 32 elements: 1000 = 2 x 512, 500 = 2 x 256 of them.
Test(np4_average, counts_the_bytes_that_leave) {
    iso__average_config config = {.wire = &iso__codec_f32};
    mean_case_create(&c, 1, 1000, &config); // four nodes, shares of 256: to 3 others, twice
    exchange_and_expect(ISO__SHARDS, 2 * 3 * 256 * 4, 2 * 3 * 256 * 4);
    mean_case_destroy(&c);
    config.wire = &iso__codec_bf16;
    mean_case_create(&c, 2, 1000, &config); // two nodes: half the array, then to the other rank
    long long part = test_rank % 2 ? 488 : 512, share = 256 * 2, spread = (part + 24) / 32 * 32 * 4;
    exchange_and_expect(ISO__SHARDS, 2 * share + spread, 2 * share);
    long long whole = test_rank % 2 ? 2 * 512 * 2 : 0;
    exchange_and_expect(1, whole, whole);
    mean_case_destroy(&c);
    mean_case_create(&c, 4, 1000, &config); // one node
    exchange_and_expect(ISO__SHARDS, 0, 0);
    mean_case_close(&c);
}

Test(np3_average, metrics_are_the_largest) {
    iso__average_config config = {.wire = &iso__codec_f32};
    mean_case_create(&c, 2, 64, &config);
    static float x[64];
    const float *mean = NULL;
    double metrics[ISO__METRICS] = {1e9, test_rank, -test_rank - 5, test_rank == 1 ? NAN : 3};
    iso_assert_ok(iso__average_start(c.average, x, 0, metrics));
    iso_assert_ok(iso__average_finish(c.average, &mean, metrics));
    iso_assert_all(metrics[1] == 2 && metrics[2] == -5 && isinf(metrics[3]));
    double largest = metrics[0];
    iso_assert_ok(iso_comm_allreduce_f64(test_comm, &largest, 1, ISO_MAX));
    iso_assert_all(metrics[0] == largest && largest > 0 && largest < 10000);
    mean_case_close(&c);
}

Test(np4_average, exchanges_allocate_nothing) {
    iso__average_config config = {.wire = &iso__codec_bf16, .differences = true, .chunk = 100};
    mean_case_create(&c, 2, 1000, &config);
    long long before, after;
    for (int t = 0; t < 5; t++) {
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
        if (t == 1) iso_memory_balance(NULL, NULL, &before); // the pool of requests has grown
    }
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    mean_case_close(&c);
}
