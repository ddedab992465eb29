// Sets up what --sync asks for, and watches what it does from step to step.
#include "train.h"

#include <math.h>
#include <string.h>

// ---- Setting up ---------------------------------------------------------------------------------

// What is of the strategy comes from options of the same name.
static iso_status tie(train_run *run, iso_strategy_context *context) {
    const train_options *o = run->options;
    TRY(train_options_settings(o, context->settings));
    if (o->sync_batchnorm) TRY(iso_sync_batchnorm_convert(run->model, context->comm, NULL));
    iso_module *model = run->model;
    run->model = NULL; // taken
    TRY(iso_strategy_wrap_module_take(run->strategy, context, model, &run->model));
    iso_optimizer *inner;
    TRY(train_optimizer_create(run, &inner));
    return iso_strategy_wrap_optimizer_take(run->strategy, context, inner, run->model,
                                            &run->optimizer);
}

iso_status train_sync_setup(train_run *run) {
    const train_options *o = run->options;
    TRY(iso_strategy_find(o->sync, &run->strategy));
    run->periodic = run->strategy->stats != NULL;
    iso_strategy_context context = {.comm = run->world->comm,
                                    .data_parallel = ISO_DATA_PARALLEL_DEFAULT,
                                    .total_steps = run->steps,
                                    .steps_per_epoch = run->epoch_steps};
    if (!isnan(o->bucket_mb)) context.data_parallel.bucket_mb = o->bucket_mb;
    TRY(iso_settings_create(&context.settings));
    iso_status status = tie(run, &context);
    iso_settings_destroy(&context.settings);
    TRY(status);
    return run->periodic ? run->strategy->stats(run->optimizer, &run->seen) : ISO_OK;
}

// ---- Watching -----------------------------------------------------------------------------------

static bool same_policy(const iso_daso_stats *a, const iso_daso_stats *b) {
    return a->global_skip == b->global_skip && a->local_skip == b->local_skip &&
           a->batches_to_wait == b->batches_to_wait;
}

static void tell_sync(train_run *run, const iso_daso_stats *now) {
    const train_observer *observer = run->observer;
    train_sync sync = {.step = run->at.step,
                       .age = now->last_age,
                       .global_skip = now->global_skip,
                       .batches_to_wait = now->batches_to_wait,
                       .wait_ms = now->last_wait_ms,
                       .exchange_ms = now->exchange_ms,
                       .divergence = now->divergence,
                       .phase = now->phase};
    train_report_sync(run, &sync);
    if (observer && observer->sync) observer->sync(&sync, observer->user);
}

iso_status train_sync_look(train_run *run) {
    iso_daso_stats now;
    if (!run->periodic) return ISO_OK;
    TRY(run->strategy->stats(run->optimizer, &now));
    if (now.syncs > run->seen.syncs) tell_sync(run, &now);
    if (!same_policy(&now, &run->seen)) train_report_policy(run, &now);
    run->seen = now;
    return ISO_OK;
}

void train_traffic(const train_run *run, int64_t *sent, int64_t *between_nodes) {
    iso_reducer_stats gradients;
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &gradients);
    bool nodes = run->world->nodes > 1;
    *sent = (int64_t)run->sum.bytes_sent + gradients.bytes_world + gradients.bytes_node;
    *between_nodes = (int64_t)run->sum.bytes_between + (nodes ? gradients.bytes_world : 0);
    iso_daso_stats parameters;
    if (!run->periodic || run->strategy->stats(run->optimizer, &parameters) < 0) return;
    *sent += parameters.bytes_sent;
    *between_nodes += parameters.bytes_between_nodes;
}

double train_wait_ms(const train_run *run) {
    iso_reducer_stats gradients;
    iso_daso_stats parameters = {.wait_ms = 0};
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &gradients);
    if (run->periodic) (void)run->strategy->stats(run->optimizer, &parameters);
    return run->sum.wait_ms + gradients.wait_ms + parameters.wait_ms;
}
