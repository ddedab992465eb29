// SPDX-License-Identifier: MIT
// What the files of the sweep program share.
#ifndef EXAMPLES_SWEEP_H
#define EXAMPLES_SWEEP_H

#include "report.h"
#include "sweep_list.h"
#include "train/train.h"

typedef struct sweep {
    const char *folder; // --out
    const char *file;   // --list
    double target;
    bool help, version, quiet;
    train_options common; // without those of the runs
    sweep_list list;
    train_options *options; // of each run, in the list's order
    report_run *results; // the same; of runs that are not made name is NULL, and some have failed
    report_run *earlier; // of the folder's runs that are not in the list
    int earlier_count;
    train_world world;
} sweep;

// ---- sweep_options.c ----

// Collective over MPI_COMM_WORLD. Reads the command line, and checks everything that can be known
// before the first run, also that all ranks have the same. False: rank 0 has said why.
bool sweep_options_parse(sweep *self, int argc, char **argv);
void sweep_help(void);

// ---- sweep_store.c ----

// Local, on rank 0. Makes the folder, locks it, and takes the results of runs that were made
// before, in the list or not. ISO_ERR_STATE where another sweep writes to the folder,
// ISO_ERR_MISMATCH for a run that was made with other options. The caller then calls
// sweep_store_close, also on failure.
iso_status sweep_store_open(sweep *self);
// Does nothing where the store is not open.
void sweep_store_close(void);
// Where the log of a run grows until the run is finished; lives as long as the program.
const char *sweep_store_begin(const sweep *self, int run);
// Writes to that log what tells the run from others.
void sweep_store_describe(const sweep *self, int run, iso_json_log *log);
// Local, on rank 0. The run is finished: keeps its log, takes its results, renews the report.
iso_status sweep_store_finish(sweep *self, int run);
// Local, on rank 0. The run failed: keeps its log with the reason, renews the report. The next
// sweep tries it again.
iso_status sweep_store_fail(sweep *self, int run, const char *reason);
// From now on SIGINT and SIGTERM end the program as soon as files are whole, on rank 0 with a
// sentence.
void sweep_store_catch_signals(void);
iso_status sweep_report(const sweep *self);

#endif
