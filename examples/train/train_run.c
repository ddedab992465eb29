// SPDX-License-Identifier: MIT
// A training run from its beginning, or from a saved state, to its end.
#include "train.h"
#include "train_lock.h"
#include "train_server.h"
#include "train_text.h"

#include <math.h>
#include <string.h>

// ---- Errors ----------------------------------------------------------------------------------

// Marks an error that every rank gets: no rank waits for another, so rank 0 can print it.
static iso_status mark_told(train_run *run, iso_status status) {
    run->told = status < 0 && status != ISO_ERR_TIMEOUT && status != ISO_ERR_MPI;
    run->diverged = status == ISO_ERR_STATE; // a gradient, a loss or a parameter is not finite
    return status;
}

// Parameters that are not finite, or too large to travel, stop an exchange of parameters on all
// ranks.
static iso_status tell_dropped(train_run *run, iso_status status, int64_t step) {
    if (!run->periodic || status != ISO_ERR_STATE) return status;
    char why[sizeof(iso_last_error()->message)];
    snprintf(why, sizeof(why), "%s", iso_last_error()->message);
    if (!strstr(why, "lower learning rate")) return mark_told(run, status);
    return mark_told(
        run, train_error(status, "the training diverged in step %lld: %s", (long long)step, why));
}

// Ranks that exchange at their own steps notice the error in different steps. Waiting for the
// others could last for ever, so the error ends the job.
static iso_status tell_step(train_run *run, iso_status status) {
    status = tell_dropped(run, status, run->at.step + 1);
    const char *sync = run->options->sync;
    bool alone = train_setting_of(sync, "sync-interval-ms") || train_setting_of(sync, "push-scale");
    bool in_pairs = train_setting_of(sync, "peers") != NULL;
    if (run->world->ranks > (in_pairs ? 2 : 1) && (alone || in_pairs)) run->told = false;
    return status;
}

// ---- The time of training ------------------------------------------------------------------------

static void start_clock(train_run *run) {
    run->clock_wait_ms = train_wait_ms(run);
    run->clock = iso_now();
}

// Gradients and parameters still under way belong to the steps before.
static iso_status stop_clock(train_run *run) {
    TRY(iso_data_parallel_finish(run->model));
    TRY(tell_dropped(run, iso_strategy_complete(run->strategy, run->optimizer), run->at.step));
    int64_t passed = iso_now() - run->clock;
    run->sum.seconds += (double)passed / 1e9;
    run->steps_ms += (double)passed / 1e6;
    run->steps_wait_ms += train_wait_ms(run) - run->clock_wait_ms;
    return ISO_OK;
}

// The mean times of the steps since the mark, which is set to this step; NaN without steps: a run
// that was stopped after the last batch of an epoch resumes at the end of it. Collective.
static iso_status measure_pace(train_run *run, train_mark *since, double *step_ms,
                               double *wait_ms) {
    double now[2] = {run->steps_ms, run->steps_wait_ms};
    TRY(iso_comm_allreduce_f64(run->world->comm, now, 2, ISO_MAX));
    double steps = (double)(run->at.step - since->step);
    *step_ms = steps > 0 ? (now[0] - since->steps_ms) / steps : NAN;
    *wait_ms = steps > 0 ? (now[1] - since->wait_ms) / steps : NAN;
    *since = (train_mark){run->at.step, now[0], now[1]};
    return ISO_OK;
}

// ---- Test and saving ----------------------------------------------------------------------------

static iso_status test_once(train_run *run) {
    if (run->test_step == run->at.step) return ISO_OK;
    TRY(train_report_test(run));
    run->test_step = run->at.step;
    return ISO_OK;
}

static iso_status tell_eval(train_run *run) {
    const train_observer *observer = run->observer;
    iso_comm *comm = run->world->comm;
    TRY(test_once(run));
    double sum[2] = {run->sum.eval_loss, run->sum.eval_samples}, seconds = run->sum.seconds;
    int64_t bytes[3] = {0, 0, train_parameter_traffic(run)};
    train_traffic(run, &bytes[0], &bytes[1]);
    TRY(iso_comm_allreduce_f64(comm, sum, 2, ISO_SUM));
    TRY(iso_comm_allreduce_f64(comm, &seconds, 1, ISO_MAX));
    TRY(iso_comm_allreduce_i64(comm, bytes, 3, ISO_SUM));
    train_eval eval = {.step = run->at.step,
                       .seconds = seconds,
                       .train_loss = sum[0] / sum[1],
                       .lr = iso_optimizer_hyper(run->optimizer)->lr,
                       .test_loss = run->test.loss,
                       .test_accuracy = run->test.accuracy,
                       .bytes_sent = bytes[0],
                       .bytes_between_nodes = bytes[1],
                       .parameter_bytes = bytes[2]};
    TRY(measure_pace(run, &run->eval_mark, &eval.step_ms, &eval.wait_ms_per_step));
    run->sum.eval_loss = run->sum.eval_samples = 0;
    train_report_eval(run, &eval);
    if (observer && observer->eval) observer->eval(&eval, observer->user);
    return ISO_OK;
}

static iso_status save_state(train_run *run) {
    return run->saves || run->stopped ? mark_told(run, train_state_save(run)) : ISO_OK;
}

// --resume auto goes on from it if the run is killed after its first best checkpoint, and before
// its first state. It would refuse that checkpoint without any state.
static iso_status save_first_state(train_run *run) {
    const train_options *o = run->options;
    return o->resume_auto && !o->resume && o->checkpoint_best ? save_state(run) : ISO_OK;
}

static iso_status save_checkpoint(train_run *run) {
    const char *path = run->options->checkpoint;
    return path ? mark_told(run, train_checkpoint_save(run, path)) : ISO_OK;
}

// ---- Steps --------------------------------------------------------------------------------------

int64_t train_steps_of(const train_options *options, int64_t batches) {
    return (batches + options->accumulate - 1) / options->accumulate;
}

int64_t train_last_steps(const train_run *run) {
    if (run->steps >= run->epoch_steps) return run->epoch_steps;
    return (run->steps + 9) / 10;
}

static int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

// Samples of this rank in a batch of the epoch; the same on all ranks.
static int64_t batch_size(const train_run *run, int64_t batch) {
    const train_options *o = run->options;
    int64_t share = (run->world->info.count + run->workers - 1) / run->workers;
    if (strcmp(o->sampler, "drop") == 0) return o->batch;
    return smaller_of(o->batch, share - batch * o->batch);
}

// Adds the loss of the last batch to the sums: late, because the device computes it concurrently.
static iso_status count_loss(train_run *run) {
    double loss, samples = run->uncounted;
    if (samples == 0) return ISO_OK;
    TRY(iso_loss_value(run->loss, &loss, NULL));
    run->uncounted = 0;
    run->sum.loss += loss * samples;
    run->sum.samples += samples;
    if (run->uncounted_last) run->sum.last_loss += loss * samples;
    if (run->uncounted_last) run->sum.last_samples += samples;
    run->sum.eval_loss += loss * samples;
    run->sum.eval_samples += samples;
    return ISO_OK;
}

// Adds the next batch's part to the gradient of the mean over `samples`.
static iso_status add_gradient(train_run *run, int64_t samples) {
    iso_batch batch;
    iso_tensor *output, *gradient;
    TRY(iso_loader_next(run->train_loader, &batch));
    TRY(iso_module_forward(run->model, batch.images, &output));
    TRY(count_loss(run));
    TRY(iso_loss_compute(run->loss, output, batch.labels, NULL, NULL, &gradient));
    if (run->scaler) TRY(iso_grad_scaler_scale(run->scaler, gradient));
    if (batch.n < samples) TRY(iso_tensor_scale(gradient, (double)batch.n / (double)samples));
    TRY(iso_module_backward(run->model, gradient, NULL));
    run->uncounted = (double)batch.n;
    run->uncounted_last = run->at.step >= run->steps - train_last_steps(run);
    run->at.batch = batch.index + 1;
    return ISO_OK;
}

// The gradient of one update: of --accumulate batches, or of what is left of the epoch. Ranks
// exchange it once, in the last backward.
static iso_status make_gradient(train_run *run) {
    int64_t first = run->at.batch, samples = 0;
    int64_t end =
        smaller_of(first + run->options->accumulate, iso_loader_batches(run->train_loader));
    for (int64_t k = first; k < end; k++) samples += batch_size(run, k);
    TRY(train_noise_begin(run));
    if (first + 1 < end) {
        TRY(iso_data_parallel_begin_no_sync(run->model));
        iso_status status = ISO_OK;
        while (status >= 0 && run->at.batch + 1 < end) status = add_gradient(run, samples);
        TRY(iso_data_parallel_end_no_sync(run->model));
        TRY(status);
    }
    TRY(add_gradient(run, samples));
    TRY(iso_strategy_reduce_gradients(run->strategy, run->model));
    return train_noise_end(run, samples);
}

static bool is_skipping(const train_run *run) {
    return run->options->finite && strcmp(run->options->finite, "skip") == 0;
}

static iso_status tell_nonfinite(train_run *run) {
    char *name;
    TRY(iso_grads_find_nonfinite(run->model, run->world->comm, &name));
    iso_status status =
        train_error(ISO_ERR_STATE,
                    "the gradient of step %lld is NaN or infinite, first in %s: try a lower --lr, "
                    "or skip such steps with --finite skip",
                    (long long)run->at.step + 1, name ? name : "a parameter");
    iso_comm_free(name);
    return status;
}

// All ranks get the same answer.
static iso_status check_gradient(train_run *run, bool *finite) {
    *finite = true;
    if (run->scaler) return iso_grad_scaler_unscale(run->scaler, run->model);
    if (!run->options->finite) return ISO_OK;
    TRY(iso_grads_finite(run->model, run->world->comm, finite));
    if (*finite || is_skipping(run)) return ISO_OK;
    return mark_told(run, tell_nonfinite(run));
}

// The step counts, for the schedule too, but its batches do not: their loss may be NaN.
static void skip_update(train_run *run, const train_sums *before) {
    iso_optimizer_zero_grad(run->optimizer);
    run->sum = *before;
    run->uncounted = 0;
    run->skipped++;
    run->at.step++;
    train_report_skip(run);
}

// Collective with --skip-loss and --skip-norm.
static iso_status check_outlier(train_run *run, const train_sums *before, bool *usual) {
    if (!train_outlier_on(run)) return ISO_OK;
    TRY(count_loss(run));
    return train_outlier_look(run, run->sum.loss - before->loss, run->sum.samples - before->samples,
                              usual);
}

static iso_status make_step(train_run *run) {
    const train_sums before = run->sum;
    bool finite; // and no outlier
    run->outlier_z[0] = run->outlier_z[1] = NAN;
    train_schedule_step(run);
    iso_optimizer_zero_grad(run->optimizer);
    TRY(make_gradient(run));
    TRY(check_gradient(run, &finite));
    if (finite) TRY(check_outlier(run, &before, &finite));
    if (finite && !isnan(run->options->clip_grad_norm))
        TRY(iso_clip_grad_norm(run->model, run->options->clip_grad_norm, 2, NULL));
    if (finite) TRY(tell_step(run, train_scaler_step(run, &finite)));
    if (!finite) {
        skip_update(run, &before);
        return ISO_OK;
    }
    run->at.step++;
    return count_loss(run);
}

static bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static iso_status check_equal(train_run *run) {
    iso_status status = train_equal_check(run);
    return status == ISO_ERR_MISMATCH ? mark_told(run, status) : status;
}

// Does what is due after a step, except what the end of an epoch does. A run that has made its last
// step is not stopped.
static iso_status look_around(train_run *run) {
    const train_options *o = run->options;
    bool last = run->at.step == run->steps, stops;
    TRY(train_stop_check(run, false, &stops));
    run->stopped = stops && !last;
    bool eval = is_due(run->at.step, o->eval_every) || (last && o->eval_every > 0);
    bool check = is_due(run->at.step, o->check_equal);
    bool save = run->stopped || (is_due(run->at.step, o->checkpoint_every) && !last &&
                                 run->at.batch < iso_loader_batches(run->train_loader));
    if (!eval && !save && !check) return ISO_OK;
    TRY(stop_clock(run));
    if (check) TRY(check_equal(run));
    if (eval) TRY(tell_eval(run));
    if (save) TRY(save_state(run));
    start_clock(run);
    return ISO_OK;
}

static void time_step(train_run *run, int64_t began) {
    int64_t i = run->timed_steps++ % TRAIN_STEP_TIMES;
    run->step_ms[i] = (double)(iso_now() - began) / 1e6;
    if (!run->options->stats) return;
    double waited = train_wait_ms(run);
    run->step_wait_ms[i] = waited - run->waited_ms;
    run->waited_ms = waited;
}

static iso_status train_epoch(train_run *run) {
    bool serves = train_serves(run);
    if (!serves) TRY(iso_loader_start(run->train_loader, run->at.epoch, run->at.batch));
    start_clock(run);
    int64_t batches = iso_loader_batches(run->train_loader);
    while (run->at.step < run->steps && run->at.batch < batches) {
        int64_t began = iso_now();
        iso_recorder_note("step", (uint32_t)run->at.step + 1);
        TRY(serves ? tell_step(run, train_server_step(run)) : make_step(run));
        if (!serves) time_step(run, began);
        TRY(train_sync_look(run));
        TRY(train_rebuild_look(run));
        TRY(look_around(run));
        if (run->stopped) return ISO_OK; // and the clock is, too
        iso_progress_bar_update(run->bar, train_steps_of(run->options, run->at.batch),
                                run->sum.loss / run->sum.samples);
    }
    return stop_clock(run);
}

// ---- Epochs -------------------------------------------------------------------------------------

static iso_status collect_metrics(train_run *run, train_metrics *out) {
    iso_comm *comm = run->world->comm;
    double sum[2] = {run->sum.loss, run->sum.samples};
    double seconds = run->sum.seconds - run->sum.epoch_seconds;
    TRY(iso_comm_allreduce_f64(comm, sum, 2, ISO_SUM));
    TRY(iso_comm_allreduce_f64(comm, &seconds, 1, ISO_MAX));
    *out = (train_metrics){.train_loss = sum[0] / sum[1],
                           .test_loss = run->test.loss,
                           .test_accuracy = run->test.accuracy,
                           .seconds = seconds,
                           .samples = (int64_t)sum[1]};
    return measure_pace(run, &run->epoch_mark, &out->step_ms, &out->wait_ms_per_step);
}

// Every rank has the same sum, so they all end here; the last good checkpoint stays.
// There is no loss if all steps were skipped.
static iso_status check_finite(train_run *run, const train_metrics *metrics) {
    double loss = metrics->train_loss;
    if (isfinite(loss) || metrics->samples == 0) return ISO_OK;
    return mark_told(
        run, train_error(ISO_ERR_STATE,
                         "the training diverged: the loss of epoch %lld is NaN or infinite: %s",
                         (long long)run->at.epoch + 1, train_nan_advice(run)));
}

static void begin_next_epoch(train_run *run, int64_t samples) {
    run->at.epoch++;
    run->at.batch = 0;
    run->at.samples += samples;
    run->sum.loss = run->sum.samples = 0;
    run->sum.epoch_seconds = run->sum.seconds;
}

// Makes this epoch the last one: its steps are the last steps of the run.
static void end_early(train_run *run) {
    run->sum.last_loss = run->sum.loss;
    run->sum.last_samples = run->sum.samples;
    run->steps = run->at.step;
    train_report_early(run);
}

static iso_status run_epoch(train_run *run, train_metrics *out) {
    const train_observer *observer = run->observer;
    TRY(train_report_bar(run));
    TRY(train_epoch(run));
    if (run->stopped) return ISO_OK;
    TRY(test_once(run));
    TRY(train_validation_run(run));
    TRY(collect_metrics(run, out));
    train_report_epoch(run, out);
    if (observer && observer->epoch) observer->epoch(run->at.epoch, out, observer->user);
    TRY(check_finite(run, out));
    train_schedule_epoch(run, out->test_loss);
    if (out->samples > 0)
        TRY(iso_strategy_epoch_loss(run->strategy, run->optimizer, out->train_loss, true));
    TRY(train_sync_look(run)); // a policy may have decided
    TRY(mark_told(run, train_validation_judge(run)));
    if (run->at.step < run->steps && train_validation_stops(run)) end_early(run);
    begin_next_epoch(run, out->samples);
    if (run->at.step == run->steps) return ISO_OK;
    TRY(train_stop_check(run, true, &run->stopped));
    TRY(save_state(run));
    TRY(save_checkpoint(run));
    if (run->options->checkpoint) train_stop_saved(run->at.epoch);
    return ISO_OK;
}

// ---- The whole ----------------------------------------------------------------------------------

// The number of steps with so many samples. A run may have skipped steps, or have been extended by
// fewer than its mean is over.
static int64_t steps_with(const train_run *run, double samples) {
    const train_options *o = run->options;
    return (int64_t)ceil(samples / (double)(o->batch * run->workers * o->accumulate));
}

static iso_status finish_run(train_run *run, train_metrics *metrics, train_result *out) {
    metrics->seconds = run->sum.seconds;
    metrics->samples = run->at.samples;
    double sum[2] = {run->sum.last_loss, run->sum.last_samples};
    TRY(iso_comm_allreduce_f64(run->world->comm, sum, 2, ISO_SUM));
    metrics->train_loss = sum[0] / sum[1];
    out->loss_steps = smaller_of(train_last_steps(run), steps_with(run, sum[1]));
    TRY(iso_comm_allreduce_f64(run->world->comm, &metrics->seconds, 1, ISO_MAX));
    TRY(iso_strategy_finish(run->strategy, run->optimizer));
    TRY(mark_told(run, train_check_finite(run, "the training diverged", train_nan_advice(run))));
    return mark_told(run, train_report_summary(run, metrics, out));
}

// Errors inside an epoch strike one rank while others wait in an exchange: only an abort reaches
// them.
static bool all_well(train_run *run, iso_status status) {
    // On a terminal the error gets a line of its own.
    if (status < 0) iso_progress_bar_finish(&run->bar, NULL);
    if (status < 0 && !run->told) {
        const train_observer *observer = run->observer;
        if (observer && observer->lost) observer->lost(train_error_text(), observer->user);
        train_abort();
    }
    return train_all_well(status);
}

static bool end_stopped(train_run *run, train_result *out) {
    iso_progress_bar_finish(&run->bar, NULL);
    train_stop_line(false);
    iso_json_begin(run->log, "stop");
    iso_json_int(run->log, "step", run->at.step);
    iso_json_end(run->log);
    out->stopped = true;
    return true;
}

static bool run_all(train_run *run, train_result *out) {
    train_metrics metrics = {0};
    const train_observer *observer = run->observer;
    run->epoch_mark.step = run->eval_mark.step = run->at.step;
    run->sync_bytes = run->seen.bytes_between_nodes;
    run->found = run->seen;
    train_report_start(run);
    train_replay_begin(run);
    train_stats_watch(run);
    if (observer && observer->start) observer->start(run->log, run->at.step, observer->user);
    if (run->options->resume || run->log_continues) train_report_resume(run);
    if (!all_well(run, save_first_state(run))) return false;
    while (run->at.step < run->steps && !run->stopped)
        if (!all_well(run, run_epoch(run, &metrics))) return false;
    if (run->stopped) return end_stopped(run, out);
    if (!all_well(run, finish_run(run, &metrics, out))) return false;
    run->at.finished = 1;
    // The state first: a run that is resumed from it writes a checkpoint that is missing.
    if (!all_well(run, save_state(run)) || !all_well(run, save_checkpoint(run))) return false;
    // Last: it ends the loaders, whose state is saved.
    if (run->options->trace && !train_all_well(train_trace_write(run))) return false;
    if (observer && observer->end) observer->end(out, observer->user);
    return true;
}

bool train_perform(const train_world *world, const train_options *options,
                   const train_observer *observer, train_result *out) {
    train_run run = {
        .world = world, .options = options, .observer = observer, .locks = train_lock_held()};
    *out = (train_result){0};
    bool good = train_all_well(train_setup_local(&run)) && train_all_well(train_setup_shared(&run));
    if (good && run.at.finished) {
        // Saves again: the checkpoint may be lost, or --checkpoint may have another name.
        out->already_finished = true;
        good = all_well(&run, save_checkpoint(&run));
    } else if (good) {
        good = run_all(&run, out);
    }
    out->diverged = run.diverged;
    train_teardown(&run);
    return good;
}
