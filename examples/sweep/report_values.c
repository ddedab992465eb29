// SPDX-License-Identifier: MIT
// The numbers of a run that a report compares.
#include "report_groups.h"

#include <math.h>

const report_point *report_reached(const report_run *run, double accuracy) {
    for (int64_t i = 0; i < run->point_count; i++)
        if (run->points[i].test_accuracy >= accuracy) return &run->points[i];
    return NULL;
}

double report_accuracy(const report *study, const report_run *run) {
    (void)study;
    return run->test_accuracy;
}

double report_loss(const report *study, const report_run *run) {
    (void)study;
    return run->train_loss;
}

double report_target_seconds(const report *study, const report_run *run) {
    const report_point *at = report_reached(run, study->target);
    return at ? at->seconds : NAN;
}

double report_target_steps(const report *study, const report_run *run) {
    const report_point *at = report_reached(run, study->target);
    return at ? at->step : NAN;
}

double report_target_megabytes(const report *study, const report_run *run) {
    const report_point *at = report_reached(run, study->target);
    return at ? at->bytes / 1e6 : NAN;
}

double report_steps(const report *study, const report_run *run) {
    (void)study;
    return run->steps;
}

double report_seconds(const report *study, const report_run *run) {
    (void)study;
    return run->seconds;
}

double report_speed(const report *study, const report_run *run) {
    (void)study;
    return run->steps / run->seconds;
}

double report_megabytes(const report *study, const report_run *run) {
    (void)study;
    return run->bytes / 1e6;
}

double report_exposed_ms(const report *study, const report_run *run) {
    (void)study;
    return run->wait_ms_per_step;
}

double report_merge_ms(const report *study, const report_run *run) {
    (void)study;
    return run->merge_ms_per_step;
}

// Logs of older versions do not have the time of merges.
double report_compute_ms(const report *study, const report_run *run) {
    (void)study;
    double merge = isnan(run->merge_ms_per_step) ? 0 : run->merge_ms_per_step;
    return fmax(run->seconds * 1e3 / run->steps - run->wait_ms_per_step - merge, 0);
}

double report_exposed_share(const report *study, const report_run *run) {
    (void)study;
    return 100 * run->wait_ms_per_step * run->steps / 1e3 / run->seconds;
}

const report_metric report_metrics[REPORT_METRICS] = {
    {"test_accuracy", "final test accuracy", "%", report_accuracy, 100, 2},
    {"train_loss", "training loss", "", report_loss, 1, 4},
    {"seconds_to_target", "time to the target", "s", report_target_seconds, 1, 2},
    {"seconds", "training time", "s", report_seconds, 1, 2},
};
