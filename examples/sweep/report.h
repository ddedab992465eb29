// SPDX-License-Identifier: MIT
// The report on several training runs: tables in CSV, figures, and one page with both.
#ifndef EXAMPLES_REPORT_H
#define EXAMPLES_REPORT_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// Numbers that are not known are NaN throughout, and texts NULL.

// An evaluation in the middle of a run.
typedef struct report_point {
    double step, seconds,
        bytes; // since the start of the run; bytes: sent by all ranks, see iso_traffic
    double train_loss, test_accuracy; // accuracy in 0 .. 1
    double between, parameters; // of the bytes, those between nodes; of these, those of parameters
    double wait_ms_per_step;    // exposed, mean since the point before
} report_point;

// A network for which times are predicted; rate 0: none is.
typedef struct report_network {
    double rate;    // of each node, in each direction, in Mbit/s
    double latency; // of a message, in ms: what it has more than the network of the runs
} report_network;

// One exchange of parameters.
typedef struct report_sync {
    double step, divergence, wait_ms, exchange_ms;
    double seconds;      // interpolated between the evaluations
    double period, wait; // in force after it, in steps
    double age;          // steps from send to merge
    double between;      // bytes that rank 0 sent to other nodes
} report_sync;

typedef struct report_run {
    char *name, *options,
        *settings;                  // options: as they were given; settings: a line for each option
    char *machine, *version, *date; // date: when the run began
    double seed, ranks, nodes, test_images;
    report_point *points;
    report_sync *syncs;
    int64_t point_count, sync_count;
    double steps, seconds, bytes;     // of the whole run
    double train_loss, test_accuracy; // in the end
    double train_loss_steps;          // number of last steps; train_loss is their mean
    double wait_ms_per_step;          // exposed: time the slowest rank spent in waits
    double exchange_alone_ms;         // of all gradients of a step, without computing
    double bytes_per_step;            // size of all gradients as they travel
    double merge_ms_per_step;         // likewise in converting, summing and merging parameters
    // Steps between exchanges, and from send to merge: at the end of the run, and as requested
    // ("auto"). Empty: the strategy has none.
    char period[16], period_requested[16], wait[16], wait_requested[16];
    char *failure; // the reason why the run failed; NULL: it did not
} report_run;

// A report on several runs (a study).
typedef struct report {
    const char *title;
    double target;        // target test accuracy, 0 .. 1
    const char *baseline; // name of the runs with which others are compared; NULL: the first ones
    report_network network;
    bool final; // no run is left: figures are drawn as PDF files, too
    report_run *runs;
    int64_t count;
    report_run *failed; // runs that failed: without numbers
    int64_t failed_count;
    report_run *left; // runs that are still to be made: only name, options and seed
    int64_t left_count;
} report;

// ---- report_read.c ----

// Reads the log of one run: JSON lines with the events "run" (name, options, settings, seed, ranks,
// nodes, machine, version, date), "eval", "sync", "resume" and "summary", or "failed" (reason). The
// caller frees *out with report_run_free. ISO_ERR_FORMAT for a file without a run event, or without
// its end.
iso_status report_run_read(const char *path, report_run *out);
void report_run_free(report_run *run);
// The settings of the run in a log that may have no end, freed by the caller; NULL: none.
char *report_log_settings(const char *path);

// ---- report_groups.c ----

// Whether the two are the same training: of one group (see report_groups.h) and with the same seed.
bool report_same_run(const report_run *a, const report_run *b);

// ---- report.c ----

// Writes points.csv, syncs.csv, runs.csv, modes.csv, comparisons.csv and report.html to folder, and
// figures to folder/figures, each file completely or not at all. Without gnuplot, only the
// scripts of the figures are written, and the page says so in their place.
iso_status report_write(const report *study, const char *folder);
// The names of these files, without figures; NULL if i is too large.
const char *report_file(int i);

#endif
