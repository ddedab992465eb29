// SPDX-License-Identifier: MIT
// The strategies of synchronisation that the library has, and what their settings mean.
#include "optim/strategy_impl.h"

#include "base/base.h"
#include "optim/periodic/sync_plan.h"

#include <stdio.h>
#include <string.h>

#define COUNT(table)      (int)(sizeof(table) / sizeof((table)[0]))
#define INTEGER           .kind = ISO_SETTING_INTEGER
#define NUMBER            .kind = ISO_SETTING_NUMBER
#define INDEX             .kind = ISO_SETTING_INDEX
#define COUNT_FROM(least) .low = (least), .high = 1e12

// ---- Averaging gradients ------------------------------------------------------------------------

static const iso_setting gradient_setting[] = {
    {"wire", ISO_SETTING_CHOICE, .choices = "f32|bf16|f16|bf16-feedback|noop", .initial = "f32",
     .meaning =
         "element type in which gradients, or daso's parameters, travel; noop: nothing travels"},
};
static iso_sync blocking = ISO_SYNC_BLOCKING, lazy = ISO_SYNC_LAZY, all_at_once = ISO_SYNC_EXPLICIT;
#define OF_GRADIENTS(sync)                                                                         \
    .wrap_module = wrap_gradients, .user = &(sync), .setting = gradient_setting,                   \
    .setting_count = COUNT(gradient_setting)

static iso_status read_hook(iso_settings *settings, const iso_comm_hook **out) {
    const char *name = NULL;
    ISO_TRY(iso_settings_text(settings, "wire", NULL, &name));
    if (name) ISO_TRY(iso_comm_hook_parse(name, out));
    return ISO_OK;
}

// user: the iso_sync.
static iso_status wrap_gradients(const iso_strategy_context *context, iso_module *module,
                                 iso_module **out, void *user) {
    iso_data_parallel_config config = context->data_parallel;
    iso_status status;
    config.sync = *(const iso_sync *)user;
    ISO_TRY_GOTO(read_hook(context->settings, &config.hook));
    ISO_TRY(iso_data_parallel_create_take(module, context->comm, &config, out));
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}

static iso_status all_reduce(iso_module *module, void *user) {
    (void)user;
    return iso_data_parallel_all_reduce_gradients(module);
}

// ---- Settings of DASO ---------------------------------------------------------------------------

// What settings are read into: a config, and the numbers of choices that it holds as enums.
typedef struct daso_values {
    iso_daso_config config;
    int unit, wire;
} daso_values;
#define WIRES "f32|bf16|f16"
static const iso_dtype wires[] = {ISO_F32, ISO_BF16, ISO_F16};

#define FIELD(name) offsetof(daso_values, config.name)
#define PERIOD                                                                                     \
    "period", INTEGER, FIELD(global_skip), COUNT_FROM(1),                                          \
        .word = "auto", .initial = "auto",                                                         \
        .meaning = "steps between exchanges of parameters; auto: 8, or --wait if longer"
#define WARMUP                                                                                     \
    "warmup", NUMBER, FIELD(warmup), 0, 1,                                                         \
        .meaning = "fraction of the run, at its start, that averages gradients over all ranks"
#define WARMUP_STEPS                                                                               \
    "warmup-steps", INTEGER, FIELD(warmup_steps), COUNT_FROM(0),                                   \
        .meaning = "length of the warm-up in steps, instead of --warmup", .instead = "warmup"

static const iso_setting local_sgd_setting[] = {{PERIOD}};
static const iso_setting post_local_setting[] = {
    {PERIOD}, {WARMUP, .initial = "0.5"}, {WARMUP_STEPS}};
static const iso_setting daso_setting[] = {
    {PERIOD},
    {WARMUP, .initial = "0.02"},
    {WARMUP_STEPS},
    {"cooldown", NUMBER, FIELD(cooldown), 0, 1, .initial = "0.02",
     .meaning = "fraction of the run, at its end, that averages gradients over all ranks"},
    {"cooldown-steps", INTEGER, FIELD(cooldown_steps), COUNT_FROM(0),
     .meaning = "length of the cool-down in steps, instead of --cooldown", .instead = "cooldown"},
    {"wait", INTEGER, FIELD(batches_to_wait), COUNT_FROM(0), .word = "auto", .initial = "auto",
     .meaning = "steps from send to merge; auto: measured, at most --period"},
    {"local-skip", INTEGER, FIELD(local_skip), COUNT_FROM(1), .initial = "1",
     .meaning = "steps between gradient averages inside a node"},
    {"unit", INDEX, offsetof(daso_values, unit), .choices = "node|rank", .initial = "node",
     .meaning = "node: average gradients within a node in every step; rank: not at all"},
    {"wire", INDEX, offsetof(daso_values, wire), .choices = WIRES, .initial = "bf16",
     .meaning = "element type in which parameters travel"},
    {"merge", INDEX, FIELD(merge), .choices = "progress|heat", .initial = "progress",
     .meaning = "progress: keep the steps made while waiting; heat: HeAT's weighted mean"},
    {"state", INDEX, FIELD(state), .choices = "keep|average|reset", .initial = "keep",
     .meaning = "what a merge does with momentum and other optimizer state"},
    {"policy", INDEX, FIELD(policy), .choices = "fixed|plateau|adaptive", .initial = "fixed",
     .meaning = "how --period and --wait adapt; plateau: at the end of epochs"},
    {"max-period", INTEGER, FIELD(max_global_skip), COUNT_FROM(1), .initial = "64",
     .meaning = "maximum period and wait that the policy may choose", .of = "policy",
     .among = "plateau|adaptive"},
    {"max-divergence", NUMBER, FIELD(max_divergence), 1e-12, 1e6, .initial = "0.05",
     .meaning = "maximum relative distance of a node from the mean", .of = "policy",
     .among = "adaptive"},
    {"stability-level", NUMBER, FIELD(stability_level), 0, 1e6, .initial = "0.05",
     .meaning = "threshold of the plateau detector"},
};
#undef FIELD
_Static_assert(sizeof(iso_merge) == sizeof(int) && sizeof(iso_state_sync) == sizeof(int) &&
                   sizeof(iso_policy) == sizeof(int),
               "read as numbers of choices, in the order of the enumerations");

// DASO, or local SGD: DASO without phases whose ranks are alone between blocking averages.
typedef struct periodic_kind {
    const iso_setting *setting;
    int setting_count;
    bool local;
} periodic_kind;
static periodic_kind daso_kind = {daso_setting, COUNT(daso_setting), false};
static periodic_kind local_sgd_kind = {local_sgd_setting, COUNT(local_sgd_setting), true};
static periodic_kind post_local_kind = {post_local_setting, COUNT(post_local_setting), true};

// A period of -1 is automatic, and the statistics say so; warm-up steps of -1 go by the share.
static iso_status read_config(const iso_strategy_context *context, const periodic_kind *kind,
                              iso_daso_config *out) {
    daso_values v = {.config = ISO_DASO_DEFAULT, .unit = kind->local}; // without such a setting
    if (kind->local) v.config = iso_post_local_sgd_config(0, -1, ISO_DASO_AUTO_SKIP);
    v.config.total_steps = context->total_steps;
    ISO_TRY(iso_settings_read(context->settings, kind->setting, kind->setting_count, &v));
    v.config.unit = v.unit == 1 ? ISO_SCOPE_RANK : ISO_SCOPE_NODE;
    v.config.wire = wires[v.wire];
    *out = v.config;
    return ISO_OK;
}

// ---- Settings of HeAT's DASO --------------------------------------------------------------------

typedef struct heat_values {
    iso_daso_heat_config config;
    int wire, groups;
} heat_values;

#define FIELD(name) offsetof(heat_values, config.name)
static const iso_setting heat_setting[] = {
    {"warmup-epochs", INTEGER, FIELD(warmup_epochs), COUNT_FROM(0),
     .meaning =
         "epochs of blocking averages at the start (default: 4, but at most a third of the run)"},
    {"cooldown-epochs", INTEGER, FIELD(cooldown_epochs), COUNT_FROM(0),
     .meaning = "epochs of blocking averages at the end (default: likewise)"},
    {"max-global-skips", INTEGER, FIELD(max_global_skips), COUNT_FROM(0), .initial = "8",
     .meaning = "maximum number of steps between exchanges"},
    {"sending-chunk-size", INTEGER, FIELD(sending_chunk_size), COUNT_FROM(1), .initial = "10000000",
     .meaning = "elements per message"},
    {"downcast-type", INDEX, offsetof(heat_values, wire), .choices = WIRES, .initial = "bf16",
     .meaning = "element type in which blocking averages travel"},
    {"use-mpi-groups", INDEX, offsetof(heat_values, groups), .choices = "yes|no", .initial = "yes",
     .meaning = "yes: create leader groups from MPI groups; no: by splitting communicators"},
    {"skip-reduction-factor", INTEGER, FIELD(skip_reduction_factor), COUNT_FROM(1), .initial = "2",
     .meaning = "on a plateau, global and local skip are divided by this"},
    {"local-skip-factor", INTEGER, FIELD(local_skip_factor), COUNT_FROM(1), .initial = "4",
     .meaning = "ratio of global to local skips"},
    {"stability-level", NUMBER, FIELD(stability_level), 0, 1e6, .initial = "0.05",
     .meaning = "threshold of the plateau detector"},
};
#undef FIELD

// HeAT's 4 epochs of warm-up and of cool-down would leave nothing between them in short runs.
static iso_status heat_config(const iso_strategy_context *context, iso_daso_heat_config *out) {
    int64_t steps = context->steps_per_epoch;
    heat_values v = {.config = ISO_DASO_HEAT_DEFAULT};
    ISO_CHECK(steps > 0, ISO_ERR_ARG, "daso-heat needs the number of steps of an epoch");
    v.config.total_epochs = (context->total_steps + steps - 1) / steps;
    v.config.last_batch = steps - 1;
    int64_t few = v.config.total_epochs / 3 < 4 ? v.config.total_epochs / 3 : 4;
    v.config.warmup_epochs = v.config.cooldown_epochs = few;
    ISO_TRY(iso_settings_read(context->settings, heat_setting, COUNT(heat_setting), &v));
    v.config.downcast_type = wires[v.wire];
    v.config.use_mpi_groups = v.groups == 0;
    *out = v.config;
    return ISO_OK;
}

// ---- What settings mean together ----------------------------------------------------------------

static bool both_given(const iso_strategy_context *context, const char *a, const char *b) {
    return iso_settings_has(context->settings, a) && iso_settings_has(context->settings, b);
}

// apart: in how many steps ranks train apart.
static iso_status check_length(const iso_strategy_context *context, const iso_daso_config *c,
                               int64_t apart) {
    ISO_CHECK(!both_given(context, "warmup-steps", "cooldown-steps") ||
                  c->warmup_steps + c->cooldown_steps <= c->total_steps,
              ISO_ERR_ARG,
              "--warmup-steps %lld and --cooldown-steps %lld are more than the %lld steps of the "
              "run: lower them, or train longer",
              (long long)c->warmup_steps, (long long)c->cooldown_steps, (long long)c->total_steps);
    // What is sent first comes at the earliest after one step, or after a period of --wait steps.
    int64_t wait = c->batches_to_wait, first = c->global_skip > wait ? 1 : wait;
    ISO_CHECK(apart <= 0 || wait < 1 || wait <= apart - first, ISO_ERR_ARG,
              "--wait %lld: in the %lld steps between warm-up and cool-down nothing that is sent "
              "would be merged: lower it, or train longer",
              (long long)wait, (long long)apart);
    return ISO_OK;
}

static void warn_of_period(const iso_daso_config *c, int64_t apart, char *warning) {
    if (c->global_skip < 1 || c->global_skip < apart) return;
    snprintf(warning, ISO_STRATEGY_WARNING,
             "--period %lld is not shorter than the %lld steps in which ranks train apart: they "
             "exchange no parameters before the end of those: lower it, or train longer",
             (long long)c->global_skip, (long long)apart);
}

// The detector needs one epoch to compare with, and more than two that are no better.
enum { PLATEAU_EPOCHS = 4 };

static void warn_of_plateau(int64_t steps, int64_t warmup, int64_t end, int64_t total,
                            char *warning) {
    if (steps <= 0) return;
    int64_t first = (warmup + steps - 1) / steps;
    int64_t epochs = (end - 1) / steps - (first > 0 ? first : 1) + 1; // that end in between
    if (epochs >= PLATEAU_EPOCHS) return;
    snprintf(warning, ISO_STRATEGY_WARNING,
             "the policy plateau will change nothing: it decides at the end of an epoch, from the "
             "%dth on that ends between warm-up and cool-down, and of this run of %lld steps "
             "(%lld an epoch) %lld end there",
             PLATEAU_EPOCHS, (long long)total, (long long)steps,
             (long long)(epochs > 0 ? epochs : 0));
}

static iso_status check_daso(const iso_strategy_context *context, char *warning, void *user) {
    static const iso__daso_names options = {"", "--period", "--wait", "--max-period", "--policy"};
    iso_daso_config c;
    int64_t warmup, cooldown;
    ISO_TRY(read_config(context, user, &c));
    ISO_TRY(iso__daso_rhythm_check(&c, &options));
    ISO_CHECK(!both_given(context, "warmup", "cooldown") || c.warmup + c.cooldown <= 1, ISO_ERR_ARG,
              "--warmup %g and --cooldown %g are more than the whole run: give fractions whose sum "
              "is at most 1",
              c.warmup, c.cooldown);
    if (c.total_steps <= 0) return ISO_OK;
    iso__daso_phases(&c, &warmup, &cooldown);
    int64_t end = c.total_steps - cooldown;
    ISO_TRY(check_length(context, &c, end - warmup));
    if (c.policy == ISO_POLICY_FIXED) warn_of_period(&c, end - warmup, warning);
    if (c.policy == ISO_POLICY_PLATEAU)
        warn_of_plateau(context->steps_per_epoch, warmup, end, c.total_steps, warning);
    return ISO_OK;
}

// ---- Exchanging parameters ----------------------------------------------------------------------

static iso_status wrap_daso(const iso_strategy_context *context, iso_optimizer *inner,
                            iso_module *module, iso_optimizer **out, void *user) {
    iso_daso_config config;
    iso_status status;
    ISO_TRY_GOTO(read_config(context, user, &config));
    ISO_TRY_GOTO(iso_dp_optimizer_create_take(inner, module, &inner));
    ISO_TRY(iso_daso_create_take(inner, module, &config, out));
    return ISO_OK;
fail:
    iso_optimizer_destroy(&inner);
    return status;
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
#define OF_PARAMETERS(table)                                                                       \
    .epoch_loss = iso_daso_epoch_loss, .finish = iso_daso_finish, .complete = complete_exchange,   \
    .stats = tell_daso, .f32_only = true, .setting = (table), .setting_count = COUNT(table)
#define OF_DASO(mode)                                                                              \
    .check = check_daso, .wrap_optimizer = wrap_daso, .user = &mode##_kind,                        \
    OF_PARAMETERS(mode##_setting)

const iso_strategy iso__builtin_strategy[] = {
    {.name = "blocking", .text = "gradients, waited for at once", OF_GRADIENTS(blocking)},
    {.name = "lazy",
     .text = "gradients, waited for layer by layer when the next forward needs them",
     OF_GRADIENTS(lazy)},
    {.name = "explicit",
     .text = "gradients, all together after each backward",
     .reduce_gradients = all_reduce,
     OF_GRADIENTS(all_at_once)},
    {.name = "daso",
     .text = "gradients within a node, parameters between nodes, without waiting",
     OF_DASO(daso)},
    {.name = "daso-heat",
     .text = "DASO as HeAT does it",
     .wrap_optimizer = wrap_heat,
     OF_PARAMETERS(heat_setting)},
    {.name = "localsgd",
     .text = "parameters, every --period steps, waited for at once",
     OF_DASO(local_sgd)},
    {.name = "postlocal",
     .text = "gradients as lazy at first, then parameters as localsgd",
     OF_DASO(post_local)},
};
const int iso__builtin_strategy_count =
    sizeof(iso__builtin_strategy) / sizeof(iso__builtin_strategy[0]);
