// Sets up what --sync asks for, and watches what it does from step to step.
#include "train.h"

#include <math.h>
#include <string.h>

static bool is_sync(const train_options *options, const char *name) {
    return strcmp(options->sync, name) == 0;
}

bool train_sync_is_periodic(const train_options *options) {
    return !is_sync(options, "lazy") && !is_sync(options, "blocking");
}

// ---- Setting up ---------------------------------------------------------------------------------

static iso_status parse_wire(const char *name, iso_dtype *out) {
    *out = strcmp(name, "bf16") == 0 ? ISO_BF16 : strcmp(name, "f16") == 0 ? ISO_F16 : ISO_F32;
    return ISO_OK;
}

static int64_t share_of(double share, int64_t steps) {
    return (int64_t)ceil(share * (double)steps);
}

static iso_status daso_config(const train_run *run, iso_daso_config *out) {
    const train_options *o = run->options;
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.total_steps = run->steps;
    if (!isnan(o->warmup)) config.warmup = o->warmup;
    config.cooldown = o->cooldown;
    config.warmup_steps = o->warmup_steps;
    config.cooldown_steps = o->cooldown_steps;
    config.global_skip = o->period;
    config.max_global_skip = o->max_period;
    config.batches_to_wait = o->wait;
    config.local_skip = o->local_skip;
    config.unit = strcmp(o->unit, "rank") == 0 ? ISO_SCOPE_RANK : ISO_SCOPE_NODE;
    config.stability_level = o->stability_level;
    config.max_divergence = o->max_divergence;
    TRY(iso_merge_parse(o->merge, &config.merge));
    TRY(parse_wire(o->wire, &config.wire));
    TRY(iso_state_sync_parse(o->state, &config.state));
    TRY(iso_policy_parse(o->policy, &config.policy));
    *out = config;
    return ISO_OK;
}

static iso_daso_config local_sgd_config(const train_run *run) {
    const train_options *o = run->options;
    if (is_sync(o, "localsgd")) return iso_local_sgd_config(run->steps, o->period);
    int64_t warmup = o->warmup_steps;
    if (warmup < 0) warmup = share_of(isnan(o->warmup) ? 0.5 : o->warmup, run->steps);
    return iso_post_local_sgd_config(run->steps, warmup, o->period);
}

// HeAT's 4 epochs of warm-up and of cool-down would leave nothing between them in short runs.
static int64_t heat_epochs(int64_t given, int64_t total) {
    return given >= 0 ? given : total / 3 < 4 ? total / 3 : 4;
}

static iso_status heat_config(const train_run *run, iso_daso_heat_config *out) {
    const train_options *o = run->options;
    int64_t batches = iso_loader_batches(run->train_loader);
    iso_daso_heat_config config = ISO_DASO_HEAT_DEFAULT;
    config.total_epochs = (run->steps + batches - 1) / batches;
    config.warmup_epochs = heat_epochs(o->warmup_epochs, config.total_epochs);
    config.cooldown_epochs = heat_epochs(o->cooldown_epochs, config.total_epochs);
    config.stability_level = o->stability_level;
    config.max_global_skips = o->max_global_skips;
    config.sending_chunk_size = o->sending_chunk_size;
    config.use_mpi_groups = strcmp(o->use_mpi_groups, "yes") == 0;
    config.skip_reduction_factor = o->skip_reduction_factor;
    config.local_skip_factor = o->local_skip_factor;
    config.last_batch = batches - 1;
    TRY(parse_wire(o->downcast_type, &config.downcast_type));
    *out = config;
    return ISO_OK;
}

static iso_status wrap_optimizer(train_run *run) {
    iso_optimizer *inner = run->optimizer;
    iso_daso_config config;
    iso_daso_heat_config heat;
    if (is_sync(run->options, "daso-heat")) {
        TRY(heat_config(run, &heat));
        run->optimizer = NULL; // taken
        return iso_daso_heat_create_take(inner, run->model, &heat, &run->optimizer);
    }
    if (is_sync(run->options, "daso"))
        TRY(daso_config(run, &config));
    else
        config = local_sgd_config(run);
    run->optimizer = NULL;
    return iso_daso_create_take(inner, run->model, &config, &run->optimizer);
}

iso_status train_sync_setup(train_run *run) {
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    if (train_sync_is_periodic(run->options) && strcmp(run->options->dtype, "f32") != 0)
        return train_error(ISO_ERR_ARG,
                           "--sync %s exchanges parameters in f32: leave --dtype %s away, or use "
                           "--sync lazy",
                           run->options->sync, run->options->dtype);
    if (is_sync(run->options, "blocking")) config.sync = ISO_SYNC_BLOCKING;
    if (!isnan(run->options->bucket_mb)) config.bucket_mb = run->options->bucket_mb;
    iso_module *model = run->model;
    run->model = NULL; // taken
    TRY(iso_data_parallel_create_take(model, run->world->comm, &config, &run->model));
    TRY(train_optimizer_create(run));
    run->periodic = train_sync_is_periodic(run->options);
    if (!run->periodic) return ISO_OK;
    TRY(wrap_optimizer(run));
    return iso_daso_get_stats(run->optimizer, &run->seen);
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
    TRY(iso_daso_get_stats(run->optimizer, &now));
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
    if (!run->periodic || iso_daso_get_stats(run->optimizer, &parameters) < 0) return;
    *sent += parameters.bytes_sent;
    *between_nodes += parameters.bytes_between_nodes;
}

double train_wait_ms(const train_run *run) {
    iso_reducer_stats gradients;
    iso_daso_stats parameters = {.wait_ms = 0};
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &gradients);
    if (run->periodic) (void)iso_daso_get_stats(run->optimizer, &parameters);
    return run->sum.wait_ms + gradients.wait_ms + parameters.wait_ms;
}
