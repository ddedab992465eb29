// SPDX-License-Identifier: MIT
// Means, confidence intervals and paired tests over seeds.
#include "report_stats.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#define PI 3.14159265358979323846

// ---- Student's t --------------------------------------------------------------------------------

// The terms in brackets: c^first, c^(first + 2), ..., each with the next factors n / (n + 1).
static double cosine_series(double cosine, int64_t first, int64_t df) {
    double term = first ? cosine : 1, sum = 0;
    for (int64_t power = first; power <= df - 2; power += 2) {
        sum += term;
        term *= (double)(power + 1) / (double)(power + 2) * cosine * cosine;
    }
    return sum;
}

double report_t_two_sided(double t, int64_t df) {
    double angle = atan(fabs(t) / sqrt((double)df)), within;
    if (isnan(t) || df < 1) return NAN;
    if (df % 2)
        within = 2 / PI * (angle + sin(angle) * cosine_series(cos(angle), 1, df));
    else
        within = sin(angle) * cosine_series(cos(angle), 0, df);
    return fmax(1 - within, 0);
}

double report_t_critical(double probability, int64_t df) {
    double low = 0, high = 1;
    if (!(probability > 0 && probability < 1) || df < 1) return NAN;
    while (report_t_two_sided(high, df) > probability) high *= 2;
    for (int i = 0; i < 200 && low < high; i++) {
        double middle = low + (high - low) / 2;
        if (middle == low || middle == high) break;
        *(report_t_two_sided(middle, df) > probability ? &low : &high) = middle;
    }
    return high;
}

// ---- Samples ------------------------------------------------------------------------------------

// Of a, or of a - b.
static double value_at(const double *a, const double *b, int64_t i) {
    return b ? a[i] - b[i] : a[i];
}

// From the first number on, so that equal numbers have exactly their mean.
static double mean_of(const double *a, const double *b, int64_t count) {
    double sum = 0;
    if (count == 0) return NAN;
    for (int64_t i = 0; i < count; i++) sum += value_at(a, b, i) - value_at(a, b, 0);
    return value_at(a, b, 0) + sum / (double)count;
}

static report_stat stat_of(const double *a, const double *b, int64_t count) {
    report_stat s = {.count = count, .mean = NAN, .deviation = NAN, .half = NAN};
    double mean = mean_of(a, b, count), squares = 0;
    if (isfinite(mean)) s.mean = mean;
    if (count < 2 || isnan(s.mean)) return s;
    for (int64_t i = 0; i < count; i++) squares += pow(value_at(a, b, i) - mean, 2);
    s.deviation = sqrt(squares / (double)(count - 1));
    s.half = report_t_critical(0.05, count - 1) * s.deviation / sqrt((double)count);
    return s;
}

report_stat report_stat_of(const double *values, int64_t count) {
    return stat_of(values, NULL, count);
}

// Whether the deviation exceeds what rounding makes of equal differences.
static bool is_spread(const double *a, const double *b, int64_t count, double deviation) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fmax(fabs(a[i]), fabs(b[i])));
    return deviation > 10 * DBL_EPSILON * largest;
}

report_paired report_paired_test(const double *a, const double *b, int64_t count) {
    report_paired test = {.difference = stat_of(a, b, count), .t = NAN, .p = NAN};
    const report_stat *d = &test.difference;
    if (!is_spread(a, b, count, d->deviation)) return test;
    test.t = d->mean / (d->deviation / sqrt((double)count));
    test.p = report_t_two_sided(test.t, count - 1);
    return test;
}

// ---- Several tests ------------------------------------------------------------------------------

// Whether test j comes before test i, or is it. NaN comes nowhere.
static bool is_before(const double *p, int64_t j, int64_t i) {
    return p[j] < p[i] || (p[j] == p[i] && j <= i);
}

// The p value of test j times the number of tests from it on.
static double step_down(const double *p, int64_t count, int64_t j) {
    int64_t rest = 0;
    for (int64_t i = 0; i < count; i++) rest += is_before(p, j, i);
    return fmin(1, (double)rest * p[j]);
}

void report_holm(const double *p, double *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        out[i] = p[i];
        for (int64_t j = 0; j < count; j++)
            if (is_before(p, j, i)) out[i] = fmax(out[i], step_down(p, count, j));
    }
}
