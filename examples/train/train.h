// SPDX-License-Identifier: MIT
// What the files of the train program share, and the interface to a training run for programs that
// make several: open the world once, then perform runs with different options.
#ifndef EXAMPLES_TRAIN_H
#define EXAMPLES_TRAIN_H

#include "train_error.h"
#include "train_options.h"

#include <isotherm.h>

// ---- For programs ---------------------------------------------------------------------------------

// What runs have in common: ranks, device and data sets, as --progress, --device, --threads and
// --data say.
typedef struct train_world {
    iso_comm *comm;
    int rank, ranks, nodes;
    int local_rank; // in this rank's node
    iso_device *device;
    iso_dataset *train_set, *test_set;
    iso_dataset *validation_set; // NULL without --validation; no longer in the training set
    iso_dataset_info info;       // of the training set; classes are the network's
    iso_cores cores;
    bool bound; // the kernels' threads, to a share of the cores
} train_world;

// Test metrics in the middle of a run, the same on all ranks.
typedef struct train_eval {
    int64_t step;
    double seconds;    // of training so far, the slowest rank's; without evaluations and saving
    double train_loss; // mean since the last eval
    double test_loss, test_accuracy;         // accuracy in 0 .. 1
    int64_t bytes_sent, bytes_between_nodes; // of all ranks so far; see train_traffic
} train_eval;

// A merge in one of the periodic modes, as this rank saw it.
typedef struct train_sync {
    int64_t step, age, global_skip, batches_to_wait;
    double wait_ms, exchange_ms, divergence;
    const char *phase;
} train_sync;

// Of an epoch or, in the end, of the whole run; loss and test metrics over all ranks.
typedef struct train_metrics {
    double train_loss, test_loss, test_accuracy; // accuracy in 0 .. 1; of the last epoch
    double seconds;                              // of training, the slowest rank's
    int64_t samples;                             // trained on, all ranks
} train_metrics;

typedef struct train_result {
    bool
        already_finished; // the run that was to be resumed had come to its end: nothing else is set
    train_metrics metrics; // seconds and samples of the whole run
    int64_t steps, syncs;
    int64_t skipped;     // of the steps, those of --finite skip without an update
    int64_t differences; // that --check-equal found since this process began
    int64_t loss_steps;  // the last ones, whose mean loss metrics.train_loss is
    int64_t period, period_requested, wait, wait_requested; // see iso_strategy_stats; 0: has none
    double step_ms_p50, wait_ms_per_step, wait_ms_per_sync, exchange_ms; // the slowest rank's
    double step_ms_mean, step_wait_ms_mean; // the slowest rank's, of the steps of this process
    int64_t bytes_per_step, bytes_sent, bytes_between_nodes;
    double peak_rss_mb;
    char hash[17];
} train_result;

// Told of what happens, on every rank. Any may be NULL.
typedef struct train_observer {
    // Before the first step. log: rank 0's of --log, or NULL.
    void (*start)(iso_json_log *log, void *user);
    void (*eval)(const train_eval *eval, void *user);
    void (*sync)(const train_sync *sync, void *user);
    void (*epoch)(int64_t epoch, const train_metrics *metrics, void *user);
    void (*end)(const train_result *result, void *user);
    void *user;
} train_observer;

// Collective over MPI_COMM_WORLD; false: rank 0 has printed why. What was opened is closed by
// train_world_close, also on failure.
bool train_world_open(train_world *world, const train_options *options);
void train_world_close(train_world *world);
// Collective. Of options that train_options_check has passed. One run from its initial parameters,
// which depend on the options alone, to its end. observer may be NULL. False: rank 0 has printed
// why, on every rank alike, and the next run may begin; an error that cannot be told to the others
// ends the job.
bool train_perform(const train_world *world, const train_options *options,
                   const train_observer *observer, train_result *out);

// ---- Private to train_*.c -------------------------------------------------------------------------

// Of so many latest steps the durations are kept.
#define TRAIN_STEP_TIMES 65536

// Where a run stands. All of it is saved for resuming: position is the same on all ranks, sums are
// each rank's own.
typedef struct train_position {
    int64_t epoch, batch, step; // the next batch of the loader, and how many updates were made
    int64_t samples;            // trained on by all ranks in the epochs before
    int64_t finished;           // whether the run is complete
} train_position;
typedef struct train_sums {
    double loss, samples;             // of the epoch
    double last_loss, last_samples;   // of the last steps of the run, see train_last_steps
    double eval_loss, eval_samples;   // since the last eval
    double seconds, epoch_seconds;    // of the whole run; until the epoch began
    double wait_ms;                   // in waits for gradients, of runs that this one resumes
    double bytes_sent, bytes_between; // without parameters, of runs that this one resumes
} train_sums;

// By the accuracy on the validation set; saved for resuming.
typedef struct train_best {
    double accuracy; // of all epochs so far; -1: there was none
    double epoch;    // that had it
    double since;    // epochs after it
} train_best;

typedef struct train_run {
    const train_world *world;
    const train_options *options;
    const train_observer *observer;
    iso_loader *train_loader, *test_loader;
    iso_loader *validation_loader; // NULL without --validation
    double *normalisation;         // mean, then deviation, of each channel as the loaders take it
    iso_module *model;             // a data_parallel once train_setup_shared is through
    iso_loss *loss, *test_loss;    // the training's may smooth labels
    iso_optimizer *optimizer;
    const iso_strategy *strategy; // --sync
    bool periodic;                // it exchanges parameters, and tells of that
    iso_schedule schedule;
    iso_lr_plateau plateau;     // of --schedule plateau
    double lr;                  // schedule's, as the plateaus have left it
    int64_t *milestones;        // schedule's
    int64_t steps, epoch_steps; // of the whole run; of an epoch
    train_position at;
    train_sums sum;
    int64_t differences;       // that --check-equal found since this process began
    int64_t skipped;           // steps without an update so far
    const char *old_wire;      // --wire of the run that is resumed, where it was another; or NULL
    bool uncounted_last;       // whether that batch is one of the last steps
    double uncounted;          // samples of a batch whose loss is not yet in the sums
    int64_t clock;             // when the time of training began to run; 0: it stands
    double clock_wait_ms;      // waits until then
    int64_t test_samples;      // images that a test looks at: the first ones of the test set
    iso_evaluation test;       // the latest
    iso_evaluation validation; // of the last epoch
    train_best best;
    int64_t test_step;       // when that was made; -1: never
    iso_strategy_stats seen; // when the strategy was last asked
    double *step_ms;         // [TRAIN_STEP_TIMES], a ring
    int64_t timed_steps;     // since this process began
    double steps_ms;         // of training, since this process began
    double steps_wait_ms;    // that of it which were waits
    bool told;               // the error that is returned is known to all ranks
    iso_progress_bar *bar;   // of the epoch; NULL: between epochs
    iso_json_log *log;       // rank 0's, if wanted
} train_run;

// ---- train_data.c ----

// Local. What can be wrong with --mean and --std whatever the data.
iso_status train_data_check(const train_options *options);
// Local. Loaders of both data sets, as the options say.
iso_status train_loaders_open(train_run *run);

// ---- train_classes.c ----

// Local. Finds how many classes the network tells apart: --classes or, without it, as many as the
// labels of both sets show. Refuses labels that look damaged.
iso_status train_classes_find(train_world *world, const train_options *options);

// ---- train_validation.c ----

// Local. Moves the part that --validation asks for from the training set to a set of its own.
iso_status train_validation_split(train_world *world, const train_options *options);
// Collective. Evaluates the model after an epoch.
iso_status train_validation_run(train_run *run);
// Collective. Whether this epoch was the best one, which --checkpoint-best saves.
iso_status train_validation_judge(train_run *run);
// Whether --early-stopping ends the run here.
bool train_validation_stops(const train_run *run);

// ---- train_agree.c ----

// Collective. ISO_ERR_MISMATCH on every rank where the ranks have read different data sets.
iso_status train_agree_data(const train_world *world, const train_options *options);
// Collective. The same of the file of --load. A rank that has none takes what rank 0 has read.
iso_status train_agree_load(const train_run *run);

// ---- train_threads.c ----

// Collective. Looks at the cores that ranks were given, takes a share where that helps, and warns
// where they do not suffice.
iso_status train_threads_setup(train_world *world, const train_options *options);

// ---- train_kernels.c ----

// Collective. All ranks compute with the same kernels: the rule's, or those that rank 0 finds to be
// the fastest for the shapes of a step.
iso_status train_kernels_setup(const train_run *run);

// ---- train_setup.c ----

// Local: loaders and model, and what can be checked without others.
iso_status train_setup_local(train_run *run);
// Collective: ties the replicas together.
iso_status train_setup_shared(train_run *run);
// Without --lr.
double train_default_lr(iso_optimizer_kind kind);
// Collective. The optimizer that --optimizer names, not yet tied to the model.
iso_status train_optimizer_create(train_run *run, iso_optimizer **out);
// Collective. Frees whatever was set up.
void train_teardown(train_run *run);

// ---- train_schedule.c ----

// Local. What can be wrong with --schedule and its options whatever the run.
iso_status train_schedule_check(const train_options *options);
// Local. Fills in run->schedule and run->plateau, as the options say.
iso_status train_schedule_setup(train_run *run, iso_optimizer_kind optimizer, double lr);
// Local. Sets the rate of the next step; tells the test loss of an epoch, the same on all ranks.
void train_schedule_step(train_run *run);
void train_schedule_epoch(train_run *run, double test_loss);
// What the rates of the steps to come depend on.
iso_status train_schedule_state(train_run *run, iso_state *state);

// ---- train_run.c ----

// Updates of an epoch of that many batches.
int64_t train_steps_of(const train_options *options, int64_t batches);
// The steps at the end of the run whose mean loss is told as that of its training: as many as an
// epoch has; of a shorter run a tenth, as its first steps say little of how it ends.
int64_t train_last_steps(const train_run *run);

// ---- train_sync.c ----

// Collective. Wraps the model and the optimizer as --sync says.
iso_status train_sync_setup(train_run *run);
// Local. After a step: tells of merges and of changes of the policy.
iso_status train_sync_look(train_run *run);
// Local. What training has moved so far, this rank's share: see iso_traffic in isotherm/comm.h.
void train_traffic(const train_run *run, int64_t *sent, int64_t *between_nodes);
// This rank's time in waits so far.
double train_wait_ms(const train_run *run);

// ---- train_equal.c ----

// Collective. Compares the parameters of all ranks; if they differ does as --on-difference says.
// ISO_ERR_MISMATCH on every rank if that is to stop.
iso_status train_equal_check(train_run *run);

// ---- train_state.c ----

// Collective. Writes a set of files from which the run can go on.
iso_status train_state_save(train_run *run);
// Collective. ISO_ERR_MISMATCH, naming them, for options that must be those of the run that was
// saved. Needs neither model nor optimizer.
iso_status train_state_check(train_run *run);
// Collective. Goes to where the newest set was saved, which train_state_check has found to fit.
iso_status train_state_load(train_run *run);

// ---- train_stop.c ----

// Local. From here on, until the end, a signal that ends this process leaves no file of the
// checkpoint that is not written whole; says: and the process says what is saved.
void train_stop_begin(const train_options *options, bool says);
void train_stop_end(void);
// What it is to say: --checkpoint holds the parameters after so many epochs; whether a progress
// line is open, which is redrawn in place.
void train_stop_saved(int64_t epoch);
void train_stop_line(bool is_redrawn);

// ---- train_output.c ----

// Local. Whether a file can be put at path, by making and removing one beside it.
iso_status train_output_check(const char *path, const char *what);
// Local, but completes pending updates (then collective). ISO_ERR_STATE, a sentence that begins
// with `what` and ends with `remedy`, if a parameter is not finite.
iso_status train_check_finite(const train_run *run, const char *what, const char *remedy);
// Local. Parameters of the model from a checkpoint.
iso_status train_checkpoint_load(train_run *run);
// Collective. Writes the parameters, under a periodic mode their mean, on rank 0.
iso_status train_checkpoint_save(train_run *run, const char *path);
// Collective. Gathers the traces of all ranks and writes one file on rank 0.
iso_status train_trace_write(train_run *run);

// ---- train_stats.c ----

// Local. What --stats asks for, for each bucket of gradients: a table on rank 0, and events of the
// log.
// The part of an exchange that no wait shows, 0 to 1. Waits may be longer than the exchange, where
// ranks wait for each other: 0. NaN: not measurable, as there is no exchange.
double train_hidden(double exchange_ms, double wait_ms);
void train_stats_tell(const train_run *run, const train_result *result);

// ---- train_report.c ----

void train_report_start(const train_run *run);
void train_report_resume(const train_run *run);
iso_status train_report_bar(train_run *run);
// Collective. Evaluates the model on the test set, and tells of progress where that takes long.
iso_status train_report_test(train_run *run);
void train_report_eval(train_run *run, const train_eval *eval);
void train_report_sync(train_run *run, const train_sync *sync);
void train_report_policy(train_run *run, const iso_strategy_stats *stats);
void train_report_skip(train_run *run);
void train_report_early(train_run *run);
void train_report_difference(train_run *run, int64_t rank);
void train_report_epoch(train_run *run, const train_metrics *metrics);
// Collective. Measures what is left to measure and writes the summary. ISO_ERR_MISMATCH when the
// ranks ended with different parameters. metrics: as train_result has them.
iso_status train_report_summary(train_run *run, const train_metrics *metrics, train_result *out);

#endif
