// Tells how a training run goes: lines and a bar for people, JSON lines for machines.
#include "train.h"

#include <inttypes.h>
#include <stdlib.h>

#define EXCHANGE_REPEATS 20

static FILE *people(const train_run *run) {
    return run->rank == 0 && !run->options.quiet ? stdout : NULL;
}

void train_report_start(const train_run *run) {
    FILE *to = people(run);
    const train_options *o = &run->options;
    const iso_dataset_info *info = &run->info;
    if (!to) return;
    fprintf(to, "data      %s: %lld images of %lld x %lld x %lld, %d classes\n", o->data,
            (long long)info->count, (long long)info->channels, (long long)info->height,
            (long long)info->width, info->classes);
    fprintf(to, "model     %s%s, %lld parameters, on %s\n", o->model,
            o->dropout ? " with dropout" : "", (long long)iso_module_parameter_count(run->model),
            iso_device_describe(run->device));
    fprintf(to, "training  %d ranks x %lld samples, %lld steps, %s, %s schedule, lr %g\n",
            run->ranks, (long long)o->batch, (long long)run->steps, o->optimizer, o->schedule,
            run->schedule.lr);
    fprintf(to, "exchange  %s, progress %s, all-reduce %s\n", o->sync,
            iso_comm_progress_text(run->comm), iso_comm_algorithm_text(run->comm));
    fflush(to);
}

iso_status train_report_bar(const train_run *run, int64_t epoch, iso_progress_bar **out) {
    char label[64];
    int64_t batches = iso_sampler_batches(run->train_sampler);
    int64_t left = run->steps - run->step;
    snprintf(label, sizeof(label), "epoch %lld/%lld", (long long)epoch + 1,
             (long long)((run->steps + batches - 1) / batches));
    return iso_progress_bar_create(people(run), label, left < batches ? left : batches, "steps",
                                   out);
}

static double rate(const train_figures *figures) {
    return figures->seconds > 0 ? (double)figures->samples / figures->seconds : 0;
}

void train_report_epoch(train_run *run, int64_t epoch, const train_figures *figures,
                        iso_progress_bar **bar) {
    char text[160];
    snprintf(text, sizeof(text), "loss %.4f  test accuracy %.2f %%  %.0f samples/s  %.1f s",
             figures->train_loss, 100 * figures->test_accuracy, rate(figures), figures->seconds);
    iso_progress_bar_finish(bar, text);
    iso_json_begin(run->log, "epoch");
    iso_json_int(run->log, "epoch", epoch + 1);
    iso_json_int(run->log, "steps", run->step);
    iso_json_double(run->log, "train_loss", figures->train_loss);
    iso_json_double(run->log, "test_loss", figures->test_loss);
    iso_json_double(run->log, "test_accuracy", figures->test_accuracy);
    iso_json_double(run->log, "seconds", figures->seconds);
    iso_json_double(run->log, "samples_per_second", rate(figures));
    iso_json_double(run->log, "lr", iso_optimizer_hyper(run->optimizer)->lr);
    iso_json_end(run->log);
}

// ---- Summary ------------------------------------------------------------------------------------

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_step(train_run *run) {
    size_t count = run->step < TRAIN_STEP_TIMES ? (size_t)run->step : TRAIN_STEP_TIMES;
    qsort(run->step_ms, count, sizeof(*run->step_ms), by_value);
    return run->step_ms[count / 2];
}

typedef struct summary {
    double step_ms_p50, wait_ms_per_step, peak_rss_mb; // the largest of the ranks
    double exchange_alone_ms;
    size_t bytes_per_step;
    char hash[17];
} summary;

static iso_status measure(train_run *run, summary *out) {
    uint64_t hash;
    bool equal;
    TRY(iso_parameter_hash(run->model, run->comm, &hash, &equal));
    if (!equal)
        return train_error(ISO_ERR_MISMATCH,
                           "the ranks ended with different parameters "
                           "(this one's hash is %016" PRIx64 "): this is a bug",
                           hash);
    snprintf(out->hash, sizeof(out->hash), "%016" PRIx64, hash);
    iso_reducer *reducer = iso_data_parallel_reducer(run->model);
    iso_reducer_stats stats;
    iso_reducer_get_stats(reducer, &stats);
    double largest[] = {median_step(run), stats.wait_ms / (double)run->step, iso_peak_rss_mb()};
    TRY(iso_comm_allreduce_f64(run->comm, largest, 3, ISO_MAX));
    out->step_ms_p50 = largest[0];
    out->wait_ms_per_step = largest[1];
    out->peak_rss_mb = largest[2];
    out->bytes_per_step = stats.bytes_per_step;
    return iso_reducer_measure_exchange(reducer, EXCHANGE_REPEATS, &out->exchange_alone_ms);
}

static void log_summary(const train_run *run, const train_figures *last, const summary *s) {
    const train_options *o = &run->options;
    iso_json_log *log = run->log;
    iso_json_begin(log, "summary");
    iso_json_int(log, "ranks", run->ranks);
    iso_json_string(log, "model", o->model);
    iso_json_int(log, "parameters", iso_module_parameter_count(run->model));
    iso_json_string(log, "data", o->data);
    iso_json_int(log, "batch", o->batch);
    iso_json_int(log, "steps", run->step);
    iso_json_string(log, "optimizer", o->optimizer);
    iso_json_string(log, "schedule", o->schedule);
    iso_json_double(log, "lr", run->schedule.lr);
    iso_json_int(log, "seed", o->seed);
    iso_json_int(log, "threads", o->threads);
    iso_json_string(log, "device", iso_device_describe(run->device));
    iso_json_string(log, "sync", o->sync);
    iso_json_string(log, "progress", iso_comm_progress_text(run->comm));
    iso_json_string(log, "algorithm", iso_comm_algorithm_text(run->comm));
    iso_json_double(log, "test_accuracy", last->test_accuracy);
    iso_json_double(log, "test_loss", last->test_loss);
    iso_json_double(log, "train_loss", last->train_loss);
    iso_json_double(log, "samples_per_second", rate(last));
    iso_json_double(log, "step_ms_p50", s->step_ms_p50);
    iso_json_double(log, "exchange_alone_ms", s->exchange_alone_ms);
    iso_json_double(log, "wait_ms_per_step", s->wait_ms_per_step);
    iso_json_int(log, "bytes_per_step", (int64_t)s->bytes_per_step);
    iso_json_double(log, "peak_rss_mb", s->peak_rss_mb);
    iso_json_string(log, "param_hash", s->hash);
    iso_json_end(log);
}

iso_status train_report_summary(train_run *run, const train_figures *last) {
    summary s;
    TRY(measure(run, &s));
    log_summary(run, last, &s);
    TRY(iso_json_log_close(&run->log));
    FILE *to = people(run);
    if (!to) return ISO_OK;
    fprintf(to, "step %.2f ms, of that %.2f ms waiting; an exchange alone takes %.2f ms\n",
            s.step_ms_p50, s.wait_ms_per_step, s.exchange_alone_ms);
    fprintf(to, "test accuracy %.2f %%, parameters %s on all ranks, peak memory %.0f MB a rank\n",
            100 * last->test_accuracy, s.hash, s.peak_rss_mb);
    fflush(to);
    return ISO_OK;
}
