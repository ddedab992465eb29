// SPDX-License-Identifier: MIT
// Reports the end of a training run: its summary for people, and in the log.
#include "train_server.h"
#include "train_text.h"

#include "support/models.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXCHANGE_REPEATS 20

// ---- Measured at the end --------------------------------------------------------------------------

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_step(train_run *run) {
    int64_t count = run->timed_steps < TRAIN_STEP_TIMES ? run->timed_steps : TRAIN_STEP_TIMES;
    if (count == 0) return train_serves(run) ? 0 : NAN;
    qsort(run->step_ms, (size_t)count, sizeof(*run->step_ms), by_value);
    return run->step_ms[count / 2];
}

// Whether ranks may differ on purpose: --wire noop exchanges nothing.
static bool may_drift(const train_run *run) {
    const char *wire = train_setting_text(run->options, "wire");
    return wire && strcmp(wire, "noop") == 0;
}

static iso_status check_hash(train_run *run, train_result *out) {
    uint64_t hash;
    bool equal;
    TRY(iso_parameter_hash(run->model, run->world->comm, &hash, &equal));
    if (!equal && !may_drift(run))
        return train_error(ISO_ERR_MISMATCH,
                           "the ranks ended with different parameters "
                           "(this one's hash is %016" PRIx64
                           "): a machine or the program has a fault: "
                           "repeat the run, and report it if this recurs",
                           hash);
    snprintf(out->hash, sizeof(out->hash), "%016" PRIx64, hash);
    return ISO_OK;
}

// Whether exchanges are asynchronous: ranks then wait only where they meet.
static bool never_waits(const train_run *run) {
    return run->seen.period_requested == 0 && run->seen.wait_requested < 0;
}

static iso_status measure_exchange(train_run *run, train_result *out) {
    iso_reducer *reducer = iso_data_parallel_reducer(run->model);
    if (!run->periodic)
        return iso_reducer_measure_exchange(reducer, EXCHANGE_REPEATS, &out->exchange_ms);
    const iso_strategy_stats *stats = &run->seen;
    out->exchange_ms = stats->exchange_ms > 0 ? stats->exchange_ms : NAN;
    out->syncs = stats->syncs;
    bool waits = stats->syncs > 0 && !never_waits(run) && !train_serves(run);
    out->wait_ms_per_sync = waits ? stats->wait_ms / (double)stats->syncs : 0;
    return ISO_OK;
}

static iso_status measure_run(train_run *run, train_result *out) {
    iso_comm *comm = run->world->comm;
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &stats);
    int64_t bytes[2];
    train_traffic(run, &bytes[0], &bytes[1]);
    double wait_ms = train_wait_ms(run) / (double)run->at.step;
    TRY(measure_exchange(run, out));
    double largest[] = {median_step(run),
                        wait_ms,
                        out->wait_ms_per_sync,
                        iso_peak_rss_mb(),
                        run->steps_ms / train_timed_steps(run),
                        run->steps_wait_ms / train_timed_steps(run),
                        (run->seen.work_ms - run->found.work_ms) / train_timed_steps(run)};
    TRY(iso_comm_allreduce_f64(comm, largest, 7, ISO_MAX));
    TRY(iso_comm_allreduce_i64(comm, bytes, 2, ISO_SUM));
    out->steps = run->at.step;
    out->skipped = run->skipped;
    out->differences = run->differences;
    out->period = run->seen.period;
    out->period_requested = run->seen.period_requested;
    out->wait = run->seen.wait;
    out->wait_requested = run->seen.wait_requested;
    out->step_ms_p50 = largest[0];
    out->wait_ms_per_step = largest[1];
    out->wait_ms_per_sync = largest[2];
    out->peak_rss_mb = largest[3];
    out->step_ms_mean = largest[4];
    out->step_wait_ms_mean = largest[5];
    out->merge_ms_per_step = largest[6];
    out->bytes_per_step = (int64_t)stats.bytes_per_step;
    out->bytes_sent = bytes[0];
    out->bytes_between_nodes = bytes[1];
    return ISO_OK;
}

// ---- In the log -----------------------------------------------------------------------------------

static void log_setting(const train_run *run) {
    const train_options *o = run->options;
    iso_json_log *log = run->log;
    char algorithm[TRAIN_ALGORITHM_ROOM];
    iso_json_int(log, "ranks", run->world->ranks);
    iso_json_int(log, "nodes", run->world->nodes);
    iso_json_string(log, "model", o->model);
    iso_json_int(log, "parameters", iso_module_parameter_count(run->model));
    iso_json_string(log, "data", o->data);
    iso_json_int(log, "batch", o->batch);
    iso_json_int(log, "test_images", run->test_samples);
    iso_json_int(log, "accumulate", o->accumulate);
    iso_json_int(log, "steps", run->at.step);
    iso_json_string(log, "optimizer", o->optimizer);
    iso_json_string(log, "schedule", o->schedule);
    iso_json_double(log, "lr", run->schedule.lr);
    iso_json_int(log, "seed", o->seed);
    iso_json_int(log, "threads", o->threads);
    iso_json_string(log, "cores", run->world->cores.all);
    iso_json_string(log, "device", iso_device_describe(run->world->device));
    iso_json_string(log, "math", o->math);
    iso_json_string(log, "autocast", o->autocast);
    iso_json_string(log, "dtype", o->dtype);
    iso_json_string(log, "kernels", o->kernels);
    iso_json_string(log, "sync", o->sync);
    iso_json_string(log, "progress", iso_comm_progress_text(run->world->comm));
    iso_json_string(log, "algorithm", train_algorithm_text(run, algorithm));
}

// The activations of the Choices of --activations, "" if there is none.
static const char *activations_text(const train_run *run, char text[256]) {
    text[0] = 0;
    if (run->options->activations) (void)model_activations_text(run->model, text, 256);
    return text;
}

// What only the strategy knows, by the names it has given.
static void log_metrics(const train_run *run) {
    const iso_strategy_stats *stats = &run->seen;
    char key[80];
    for (int i = 0; i < stats->metric_count; i++) {
        snprintf(key, sizeof(key), "%s.%.31s", run->strategy->name, stats->metric[i].name);
        iso_json_double(run->log, key, stats->metric[i].value);
    }
}

static void log_steps(iso_json_log *log, const char *key, int64_t steps, const char *otherwise) {
    if (steps < 0)
        iso_json_string(log, key, otherwise);
    else
        iso_json_int(log, key, steps);
}

static void log_rhythm(iso_json_log *log, const train_result *r) {
    log_steps(log, "period", r->period, "auto");
    log_steps(log, "period_requested", r->period_requested, "auto");
    log_steps(log, "wait", r->wait, "not measured");
    log_steps(log, "wait_requested", r->wait_requested, "auto");
}

static void log_summary(const train_run *run, const train_result *r) {
    iso_json_log *log = run->log;
    iso_json_begin(log, "summary");
    log_setting(run);
    iso_json_double(log, "test_accuracy", r->metrics.test_accuracy);
    iso_json_double(log, "test_loss", r->metrics.test_loss);
    iso_json_double(log, "train_loss", r->metrics.train_loss);
    iso_json_int(log, "train_loss_steps", r->loss_steps);
    if (run->validation_loader) {
        iso_json_double(log, "best_validation_accuracy", run->best.accuracy);
        iso_json_int(log, "best_epoch", (int64_t)run->best.epoch);
    }
    if (run->options->finite || run->scaler || train_outlier_on(run))
        iso_json_int(log, "skipped_steps", r->skipped);
    if (run->scaler) iso_json_double(log, "loss_scale", iso_grad_scaler_get_scale(run->scaler));
    if (run->noise) iso_json_double(log, "noise_scale", train_noise_scale(run));
    if (run->options->check_equal > 0) iso_json_int(log, "differences", r->differences);
    iso_json_double(log, "seconds", r->metrics.seconds);
    iso_json_double(log, "samples_per_second", train_samples_per_second(&r->metrics));
    iso_json_double(log, "step_ms_p50", r->step_ms_p50);
    iso_json_double(log, "exchange_alone_ms", r->exchange_ms);
    iso_json_double(log, "wait_ms_per_step", r->wait_ms_per_step);
    iso_json_double(log, "merge_ms_per_step", r->merge_ms_per_step);
    if (run->periodic) iso_json_int(log, "syncs", r->syncs);
    if (run->periodic) iso_json_double(log, "wait_ms_per_sync", r->wait_ms_per_sync);
    if (run->periodic) log_rhythm(log, r);
    iso_json_int(log, "bytes_per_step", r->bytes_per_step);
    iso_json_int(log, "bytes_sent", r->bytes_sent);
    iso_json_int(log, "bytes_between_nodes", r->bytes_between_nodes);
    iso_json_int(log, "bytes", r->bytes_sent / run->world->ranks);
    iso_json_double(log, "peak_rss_mb", r->peak_rss_mb);
    iso_json_string(log, "param_hash", r->hash);
    char activations[256];
    if (activations_text(run, activations)[0]) iso_json_string(log, "activations", activations);
    log_metrics(run);
    iso_json_end(log);
}

// ---- For people -----------------------------------------------------------------------------------

// A finite loss far above that of guessing means that the training diverged, too.
static void warn_of_loss(const train_run *run, const train_result *r) {
    double loss = r->metrics.train_loss, guessing = log(run->world->info.classes);
    char steps[48];
    if (run->world->rank != 0 || !(loss > 4 * guessing) || guessing <= 0) return;
    fprintf(stderr,
            "%s: warning: the training diverged: the loss of its last %s is %.3g, and "
            "guessing one of %d classes has %.3g: try a lower --lr\n",
            train_error_name(), train_count_text(r->loss_steps, "step", steps), loss,
            run->world->info.classes, guessing);
}

static void tell_metrics(const train_run *run, FILE *to) {
    const iso_strategy_stats *stats = &run->seen;
    for (int i = 0; i < stats->metric_count; i++)
        fprintf(to, "%s%.31s %.6g%s", i > 0 ? ", " : "", stats->metric[i].name,
                stats->metric[i].value, i + 1 < stats->metric_count ? "" : "\n");
}

static void tell_summary(const train_run *run, const train_result *r) {
    FILE *to = train_terminal(run);
    char syncs[48];
    if (!to) return;
    // Means over the same steps: a median could be below the mean of its part.
    fprintf(to, "step %.2f ms on average, of that %.2f ms waiting", r->step_ms_mean,
            r->step_wait_ms_mean);
    if (run->periodic && never_waits(run))
        fprintf(to, "; %s of parameters, in which no step waits\n",
                train_count_text(r->syncs, "exchange", syncs));
    else if (run->periodic)
        fprintf(to, "; %s of parameters, %.2f ms waiting in each\n",
                train_count_text(r->syncs, "exchange", syncs), r->wait_ms_per_sync);
    else
        fprintf(to, "; an exchange alone takes %.2f ms\n", r->exchange_ms);
    fprintf(to, "test accuracy %.2f %%, parameter hash %s on %s, peak memory %.0f MB a rank\n",
            100 * r->metrics.test_accuracy, r->hash,
            may_drift(run) ? "rank 0 only (--wire noop: ranks drift apart)" : "all ranks",
            r->peak_rss_mb);
    if (run->validation_loader)
        fprintf(to, "best validation accuracy %.2f %%, after epoch %.0f\n",
                100 * run->best.accuracy, run->best.epoch);
    char activations[256];
    if (activations_text(run, activations)[0]) fprintf(to, "activations: %s\n", activations);
    train_noise_print(run, to);
    if (r->skipped > 0)
        fprintf(to, "no update in %s (%s)\n", train_count_text(r->skipped, "step", syncs),
                train_outlier_reasons(run));
    char rhythm[160];
    if (train_rhythm_text(&run->seen, rhythm)[0]) fprintf(to, "%s\n", rhythm);
    tell_metrics(run, to);
    fflush(to);
}

iso_status train_report_summary(train_run *run, const train_metrics *metrics, train_result *out) {
    out->metrics = *metrics;
    TRY(iso_strategy_get_stats(run->strategy, run->optimizer, &run->seen)); // to the last step
    TRY(check_hash(run, out));
    TRY(measure_run(run, out));
    TRY(train_stats_tell(run, out));
    log_summary(run, out);
    TRY(train_log_close(run));
    tell_summary(run, out);
    warn_of_loss(run, out);
    return ISO_OK;
}
