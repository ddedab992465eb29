// SPDX-License-Identifier: MIT
// The z-scores by which outliers are found.
#include "base/base.h"
#include "common/balance.h"

#include <criterion/criterion.h>
#include <isotherm/outlier.h>
#include <math.h>
#include <string.h>

TestSuite(outlier, .fini = balance_check, .timeout = 60);

static double drawn(uint32_t i) {
    uint32_t counter[4] = {i}, bits[4];
    iso__philox(iso__philox_key_make(3, ISO_RNG_TEST, 0), counter, bits);
    double x = (double)iso__uniform(bits[0]);
    return 2 + x * x + (i % 29 == 28 ? 3 : 0);
}

static double add_value(iso_outlier *outlier, double value) {
    double z = -1;
    iso_outlier_add(outlier, value, &z);
    return z;
}

// llm.c's detector: sums of the window and of its squares; no score before the window is full, nor
// for the value that fills it.
enum { WINDOW = 16 };
typedef struct model {
    double value[WINDOW], sum, squares;
    int count;
} model;

static double step_model(model *m, double value) {
    bool full = m->count >= WINDOW;
    double *place = &m->value[m->count++ % WINDOW];
    m->sum += value - (full ? *place : 0);
    m->squares += value * value - (full ? *place * *place : 0);
    *place = value;
    double mean = m->sum / WINDOW;
    return full ? (value - mean) / sqrt(m->squares / WINDOW - mean * mean) : NAN;
}

Test(outlier, scores_are_those_of_llm_c) {
    model m = {.count = 0};
    iso_outlier *outlier;
    int outliers = 0;
    cr_assert_eq(iso_outlier_create(WINDOW, &outlier), ISO_OK);
    for (uint32_t i = 0; i < 200; i++) {
        double want = step_model(&m, drawn(i)), z = add_value(outlier, drawn(i));
        cr_assert_eq(isnan(z), i < WINDOW, "value %u", i);
        cr_assert(i < WINDOW || fabs(z - want) < 1e-9, "value %u: %g instead of %g", i, z, want);
        outliers += z > 3;
        cr_assert(i < WINDOW || (z > 3) == (i % 29 == 28), "value %u: %g", i, z);
    }
    cr_assert_eq(outliers, 6);
    iso_outlier_destroy(&outlier);
    cr_assert_null(outlier);
}

// The header promises a bound, below which thresholds make sense.
Test(outlier, no_score_exceeds_the_bound) {
    iso_outlier *outlier;
    cr_assert_eq(iso_outlier_create(WINDOW, &outlier), ISO_OK);
    for (int i = 0; i < 40; i++) {
        double z = add_value(outlier, .1);
        cr_assert(i < WINDOW || z == 0, "value %d: %g", i, z);
    }
    cr_assert_float_eq(add_value(outlier, 1e30), sqrt(WINDOW - 1), 1e-9);
    iso_outlier_destroy(&outlier);
}

Test(outlier, survives_the_range_of_doubles) {
    iso_outlier *outlier;
    cr_assert_eq(iso_outlier_create(WINDOW, &outlier), ISO_OK);
    for (uint32_t i = 0; i < WINDOW; i++) (void)add_value(outlier, drawn(i));
    cr_assert(add_value(outlier, 1e300) == INFINITY);
    cr_assert(add_value(outlier, 1) == -INFINITY); // not an outlier
    static const double count[] = {NAN, INFINITY, -3};
    for (int k = 0; k < 3; k++) {
        iso_outlier_state(outlier)[0] = count[k];
        cr_assert(isnan(add_value(outlier, 1))); // begins anew
        cr_assert_eq(iso_outlier_state(outlier)[0], 1);
    }
    iso_outlier_destroy(&outlier);
}

// They are outliers at once, and later scores do not see them.
Test(outlier, what_is_not_finite_does_not_join) {
    iso_outlier *outlier, *other;
    cr_assert_eq(iso_outlier_create(WINDOW, &outlier), ISO_OK);
    cr_assert_eq(iso_outlier_create(WINDOW, &other), ISO_OK);
    cr_assert(add_value(outlier, NAN) == INFINITY);
    for (uint32_t i = 0; i < 50; i++) {
        if (i % 7 == 3) cr_assert(add_value(outlier, i % 2 ? NAN : -INFINITY) == INFINITY);
        double z = add_value(outlier, drawn(i)), want = add_value(other, drawn(i));
        cr_assert(z == want || (isnan(z) && isnan(want)));
    }
    iso_outlier_destroy(&outlier);
    iso_outlier_destroy(&other);
}

Test(outlier, goes_on_from_a_state) {
    iso_outlier *outlier, *other;
    cr_assert_eq(iso_outlier_create(WINDOW, &outlier), ISO_OK);
    for (uint32_t i = 0; i < 23; i++) (void)add_value(outlier, drawn(i));
    cr_assert_eq(iso_outlier_create(WINDOW, &other), ISO_OK);
    memcpy(iso_outlier_state(other), iso_outlier_state(outlier),
           ISO_OUTLIER_STATE(WINDOW) * sizeof(double));
    for (uint32_t i = 23; i < 60; i++)
        cr_assert(add_value(other, drawn(i)) == add_value(outlier, drawn(i)));
    iso_outlier_destroy(&outlier);
    iso_outlier_destroy(&other);
}

Test(outlier, windows_without_a_meaning_are_refused) {
    iso_outlier *outlier = NULL;
    static const int64_t window[] = {-1, 0, 1, 1000001};
    for (int i = 0; i < 4; i++) cr_assert_eq(iso_outlier_create(window[i], &outlier), ISO_ERR_ARG);
    cr_assert_null(outlier);
    cr_assert(strstr(iso_last_error()->message, "from 2 to 1000000"));
}
