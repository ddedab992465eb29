// SPDX-License-Identifier: MIT
// Statistics of a few runs that differ in their seed only. Everything is local and needs no report.
#ifndef EXAMPLES_REPORT_STATS_H
#define EXAMPLES_REPORT_STATS_H

#include <stdint.h>

// Mean and spread of a sample. A number that is not known is NaN.
typedef struct report_stat {
    int64_t count;
    double mean;      // NaN if count is 0, or if one of the numbers is not finite
    double deviation; // sample standard deviation (divided by count - 1); NaN below two numbers
    double half;      // half the width of the 95 % confidence interval of the mean; likewise
} report_stat;
report_stat report_stat_of(const double *values, int64_t count);

// Student's t distribution with df >= 1 degrees of freedom, by the finite sums of Abramowitz and
// Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
// The probability that |T| exceeds |t|: the p value of a two-sided test. Absolute error about
// 1e-15.
double report_t_two_sided(double t, int64_t df);
// The t that |T| exceeds with this probability, 0 < probability < 1; for a 95 % interval 0.05.
double report_t_critical(double probability, int64_t df);

// The paired t test of the differences a[i] - b[i] (Student, Biometrika 6, 1908).
typedef struct report_paired {
    report_stat difference;
    double t, p; // NaN: fewer than two pairs, or all differences are equal up to rounding
} report_paired;
report_paired report_paired_test(const double *a, const double *b, int64_t count);

// Adjusts the p values of several tests by Holm's step-down procedure (Scand. J. Statist. 6, 1979).
// NaN stays, and does not count as a test. out must not be p.
void report_holm(const double *p, double *out, int64_t count);

#endif
