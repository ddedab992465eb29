// SPDX-License-Identifier: MIT
// What the files of the sweep program share.
#ifndef EXAMPLES_SWEEP_H
#define EXAMPLES_SWEEP_H

#include "report.h"
#include "sweep_list.h"
#include "train/train.h"

typedef struct sweep {
    const char *folder;       // --out
    const char *file;         // --list
    const char *seeds;        // --seeds; NULL: one seed, that of --seed
    const char *shard;        // --shard; NULL: all runs
    const char *tensorboard;  // --tensorboard; NULL: no event files
    const char *report;       // --report; NULL: runs are made
    int64_t checkpoint_every; // steps; -1: runs are not continued
    double target;
    const char *predict;    // --predict; NULL: nothing is predicted
    report_network network; // of --predict
    const char *baseline;   // NULL: the first run
    bool help, version, quiet;
    train_options common; // without the options of individual runs
    sweep_list list;
    train_options *options; // of each run, in the list's order
    report_run *results; // likewise; name NULL: the run is not made yet; some runs may have failed
    report_run *earlier; // results in the folder whose runs are not in the list
    int earlier_count;
    int omitted; // files of folders that --report cannot use
    train_world world;
    bool stopped; // by a signal; the state of the run that was being made is saved
} sweep;

// ---- sweep_options.c ----

// Collective over MPI_COMM_WORLD. Reads the command line, and checks everything that can be checked
// before the first run, also that all ranks have the same options. Returns false after rank 0 has
// printed an error message.
bool sweep_options_parse(sweep *self, int argc, char **argv);
void sweep_help(void);

// Without MPI, where sweep_options_wants_report says so. Reads the options that --report can have,
// and the folders to merge, which point into argv; the caller frees *folders.
bool sweep_options_wants_report(int argc, char **argv);
iso_status sweep_options_report(sweep *self, int argc, char **argv, char ***folders, int *count);

// ---- sweep_folder.c ----

#define SWEEP_TITLE "Strategies of synchronisation compared" // of the page

// length: of the file's name without its ending.
typedef iso_status (*sweep_take_file)(sweep *self, const char *folder, const char *file,
                                      size_t length);
// Local. Calls take for each file of the folder that is named as a result, in the order of names.
// Leaves out a failure of a run that succeeded later.
iso_status sweep_folder_scan(const char *folder, sweep_take_file take, sweep *self);
// Local. ISO_ERR_STATE if a report would replace files in a folder without the page of a sweep and
// without a log of its runs.
iso_status sweep_folder_check(const char *folder);
// Local. Returns false, with a message on standard error, for a file that is no result of a sweep.
// The caller frees *out.
bool sweep_folder_read(const char *folder, const char *file, size_t length, report_run *out);
// Takes ownership of the run on success only.
iso_status sweep_add_earlier(sweep *self, const report_run *run);
// Local. Drops earlier failures of runs that succeeded, or failed again, under another name or in
// another folder.
void sweep_drop_outdated(sweep *self);

// ---- sweep_resume.c ----

// Collective. With --checkpoint-every: has the run save its state, and continue from the state that
// a killed sweep saved, if there is one and the log (of rank 0) is of the same run. Returns whether
// it continues.
bool sweep_resume_begin(sweep *self, int run, const char *log);
// Local, on every rank. Call it for a run that is finished or failed, also in an earlier sweep:
// removes its state.
void sweep_resume_end(const sweep *self, int run);

// ---- sweep_merge.c ----

// Local. Reads the results of all runs in the folders, and writes one report on them to --out.
// A run that is in two folders is taken once, with a message. Runs come in the order of their
// dates. ISO_ERR_STATE, before anything is read, if a sweep writes to --out. Call sweep_store_close
// also after a failure.
iso_status sweep_merge(sweep *self, char **folders, int count);

// ---- sweep_describe.c ----

enum { SWEEP_SETTINGS_ROOM = TRAIN_OPTIONS_ROOM + 1024 };
// A line for each option of the run that may change results, and its number of ranks.
void sweep_settings(const sweep *self, int run, char text[SWEEP_SETTINGS_ROOM]);
// Writes the name, options and circumstances of the run to its log.
void sweep_describe(const sweep *self, int run, iso_json_log *log);

// ---- sweep_store.c ----

// Local, on rank 0. Creates and locks the folder, and reads the results of earlier runs, in the
// list or not. ISO_ERR_STATE if another sweep writes to the folder, ISO_ERR_MISMATCH for a run that
// was made with other options. Call sweep_store_close also after a failure.
iso_status sweep_store_open(sweep *self);
// Does nothing if the store is not open.
void sweep_store_close(void);
// The path of the log of a run that is about to be made; valid until the next one.
const char *sweep_store_log(const sweep *self, int run);
// The folder of the run's event files; valid until the next one; NULL without --tensorboard.
const char *sweep_store_board(const sweep *self, int run);
// Local, on rank 0. Call it before a run. continues: its log stays, and is appended to.
void sweep_store_begin(const sweep *self, bool continues);
// Local, on rank 0. Call it after a run: keeps its log, reads its results, and rewrites the report.
iso_status sweep_store_finish(sweep *self, int run);
// Local, on rank 0. Call it after a run that failed: adds the reason to its log, and rewrites the
// report. The next sweep makes the run again. goes_on: from its state, with its log.
iso_status sweep_store_fail(sweep *self, int run, const char *reason, bool goes_on);
// Local, on any rank, before the job ends: the next sweep finds that the run failed, and makes it
// after the others. Says nothing if that cannot be written.
void sweep_store_lost(const sweep *self, int run, const char *reason);
// From now on signals that end the program do so as soon as all files are complete, on rank 0 with
// a message.
void sweep_store_catch_signals(void);
// Local, on rank 0. Prints the message of a sweep whose run was stopped and saved.
void sweep_store_tell_stopped(void);
iso_status sweep_report(const sweep *self);
// Local. Makes the folder of --out, and takes its lock; sweep_store_close releases it.
iso_status sweep_store_take_folder(const sweep *self);

#endif
