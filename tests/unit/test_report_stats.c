// SPDX-License-Identifier: MIT
// The statistics of the report of a sweep: Student's t, intervals, paired tests.
#include "sweep/report_stats.h"

#include <criterion/criterion.h>
#include <math.h>

TestSuite(report_stats, .timeout = 60);

static void assert_near(double got, double want, double tolerance) {
    cr_assert(fabs(got - want) <= tolerance, "%.10g, not %.10g", got, want);
}

// NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2 (upper critical values of
// Student's t), column 0.975; the column 0.995 follows.
Test(report_stats, critical_values_are_those_of_the_nist_table) {
    static const struct {
        int64_t df;
        double t95, t99;
    } table[] = {{1, 12.706, 63.657}, {2, 4.303, 9.925},  {3, 3.182, 5.841},  {4, 2.776, 4.604},
                 {5, 2.571, 4.032},   {6, 2.447, 3.707},  {7, 2.365, 3.499},  {8, 2.306, 3.355},
                 {9, 2.262, 3.250},   {10, 2.228, 3.169}, {15, 2.131, 2.947}, {20, 2.086, 2.845},
                 {30, 2.042, 2.750},  {60, 2.000, 2.660}, {100, 1.984, 2.626}};
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        assert_near(report_t_critical(0.05, table[i].df), table[i].t95, 0.0006);
        assert_near(report_t_critical(0.01, table[i].df), table[i].t99, 0.0006);
    }
}

// One degree of freedom is Cauchy's distribution, and two have a closed form.
Test(report_stats, probabilities_have_the_closed_forms) {
    for (double t = 0.01; t < 1000; t *= 1.7) {
        assert_near(report_t_two_sided(t, 1), 1 - 2 / acos(-1) * atan(t), 1e-14);
        assert_near(report_t_two_sided(-t, 2), 1 - t / sqrt(2 + t * t), 1e-14);
    }
    assert_near(report_t_two_sided(0, 7), 1, 0);
    cr_assert(isnan(report_t_two_sided(1, 0)) && isnan(report_t_critical(0.05, 0)));
}

Test(report_stats, critical_values_and_probabilities_are_inverse) {
    for (int64_t df = 1; df < 300; df += 1 + df / 3)
        for (double p = 0.001; p < 1; p *= 1.9)
            assert_near(report_t_two_sided(report_t_critical(p, df), df), p, 1e-12);
}

// Student 1908, additional sleep by two drugs (R's data set `sleep`); R prints of
// t.test(extra ~ group, data = sleep, paired = TRUE): t = -4.0621, df = 9, p-value = 0.002833,
// 95 percent confidence interval: -2.4598858 -0.7001142, mean difference -1.58.
Test(report_stats, paired_test_of_students_sleep_data_is_that_of_r) {
    const double first[] = {0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0};
    const double second[] = {1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4};
    report_paired test = report_paired_test(first, second, 10);
    assert_near(test.t, -4.0621, 5e-5);
    assert_near(test.p, 0.002833, 5e-7);
    assert_near(test.difference.mean, -1.58, 1e-12);
    assert_near(test.difference.mean - test.difference.half, -2.4598858, 5e-8);
    assert_near(test.difference.mean + test.difference.half, -0.7001142, 5e-8);
}

Test(report_stats, few_numbers_have_no_interval) {
    const double values[] = {3, 4, 5};
    report_stat s = report_stat_of(values, 3);
    assert_near(s.mean, 4, 0);
    assert_near(s.deviation, 1, 1e-15);
    assert_near(s.half, 4.302653 / sqrt(3), 1e-6);
    s = report_stat_of(values, 1);
    cr_assert(s.mean == 3 && isnan(s.deviation) && isnan(s.half));
    cr_assert(isnan(report_stat_of(values, 0).mean));
    cr_assert(isnan(report_stat_of((double[]){1, NAN, 2}, 3).mean));
    cr_assert(isnan(report_stat_of((double[]){1, INFINITY, 2}, 3).mean));
    cr_assert(isnan(report_paired_test(values, values, 1).p));
}

// Of modes with the same bits, and of a difference that only rounding spreads.
Test(report_stats, equal_differences_have_no_p_value) {
    const double a[] = {0.91, 0.12, 0.57}, b[] = {0.90, 0.11, 0.56};
    report_paired test = report_paired_test(a, a, 3);
    cr_assert(test.difference.mean == 0 && test.difference.half == 0 && isnan(test.p));
    test = report_paired_test(a, b, 3);
    assert_near(test.difference.mean, 0.01, 1e-15);
    cr_assert(isnan(test.p) && isnan(test.t));
}

// Noise of the seeds hides the difference from an unpaired test.
Test(report_stats, planted_difference_is_found) {
    const double base[] = {0.80, 0.90, 0.70, 0.85, 0.75};
    const double noise[] = {0.0011, -0.0007, 0.0004, -0.0009, 0.0003};
    double other[5];
    for (int i = 0; i < 5; i++) other[i] = base[i] + 0.005 + noise[i];
    report_paired found = report_paired_test(other, base, 5);
    cr_assert(found.p < 0.001 && found.difference.mean - found.difference.half > 0.003);
    for (int i = 0; i < 5; i++) other[i] = base[i] + noise[i];
    cr_assert(report_paired_test(other, base, 5).p > 0.5);
}

// By hand, as R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm"): 0.03 0.06 0.06 0.02.
Test(report_stats, holm_adjusts_several_tests) {
    const double raw[] = {0.01, NAN, 0.04, 0.03, 0.005}, many[] = {0.6, 0.5};
    double p[5];
    report_holm(raw, p, 5);
    assert_near(p[0], 0.03, 1e-15);
    assert_near(p[2], 0.06, 1e-15);
    assert_near(p[3], 0.06, 1e-15);
    assert_near(p[4], 0.02, 1e-15);
    cr_assert(isnan(p[1]));
    report_holm(many, p, 2);
    cr_assert(p[0] == 1 && p[1] == 1);
}
