// SPDX-License-Identifier: MIT
// The weighted mean over nodes in fp8: equal to the model, bit for bit; nothing gets lost; exact
// where fp8 is. Its passes are those of int8 and int4, so 2 and 3 nodes suffice here.
#include "common/average_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np2_average_fp8, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_average_fp8, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { COUNT = 1300 };
static mean_case c;

Test(np2_average_fp8, differences_equal_the_model) {
    mean_case_equals_model(&c, &iso__codec_fp8, true);
}
Test(np3_average_fp8, differences_equal_the_model) {
    mean_case_equals_model(&c, &iso__codec_fp8, true);
}
Test(np3_average_fp8, values_equal_the_model) {
    mean_case_equals_model(&c, &iso__codec_fp8, false);
}
Test(np3_average_fp8, nothing_gets_lost) {
    iso__average_config config = {.wire = &iso__codec_fp8, .differences = true};
    mean_case_loses_nothing(&c, COUNT, &config);
}

// 4 plus multiples of 2^-10 of either sign up to 15, or 0; beside 448 times 2^-10 they are exact.
static float grid_value(int t, size_t i) {
    if (i % 128 == 0) return 4 + 448 * 0x1p-10f;
    return 4 + (float)((int)((i * 37 + (size_t)t * 11) % 31) - 15) * 0x1p-10f;
}

Test(np3_average_fp8, what_fp8_represents_is_exact) {
    static float x[COUNT], reference[COUNT];
    static double left[COUNT];
    iso__average_config config = {.wire = &iso__codec_fp8, .differences = true};
    const float *mean = NULL;
    mean_case_create(&c, 1, COUNT, &config);
    for (size_t i = 0; i < COUNT; i++) reference[i] = 4;
    for (int t = 0; t < 4; t++) {
        bool exact = true;
        for (size_t i = 0; i < COUNT; i++) x[i] = grid_value(t, i);
        iso_assert_ok(iso__average_set_reference(c.average, reference));
        iso_assert_ok(mean_case_exchange(&c, ISO__SHARDS, t, x, &mean));
        for (size_t i = 0; i < COUNT; i++) exact = exact && mean[i] == grid_value(t, i);
        mean_case_left(&c, left);
        for (size_t i = 0; i < COUNT; i++) exact = exact && left[i] == 0;
        iso_assert_all(exact);
    }
    mean_case_close(&c);
}

// A group of 128 elements takes 132 bytes, and a share has whole groups.
Test(np3_average_fp8, counts_the_bytes_that_leave) {
    iso__average_config config = {.wire = &iso__codec_fp8};
    mean_case_create(&c, 1, 3000, &config); // three nodes, shares of 8 groups: to 2 others, twice
    mean_case_counts(&c, 2 * 2 * 8 * 132, 2 * 2 * 8 * 132);
    mean_case_close(&c);
}

// A difference that is not finite is seen by the rank that has it, and changes nothing anywhere.
Test(np3_average_fp8, a_difference_that_is_too_large_changes_nothing) {
    static float x[COUNT];
    iso__average_config config = {.wire = &iso__codec_fp8, .differences = true};
    mean_case_create(&c, 1, COUNT, &config);
    for (int t = 0; t < 2; t++) {
        const float *mean = x;
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
        mean_case_values(&c, ISO__SHARDS, test_rank, 100, x);
        if (test_rank == 1) x[t == 0 ? 0 : COUNT - 1] = t == 0 ? NAN : -INFINITY;
        iso_assert_all(mean_case_exchange(&c, ISO__SHARDS, t, x, &mean) == ISO_ERR_STATE);
        iso_assert_all(mean == x &&
                       strstr(iso_last_error()->message, "rank 1: parameters are not finite"));
    }
    iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, 4));
    mean_case_close(&c);
}
