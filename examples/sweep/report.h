// SPDX-License-Identifier: MIT
// The report on several training runs: tables in CSV, and one page with plots.
#ifndef EXAMPLES_REPORT_H
#define EXAMPLES_REPORT_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// Numbers that are not known are NaN throughout.

// An evaluation in the middle of a run.
typedef struct report_point {
    double step, seconds,
        bytes; // since the start of the run; bytes: sent by all ranks, see iso_traffic
    double train_loss, test_accuracy; // accuracy in 0 .. 1
} report_point;

// One exchange of parameters.
typedef struct report_sync {
    double step, divergence, wait_ms, exchange_ms;
} report_sync;

typedef struct report_run {
    char *name, *options; // options: as they were given
    report_point *points;
    report_sync *syncs;
    int64_t point_count, sync_count;
    double steps, seconds, bytes;     // of the whole run
    double train_loss, test_accuracy; // in the end
    double train_loss_steps;          // number of last steps; train_loss is their mean
    double wait_ms_per_step;          // exposed: time the slowest rank spent in waits
    // Steps between exchanges, and from send to merge: at the end of the run, and as requested
    // ("auto"). Empty: the strategy has none.
    char period[16], period_requested[16], wait[16], wait_requested[16];
    char *failure; // the reason why the run failed; NULL: it did not
} report_run;

// A report on several runs (a study).
typedef struct report {
    const char *title, *setting; // setting: data, model, ranks: a line under the title
    double target;               // target test accuracy, 0 .. 1
    report_run *runs;
    int64_t count;
    report_run *failed; // runs that failed: only name, options and failure are set
    int64_t failed_count;
} report;

// ---- report_read.c ----

// Reads the log of one run: JSON lines with the events "run" (name, options, settings), "eval",
// "sync" and "summary", or "failed" (reason). The caller frees *out with report_run_free, and
// *settings (NULL: not wanted). ISO_ERR_FORMAT for a file without a run event, or without its end.
iso_status report_run_read(const char *path, report_run *out, char **settings);
void report_run_free(report_run *run);

// ---- report.c ----

// Writes points.csv, syncs.csv, runs.csv and report.html to folder, each completely or not at all.
// Without gnuplot, the page says so in place of the plots.
iso_status report_write(const report *study, const char *folder);

#endif
