// SPDX-License-Identifier: MIT
// Sets up the strategy of --sync, and reports its exchanges step by step.
#include "train_server.h"
#include "train_tournament.h"

#include <math.h>
#include <string.h>

// ---- Setting up ---------------------------------------------------------------------------------

// Warns if a new network keeps its first activations. One that is loaded may have chosen others.
static void warn_of_activations(const train_run *run) {
    const train_options *o = run->options;
    const char *mutate = train_setting_text(o, "tournament-mutate");
    bool changes = mutate && strcmp(mutate, "layers") == 0;
    if (!o->activations || !strchr(o->activations, ',') || changes) return;
    if (o->load || o->resume || run->world->rank != 0) return;
    fprintf(stderr,
            "%s: warning: every layer keeps the first function of --activations %s: only "
            "--sync tournament --tournament-mutate layers changes it\n",
            train_error_name(), o->activations);
}

// What is of the strategy comes from options of the same name.
static iso_status wrap_all(train_run *run, iso_strategy_context *context) {
    const train_options *o = run->options;
    char warning[ISO_STRATEGY_WARNING];
    TRY(train_options_settings(o, context->settings));
    TRY(iso_strategy_check(run->strategy, context, warning));
    if (warning[0] && run->world->rank == 0)
        fprintf(stderr, "%s: warning: %s\n", train_error_name(), warning);
    warn_of_activations(run);
    if (o->sync_batchnorm) TRY(iso_sync_batchnorm_convert(run->model, context->comm, NULL));
    iso_module *model = run->model;
    run->model = NULL; // taken
    TRY(iso_strategy_wrap_module_take(run->strategy, context, model, &run->model));
    iso_optimizer *inner;
    TRY(train_optimizer_create(run, &inner));
    return iso_strategy_wrap_optimizer_take(run->strategy, context, inner, run->model,
                                            &run->optimizer);
}

// The place of a choice among the words of the library's enum.
static int place_of(const char *choice, const char *const *words) {
    int i = 0;
    while (strcmp(words[i], choice) != 0) i++;
    return i;
}

static iso_buffer_config buffer_config(const train_options *o) {
    static const char *const mode[] = {[ISO_BUFFERS_AVERAGE] = "average",
                                       [ISO_BUFFERS_RANK0] = "broadcast",
                                       [ISO_BUFFERS_NONE] = "keep"};
    static const char *const when[] = {[ISO_BUFFERS_AT_EVALUATION] = "evaluation",
                                       [ISO_BUFFERS_BEFORE_FORWARD] = "forward",
                                       [ISO_BUFFERS_AFTER_BACKWARD] = "backward"};
    return (iso_buffer_config){.mode = (iso_buffer_mode)place_of(o->buffers, mode),
                               .when = (iso_buffer_when)place_of(o->buffers_when, when)};
}

static iso_data_parallel_config data_parallel_config(const train_options *o) {
    static const char *const average[] = {[ISO_AVERAGE_POST] = "post",
                                          [ISO_AVERAGE_PRE] = "pre",
                                          [ISO_AVERAGE_SPLIT] = "split",
                                          [ISO_AVERAGE_SUM] = "sum"};
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    if (!isnan(o->bucket_mb)) config.bucket_mb = o->bucket_mb;
    config.find_unused_parameters = o->find_unused;
    config.static_unused = o->static_unused;
    config.buffers = buffer_config(o);
    config.average = (iso_average_mode)place_of(o->average, average);
    if (config.average == ISO_AVERAGE_SPLIT) config.split_factor = o->split_factor;
    return config;
}

iso_status train_sync_setup(train_run *run) {
    const train_options *o = run->options;
    TRY(iso_strategy_find(o->sync, &run->strategy));
    TRY(train_replay_share(run));
    iso_strategy_context context = {.comm = run->world->comm,
                                    .data_parallel = data_parallel_config(o),
                                    .total_steps = run->steps,
                                    .steps_per_epoch = run->epoch_steps,
                                    .changed = train_replay_note,
                                    .changed_user = run,
                                    .replay = run->replay,
                                    .replay_count = run->replay_count,
                                    .extends = o->extend};
    iso_tournament tournament;
    iso_tournament_hyper hyper;
    TRY(train_tournament_setup(run, &tournament, &hyper, &context));
    TRY(iso_settings_create(&context.settings));
    iso_status status = wrap_all(run, &context);
    iso_settings_destroy(&context.settings);
    TRY(status);
    TRY(iso_strategy_get_stats(run->strategy, run->optimizer, &run->seen));
    run->periodic = run->seen.syncs >= 0;
    TRY(train_scaler_setup(run));
    TRY(train_outlier_setup(run));
    return train_noise_setup(run);
}

// ---- Watching -----------------------------------------------------------------------------------

static bool same_policy(const iso_strategy_stats *a, const iso_strategy_stats *b) {
    return a->period == b->period && a->local_period == b->local_period && a->wait == b->wait;
}

static void tell_sync(train_run *run, const iso_strategy_stats *now) {
    const train_observer *observer = run->observer;
    train_sync sync = {.step = run->at.step,
                       .age = now->last_age,
                       .global_skip = now->period,
                       .batches_to_wait = now->wait,
                       .bytes_between_nodes = now->bytes_between_nodes - run->sync_bytes,
                       .wait_ms = now->last_wait_ms,
                       .exchange_ms = now->exchange_ms,
                       .divergence = now->divergence,
                       .phase = now->phase ? now->phase : ""};
    run->sync_bytes = now->bytes_between_nodes;
    train_report_sync(run, &sync);
    if (observer && observer->sync) observer->sync(&sync, observer->user);
}

iso_status train_sync_look(train_run *run) {
    iso_strategy_stats now;
    if (!run->periodic) return ISO_OK;
    TRY(iso_strategy_get_stats(run->strategy, run->optimizer, &now));
    if (now.syncs > run->seen.syncs) tell_sync(run, &now);
    if (!same_policy(&now, &run->seen)) train_report_policy(run, &now);
    run->seen = now;
    return ISO_OK;
}

// What the strategy has told so far; 0 where it cannot.
static iso_strategy_stats told_by_strategy(const train_run *run) {
    iso_strategy_stats stats = {.syncs = -1};
    (void)iso_strategy_get_stats(run->strategy, run->optimizer, &stats);
    return stats;
}

void train_traffic(const train_run *run, int64_t *sent, int64_t *between_nodes) {
    iso_traffic gradients = {0};
    (void)iso_data_parallel_get_traffic(run->model, &gradients);
    iso_strategy_stats strategy = told_by_strategy(run);
    *sent = (int64_t)run->sum.bytes_sent + gradients.bytes_sent + strategy.bytes_sent;
    *between_nodes = (int64_t)run->sum.bytes_between + gradients.bytes_between_nodes +
                     strategy.bytes_between_nodes;
}

int64_t train_parameter_traffic(const train_run *run) {
    return told_by_strategy(run).bytes_between_nodes;
}

double train_wait_ms(const train_run *run) {
    if (train_serves(run)) return 0; // waiting is its job
    iso_reducer_stats gradients;
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &gradients);
    return run->sum.wait_ms + gradients.wait_ms + told_by_strategy(run).wait_ms;
}
