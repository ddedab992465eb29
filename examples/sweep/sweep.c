// SPDX-License-Identifier: MIT
// Compares synchronisation strategies: trains with each in turn and writes a report.
#include "sweep.h"

#include "support/watch.h"
#include "support/watchdog.h"

#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

// ---- How far it is ------------------------------------------------------------------------------

typedef struct progress {
    const sweep *sweep;
    int run;
    iso_progress_bar *bar;
    bool told;      // how long the sweep will take, for the first time
    bool begun;     // the run has been set up
    int64_t began;  // the run
    int64_t first;  // the step at which the run began, or went on
    int64_t step;   // of its last evaluation
    double seconds; // of the runs that were made or failed, and the steps that they made
    double made;
    double to_make; // of all runs that this program makes
} progress;

static int64_t steps_of(const sweep *self, int run) {
    const train_options *o = &self->options[run];
    int64_t batch = o->batch * self->world.ranks;
    int64_t batches = (self->world.info.count + batch - 1) / batch;
    return o->steps > 0 ? o->steps : o->epochs * train_steps_of(o, batches);
}

static double seconds_of_run(const progress *p) { return (double)(iso_now() - p->began) / 1e9; }

// What the rest will take if steps go on to take what they took.
static void left_text(double seconds, double made, double to_make, char text[64]) {
    double left = made > 0 ? seconds / made * (to_make - made) : NAN;
    text[0] = 0;
    if (left >= 5400)
        snprintf(text, 64, "the sweep ends in %.1f h", left / 3600);
    else if (left >= 90)
        snprintf(text, 64, "the sweep ends in %.0f min", left / 60);
    else if (left > 0)
        snprintf(text, 64, "the sweep ends in %.0f s", left);
}

static bool is_visible(const progress *p) { return p->sweep->world.rank == 0 && !p->sweep->quiet; }

// Once, after the first steps that were made.
static void tell_first_estimate(progress *p) {
    char left[64];
    if (p->told) return;
    p->told = true;
    left_text(seconds_of_run(p), (double)(p->step - p->first),
              p->to_make - p->made - (double)p->first, left);
    if (left[0])
        iso_progress_bar_line(p->bar, "%s, if all steps take as long as the first %lld", left,
                              (long long)(p->step - p->first));
}

static iso_status begin_bar(progress *p) {
    char label[SWEEP_NAME + 96];
    const sweep *self = p->sweep;
    snprintf(label, sizeof(label), "run %d/%d %s", p->run + 1, self->list.count,
             self->list.entries[p->run]->file);
    return iso_progress_bar_create(is_visible(p) ? stdout : NULL, label, steps_of(self, p->run),
                                   "steps", &p->bar);
}

static void end_bar(progress *p, const train_result *result) {
    const train_metrics *f = &result->metrics;
    char left[64];
    left_text(p->seconds, p->made, p->to_make, left);
    if (result->already_finished) {
        iso_progress_bar_finish(&p->bar, "was finished before");
        return;
    }
    iso_progress_bar_finish(&p->bar, "test accuracy %.2f %%  %.1f s  %.2f steps/s%s%s",
                            100 * f->test_accuracy, f->seconds, (double)result->steps / f->seconds,
                            left[0] ? ", " : "", left);
}

static void on_start(iso_json_log *log, int64_t step, void *user) {
    progress *p = user;
    p->first = p->step = step;
    p->begun = true;
    sweep_describe(p->sweep, p->run, log);
}

static void on_eval(const train_eval *eval, void *user) {
    progress *p = user;
    p->step = eval->step;
    iso_progress_bar_update(p->bar, eval->step, eval->train_loss);
    tell_first_estimate(p);
}

// The job ends with this run: records why, for the next sweep.
static void on_lost(const char *why, void *user) {
    const progress *p = user;
    sweep_store_lost(p->sweep, p->run, why);
}

// ---- Runs ---------------------------------------------------------------------------------------

// Whether a run is to be made. Those that failed before come last: they may end the job again.
enum { FINISHED, TO_MAKE, TO_REPEAT };

// Collective. Gives all ranks the list of remaining runs that rank 0 found. Returns false after
// rank 0 has printed an error message.
static bool open_store(sweep *self, char *left) {
    bool first = self->world.rank == 0;
    if (!train_all_well(first ? sweep_store_open(self) : ISO_OK)) return false;
    for (int i = 0; i < self->list.count; i++)
        left[i] = self->results[i].failure ? TO_REPEAT : self->results[i].name ? FINISHED : TO_MAKE;
    train_bcast(left, (size_t)self->list.count * sizeof(*left), 0, "the broadcast of what is left");
    if (!train_all_well(first ? sweep_report(self) : ISO_OK)) return false;
    if (first) sweep_store_catch_signals();
    return true;
}

// If a run failed, steps up to its last evaluation count as made; the others will not be made.
// Those of an earlier process were not made now.
static void end_steps(progress *p, bool failed) {
    double planned = (double)steps_of(p->sweep, p->run);
    double made = (failed ? (double)p->step : planned) - (double)p->first;
    p->made += made;
    p->to_make -= planned - made;
    p->seconds += seconds_of_run(p);
}

// A signal stops a run that saves its state. Without --checkpoint-every it ends the sweep at once.
static bool train_once(sweep *self, progress *p, train_result *result) {
    const train_options *options = &self->options[p->run];
    train_observer observer = {.start = on_start, .eval = on_eval, .lost = on_lost, .user = p};
    if (self->checkpoint_every > 0) train_stop_begin(options, false);
    bool good = train_perform(&self->world, options, &observer, result);
    if (self->checkpoint_every > 0) train_stop_end();
    return good;
}

// A run that fails, for example because the training diverges, does not stop the sweep.
static bool perform_run(sweep *self, progress *p, bool *failed) {
    train_options *options = &self->options[p->run];
    train_result result;
    bool first = self->world.rank == 0;
    options->log = first ? sweep_store_log(self, p->run) : NULL;
    options->tensorboard = first ? sweep_store_board(self, p->run) : NULL;
    bool continues = sweep_resume_begin(self, p->run, options->log);
    if (first) sweep_store_begin(self, continues);
    if (!train_all_well(begin_bar(p))) return false;
    p->began = iso_now();
    p->step = p->first = 0;
    p->begun = false;
    *failed = !train_once(self, p, &result);
    if (!*failed && result.already_finished) p->first = steps_of(self, p->run);
    self->stopped = !*failed && result.stopped;
    if (self->stopped) {
        iso_progress_bar_finish(&p->bar, "stopped");
        if (first) sweep_store_tell_stopped();
        return false;
    }
    // One that diverged, or could not go on, would only fail again. Others may go on, as when a
    // disk was full.
    bool goes_on = *failed && p->begun && self->checkpoint_every > 0 && !result.diverged;
    if (*failed && !goes_on) sweep_resume_end(self, p->run);
    end_steps(p, *failed);
    if (*failed) {
        iso_progress_bar_finish(&p->bar, "failed");
        if (first) fprintf(stderr, "sweep: run %s failed\n", self->list.entries[p->run]->file);
        return train_all_well(first ? sweep_store_fail(self, p->run, train_error_told(), goes_on)
                                    : ISO_OK);
    }
    end_bar(p, &result);
    if (!train_all_well(first ? sweep_store_finish(self, p->run) : ISO_OK)) return false;
    sweep_resume_end(self, p->run);
    return true;
}

static bool perform_all(sweep *self, const char *left) {
    progress p = {.sweep = self};
    int failures = 0, skipped = 0;
    for (int i = 0; i < self->list.count; i++) {
        if (left[i]) p.to_make += (double)steps_of(self, i);
        skipped += !left[i];
    }
    bool tell = self->world.rank == 0 && !self->quiet;
    if (tell && skipped) printf("finished before: %d of %d runs\n", skipped, self->list.count);
    for (int i = 0; i < self->list.count; i++)
        if (!left[i]) sweep_resume_end(self, i); // a sweep may have been killed before that
    for (int which = TO_MAKE; which <= TO_REPEAT; which++)
        for (p.run = 0; p.run < self->list.count; p.run++) {
            bool failed = false;
            if (left[p.run] == which && !perform_run(self, &p, &failed)) return false;
            failures += failed;
        }
    if (tell) printf("report    %s/report.html\n", self->folder);
    return failures == 0;
}

static bool sweep_all(sweep *self) {
    char *left = calloc((size_t)self->list.count, sizeof(*left));
    iso_status memory =
        left ? ISO_OK : train_error(ISO_ERR_NOMEM, "out of memory for the list of runs");
    if (self->checkpoint_every > 0) train_stop_catch();
    bool good = train_all_well(memory) && train_world_open(&self->world, &self->common) &&
                open_store(self, left) && perform_all(self, left);
    sweep_store_close();
    free(left);
    return good;
}

// ---- The program --------------------------------------------------------------------------------

static bool print_information(const sweep *self, int rank) {
    if (rank == 0 && self->help) sweep_help();
    if (rank == 0 && self->version) puts("isotherm " ISO_VERSION);
    return self->help || self->version;
}

static void destroy_sweep(sweep *self) {
    for (int i = 0; self->results && i < self->list.count; i++) report_run_free(&self->results[i]);
    for (int i = 0; i < self->earlier_count; i++) report_run_free(&self->earlier[i]);
    free(self->earlier);
    free(self->results);
    free(self->options);
    sweep_list_free(&self->list);
}

static void tell_merged(const sweep *self, int folders) {
    printf("report    %s/report.html: %d run%s of %d folder%s", self->folder, self->earlier_count,
           self->earlier_count == 1 ? "" : "s", folders, folders == 1 ? "" : "s");
    if (self->omitted > 0)
        printf(", without %d file%s", self->omitted, self->omitted == 1 ? "" : "s");
    putchar('\n');
}

// Without MPI, which needs a launcher on some machines.
static iso_status merge_folders(sweep *self, int argc, char **argv) {
    char **folders;
    int count;
    iso_status status = sweep_options_report(self, argc, argv, &folders, &count);
    if (status == ISO_OK && !print_information(self, 0)) {
        status = sweep_merge(self, folders, count);
        if (status == ISO_OK && !self->quiet) tell_merged(self, count);
    }
    sweep_store_close();
    free(folders);
    return status < 0 ? status : train_error_of_output();
}

static int report_main(sweep *self, int argc, char **argv) {
    iso_status status = merge_folders(self, argc, argv);
    if (status < 0) fprintf(stderr, "sweep: %s\n", train_error_text());
    destroy_sweep(self);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static bool run_sweep(sweep *self, int argc, char **argv) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    bool good =
        train_all_well(train_plugin_load(argc, argv)) && sweep_options_parse(self, argc, argv);
    if (good && !print_information(self, rank)) good = sweep_all(self);
    good = (good || self->stopped) && train_all_end();
    train_world_close(&self->world);
    return good;
}

int main(int argc, char **argv) {
    int provided;
    sweep self = {0};
    train_error_program("sweep");
    if (!sweep_options_wants_report(argc, argv)) watchdog_start("sweep");
    watch_start("sweep");
    if (sweep_options_wants_report(argc, argv)) return report_main(&self, argc, argv);
    watch_limit("MPI_Init_thread");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    watch_limit(NULL);
    bool good = run_sweep(&self, argc, argv);
    destroy_sweep(&self);
    watch_limit("MPI_Finalize");
    MPI_Finalize();
    watch_limit(NULL);
    watchdog_end();
    return !good ? EXIT_FAILURE : self.stopped ? TRAIN_STOPPED : EXIT_SUCCESS;
}
