// SPDX-License-Identifier: MIT
// The weighted mean over nodes in topk: equal to the model, bit for bit; nothing gets lost; exact
// where topk is.
#include "common/average_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(np1_average_topk, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_average_topk, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_average_topk, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_average_topk, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_average_topk, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

#define TEST_ON(suite, name)                                                                       \
    Test(suite, name) { name(); }
#define TEST_ON_ALL(name)                                                                          \
    TEST_ON(np1_average_topk, name)                                                                \
    TEST_ON(np2_average_topk, name)                                                                \
    TEST_ON(np3_average_topk, name)                                                                \
    TEST_ON(np4_average_topk, name)                                                                \
    TEST_ON(np5_average_topk, name)

enum { COUNT = 1300 };
static mean_case c;

static void differences_equal_the_model(void) {
    mean_case_equals_model(&c, &iso__codec_topk, true);
}
static void values_equal_the_model(void) { mean_case_equals_model(&c, &iso__codec_topk, false); }
TEST_ON_ALL(differences_equal_the_model)
TEST_ON_ALL(values_equal_the_model)

// With another fraction.
Test(np3_average_topk, of_any_fraction) {
    mean_case_equals_model(&c, &iso__codec_topk4, true);
    mean_case_equals_model(&c, &iso__codec_topk64, true);
}

static void nothing_gets_lost(void) {
    iso__average_config config = {.wire = &iso__codec_topk, .differences = true};
    mean_case_loses_nothing(&c, COUNT, &config);
}
TEST_ON_ALL(nothing_gets_lost)

// ---- Exact where topk is --------------------------------------------------------------------------

// 4, and in every 32nd element of a node's shares a difference of its own that bf16 has. The nodes
// differ in which; their mean has at most 8 differences in each group of 256, too.
static float grid_value(int node, int t, size_t i) {
    int owner = (int)(i / 32) % c.nodes;
    if (i % 32 != (size_t)t || owner != node) return 4;
    return 4 + (float)c.nodes * (float)(i % 7 + 1) * (i % 2 ? -0x1p-8f : 0x1p-8f);
}

static void what_topk_represents_is_exact(void) {
    static float x[COUNT], reference[COUNT];
    static double left[COUNT];
    iso__average_config config = {.wire = &iso__codec_topk, .differences = true};
    const float *mean = NULL;
    mean_case_create(&c, 1, COUNT, &config);
    for (size_t i = 0; i < COUNT; i++) reference[i] = 4;
    for (int t = 0; t < 4; t++) {
        bool exact = true;
        for (size_t i = 0; i < COUNT; i++) x[i] = grid_value(test_rank, t, i);
        iso_assert_ok(iso__average_set_reference(c.average, reference));
        iso_assert_ok(mean_case_exchange(&c, ISO__SHARDS, t, x, &mean));
        for (size_t i = 0; i < COUNT; i++)
            exact = exact &&
                    mean[i] == 4 + (grid_value((int)(i / 32) % c.nodes, t, i) - 4) / (float)c.nodes;
        mean_case_left(&c, left);
        for (size_t i = 0; i < COUNT; i++) exact = exact && left[i] == 0;
        iso_assert_all(exact);
    }
    mean_case_close(&c);
}
TEST_ON_ALL(what_topk_represents_is_exact)

// ---- Bytes ----------------------------------------------------------------------------------------

// A group of 256 elements takes 24 bytes, and a share has whole groups.
Test(np4_average_topk, counts_the_bytes_that_leave) {
    iso__average_config config = {.wire = &iso__codec_topk};
    mean_case_create(&c, 1, 4000, &config); // four nodes, shares of 4 groups: to 3 others, twice
    mean_case_counts(&c, 2 * 3 * 4 * 24, 2 * 3 * 4 * 24);
    mean_case_destroy(&c);
    mean_case_create(&c, 2, 4000, &config); // shards of 2016 and 1984 elements: shares of 4 groups
    long long spread = test_rank % 2 ? 1984 * 4 : 2016 * 4;
    mean_case_counts(&c, 2 * 4 * 24 + spread, 2 * 4 * 24);
    mean_case_close(&c);
}

// ---- Too large ------------------------------------------------------------------------------------

// A finite difference that bf16 makes infinite.
Test(np3_average_topk, a_difference_that_is_too_large_changes_nothing) {
    static float x[COUNT];
    iso__average_config config = {.wire = &iso__codec_topk, .differences = true};
    mean_case_create(&c, 1, COUNT, &config);
    for (int t = 0; t < 3; t++) {
        const float *mean = x;
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
        mean_case_values(&c, ISO__SHARDS, test_rank, 100, x);
        if (test_rank == 1) x[COUNT - 1] = 0x1.ffp127f;
        iso_assert_all(mean_case_exchange(&c, ISO__SHARDS, t, x, &mean) == ISO_ERR_STATE);
        iso_assert_all(mean == x && strstr(iso_last_error()->message,
                                           "rank 1: parameters or their sum are too large for "
                                           "topk"));
    }
    iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, 4));
    mean_case_close(&c);
}
