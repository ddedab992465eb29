// SPDX-License-Identifier: MIT
// The weighted mean over nodes in int8: equal to the model, bit for bit; nothing gets lost; exact
// where int8 is.
#include "common/average_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_average_int8, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_average_int8, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_average_int8, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_average_int8, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_average_int8, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

#define TEST_ON(suite, name)                                                                       \
    Test(suite, name) { name(); }
#define TEST_ON_ALL(name)                                                                          \
    TEST_ON(np1_average_int8, name)                                                                \
    TEST_ON(np2_average_int8, name)                                                                \
    TEST_ON(np3_average_int8, name)                                                                \
    TEST_ON(np4_average_int8, name)                                                                \
    TEST_ON(np5_average_int8, name)

static mean_case c;

// ---- Equal to the model ---------------------------------------------------------------------------

static void differences_equal_the_model(void) {
    mean_case_equals_model(&c, &iso__codec_int8, true);
}
static void values_equal_the_model(void) { mean_case_equals_model(&c, &iso__codec_int8, false); }
TEST_ON_ALL(differences_equal_the_model)
TEST_ON_ALL(values_equal_the_model)

// Also before the first exchange, which travels in f32.
static void its_arrays_are_all_that_the_next_exchanges_depend_on(void) {
    iso__average_config config = {.wire = &iso__codec_int8, .differences = true, .chunk = 700};
    mean_case_create(&c, 2, 1500, &config);
    for (int t = 0; t < 5; t++) {
        iso__average_array from[ISO__AVERAGE_ARRAYS], to[ISO__AVERAGE_ARRAYS];
        iso__average *other = NULL;
        iso_assert_ok(iso__average_create(c.routes, 1500, &config, &other));
        int n = iso__average_arrays(c.average, from);
        iso_assert_all(iso__average_arrays(other, to) == n);
        for (int i = 0; i < n; i++) memcpy(to[i].data, from[i].data, to[i].count * sizeof(float));
        iso__average_destroy(&c.average);
        c.average = other;
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
    }
    mean_case_close(&c);
}
TEST_ON_ALL(its_arrays_are_all_that_the_next_exchanges_depend_on)

// ---- Nothing gets lost ----------------------------------------------------------------------------

enum { COUNT = 1300 };

static void nothing_gets_lost(void) {
    iso__average_config config = {.wire = &iso__codec_int8, .differences = true};
    mean_case_loses_nothing(&c, COUNT, &config);
}
TEST_ON_ALL(nothing_gets_lost)

// ---- Exact where int8 is --------------------------------------------------------------------------

// Multiples of 2^-10 up to 127 of them, of which each group has one of 127; their sums over the
// nodes are multiples of the number of nodes. The reference is 4 everywhere.
static float grid_value(int node, int t, size_t i) {
    if (i % 256 == 0) return 4 + 127 * 0x1p-10f;
    int q = (int)((i * 37 + (size_t)t * 11) % 101) - 50, apart = 5 * c.nodes;
    return 4 + (float)(q + (node == 0 ? apart : node == c.nodes - 1 ? -apart : 0)) * 0x1p-10f;
}

static void what_int8_represents_is_exact(void) {
    static float x[COUNT], reference[COUNT];
    static double left[COUNT];
    iso__average_config config = {.wire = &iso__codec_int8, .differences = true};
    const float *mean = NULL;
    mean_case_create(&c, 1, COUNT, &config);
    for (size_t i = 0; i < COUNT; i++) reference[i] = 4;
    for (int t = 0; t < 4; t++) {
        bool exact = true;
        for (size_t i = 0; i < COUNT; i++) x[i] = grid_value(test_rank, t, i);
        iso_assert_ok(iso__average_set_reference(c.average, reference));
        iso_assert_ok(mean_case_exchange(&c, ISO__SHARDS, t, x, &mean));
        for (size_t i = 0; i < COUNT; i++) {
            int apart = i % 256 == 0 || c.nodes == 1 ? 0 : 5 * c.nodes;
            exact = exact && mean[i] == grid_value(0, t, i) - (float)apart * 0x1p-10f;
        }
        mean_case_left(&c, left);
        for (size_t i = 0; i < COUNT; i++) exact = exact && left[i] == 0;
        iso_assert_all(exact);
    }
    mean_case_close(&c);
}
TEST_ON_ALL(what_int8_represents_is_exact)

// ---- Bytes ----------------------------------------------------------------------------------------

// A group of 256 elements takes 260 bytes, and a share has whole groups.
Test(np4_average_int8, counts_the_bytes_that_leave) {
    iso__average_config config = {.wire = &iso__codec_int8};
    mean_case_create(&c, 1, 4000, &config); // four nodes, shares of 4 groups: to 3 others, twice
    mean_case_counts(&c, 2 * 3 * 4 * 260, 2 * 3 * 4 * 260);
    mean_case_destroy(&c);
    mean_case_create(&c, 2, 4000, &config); // shards of 2016 and 1984 elements: shares of 4 groups
    long long spread = test_rank % 2 ? 1984 * 4 : 2016 * 4;
    mean_case_counts(&c, 2 * 4 * 260 + spread, 2 * 4 * 260);
    mean_case_close(&c);
}

Test(np2_average_int8, sums_that_round_need_an_element_type) {
    iso__average_config config = {.wire = &iso__codec_f32};
    iso__average_config bad = {.wire = &iso__codec_int8, .round_sums = true};
    iso__average *none = NULL;
    mean_case_create(&c, 1, 10, &config);
    iso_assert_all(iso__average_create(c.routes, 10, &bad, &none) == ISO_ERR_ARG);
    mean_case_close(&c);
}

// ---- Too large ------------------------------------------------------------------------------------

// A difference of which 127 * (largest / 127) would be infinite.
Test(np2_average_int8, a_difference_that_is_too_large_changes_nothing) {
    static float x[COUNT];
    iso__average_config config = {.wire = &iso__codec_int8, .differences = true};
    mean_case_create(&c, 1, COUNT, &config);
    for (int t = 0; t < 3; t++) {
        const float *mean = x;
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
        mean_case_values(&c, ISO__SHARDS, test_rank, 100, x);
        if (test_rank == 1) x[0] = 0x1.fffffep127f;
        iso_assert_all(mean_case_exchange(&c, ISO__SHARDS, t, x, &mean) == ISO_ERR_STATE);
        iso_assert_all(mean == x && strstr(iso_last_error()->message,
                                           "rank 1: parameters or their sum are too large for "
                                           "int8"));
    }
    iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, 4));
    mean_case_close(&c);
}
