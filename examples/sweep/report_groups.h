// SPDX-License-Identifier: MIT
// Groups of runs that differ in their seed only, and what holds on the whole for a group.
#ifndef EXAMPLES_REPORT_GROUPS_H
#define EXAMPLES_REPORT_GROUPS_H

#include "report.h"
#include "report_stats.h"

// A machine and what all runs on it have in common. Runs of two setups are not compared.
typedef struct report_setup {
    const report_run *first;    // one of its runs
    char letter[8];             // "A"
    const char *begun, *latest; // dates of its first and last run; NULL: not known
    char versions[128];         // each once, with commas between them
} report_setup;

// The runs of one mode: they have the same name, settings and setup, and different seeds.
typedef struct report_group {
    char name[96]; // of its runs; "name #2" if other runs of the setup have it, too
    // The name; with more setups than one "name [A]"; if seeds lack, "name (4 of 5 seeds)".
    char label[176];
    const report_run *first;
    int64_t setup;
    const report_run **runs; // in the order of their seeds
    int64_t count;
    int64_t failed, left; // its runs that have no results: they failed, or are still to be made
    double *room;         // [count]
} report_group;

typedef struct report_groups {
    const report *study;
    report_setup *setups;
    int64_t setup_count;
    report_group *groups; // in the order of their first runs
    int64_t count;
    double *room; // [2 * count]
} report_groups;

// Refers to the runs of the study. Call report_groups_free also after a failure.
iso_status report_groups_make(const report *study, report_groups *out);
void report_groups_free(report_groups *groups);

// The group of a run of the study that did not fail; NULL: it has none.
const report_group *report_group_of(const report_groups *all, const report_run *run);

// Whether the line of settings may differ inside a group.
bool report_is_seed_line(const char *line);

// ---- Numbers of a run ---------------------------------------------------------------------------

typedef double (*report_value)(const report *study, const report_run *run);
double report_accuracy(const report *study, const report_run *run); // 0 .. 1
double report_loss(const report *study, const report_run *run);
double report_target_seconds(const report *study, const report_run *run); // NaN: not reached
double report_target_steps(const report *study, const report_run *run);
double report_target_megabytes(const report *study, const report_run *run);
double report_steps(const report *study, const report_run *run);
double report_seconds(const report *study, const report_run *run);
double report_speed(const report *study, const report_run *run); // steps per second
double report_megabytes(const report *study, const report_run *run);
double report_exposed_ms(const report *study, const report_run *run); // per step, as all below
double report_merge_ms(const report *study, const report_run *run);
double report_compute_ms(const report *study, const report_run *run);    // the rest of a step
double report_exposed_share(const report *study, const report_run *run); // % of the time
// The first evaluation that reached the accuracy; NULL: none did.
const report_point *report_reached(const report_run *run, double accuracy);

// ---- Numbers of a group -------------------------------------------------------------------------

// How many seeds the mode is to have: count, failed and left.
int64_t report_group_seeds(const report_group *group);
// Of all runs of the group; the mean is NaN if one of them has no number. Numbers at the target
// have a mean only if every seed reached it, and a run that failed did not.
report_stat report_group_stat(const report_groups *all, const report_group *group,
                              report_value value);
double report_group_value(const report_groups *all, const report_group *group, int64_t run,
                          report_value value); // what the mean is of
int64_t report_group_reached(const report_groups *all, const report_group *group);
// The group of the same setup to compare with; NULL: there is none, or it is this one.
const report_group *report_group_baseline(const report_groups *all, const report_group *group);
// The best groups first: by mean time to the target, then by mean accuracy. order has all->count
// elements.
void report_groups_rank(const report_groups *all, int64_t *order);

// What modes are compared by.
typedef struct report_metric {
    const char *key, *title, *unit; // key: in CSV files
    report_value value;
    double scale; // of what is displayed in this unit
    int digits;   // and with how many digits after the point
} report_metric;
enum { REPORT_METRICS = 4 };
extern const report_metric report_metrics[REPORT_METRICS];

// The paired test of group - baseline over the seeds that both have.
typedef struct report_comparison {
    const report_group *baseline; // NULL: there is nothing to compare with
    report_paired test;
    int64_t seeds; // that the two are to have: the pairs, and those that lack
    double holm;   // test.p, adjusted for all comparisons of this metric in this setup
} report_comparison;
report_comparison report_compare_group(const report_groups *all, const report_group *group,
                                       int metric);

#endif
