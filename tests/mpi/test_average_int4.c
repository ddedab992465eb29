// SPDX-License-Identifier: MIT
// The weighted mean over nodes in int4: equal to the model, bit for bit; nothing gets lost; exact
// where int4 is.
#include "common/average_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_average_int4, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_average_int4, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_average_int4, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_average_int4, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_average_int4, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

#define TEST_ON(suite, name)                                                                       \
    Test(suite, name) { name(); }
#define TEST_ON_ALL(name)                                                                          \
    TEST_ON(np1_average_int4, name)                                                                \
    TEST_ON(np2_average_int4, name)                                                                \
    TEST_ON(np3_average_int4, name)                                                                \
    TEST_ON(np4_average_int4, name)                                                                \
    TEST_ON(np5_average_int4, name)

enum { COUNT = 1300 };
static mean_case c;

static void differences_equal_the_model(void) {
    mean_case_equals_model(&c, &iso__codec_int4, true);
}
static void values_equal_the_model(void) { mean_case_equals_model(&c, &iso__codec_int4, false); }
TEST_ON_ALL(differences_equal_the_model)
TEST_ON_ALL(values_equal_the_model)

static void nothing_gets_lost(void) {
    iso__average_config config = {.wire = &iso__codec_int4, .differences = true};
    mean_case_loses_nothing(&c, COUNT, &config);
}
TEST_ON_ALL(nothing_gets_lost)

// ---- Exact where int4 is --------------------------------------------------------------------------

// 4 plus powers of two of either sign, or 0. Those of the nodes are equal, but for the first
// element of a group, which one node alone moves by a number of nodes that is a power of two.
static float grid_value(int node, int t, size_t i) {
    if (i % 128 == 0) return node == 0 ? 4 + 0x1p-4f * (float)c.nodes : 4;
    int e = (int)((i * 37 + (size_t)t * 11) % 7);
    float d = e == 6 ? 0 : ldexpf(0x1p-4f, -e);
    return 4 + (i % 3 == 0 ? -d : d);
}

static void what_int4_represents_is_exact(void) {
    static float x[COUNT], reference[COUNT];
    static double left[COUNT];
    iso__average_config config = {.wire = &iso__codec_int4, .differences = true};
    const float *mean = NULL;
    mean_case_create(&c, 1, COUNT, &config);
    for (size_t i = 0; i < COUNT; i++) reference[i] = 4;
    for (int t = 0; t < 4; t++) {
        bool exact = true;
        for (size_t i = 0; i < COUNT; i++) x[i] = grid_value(test_rank, t, i);
        iso_assert_ok(iso__average_set_reference(c.average, reference));
        iso_assert_ok(mean_case_exchange(&c, ISO__SHARDS, t, x, &mean));
        for (size_t i = 0; i < COUNT; i++)
            exact = exact && mean[i] == (i % 128 == 0 ? 4 + 0x1p-4f : grid_value(0, t, i));
        mean_case_left(&c, left);
        for (size_t i = 0; i < COUNT; i++) exact = exact && left[i] == 0;
        iso_assert_all(exact);
    }
    mean_case_close(&c);
}
TEST_ON(np1_average_int4, what_int4_represents_is_exact)
TEST_ON(np2_average_int4, what_int4_represents_is_exact)

// ---- Bytes ----------------------------------------------------------------------------------------

// A group of 128 elements takes 68 bytes, and a share has whole groups.
Test(np4_average_int4, counts_the_bytes_that_leave) {
    iso__average_config config = {.wire = &iso__codec_int4};
    mean_case_create(&c, 1, 4000, &config); // four nodes, shares of 8 groups: to 3 others, twice
    mean_case_counts(&c, 2 * 3 * 8 * 68, 2 * 3 * 8 * 68);
    mean_case_destroy(&c);
    mean_case_create(&c, 2, 4000, &config); // shards of 2016 and 1984 elements: shares of 8 groups
    long long spread = test_rank % 2 ? 1984 * 4 : 2016 * 4;
    mean_case_counts(&c, 2 * 8 * 68 + spread, 2 * 8 * 68);
    mean_case_close(&c);
}

// ---- Not finite -----------------------------------------------------------------------------------

// A difference that overflows is seen by the rank that has it, and changes nothing anywhere.
Test(np3_average_int4, a_difference_that_is_too_large_changes_nothing) {
    static float x[COUNT];
    iso__average_config config = {.wire = &iso__codec_int4, .differences = true};
    mean_case_create(&c, 1, COUNT, &config);
    for (int t = 0; t < 3; t++) {
        const float *mean = x;
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
        mean_case_values(&c, ISO__SHARDS, test_rank, 100, x);
        if (test_rank == 1) x[0] = t == 0 ? NAN : t == 1 ? INFINITY : x[0];
        if (test_rank == 1 && t == 2) x[COUNT - 1] = -INFINITY;
        iso_assert_all(mean_case_exchange(&c, ISO__SHARDS, t, x, &mean) == ISO_ERR_STATE);
        iso_assert_all(mean == x &&
                       strstr(iso_last_error()->message, "rank 1: parameters are not finite"));
    }
    iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, 4));
    mean_case_close(&c);
}
