// SPDX-License-Identifier: MIT
// Reports the progress of a training run: lines and a bar for people, JSON lines for programs.
#include "train_server.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXCHANGE_REPEATS 20
enum { ALGORITHM_ROOM = 256 };

static FILE *terminal_of(const train_run *run) {
    return run->world->rank == 0 && !run->options->quiet ? stdout : NULL;
}

// ---- On the way ---------------------------------------------------------------------------------

// How gradients are summed.
static const char *algorithm_text(const train_run *run, char text[ALGORITHM_ROOM]) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &stats);
    if (stats.nccl) return "by NCCL between the GPUs of a node";
    if (stats.shared_memory) return "in shared memory";
    snprintf(text, ALGORITHM_ROOM, "%s%s",
             stats.two_levels ? "in the shared memory of each node, and between nodes: " : "",
             stats.pairwise ? "pairwise exchange" : iso_comm_algorithm_text(run->world->comm));
    return text;
}

static void tell_buckets(const train_run *run, FILE *to) {
    char *text;
    if (iso_reducer_bucket_text(iso_data_parallel_reducer(run->model), &text) < 0) return;
    fputs(text, to);
    iso_comm_free(text);
}

// "1 rank", "2 ranks".
static const char *count_text(int64_t count, const char *noun, char text[48]) {
    snprintf(text, 48, "%lld %s%s", (long long)count, noun, count == 1 ? "" : "s");
    return text;
}

// printf may print a NaN with a sign.
static const char *loss_text(double loss, char text[32]) {
    if (isnan(loss))
        strcpy(text, "nan");
    else
        snprintf(text, 32, loss < 1e6 ? "%.4f" : "%.3g", loss);
    return text;
}

static const char *steps_text(int64_t steps, const char *otherwise, char text[24]) {
    snprintf(text, 24, "%lld", (long long)steps);
    return steps < 0 ? otherwise : text;
}

// Period and wait as they are in force and as they were asked for; empty where there are none.
static const char *rhythm_text(const iso_strategy_stats *s, char text[160]) {
    char steps[4][24];
    text[0] = 0;
    if (s->period == 0 && s->period_requested == 0) return text;
    snprintf(text, 160, "period %s (requested: %s), wait %s (requested: %s)",
             steps_text(s->period, "auto", steps[0]),
             steps_text(s->period_requested, "auto", steps[1]),
             steps_text(s->wait, "to be measured", steps[2]),
             steps_text(s->wait_requested, "auto", steps[3]));
    return text;
}

static void tell_test_limit(const train_run *run, FILE *to) {
    iso_dataset_info test;
    char images[48];
    iso_dataset_get_info(run->world->test_set, &test);
    if (run->test_samples < test.count)
        fprintf(to, "test      the first %s of %lld (--test-limit)\n",
                count_text(run->test_samples, "image", images), (long long)test.count);
}

void train_report_start(const train_run *run) {
    FILE *to = terminal_of(run);
    const train_options *o = run->options;
    const iso_dataset_info *info = &run->world->info;
    iso_comm *comm = run->world->comm;
    char ranks[48], nodes[48], samples[48], steps[48];
    if (!to) return;
    fprintf(to, "data      %s: %s of %lld x %lld x %lld, %d class%s\n", o->data,
            count_text(info->count, "image", samples), (long long)info->channels,
            (long long)info->height, (long long)info->width, info->classes,
            info->classes == 1 ? "" : "es");
    tell_test_limit(run, to);
    fprintf(to, "model     %s%s, %lld parameters, on %s, %s kernels\n", o->model,
            o->dropout ? " with dropout" : "", (long long)iso_module_parameter_count(run->model),
            iso_device_describe(run->world->device), o->kernels);
    char times[32] = "", algorithm[ALGORITHM_ROOM];
    if (o->accumulate > 1) snprintf(times, sizeof(times), " x %lld", (long long)o->accumulate);
    fprintf(to, "training  %s on %s x %s%s, %s, %s, %s schedule, lr %g\n",
            count_text(run->workers, "rank", ranks), count_text(run->world->nodes, "node", nodes),
            count_text(o->batch, "sample", samples), times, count_text(run->steps, "step", steps),
            o->optimizer, o->schedule, run->schedule.lr);
    fprintf(to, "cores     %s; %lld compute thread%s each%s\n", run->world->cores.all,
            (long long)o->threads, o->threads > 1 ? "s" : "",
            run->world->bound ? ", bound to a share of them" : "");
    fprintf(to, "exchange  %s, progress %s, all-reduce %s\n", o->sync, iso_comm_progress_text(comm),
            algorithm_text(run, algorithm));
    char rhythm[160];
    if (rhythm_text(&run->seen, rhythm)[0]) fprintf(to, "rhythm    %s\n", rhythm);
    if (o->buckets) tell_buckets(run, to);
    fflush(to);
}

void train_report_resume(const train_run *run) {
    FILE *to = terminal_of(run);
    iso_json_begin(run->log, "resume");
    iso_json_int(run->log, "step", run->at.step);
    if (run->old_wire) iso_json_string(run->log, "old_wire", run->old_wire);
    if (run->other_ranks) {
        iso_json_int(run->log, "old_ranks", run->before.ranks);
        iso_json_int(run->log, "old_batch", run->before.batch);
        iso_json_int(run->log, "old_accumulate", run->before.accumulate);
    }
    if (run->extended[0]) {
        iso_json_string(run->log, "extended", run->extended);
        iso_json_int(run->log, "steps", run->steps);
    }
    iso_json_end(run->log);
    if (!to || !run->options->resume) return;
    fprintf(to, "continues after step %lld, in epoch %lld\n", (long long)run->at.step,
            (long long)run->at.epoch + 1);
    if (run->other_ranks)
        fprintf(to, "now %d rank%s instead of %lld, with the same global batch: %s\n",
                run->world->ranks, run->world->ranks == 1 ? "" : "s", (long long)run->before.ranks,
                run->periodic ? "replicas become their mean, and what was under way is dropped"
                              : "running statistics become the mean of the ranks', and what wires "
                                "had left out is dropped");
    if (run->extended[0])
        fprintf(to, "goes on to step %lld by --extend; before it had %s\n", (long long)run->steps,
                run->extended);
    if (run->old_wire)
        fprintf(to, "gradients travel as %s from here on, as %s before\n",
                train_setting_text(run->options, "wire"), run->old_wire);
    fflush(to);
}

iso_status train_report_bar(train_run *run) {
    char label[64];
    int64_t whole = run->epoch_steps, made = train_steps_of(run->options, run->at.batch);
    int64_t left = run->steps - (run->at.step - made); // from the beginning of the epoch
    snprintf(label, sizeof(label), "epoch %lld/%lld", (long long)run->at.epoch + 1,
             (long long)((run->steps + whole - 1) / whole));
    int64_t total = left < whole ? left : whole;
    TRY(iso_progress_bar_create(terminal_of(run), label, total, "steps", &run->bar));
    iso_progress_bar_begin_at(run->bar, made); // by a run that this one resumes
    train_stop_line(iso_progress_bar_is_redrawn(run->bar));
    return ISO_OK;
}

// ---- Tests --------------------------------------------------------------------------------------

#define SHORT_TEST 1000000000 // ns: nothing is told of a test that takes no longer

typedef struct test_watch {
    iso_progress_bar *bar;
    int64_t began;
} test_watch;

static void show_test(int64_t done, void *user) {
    const test_watch *watch = user;
    if (iso_now() - watch->began > SHORT_TEST) iso_progress_bar_update(watch->bar, done, NAN);
}

iso_status train_report_test(train_run *run) {
    test_watch watch = {.began = iso_now()};
    int64_t batches = iso_loader_batches(run->test_loader);
    TRY(iso_progress_bar_create(terminal_of(run), "test", batches > 0 ? batches : 1, "batches",
                                &watch.bar));
    iso_status status = iso_evaluate_watched(run->model, run->test_loss, run->test_loader,
                                             run->world->comm, show_test, &watch, &run->test);
    iso_progress_bar_clear(&watch.bar);
    return status;
}

// ---- Metrics ------------------------------------------------------------------------------------

static double samples_per_second(const train_metrics *metrics) {
    return metrics->seconds > 0 ? (double)metrics->samples / metrics->seconds : 0;
}

void train_report_policy(train_run *run, const iso_strategy_stats *stats) {
    iso_json_log *log = run->log;
    iso_json_begin(log, "policy");
    iso_json_int(log, "step", run->at.step);
    iso_json_int(log, "global_skip", stats->period);
    iso_json_int(log, "local_skip", stats->local_period);
    iso_json_int(log, "batches_to_wait", stats->wait);
    iso_json_string(log, "reason", stats->reason);
    iso_json_end(log);
    // What is measured once people are told; a policy may decide often.
    char rhythm[160];
    if (run->bar && run->seen.wait < 0)
        iso_progress_bar_line(run->bar, "step %lld: %s: %s", (long long)run->at.step,
                              rhythm_text(stats, rhythm), stats->reason);
}

void train_report_skip(train_run *run) {
    iso_json_begin(run->log, "skip");
    iso_json_int(run->log, "step", run->at.step);
    if (run->losses) iso_json_double(run->log, "loss_z", run->outlier_z[0]);
    if (run->norms) iso_json_double(run->log, "norm_z", run->outlier_z[1]);
    iso_json_end(run->log);
    if (run->bar)
        iso_progress_bar_line(run->bar, "step %lld: no update: the %s", (long long)run->at.step,
                              train_outlier_found(run) ? "loss or the gradient is an outlier"
                                                       : "gradient is NaN or infinite");
}

void train_report_difference(train_run *run, int64_t rank) {
    iso_json_begin(run->log, "difference");
    iso_json_int(run->log, "step", run->at.step);
    iso_json_int(run->log, "rank", rank);
    iso_json_string(run->log, "action", run->options->on_difference);
    iso_json_end(run->log);
}

void train_report_early(train_run *run) {
    FILE *to = terminal_of(run);
    iso_json_begin(run->log, "early_stop");
    iso_json_int(run->log, "step", run->at.step);
    iso_json_int(run->log, "best_epoch", (int64_t)run->best.epoch);
    iso_json_end(run->log);
    if (to)
        fprintf(to, "stops early: no better validation accuracy since epoch %.0f\n",
                run->best.epoch);
}

static const char *validation_text(const train_run *run, char text[48]) {
    text[0] = 0;
    if (run->validation_loader)
        snprintf(text, 48, "  validation accuracy %.2f %%", 100 * run->validation.accuracy);
    return text;
}

void train_report_epoch(train_run *run, const train_metrics *metrics) {
    char loss[32], validation[48];
    iso_progress_bar_finish(&run->bar, "loss %s  test accuracy %.2f %%%s  %.0f samples/s  %.1f s",
                            loss_text(metrics->train_loss, loss), 100 * metrics->test_accuracy,
                            validation_text(run, validation), samples_per_second(metrics),
                            metrics->seconds);
    train_stop_line(false);
    iso_json_begin(run->log, "epoch");
    iso_json_int(run->log, "epoch", run->at.epoch + 1);
    iso_json_int(run->log, "steps", run->at.step);
    iso_json_double(run->log, "train_loss", metrics->train_loss);
    iso_json_double(run->log, "test_loss", metrics->test_loss);
    iso_json_double(run->log, "test_accuracy", metrics->test_accuracy);
    if (run->validation_loader) {
        iso_json_double(run->log, "validation_loss", run->validation.loss);
        iso_json_double(run->log, "validation_accuracy", run->validation.accuracy);
    }
    iso_json_double(run->log, "seconds", metrics->seconds);
    iso_json_double(run->log, "samples_per_second", samples_per_second(metrics));
    iso_json_double(run->log, "step_ms", metrics->step_ms);
    iso_json_double(run->log, "wait_ms_per_step", metrics->wait_ms_per_step);
    iso_json_double(run->log, "lr", iso_optimizer_hyper(run->optimizer)->lr);
    iso_json_end(run->log);
}

// ---- Summary ------------------------------------------------------------------------------------

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

// On purpose: nothing was exchanged.
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

static iso_status measure_exchange(train_run *run, train_result *out) {
    iso_reducer *reducer = iso_data_parallel_reducer(run->model);
    if (!run->periodic)
        return iso_reducer_measure_exchange(reducer, EXCHANGE_REPEATS, &out->exchange_ms);
    const iso_strategy_stats *stats = &run->seen;
    out->exchange_ms = stats->exchange_ms > 0 ? stats->exchange_ms : NAN;
    out->syncs = stats->syncs;
    out->wait_ms_per_sync = stats->syncs > 0 ? stats->wait_ms / (double)stats->syncs : 0;
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
                        run->seen.work_ms / train_timed_steps(run)};
    TRY(iso_comm_allreduce_f64(comm, largest, 7, ISO_MAX));
    TRY(iso_comm_allreduce_i64(comm, bytes, 2, ISO_SUM));
    out->steps = run->at.step;
    out->skipped = run->skipped;
    out->differences = run->differences;
    out->loss_steps = train_last_steps(run);
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

static void log_setting(const train_run *run) {
    const train_options *o = run->options;
    iso_json_log *log = run->log;
    char algorithm[ALGORITHM_ROOM];
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
    iso_json_string(log, "dtype", o->dtype);
    iso_json_string(log, "kernels", o->kernels);
    iso_json_string(log, "sync", o->sync);
    iso_json_string(log, "progress", iso_comm_progress_text(run->world->comm));
    iso_json_string(log, "algorithm", algorithm_text(run, algorithm));
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
    iso_json_double(log, "samples_per_second", samples_per_second(&r->metrics));
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
    log_metrics(run);
    iso_json_end(log);
}

// Far above what guessing gives, though every number is one.
static void warn_of_loss(const train_run *run, double loss) {
    double guessing = log(run->world->info.classes);
    char steps[48];
    if (run->world->rank != 0 || !(loss > 4 * guessing) || guessing <= 0) return;
    fprintf(stderr,
            "%s: warning: the training diverged: the loss of its last %s is %.3g, and "
            "guessing one of %d classes has %.3g: try a lower --lr\n",
            train_error_name(), count_text(train_last_steps(run), "step", steps), loss,
            run->world->info.classes, guessing);
}

static void tell_metrics(const train_run *run, FILE *to) {
    const iso_strategy_stats *stats = &run->seen;
    for (int i = 0; i < stats->metric_count; i++)
        fprintf(to, "%s%.31s %.6g%s", i > 0 ? ", " : "", stats->metric[i].name,
                stats->metric[i].value, i + 1 < stats->metric_count ? "" : "\n");
}

static void tell_summary(const train_run *run, const train_result *r) {
    FILE *to = terminal_of(run);
    char syncs[48];
    if (!to) return;
    // Means over the same steps: a median could be below the mean of its part.
    fprintf(to, "step %.2f ms on average, of that %.2f ms waiting", r->step_ms_mean,
            r->step_wait_ms_mean);
    if (run->periodic)
        fprintf(to, "; %s of parameters, %.2f ms waiting in each\n",
                count_text(r->syncs, "exchange", syncs), r->wait_ms_per_sync);
    else
        fprintf(to, "; an exchange alone takes %.2f ms\n", r->exchange_ms);
    fprintf(to, "test accuracy %.2f %%, parameter hash %s on %s, peak memory %.0f MB a rank\n",
            100 * r->metrics.test_accuracy, r->hash,
            may_drift(run) ? "rank 0 only (--wire noop: ranks drift apart)" : "all ranks",
            r->peak_rss_mb);
    if (run->validation_loader)
        fprintf(to, "best validation accuracy %.2f %%, after epoch %.0f\n",
                100 * run->best.accuracy, run->best.epoch);
    train_noise_print(run, to);
    if (r->skipped > 0)
        fprintf(to, "no update in %s (%s)\n", count_text(r->skipped, "step", syncs),
                train_outlier_reasons(run));
    char rhythm[160];
    if (rhythm_text(&run->seen, rhythm)[0]) fprintf(to, "%s\n", rhythm);
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
    warn_of_loss(run, metrics->train_loss);
    return ISO_OK;
}
