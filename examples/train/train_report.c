// SPDX-License-Identifier: MIT
// Reports the progress of a training run: lines and a bar for people, JSON lines for programs.
#include "train_text.h"

#include <math.h>
#include <string.h>

// ---- On the way ---------------------------------------------------------------------------------

static void tell_buckets(const train_run *run, FILE *to) {
    char *text;
    if (iso_reducer_bucket_text(iso_data_parallel_reducer(run->model), &text) < 0) return;
    fputs(text, to);
    iso_comm_free(text);
}

// printf may print a NaN with a sign.
static const char *loss_text(double loss, char text[32]) {
    if (isnan(loss))
        strcpy(text, "nan");
    else
        snprintf(text, 32, loss < 1e6 ? "%.4f" : "%.3g", loss);
    return text;
}

static void tell_test_limit(const train_run *run, FILE *to) {
    iso_dataset_info test;
    char images[48];
    iso_dataset_get_info(run->world->test_set, &test);
    if (run->test_samples < test.count)
        fprintf(to, "test      the first %s of %lld (--test-limit)\n",
                train_count_text(run->test_samples, "image", images), (long long)test.count);
}

void train_report_start(const train_run *run) {
    FILE *to = train_terminal(run);
    const train_options *o = run->options;
    const iso_dataset_info *info = &run->world->info;
    iso_comm *comm = run->world->comm;
    char ranks[48], nodes[48], samples[48], steps[48];
    if (!to) return;
    fprintf(to, "data      %s: %s of %lld x %lld x %lld, %d class%s\n", o->data,
            train_count_text(info->count, "image", samples), (long long)info->channels,
            (long long)info->height, (long long)info->width, info->classes,
            info->classes == 1 ? "" : "es");
    tell_test_limit(run, to);
    const char *type = train_activations(o);
    fprintf(to, "model     %s%s, %lld parameters%s%s, on %s, %s kernels%s%s\n", o->model,
            o->dropout ? " with dropout" : "", (long long)iso_module_parameter_count(run->model),
            strcmp(o->dtype, "f32") == 0 ? "" : " of ",
            strcmp(o->dtype, "f32") == 0 ? "" : o->dtype, iso_device_describe(run->world->device),
            o->kernels, type ? ", activations of " : "", type ? type : "");
    char times[32] = "", algorithm[TRAIN_ALGORITHM_ROOM];
    if (o->accumulate > 1) snprintf(times, sizeof(times), " x %lld", (long long)o->accumulate);
    fprintf(to, "training  %s on %s x %s%s, %s, %s, %s schedule, lr %g\n",
            train_count_text(run->workers, "rank", ranks),
            train_count_text(run->world->nodes, "node", nodes),
            train_count_text(o->batch, "sample", samples), times,
            train_count_text(run->steps, "step", steps), o->optimizer, o->schedule,
            run->schedule.lr);
    fprintf(to, "cores     %s; %lld compute thread%s each%s\n", run->world->cores.all,
            (long long)o->threads, o->threads > 1 ? "s" : "",
            run->world->bound ? ", bound to a share of them" : "");
    fprintf(to, "exchange  %s, progress %s, %s%s\n", o->sync, iso_comm_progress_text(comm),
            train_zero_stage(o) > 0 ? "" : "all-reduce ", train_algorithm_text(run, algorithm));
    char rhythm[160];
    if (train_rhythm_text(&run->seen, rhythm)[0]) fprintf(to, "rhythm    %s\n", rhythm);
    if (o->buckets) tell_buckets(run, to);
    fflush(to);
}

void train_report_resume(const train_run *run) {
    FILE *to = train_terminal(run);
    iso_json_begin(run->log, "resume");
    iso_json_int(run->log, "step", run->at.step);
    if (run->old_wire) iso_json_string(run->log, "old_wire", run->old_wire);
    if (run->other_ranks) {
        iso_json_int(run->log, "old_ranks", run->before.ranks);
        iso_json_int(run->log, "old_batch", run->before.batch);
        iso_json_int(run->log, "old_accumulate", run->before.accumulate);
    }
    if (run->other_nodes) iso_json_int(run->log, "other_nodes", 1);
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
    else if (run->other_nodes)
        fprintf(to,
                "the ranks are distributed over nodes in another way: replicas become their mean, "
                "and exchanges in flight are dropped\n");
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
    TRY(iso_progress_bar_create(train_terminal(run), label, total, "steps", &run->bar));
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
    TRY(iso_progress_bar_create(train_terminal(run), "test", batches > 0 ? batches : 1, "batches",
                                &watch.bar));
    iso_status status = iso_evaluate_watched(run->model, run->test_loss, run->test_loader,
                                             run->world->comm, show_test, &watch, &run->test);
    iso_progress_bar_clear(&watch.bar);
    return status;
}

// ---- Metrics ------------------------------------------------------------------------------------

void train_report_policy(train_run *run, const iso_strategy_stats *stats) {
    iso_json_log *log = run->log;
    iso_json_begin(log, "policy");
    iso_json_int(log, "step", run->at.step);
    iso_json_int(log, "global_skip", stats->period);
    iso_json_int(log, "local_skip", stats->local_period);
    iso_json_int(log, "batches_to_wait", stats->wait);
    iso_json_string(log, "reason", stats->reason);
    iso_json_end(log);
    // Tells people only of the wait that is measured once: a policy may decide often.
    char rhythm[160];
    if (run->bar && run->seen.wait < 0)
        iso_progress_bar_line(run->bar, "step %lld: %s: %s", (long long)run->at.step,
                              train_rhythm_text(stats, rhythm), stats->reason);
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
    FILE *to = train_terminal(run);
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
                            validation_text(run, validation), train_samples_per_second(metrics),
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
    iso_json_double(run->log, "samples_per_second", train_samples_per_second(metrics));
    iso_json_double(run->log, "step_ms", metrics->step_ms);
    iso_json_double(run->log, "wait_ms_per_step", metrics->wait_ms_per_step);
    iso_json_double(run->log, "lr", iso_optimizer_hyper(run->optimizer)->lr);
    iso_json_end(run->log);
}
