// SPDX-License-Identifier: MIT
// What the files of the train program share, and the interface to a training run for programs that
// make several: open the world once, then perform runs with different options.
#ifndef EXAMPLES_TRAIN_H
#define EXAMPLES_TRAIN_H

#include "train_error.h"
#include "train_options.h"
#include "train_rebuild.h"

#include <isotherm.h>

// ---- For programs ---------------------------------------------------------------------------------

// What runs have in common: ranks, device and data sets, according to --progress, --device,
// --threads and --data.
typedef struct train_world {
    iso_comm *comm;
    int rank, ranks, nodes;
    int local_rank; // in this rank's node
    iso_device *device;
    iso_dataset *train_set, *test_set;
    iso_dataset *validation_set; // NULL without --validation; no longer in the training set
    iso_dataset_info info;       // of the training set; classes are the network's
    iso_cores cores;
    bool bound; // the kernels' threads are bound to a share of the cores
} train_world;

// Test metrics in the middle of a run, the same on all ranks.
typedef struct train_eval {
    int64_t step;
    double seconds;    // of training so far, the slowest rank's; without evaluations and saving
    double train_loss; // mean since the last eval
    double lr;         // of the last step
    // Means since the last eval, or since this process began; as those of train_metrics.
    double step_ms, wait_ms_per_step;
    double test_loss, test_accuracy;         // accuracy in 0 .. 1
    int64_t bytes_sent, bytes_between_nodes; // of all ranks so far; see train_traffic
    int64_t parameter_bytes;                 // of the latter, by exchanges of parameters
} train_eval;

// A merge in one of the periodic modes, as this rank saw it.
typedef struct train_sync {
    int64_t step, age, global_skip, batches_to_wait;
    int64_t bytes_between_nodes; // that this rank sent since the merge before
    double wait_ms, exchange_ms, divergence;
    const char *phase;
} train_sync;

// Metrics of an epoch or, at the end, of the whole run. Loss and test metrics are over all ranks.
typedef struct train_metrics {
    double train_loss, test_loss, test_accuracy; // accuracy in 0 .. 1; of the last epoch
    double seconds;                              // of training, the slowest rank's
    int64_t samples;                             // trained on, all ranks
    // Of an epoch only, of its steps in this process: mean time of a step, and of that waits for
    // exchanges; each the slowest rank's. NaN if this process made none.
    double step_ms, wait_ms_per_step;
} train_metrics;

typedef struct train_result {
    bool already_finished, diverged; // complete: no other field is set; training diverged
    bool stopped;          // by a signal, and its state is saved: no other field is set
    train_metrics metrics; // seconds and samples of the whole run
    int64_t steps, syncs;
    int64_t skipped;     // steps without an update
    int64_t differences; // found by --check-equal since this process began
    int64_t loss_steps;  // number of last steps; metrics.train_loss is their mean loss
    int64_t period, period_requested, wait, wait_requested; // see iso_strategy_stats; 0: none
    double step_ms_p50, wait_ms_per_step, wait_ms_per_sync, exchange_ms; // the slowest rank's
    // The slowest rank's, of the steps of this process; merge: work_ms of iso_strategy_stats.
    double step_ms_mean, step_wait_ms_mean, merge_ms_per_step;
    int64_t bytes_per_step, bytes_sent, bytes_between_nodes;
    double peak_rss_mb;
    char hash[17];
} train_result;

// Functions that are called during a run, on every rank. Any may be NULL.
typedef struct train_observer {
    // Before the first step. log: rank 0's of --log, or NULL.
    void (*start)(iso_json_log *log, int64_t step, void *user); // step: 0, or where it goes on
    void (*eval)(const train_eval *eval, void *user);
    void (*sync)(const train_sync *sync, void *user);
    void (*epoch)(int64_t epoch, const train_metrics *metrics, void *user);
    void (*end)(const train_result *result, void *user);
    void (*lost)(const char *why, void *user); // on a rank that then ends the job
    void *user;
} train_observer;

// Collective over MPI_COMM_WORLD. Returns false after rank 0 has printed an error message. Call
// train_world_close also after a failure.
bool train_world_open(train_world *world, const train_options *options);
void train_world_close(train_world *world);
// Collective. Makes one run with options that train_options_check has accepted. The initial
// parameters depend on the options alone. observer may be NULL. Returns false on every rank after
// rank 0 has printed an error message; the next run may then begin. An error that this rank cannot
// report to the others ends the job.
bool train_perform(const train_world *world, const train_options *options,
                   const train_observer *observer, train_result *out);

// ---- Private to train_*.c -------------------------------------------------------------------------

// The number of latest steps whose durations are kept.
#define TRAIN_STEP_TIMES 65536

// The state of a run, all of which is saved for resuming. The position is the same on all ranks;
// sums are each rank's own.
typedef struct train_position {
    int64_t epoch, batch, step; // the next batch of the loader; number of updates made
    int64_t samples;            // trained on by all ranks in the epochs before
    int64_t finished;           // 1: the run is complete
} train_position;
typedef struct train_sums {
    double loss, samples;             // of the epoch
    double last_loss, last_samples;   // of the last steps of the run, see train_last_steps
    double eval_loss, eval_samples;   // since the last eval
    double seconds, epoch_seconds;    // of the whole run; of the run before this epoch
    double wait_ms;                   // in waits for gradients, of the runs that this one resumes
    double bytes_sent, bytes_between; // of the runs that this one resumes; without exchanges of
                                      // parameters, which the strategy counts
} train_sums;

// The best epoch by accuracy on the validation set. Saved for resuming.
typedef struct train_best {
    double accuracy; // the best so far; -1: none yet
    double epoch;    // the epoch that reached it
    double since;    // number of epochs after it
} train_best;

// The start of a mean over steps: a step, and the time of all steps of this process until then.
typedef struct train_mark {
    int64_t step;
    double steps_ms, wait_ms; // the slowest rank's
} train_mark;

// What TensorBoard is shown, beside the JSON log.
typedef struct train_board {
    iso_event_log *log; // rank 0's, if wanted
    int64_t step;       // of the event that is being written
    bool begun;         // it has numbers
} train_board;

// How a global batch is divided.
typedef struct train_shares {
    int64_t ranks, batch, accumulate;
} train_shares;

enum { TRAIN_EXTENDED_ROOM = 400 };
typedef struct train_run {
    const train_world *world;
    int workers; // ranks that train; those behind them only serve, see train_server.h
    const train_options *options;
    const train_observer *observer;
    iso_loader *train_loader, *test_loader;
    iso_loader *validation_loader; // NULL without --validation
    iso_loader *match_loader;      // of this rank's part of that set for its trainer; NULL: none
    iso_comm *self;                // this rank alone; NULL without match_loader
    double *normalisation;         // means of all channels, then standard deviations
    iso_module *model;             // a data_parallel after train_setup_shared
    iso_loss *loss, *test_loss;    // `loss` may smooth labels
    iso_optimizer *optimizer;
    const iso_strategy *strategy; // --sync
    bool periodic;                // the strategy exchanges parameters and reports it
    iso_schedule schedule;
    iso_lr_plateau plateau;     // of --schedule plateau
    double lr, lr_factor;       // the schedule's, reduced at plateaus; of a trainer, else 1
    int64_t *milestones;        // the schedule's
    int64_t steps, epoch_steps; // of the whole run; of an epoch
    train_position at;
    train_sums sum;
    int64_t differences;                // found by --check-equal since this process began
    int64_t skipped;                    // steps without an update so far
    const char *old_wire;               // --wire of the resumed run if it differs, else NULL
    train_shares before;                // of the resumed run
    bool other_ranks, other_nodes;      // the resumed run had other ranks; other nodes
    char extended[TRAIN_EXTENDED_ROOM]; // by --extend: what it had; empty: nothing was changed
    bool other_rate;                    // of that, what sets the learning rate
    double uncounted;                   // samples of a batch whose loss is not yet in the sums
    bool uncounted_last;                // that batch is one of the last steps
    int64_t clock;                      // when the clock of training was started; 0: it is stopped
    double clock_wait_ms;               // waits until then
    int64_t test_samples;            // number of test images used, the first ones of the test set
    iso_evaluation test, validation; // the latest one; of the last epoch
    train_best best;
    iso_noise_scale *noise;      // NULL without --noise-scale
    iso_grad_scaler *scaler;     // NULL without --grad-scaler
    iso_outlier *losses, *norms; // NULL without --skip-loss, --skip-norm
    double outlier_z[2];         // of the last step's loss and norm; NaN: not known
    int64_t test_step;           // the step of `test`; -1: none yet
    train_rebuild rebuild;       // how far it is
    iso_strategy_stats seen, found; // statistics of the strategy: the latest, and at the start
    iso_daso_change *replay;     // of --replay
    int64_t replay_count;
    double *step_ms;                  // [TRAIN_STEP_TIMES], a ring
    double *step_wait_ms;             // the same of their waits, with --stats
    double waited_ms;                 // until the last of them
    int64_t timed_steps;              // since this process began
    double steps_ms, steps_wait_ms;   // of training and of its waits, since this process began
    iso_stop *stop;                   // by signals; NULL: there is no checkpoint to save to
    bool continues, saves;            // the files of --resume; after epochs, what that needs
    bool stopped, log_continues;      // by a signal, and saved; from earlier processes
    train_mark epoch_mark, eval_mark; // of the epoch; of the last eval
    int64_t sync_bytes;               // between nodes, that the strategy had sent at its last merge
    bool told, diverged;              // all ranks know the error that is returned; it diverged
    int locks;                        // locks taken before this run, see train_lock.h
    iso_progress_bar *bar;            // of the epoch; NULL: between epochs
    iso_json_log *log;                // rank 0's, if wanted
    train_board board;
} train_run;

// ---- train_data.c ----

// Local. Checks --mean and --std as far as possible without data.
iso_status train_data_check(const train_options *options);
// Local. Creates the loaders of all data sets according to the options.
iso_status train_loaders_open(train_run *run);
// Local. Creates match_loader, of one of so many parts of the validation set.
iso_status train_held_out_open(train_run *run, int part, int parts);

// ---- train_images.c ----

// Local. Opens both sets if --data is a folder of pictures; *found: whether it is. ISO_ERR_ARG for
// --image-size where it is not, and for one undivided set without --validation.
iso_status train_images_open(train_world *world, const train_options *options, bool *found);
bool train_images_are_open(const train_world *world);
// Local. For pictures, sets mean and deviation to those of ImageNet, as PyTorch's example does:
// measuring would read all files. Leaves other data unchanged.
void train_images_describe(train_world *world);
// Local. The classes are the folders, whatever pictures a set has; --classes may add some.
iso_status train_images_classes(train_world *world, const train_options *options);

// ---- train_classes.c ----

// Local. Determines the number of classes: --classes or, without it, the number that the labels of
// both sets need. Refuses labels that look damaged.
iso_status train_classes_find(train_world *world, const train_options *options);

// ---- train_validation.c ----

// Local. Moves the fraction of --validation from the training set to a set of its own.
iso_status train_validation_split(train_world *world, const train_options *options);
// Collective. Evaluates the model after an epoch.
iso_status train_validation_run(train_run *run);
// Collective. Compares this epoch with the best one. Saves --checkpoint-best if it is better.
iso_status train_validation_judge(train_run *run);
// Whether --early-stopping ends the run now.
bool train_validation_stops(const train_run *run);

// ---- train_agree.c ----

// Collective. ISO_ERR_MISMATCH on every rank if the ranks have read different data sets.
iso_status train_agree_data(const train_world *world, const train_options *options);
// Collective. The same for the file of --load. A rank without the file takes what rank 0 has read.
iso_status train_agree_load(const train_run *run);

// ---- train_threads.c ----

// Collective. Binds this rank to a share of its cores if that helps; warns if they do not suffice.
iso_status train_threads_setup(train_world *world, const train_options *options);

// ---- train_kernels.c ----

// Collective. Gives all ranks the same kernels: those of the rule, or those that rank 0 finds
// fastest for the shapes of a step.
iso_status train_kernels_setup(const train_run *run);

// ---- train_setup.c ----

// Local. A new model of --model, in the types that --dtype, --math and --autocast say.
iso_status train_model_create(const train_run *run, iso_rng *rng, iso_module **out);
// Local. Creates loaders and model, and makes all checks that need no other rank.
iso_status train_setup_local(train_run *run);
// Collective. Wraps model and optimizer, so that the replicas train together.
iso_status train_setup_shared(train_run *run);
// The learning rate without --lr.
double train_default_lr(iso_optimizer_kind kind);
// Collective. Creates the optimizer of --optimizer, not yet tied to the model.
iso_status train_optimizer_create(train_run *run, iso_optimizer **out);
// Collective. Frees everything that was set up.
void train_teardown(train_run *run);

// ---- train_schedule.c ----

// Local. Checks --schedule and its options as far as possible without a run.
iso_status train_schedule_check(const train_options *options);
// Local. Fills in run->schedule and run->plateau according to the options.
iso_status train_schedule_setup(train_run *run, iso_optimizer_kind optimizer, double lr);
// Local. The first sets the learning rate of the next step. The second takes the test loss of an
// epoch, the same on all ranks.
void train_schedule_step(train_run *run);
void train_schedule_epoch(train_run *run, double test_loss);
// Adds everything that later learning rates depend on.
iso_status train_schedule_state(train_run *run, iso_state *state);

// ---- train_extend.c: --extend ----

// Local. Whether the line of an option may differ from that of the resumed run. `old`, the option
// as that run had it, is then noted in run->extended.
bool train_extend_takes(train_run *run, const char *line, const char *old);
// Whether --extend takes an option.
bool train_extend_names(const char *line);
// Local. Call it after loading. If options changed, lets the run, even a finished one, go on to its
// new end. ISO_ERR_ARG if it has made that many steps already.
iso_status train_extend_go_on(train_run *run, const iso_hyper *initial, iso_loader_state *samples);

// ---- train_run.c ----

// The number of updates in an epoch with this many batches.
int64_t train_steps_of(const train_options *options, int64_t batches);
// The number of last steps whose mean loss is reported as the training loss: the steps of an epoch,
// or a tenth of a run that is shorter than an epoch.
int64_t train_last_steps(const train_run *run);

// ---- train_sync.c ----

// Collective. Wraps the model and the optimizer according to --sync.
iso_status train_sync_setup(train_run *run);
// Local. Call it after a step: reports merges, and changes by the policy.
iso_status train_sync_look(train_run *run);
// Local. This rank's share of the bytes that training has moved so far, see iso_traffic.
void train_traffic(const train_run *run, int64_t *sent, int64_t *between_nodes);
// Of the bytes between nodes, those that exchanges of parameters have moved.
int64_t train_parameter_traffic(const train_run *run);
// This rank's time in waits so far.
double train_wait_ms(const train_run *run);

// ---- train_equal.c ----

// Collective. Compares the parameters of all ranks. If they differ, does what --on-difference says:
// with stop, ISO_ERR_MISMATCH on every rank.
iso_status train_equal_check(train_run *run);

// ---- train_noise.c ----

// Local. Checks --noise-scale as far as possible without a run.
iso_status train_noise_check(const train_options *options);
// Local. Prepares --noise-scale. Call it after the model is wrapped.
iso_status train_noise_setup(train_run *run);
// Collective. Before the gradient of a step, and after it: measure the noise scale if the step is
// due. samples: of this rank's gradient.
iso_status train_noise_begin(train_run *run);
iso_status train_noise_end(train_run *run, int64_t samples);
// Local. The latest noise scale, NaN: not known. Needs run->noise.
double train_noise_scale(const train_run *run);
void train_noise_print(const train_run *run, FILE *to);

// ---- train_outlier.c ----

// Local. Checks --skip-loss and --skip-norm.
iso_status train_outlier_check(const train_options *options);
// Local. Prepares them.
iso_status train_outlier_setup(train_run *run);
bool train_outlier_on(const train_run *run);
bool train_outlier_found(const train_run *run); // in the last step
// Why steps made no update, for the summary.
const char *train_outlier_reasons(const train_run *run);
// Collective, after the gradient of a step. loss: the sum over this rank's samples of the step.
// *usual: false on all ranks if the step is to make no update.
iso_status train_outlier_look(train_run *run, double loss, double samples, bool *usual);
// Local. Adds what a resumed run needs.
iso_status train_outlier_state(train_run *run, iso_state *state);

// ---- train_scaler.c ----

// Local. Checks --grad-scaler and its options.
iso_status train_scaler_check(const train_options *options);
// Local. Creates the scaler of --grad-scaler.
iso_status train_scaler_setup(train_run *run);
// Collective. Makes the update, unless unscaled gradients are not finite; *stepped says which.
iso_status train_scaler_step(train_run *run, bool *stepped);

// ---- train_state.c ----

// Collective. Writes a set of files from which the run can be resumed.
iso_status train_state_save(train_run *run);
// Collective over MPI_COMM_WORLD. Decides what --resume auto means: --resume becomes the name of
// the --checkpoint, and --load is left out, if rank 0 sees that a state of it is saved; else
// --resume becomes NULL. Returns false after rank 0 has printed an error message.
bool train_state_choose(const train_world *world, train_options *options);
// Collective. ISO_ERR_MISMATCH, naming the options, if options that must equal those of the saved
// run differ. Needs neither model nor optimizer.
iso_status train_state_check(train_run *run);
// Collective. Loads the newest set, which train_state_check has accepted.
iso_status train_state_load(train_run *run);

// ---- train_stop.c ----

// The exit code of a program whose run was stopped by a signal and can be resumed: EX_TEMPFAIL.
#define TRAIN_STOPPED 75

// Local. From here on, a SIGUSR1 or SIGUSR2 that comes before a run begins stops it after its first
// step. Without this call they end the program, as SIGINT and SIGTERM do until a run begins.
void train_stop_catch(void);
// Local. Between begin and end, a signal stops a run with a checkpoint (see train_stop_check).
// SIGINT or SIGTERM repeated after a second, and any signal without a checkpoint, ends the program
// at once, and leaves no incomplete file of the checkpoint. says: the process prints what becomes
// of the run, and which checkpoint was saved.
void train_stop_begin(const train_options *options, bool says);
void train_stop_end(void);
// Local. Prints which checkpoint a stopped run has saved.
void train_stop_tell(void);
// Collective. Call it after each step: whether all ranks stop here. now: see iso_stop_check_now.
iso_status train_stop_check(train_run *run, bool now, bool *stops);
// For the messages of signals: train_stop_saved sets the number of epochs in --checkpoint, and
// train_stop_line whether a progress line is open.
void train_stop_saved(int64_t epoch);
void train_stop_line(bool is_redrawn);

// ---- train_output.c ----

// Local. Checks whether a file can be written to path, by creating and removing one beside it.
iso_status train_output_check(const char *path, const char *what);
// Local, but completes pending updates (then collective). ISO_ERR_STATE, a sentence that begins
// with `what` and ends with `remedy`, if a parameter is not finite.
iso_status train_check_finite(const train_run *run, const char *what, const char *remedy);
// Local. Loads the parameters of the model from --load.
iso_status train_checkpoint_load(train_run *run);
// Collective. Writes the parameters, under a periodic mode their mean, on rank 0.
iso_status train_checkpoint_save(train_run *run, const char *path);
// Collective. Gathers the traces of all ranks and writes one file on rank 0.
iso_status train_trace_write(train_run *run);

// ---- train_stats.c ----

// The fraction of an exchange that was hidden, 0 to 1. It is 0 if waits are longer than the
// exchange, because ranks wait for each other. NaN: there is no exchange.
double train_hidden(double exchange_ms, double wait_ms);
void train_stats_watch(train_run *run); // before the first step; for --stats
// Collective. Prints and logs what --stats asks for: for each bucket of gradients a table on rank
// 0, and events of the log; then the straggler.
iso_status train_stats_tell(const train_run *run, const train_result *result);

// ---- train_straggler.c ----

// A rank whose gradients are regularly ready after those of the others. Means over steps.
typedef struct train_straggler {
    int rank;       // -1: there is none
    int bucket;     // the first one that is late
    double late_ms; // after the median of the other ranks, where it is latest
    double cost_ms; // what the median of the other ranks waits longer than this one, in each step
} train_straggler;
// lag_ms[r * buckets + b]: from the moment when bucket b was ready on rank r to the end of its
// exchange. wait_ms[r]: what the rank waits in a step, the median: a single long step of a rank
// makes no straggler. Both the lateness and the cost of a straggler exceed
// a tenth of a step and half a millisecond.
train_straggler train_find_straggler(int ranks, int buckets, const double *lag_ms,
                                     const double *wait_ms, double step_ms);
// Collective. Logs what each rank waits, and the straggler; rank 0 prints them to `to`, if not
// NULL. Does nothing if no gradients were exchanged by messages or shared memory, or in periodic
// modes.
iso_status train_straggler_tell(const train_run *run, FILE *to, double step_ms);

// ---- train_replay.c ----

// Local. Reads the changes in the log that --replay names, on rank 0.
iso_status train_replay_read(train_run *run);
// Collective over MPI_COMM_WORLD. Gives them to all ranks.
iso_status train_replay_share(train_run *run);
// Local. Writes a change to the log; user is the train_run.
void train_replay_note(const iso_daso_change *change, void *user);
void train_replay_begin(const train_run *run); // logs what a repetition must have, too

// ---- train_log.c ----

// Local. ISO_ERR_STATE if the folder of --tensorboard has event files of another run.
iso_status train_log_check(const train_options *options);
// Local. Opens the outputs of --log and --tensorboard on rank 0.
iso_status train_log_open(train_run *run);
// Local. Waits until they are on disk. Warns if they cannot be written, which closing reports.
void train_log_sync(train_run *run);
iso_status train_log_close(train_run *run); // on disk, too
void train_report_eval(train_run *run, const train_eval *eval);
void train_report_sync(train_run *run, const train_sync *sync);

// ---- train_ranks.c ----

// Collective. Reads how the resumed run divided its batches, settings being its options.
// ISO_ERR_MISMATCH if this run has another number of ranks, on which it cannot go on.
iso_status train_ranks_check(train_run *run, const char *settings);
// Whether another number of ranks may have another value of the option in this line.
bool train_ranks_free(const train_run *run, const char *line);
// Local. After loading what another number of ranks has saved: converts position and sums.
iso_status train_ranks_convert(train_run *run, iso_loader_state *samples);

// ---- train_report.c ----

void train_report_start(const train_run *run);
void train_report_resume(const train_run *run);
iso_status train_report_bar(train_run *run);
// Collective. Evaluates the model on the test set, and shows progress if that takes long.
iso_status train_report_test(train_run *run);
void train_report_policy(train_run *run, const iso_strategy_stats *stats);
void train_report_skip(train_run *run);
void train_report_early(train_run *run);
void train_report_difference(train_run *run, int64_t rank);
void train_report_epoch(train_run *run, const train_metrics *metrics);
// Collective. Measures what is left to measure and writes the summary. ISO_ERR_MISMATCH if the
// ranks ended with different parameters. metrics: as in train_result.
iso_status train_report_summary(train_run *run, const train_metrics *metrics, train_result *out);

#endif
