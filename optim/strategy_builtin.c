// The strategies of synchronisation that the library has, and what their settings mean.
#include "optim/strategy_impl.h"

#include "base/base.h"
#include "optim/periodic/sync_plan.h"

#include <string.h>

static const int64_t many = (int64_t)1e12;

// ---- Averaging gradients ------------------------------------------------------------------------

static iso_status read_hook(iso_settings *settings, const iso_comm_hook **out) {
    const char *name = NULL;
    ISO_TRY(iso_settings_text(settings, "wire", NULL, &name));
    if (name) ISO_TRY(iso_comm_hook_parse(name, out));
    return ISO_OK;
}

static iso_status wrap_as(iso_sync sync, const iso_strategy_context *context, iso_module *module,
                          iso_module **out) {
    iso_data_parallel_config config = context->data_parallel;
    iso_status status;
    config.sync = sync;
    ISO_TRY_GOTO(read_hook(context->settings, &config.hook));
    ISO_TRY(iso_data_parallel_create_take(module, context->comm, &config, out));
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}

static iso_status wrap_blocking(const iso_strategy_context *context, iso_module *module,
                                iso_module **out, void *user) {
    (void)user;
    return wrap_as(ISO_SYNC_BLOCKING, context, module, out);
}

static iso_status wrap_lazy(const iso_strategy_context *context, iso_module *module,
                            iso_module **out, void *user) {
    (void)user;
    return wrap_as(ISO_SYNC_LAZY, context, module, out);
}

static iso_status wrap_explicit(const iso_strategy_context *context, iso_module *module,
                                iso_module **out, void *user) {
    (void)user;
    return wrap_as(ISO_SYNC_EXPLICIT, context, module, out);
}

static iso_status all_reduce(iso_module *module, void *user) {
    (void)user;
    return iso_data_parallel_all_reduce_gradients(module);
}

// ---- Settings of the others ---------------------------------------------------------------------

static iso_status read_wire(iso_settings *settings, const char *key, iso_dtype *out) {
    const char *name = NULL;
    ISO_TRY(iso_settings_text(settings, key, "f32|bf16|f16", &name));
    if (!name) return ISO_OK;
    *out = strcmp(name, "bf16") == 0 ? ISO_BF16 : strcmp(name, "f16") == 0 ? ISO_F16 : ISO_F32;
    return ISO_OK;
}

// "auto" is -1.
static iso_status read_steps(iso_settings *settings, const char *key, int64_t low, int64_t *out) {
    const char *text = NULL;
    ISO_TRY(iso_settings_text(settings, key, NULL, &text));
    if (!text || strcmp(text, "auto") != 0) return iso_settings_int(settings, key, low, many, out);
    *out = -1;
    return ISO_OK;
}

static iso_status read_warmup(iso_settings *settings, double *share, int64_t *steps) {
    ISO_TRY(iso_settings_number(settings, "warmup", 0, 1, share));
    ISO_TRY(iso_settings_int(settings, "warmup-steps", 0, many, steps));
    return ISO_OK;
}

static iso_status read_names(iso_settings *settings, iso_daso_config *out) {
    const char *unit = NULL, *merge = NULL, *state = NULL, *policy = NULL;
    ISO_TRY(iso_settings_text(settings, "unit", "node|rank", &unit));
    ISO_TRY(iso_settings_text(settings, "merge", NULL, &merge));
    ISO_TRY(iso_settings_text(settings, "state", NULL, &state));
    ISO_TRY(iso_settings_text(settings, "policy", NULL, &policy));
    if (unit) out->unit = strcmp(unit, "rank") == 0 ? ISO_SCOPE_RANK : ISO_SCOPE_NODE;
    if (merge) ISO_TRY(iso_merge_parse(merge, &out->merge));
    if (state) ISO_TRY(iso_state_sync_parse(state, &out->state));
    if (policy) ISO_TRY(iso_policy_parse(policy, &out->policy));
    return ISO_OK;
}

static iso_status daso_config(const iso_strategy_context *context, iso_daso_config *out) {
    iso_settings *s = context->settings;
    *out = ISO_DASO_DEFAULT;
    out->total_steps = context->total_steps;
    ISO_TRY(read_warmup(s, &out->warmup, &out->warmup_steps));
    ISO_TRY(iso_settings_number(s, "cooldown", 0, 1, &out->cooldown));
    ISO_TRY(iso_settings_int(s, "cooldown-steps", 0, many, &out->cooldown_steps));
    ISO_TRY(read_steps(s, "period", 1, &out->global_skip));
    ISO_TRY(iso_settings_int(s, "max-period", 1, many, &out->max_global_skip));
    ISO_TRY(read_steps(s, "wait", 0, &out->batches_to_wait));
    ISO_TRY(iso_settings_int(s, "local-skip", 1, many, &out->local_skip));
    ISO_TRY(iso_settings_number(s, "stability-level", 0, 1e6, &out->stability_level));
    ISO_TRY(iso_settings_number(s, "max-divergence", 0, 1e6, &out->max_divergence));
    ISO_TRY(read_wire(s, "wire", &out->wire));
    ISO_TRY(read_names(s, out));
    return ISO_OK;
}

static iso_status local_sgd_config(const iso_strategy_context *context, iso_daso_config *out) {
    *out = iso_local_sgd_config(context->total_steps, ISO_DASO_AUTO_SKIP);
    out->global_skip = -1; // automatic, and the statistics say so
    return read_steps(context->settings, "period", 1, &out->global_skip);
}

static iso_status post_local_config(const iso_strategy_context *context, iso_daso_config *out) {
    ISO_TRY(local_sgd_config(context, out));
    out->warmup = 0.5;
    out->warmup_steps = -1;
    return read_warmup(context->settings, &out->warmup, &out->warmup_steps);
}

// HeAT's 4 epochs of warm-up and of cool-down would leave nothing between them in short runs.
static iso_status heat_epochs(const iso_strategy_context *context, iso_daso_heat_config *out) {
    int64_t steps = context->steps_per_epoch;
    ISO_CHECK(steps > 0, ISO_ERR_ARG, "daso-heat needs the number of steps of an epoch");
    out->total_epochs = (context->total_steps + steps - 1) / steps;
    out->last_batch = steps - 1;
    int64_t few = out->total_epochs / 3 < 4 ? out->total_epochs / 3 : 4;
    out->warmup_epochs = out->cooldown_epochs = few;
    ISO_TRY(iso_settings_int(context->settings, "warmup-epochs", 0, many, &out->warmup_epochs));
    ISO_TRY(iso_settings_int(context->settings, "cooldown-epochs", 0, many, &out->cooldown_epochs));
    return ISO_OK;
}

static iso_status heat_config(const iso_strategy_context *context, iso_daso_heat_config *out) {
    iso_settings *s = context->settings;
    const char *groups = "yes";
    *out = ISO_DASO_HEAT_DEFAULT;
    ISO_TRY(heat_epochs(context, out));
    ISO_TRY(iso_settings_number(s, "stability-level", 0, 1e6, &out->stability_level));
    ISO_TRY(iso_settings_int(s, "max-global-skips", 0, many, &out->max_global_skips));
    ISO_TRY(iso_settings_int(s, "sending-chunk-size", 1, many, &out->sending_chunk_size));
    ISO_TRY(iso_settings_text(s, "use-mpi-groups", "yes|no", &groups));
    ISO_TRY(iso_settings_int(s, "skip-reduction-factor", 1, many, &out->skip_reduction_factor));
    ISO_TRY(iso_settings_int(s, "local-skip-factor", 1, many, &out->local_skip_factor));
    ISO_TRY(read_wire(s, "downcast-type", &out->downcast_type));
    out->use_mpi_groups = strcmp(groups, "yes") == 0;
    return ISO_OK;
}

// ---- Exchanging parameters ----------------------------------------------------------------------

typedef iso_status (*read_config)(const iso_strategy_context *context, iso_daso_config *out);

static iso_status tie_daso(read_config read, const iso_strategy_context *context,
                           iso_optimizer *inner, iso_module *module, iso_optimizer **out) {
    iso_daso_config config;
    iso_status status;
    ISO_TRY_GOTO(read(context, &config));
    ISO_TRY_GOTO(iso_dp_optimizer_create_take(inner, module, &inner));
    ISO_TRY(iso_daso_create_take(inner, module, &config, out));
    return ISO_OK;
fail:
    iso_optimizer_destroy(&inner);
    return status;
}

// The detector needs one epoch to compare with, and more than two that are no better.
enum { PLATEAU_EPOCHS = 4 };

static void warn_of_plateau(const iso_strategy_context *context) {
    iso_daso_config config;
    int64_t warmup, cooldown, steps = context->steps_per_epoch;
    if (steps <= 0 || daso_config(context, &config) < 0 || config.policy != ISO_POLICY_PLATEAU)
        return;
    if (iso__daso_config_check(&config) < 0) return;
    iso__daso_phases(&config, &warmup, &cooldown);
    int64_t first = (warmup + steps - 1) / steps, end = config.total_steps - cooldown;
    int64_t epochs = (end - 1) / steps - (first > 0 ? first : 1) + 1; // that end in between
    if (epochs >= PLATEAU_EPOCHS || iso_comm_rank(context->comm) != 0) return;
    iso__log(ISO_LOG_WARN,
             "the policy plateau will change nothing: it decides at the end of an epoch, from the "
             "%dth on that ends between warm-up and cool-down, and of this run of %lld steps "
             "(%lld an epoch) %lld end there",
             PLATEAU_EPOCHS, (long long)config.total_steps, (long long)steps,
             (long long)(epochs > 0 ? epochs : 0));
}

static iso_status wrap_daso(const iso_strategy_context *context, iso_optimizer *inner,
                            iso_module *module, iso_optimizer **out, void *user) {
    (void)user;
    warn_of_plateau(context);
    return tie_daso(daso_config, context, inner, module, out);
}

static iso_status wrap_local_sgd(const iso_strategy_context *context, iso_optimizer *inner,
                                 iso_module *module, iso_optimizer **out, void *user) {
    (void)user;
    return tie_daso(local_sgd_config, context, inner, module, out);
}

static iso_status wrap_post_local(const iso_strategy_context *context, iso_optimizer *inner,
                                  iso_module *module, iso_optimizer **out, void *user) {
    (void)user;
    return tie_daso(post_local_config, context, inner, module, out);
}

static iso_status wrap_heat(const iso_strategy_context *context, iso_optimizer *inner,
                            iso_module *module, iso_optimizer **out, void *user) {
    (void)user;
    iso_daso_heat_config config;
    iso_status status;
    ISO_TRY_GOTO(heat_config(context, &config));
    ISO_TRY_GOTO(iso_dp_optimizer_create_take(inner, module, &inner));
    ISO_TRY(iso_daso_heat_create_take(inner, module, &config, out));
    return ISO_OK;
fail:
    iso_optimizer_destroy(&inner);
    return status;
}

// ---- The list -----------------------------------------------------------------------------------

static iso_status complete_exchange(iso_optimizer *optimizer, void *user) {
    (void)user;
    return iso_daso_complete(optimizer);
}

static iso_status tell_daso(iso_optimizer *optimizer, iso_strategy_stats *out, void *user) {
    (void)user;
    iso_daso_stats daso;
    ISO_TRY(iso_daso_get_stats(optimizer, &daso));
    *out = (iso_strategy_stats){.syncs = daso.syncs,
                                .period = daso.global_skip > 1 ? daso.global_skip : 1,
                                .wait = daso.batches_to_wait,
                                .period_requested = daso.global_skip_requested,
                                .wait_requested = daso.batches_to_wait_requested,
                                .local_period = daso.local_skip,
                                .last_age = daso.last_age,
                                .phase = daso.phase,
                                .wait_ms = daso.wait_ms,
                                .last_wait_ms = daso.last_wait_ms,
                                .exchange_ms = daso.exchange_ms,
                                .divergence = daso.divergence,
                                .bytes_sent = daso.bytes_sent,
                                .bytes_between_nodes = daso.bytes_between_nodes};
    memcpy(out->reason, daso.reason, sizeof(out->reason));
    return ISO_OK;
}

// What all that exchange parameters have in common.
#define OF_DASO                                                                                    \
    .epoch_loss = iso_daso_epoch_loss, .finish = iso_daso_finish, .complete = complete_exchange,   \
    .stats = tell_daso, .f32_only = true

const iso_strategy iso__builtin_strategy[] = {
    {.name = "blocking", .text = "gradients, waited for at once", .wrap_module = wrap_blocking},
    {.name = "lazy",
     .text = "gradients, each layer's waited for when the next forward needs it",
     .wrap_module = wrap_lazy},
    {.name = "explicit",
     .text = "gradients, all at once after each backward",
     .wrap_module = wrap_explicit,
     .reduce_gradients = all_reduce},
    {.name = "daso",
     .text = "gradients within a node, parameters between nodes, without waiting",
     .wrap_optimizer = wrap_daso,
     OF_DASO},
    {.name = "daso-heat", .text = "DASO as HeAT does it", .wrap_optimizer = wrap_heat, OF_DASO},
    {.name = "localsgd",
     .text = "parameters, every so many steps",
     .wrap_optimizer = wrap_local_sgd,
     OF_DASO},
    {.name = "postlocal",
     .text = "gradients, later parameters every so many steps",
     .wrap_optimizer = wrap_post_local,
     OF_DASO},
};
const int iso__builtin_strategy_count =
    sizeof(iso__builtin_strategy) / sizeof(iso__builtin_strategy[0]);
