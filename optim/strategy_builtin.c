// SPDX-License-Identifier: MIT
// The library's synchronisation strategies, and the meaning of their settings.
#include "optim/strategy_impl.h"

#include "base/base.h"
#include "optim/periodic/daso_settings.h"
#include "optim/periodic/sync_plan.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define COUNT(table) (int)(sizeof(table) / sizeof((table)[0]))

// ---- Averaging gradients ------------------------------------------------------------------------

typedef struct gradient_values {
    const char *wire;
    double topk_ratio, randomk_ratio;
    int64_t powersgd_rank, powersgd_start, zero_stage;
    bool powersgd_batched, zero;
    int zero_scope;
} gradient_values;

#define AT(field) offsetof(gradient_values, field)
#define POWERSGD  .of = "wire", .among = "powersgd|powersgd+bf16"
static const iso_setting gradient_setting[] = {
    {"wire", ISO_SETTING_CHOICE, AT(wire),
     .choices = "f32|bf16|f16|bf16-feedback|int8|fp8|dithering|onebit|topk|randomk|powersgd|"
                "powersgd+bf16|adasum|noop",
     .initial = "f32",
     .meaning = "how gradients travel; parameters travel as f32, bf16, f16, int8, fp8, int4 or "
                "topk; noop: nothing travels"},
    {"topk-ratio", ISO_SETTING_NUMBER, AT(topk_ratio), .low = 1e-9, .high = 1, .initial = "0.01",
     .of = "wire", .among = "topk",
     .meaning = "fraction of the gradients, or of the differences of parameters (at most 0.25), "
                "that a rank sends"},
    {"randomk-ratio", ISO_SETTING_NUMBER, AT(randomk_ratio), .low = 1e-9, .high = 1,
     .initial = "0.01", .of = "wire", .among = "randomk",
     .meaning = "fraction of the gradients that ranks sum, chosen at random"},
    {"powersgd-rank", ISO_SETTING_INTEGER, AT(powersgd_rank), .low = 1, .high = INT_MAX,
     .initial = "1", POWERSGD, .meaning = "rank of the matrices that travel"},
    {"powersgd-start", ISO_SETTING_INTEGER, AT(powersgd_start), .low = 0, .high = 1 << 24,
     .initial = "1000", POWERSGD,
     .meaning = "number of steps before PowerSGD begins; their gradients travel in f32"},
    {"powersgd-batched", ISO_SETTING_SWITCH, AT(powersgd_batched), .initial = "no", POWERSGD,
     .meaning = "each bucket travels as one matrix (PyTorch: batched_powerSGD_hook)"},
    {"zero", ISO_SETTING_SWITCH, AT(zero), ISO__ZERO_MEANING},
    {"zero-stage", ISO_SETTING_INTEGER, AT(zero_stage), ISO__ZERO_STAGES},
    {"zero-scope", ISO_SETTING_INDEX, AT(zero_scope), .choices = "world|node", .initial = "world",
     .meaning = "world: --zero divides among all ranks; node: among those of a node, and all nodes "
                "make the same updates"},
};
static iso_sync blocking = ISO_SYNC_BLOCKING, lazy = ISO_SYNC_LAZY, all_at_once = ISO_SYNC_EXPLICIT;
#define OF_GRADIENTS(sync)                                                                         \
    .wrap_module = wrap_gradients, .user = &(sync), .setting = gradient_setting,                   \
    .setting_count = COUNT(gradient_setting)

// A hook, and its configuration until the reducer has copied both.
typedef struct chosen_hook {
    iso_comm_hook hook;
    iso_topk_config topk;
    iso_randomk_config randomk;
    iso_powersgd_config powersgd;
} chosen_hook;

static iso_status choose_hook(const gradient_values *v, chosen_hook *out) {
    const iso_comm_hook *named;
    *out = (chosen_hook){
        .topk = ISO_TOPK_DEFAULT, .randomk = ISO_RANDOMK_DEFAULT, .powersgd = ISO_POWERSGD_DEFAULT};
    ISO_TRY(iso_comm_hook_parse(v->wire, &named));
    out->hook = *named;
    out->topk.ratio = v->topk_ratio;
    out->randomk.ratio = v->randomk_ratio;
    out->powersgd.rank = (int)v->powersgd_rank;
    out->powersgd.start = v->powersgd_start;
    out->powersgd.batched = v->powersgd_batched;
    if (strcmp(v->wire, "topk") == 0) out->hook = iso_hook_topk(&out->topk);
    if (strcmp(v->wire, "randomk") == 0) out->hook = iso_hook_randomk(&out->randomk);
    if (strncmp(v->wire, "powersgd", strlen("powersgd")) != 0) return ISO_OK;
    out->hook = iso_hook_powersgd(&out->powersgd);
    out->hook.name = named->name;
    out->hook.wire = named->wire;
    return ISO_OK;
}

// user: the iso_sync.
static iso_status wrap_gradients(const iso_strategy_context *context, iso_module *module,
                                 iso_module **out, void *user) {
    iso_data_parallel_config config = context->data_parallel;
    gradient_values values;
    chosen_hook chosen;
    iso_status status;
    config.sync = *(const iso_sync *)user;
    ISO_TRY_GOTO(
        iso_settings_read(context->settings, gradient_setting, COUNT(gradient_setting), &values));
    ISO_TRY_GOTO(choose_hook(&values, &chosen));
    // Without the settings, what the context has stays.
    if (!config.hook || iso_settings_has(context->settings, "wire")) config.hook = &chosen.hook;
    if (iso_settings_has(context->settings, "zero")) config.zero = values.zero;
    if (iso_settings_has(context->settings, "zero-stage")) config.zero = (int)values.zero_stage;
    if (iso_settings_has(context->settings, "zero-scope"))
        config.zero_scope = values.zero_scope == 1 ? ISO_SCOPE_NODE : ISO_SCOPE_WORLD;
    ISO_CHECK_GOTO(values.zero_scope == 0 || config.zero, ISO_ERR_ARG,
                   "--zero-scope node divides nothing without ZeRO: give --zero or --zero-stage");
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

// DASO, or local SGD: DASO without phases whose ranks are alone between blocking averages.
typedef struct periodic_kind {
    const iso_setting *setting;
    int setting_count;
    bool local;
    const iso_outer *outer; // NULL: none, unless a setting names one
    bool overlaps;          // the wait is the period
    bool gossip, asynchronous, server, tournament;
} periodic_kind;
#define KIND(table, TABLE)                                                                         \
    .setting = iso__##table##_setting, .setting_count = ISO__##TABLE##_SETTINGS
static periodic_kind daso_kind = {KIND(daso, DASO)};
static periodic_kind local_sgd_kind = {KIND(local_sgd, LOCAL_SGD), .local = true};
static periodic_kind post_local_kind = {KIND(post_local, POST_LOCAL), .local = true};
static periodic_kind slowmo_kind = {KIND(slowmo, SLOWMO), .local = true,
                                    .outer = &iso_outer_slowmo};
static periodic_kind diloco_kind = {KIND(diloco, DILOCO), .local = true,
                                    .outer = &iso_outer_nesterov};
static periodic_kind streaming_kind = {KIND(streaming, STREAMING), .local = true,
                                       .outer = &iso_outer_nesterov};
static periodic_kind overlap_kind = {KIND(overlap, OVERLAP), .local = true,
                                     .outer = &iso_outer_pull, .overlaps = true};
static periodic_kind gossip_kind = {KIND(gossip, GOSSIP), .local = true, .gossip = true};
static periodic_kind async_kind = {KIND(async, ASYNC), .local = true, .asynchronous = true};
static periodic_kind server_kind = {KIND(server, SERVER), .local = true, .server = true};
static periodic_kind tournament_kind = {KIND(tournament, TOURNAMENT), .local = true,
                                        .tournament = true};

// A period of -1 is automatic, and the statistics report it as such. With warm-up steps of -1 the
// share decides. *rules is memory for what the config points to.
static iso_status read_config(const iso_strategy_context *context, const periodic_kind *kind,
                              iso_daso_config *out, iso__daso_rules *rules) {
    iso_daso_config config = ISO_DASO_DEFAULT;
    *rules = (iso__daso_rules){0};
    if (kind->outer) rules->outer = *kind->outer;
    if (context->tournament) rules->tournament = *context->tournament;
    if (kind->local) config = iso_post_local_sgd_config(0, -1, ISO_DASO_AUTO_SKIP);
    if (kind->asynchronous) config = iso_async_config(0, -1);
    if (kind->server) config = iso_server_config(0, ISO_DASO_AUTO_SKIP);
    if (kind->server) config.warmup_steps = -1;
    config.gossip = kind->gossip;
    if (kind->tournament) config.tournament = &rules->tournament;
    config.total_steps = context->total_steps;
    config.changed = context->changed;
    config.changed_user = context->changed_user;
    config.replay = context->replay;
    config.replay_count = context->replay_count;
    config.extends = context->extends;
    ISO_TRY(iso__daso_settings_read(context->settings, kind->setting, kind->setting_count, &config,
                                    rules));
    bool given = kind->overlaps || config.fragments > 1; // these need a known period
    int64_t least = iso__larger(config.fragments, iso__daso_skip_for(config.batches_to_wait));
    if (config.global_skip < 0 && given)
        config.global_skip = iso__larger(ISO_DASO_AUTO_SKIP, kind->overlaps ? 1 : least);
    if (kind->overlaps) config.batches_to_wait = config.global_skip;
    *out = config;
    return ISO_OK;
}

// HeAT's 4 epochs of warm-up and of cool-down would leave nothing between them in short runs.
static iso_status heat_config(const iso_strategy_context *context, iso_daso_heat_config *out) {
    int64_t steps = context->steps_per_epoch;
    iso_daso_heat_config config = ISO_DASO_HEAT_DEFAULT;
    ISO_CHECK(
        steps > 0, ISO_ERR_ARG,
        "daso-heat needs the number of steps of an epoch: set steps_per_epoch of the context");
    config.total_epochs = (context->total_steps + steps - 1) / steps;
    config.last_batch = steps - 1;
    int64_t few = config.total_epochs / 3 < 4 ? config.total_epochs / 3 : 4;
    config.warmup_epochs = config.cooldown_epochs = few;
    ISO_TRY(iso__heat_settings_read(context->settings, &config));
    *out = config;
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
              "--warmup-steps %lld and --cooldown-steps %lld are more than the %lld step%s of the "
              "run: lower them, or train longer",
              (long long)c->warmup_steps, (long long)c->cooldown_steps, (long long)c->total_steps,
              ISO_PLURAL(c->total_steps));
    // What is sent first comes at the earliest after one step, or after a period that the wait
    // makes long.
    int64_t wait = c->batches_to_wait, first = c->global_skip > wait ? 1 : wait;
    if (c->global_skip < 0 && c->policy == ISO_POLICY_FIXED) first = iso__daso_skip_for(wait);
    bool overlaps = wait == c->global_skip && !iso_settings_has(context->settings, "wait");
    ISO_CHECK(apart <= 0 || wait < 1 || wait <= apart - first, ISO_ERR_ARG,
              "--%s %lld is too long: no exchange would be merged in the %lld step%s between "
              "warm-up and cool-down: lower it, or train longer",
              overlaps ? "period" : "wait", (long long)wait, (long long)apart, ISO_PLURAL(apart));
    return ISO_OK;
}

// Only the policy fixed keeps an automatic period, so the warning is for this policy.
static void warn_of_period(const iso_daso_config *c, int64_t apart, char *warning) {
    bool chosen = c->global_skip < 0 && c->policy == ISO_POLICY_FIXED;
    int64_t period = chosen
                         ? iso__larger(ISO_DASO_AUTO_SKIP, iso__daso_skip_for(c->batches_to_wait))
                         : c->global_skip;
    if (c->outer_skip > 0) period = iso__smaller(period, c->outer_skip);
    if (period < 1 || period < apart) return;
    snprintf(warning, ISO_STRATEGY_WARNING,
             "%s %lld is not shorter than the %lld step%s in which ranks train apart: they "
             "exchange no parameters before the end of these steps: %s, or train longer",
             chosen ? "the automatic period of" : "--period", (long long)period, (long long)apart,
             ISO_PLURAL(apart), chosen ? "give a shorter --period" : "lower it");
}

// The detector needs one epoch to compare with, and more than two that are no better.
enum { PLATEAU_EPOCHS = 4 };

static void warn_of_plateau(int64_t steps, int64_t warmup, int64_t end, int64_t total,
                            char *warning) {
    if (steps <= 0) return;
    int64_t first = (warmup + steps - 1) / steps;
    int64_t epochs = (end - 1) / steps - (first > 0 ? first : 1) + 1; // that end in between
    if (epochs >= PLATEAU_EPOCHS) return;
    snprintf(
        warning, ISO_STRATEGY_WARNING,
        "the policy plateau will change nothing: it needs %d epochs that end between warm-up and "
        "cool-down, and this run of %lld step%s (%lld per epoch) has %lld",
        PLATEAU_EPOCHS, (long long)total, ISO_PLURAL(total), (long long)steps,
        (long long)(epochs > 0 ? epochs : 0));
}

static iso_status check_outer(const iso_strategy_context *context, const iso_daso_config *c) {
    if (!c->outer) return ISO_OK;
    ISO_CHECK(!iso_settings_has(context->settings, "merge"), ISO_ERR_ARG,
              "--outer %s takes the place of --merge: give one of them", c->outer->name);
    ISO_CHECK(
        c->level_count == 0, ISO_ERR_ARG,
        "--levels and --outer %s cannot be combined: an outer optimizer needs the mean of all "
        "ranks",
        c->outer->name);
    return ISO_OK;
}

static iso_status check_fragments(const iso_strategy_context *context, const iso_daso_config *c) {
    bool one = c->fragments <= 1;
    ISO_CHECK(!one || !iso_settings_has(context->settings, "fragment-order"), ISO_ERR_ARG,
              "--fragment-order needs --fragments of 2 or more");
    if (one) return ISO_OK;
    ISO_CHECK(c->batches_to_wait >= 0, ISO_ERR_ARG, "--fragments needs --wait: give it");
    ISO_CHECK(c->global_skip >= c->fragments, ISO_ERR_ARG,
              "--period %lld is shorter than --fragments %d, but one fragment is exchanged at a "
              "time: raise the period, or use fewer fragments",
              (long long)c->global_skip, c->fragments);
    const char *other = c->policy != ISO_POLICY_FIXED     ? "policy"
                        : c->local_skip != 1              ? "local-skip"
                        : c->state != ISO_STATE_SYNC_KEEP ? "state"
                                                          : NULL;
    ISO_CHECK(!other, ISO_ERR_ARG, "--fragments and --%s cannot be combined: remove one of them",
              other);
    return ISO_OK;
}

static iso_status check_tournament(const iso_strategy_context *context, const iso_daso_config *c) {
    ISO_CHECK(!c->tournament || !context->comm || c->tournament->score, ISO_ERR_ARG,
              "--sync tournament compares models on samples that are held out of training: give "
              "--validation, e.g. --validation 0.1");
    return ISO_OK;
}

static iso_status check_state(const iso_daso_config *c) {
    ISO_CHECK(iso__daso_carries_state(c), ISO_ERR_ARG,
              "with --state average second moments travel, too, and this --wire would lose small "
              "ones: give --wire f32, bf16 or f16");
    return ISO_OK;
}

static iso_status check_daso(const iso_strategy_context *context, char *warning, void *user) {
    static const iso__daso_names options = {"", "--period", "--wait", "--max-period", "--policy"};
    iso_daso_config c;
    iso__daso_rules rules;
    int64_t warmup, cooldown;
    ISO_TRY(read_config(context, user, &c, &rules));
    ISO_TRY(check_tournament(context, &c));
    ISO_TRY(check_outer(context, &c));
    ISO_TRY(check_fragments(context, &c));
    ISO_CHECK(c.level_count == 0 || c.policy == ISO_POLICY_FIXED, ISO_ERR_ARG,
              "--levels and --policy cannot be combined: remove one of them");
    ISO_TRY(check_state(&c));
    int ranks = context->comm ? iso_comm_size(context->comm) : 0;
    ISO_TRY(iso__daso_server_check(&c, ranks));
    ISO_TRY(iso__daso_levels_check(&c, ranks));
    ISO_TRY(iso__daso_rhythm_check(&c, &options));
    ISO_CHECK(!both_given(context, "warmup", "cooldown") || c.warmup + c.cooldown <= 1, ISO_ERR_ARG,
              "--warmup %g and --cooldown %g are more than the whole run: give fractions whose sum "
              "is at most 1",
              c.warmup, c.cooldown);
    if (c.total_steps <= 0) return ISO_OK;
    iso__daso_phases(&c, &warmup, &cooldown);
    int64_t end = c.total_steps - cooldown;
    ISO_TRY(check_length(context, &c, end - warmup));
    if (end <= warmup)
        snprintf(
            warning, ISO_STRATEGY_WARNING,
            "the warm-up of %lld step%s leaves none in which ranks train apart: shorten it, or "
            "train longer",
            (long long)warmup, ISO_PLURAL(warmup));
    else if (c.policy == ISO_POLICY_FIXED)
        warn_of_period(&c, end - warmup, warning);
    if (c.policy == ISO_POLICY_PLATEAU)
        warn_of_plateau(context->steps_per_epoch, warmup, end, c.total_steps, warning);
    return ISO_OK;
}

static iso_status check_heat(const iso_strategy_context *context, char *warning, void *user) {
    (void)user;
    iso_daso_heat_config c;
    if (context->total_steps <= 0 || context->steps_per_epoch <= 0) return ISO_OK;
    ISO_TRY(heat_config(context, &c));
    if (c.warmup_epochs < c.total_epochs - c.cooldown_epochs) return ISO_OK;
    snprintf(
        warning, ISO_STRATEGY_WARNING,
        "the warm-up of %lld epoch%s and the cool-down of %lld leave none of the %lld epoch%s in "
        "which nodes train apart: shorten them, or train longer",
        (long long)c.warmup_epochs, ISO_PLURAL(c.warmup_epochs), (long long)c.cooldown_epochs,
        (long long)c.total_epochs, ISO_PLURAL(c.total_epochs));
    return ISO_OK;
}

// ---- Exchanging parameters ----------------------------------------------------------------------

static iso_status wrap_of_daso(const iso_strategy_context *context, iso_module *module,
                               iso_module **out, void *user) {
    iso_data_parallel_config dp = context->data_parallel;
    iso_daso_config config;
    iso__daso_rules rules;
    iso_status status = read_config(context, user, &config, &rules);
    if (status < 0) iso_module_destroy(&module);
    ISO_TRY(status);
    if (rules.zero) dp.zero = rules.zero, dp.zero_scope = ISO_SCOPE_NODE;
    return iso_data_parallel_create_take(module, context->comm, &dp, out);
}

// Adds the hyperparameters that a setting names to those that the program lists.
static iso_status list_hypers(iso__daso_rules *rules, iso_optimizer *inner) {
    iso_tournament *t = &rules->tournament;
    if (!rules->hyper_names) return ISO_OK;
    ISO_CHECK(t->hyper_count >= 0 && t->hyper_count <= ISO_TOURNAMENT_HYPERS, ISO_ERR_ARG,
              "a tournament has %d hyperparameters: give 0 to %d", t->hyper_count,
              ISO_TOURNAMENT_HYPERS);
    for (int i = 0; i < t->hyper_count; i++) rules->hyper[i] = t->hyper[i];
    t->hyper = rules->hyper;
    return iso_tournament_list_hyper(inner, rules->hyper_names, rules->hyper, ISO_TOURNAMENT_HYPERS,
                                     &t->hyper_count);
}

static iso_status wrap_daso(const iso_strategy_context *context, iso_optimizer *inner,
                            iso_module *module, iso_optimizer **out, void *user) {
    iso_daso_config config;
    iso__daso_rules rules;
    iso_status status;
    ISO_TRY_GOTO(read_config(context, user, &config, &rules));
    ISO_TRY_GOTO(list_hypers(&rules, inner));
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
    int64_t period = daso.global_skip_requested == 0 ? 0 : iso__larger(daso.global_skip, 1);
    *out = (iso_strategy_stats){.syncs = daso.syncs,
                                .period = period,
                                .wait = daso.batches_to_wait,
                                .period_requested = daso.global_skip_requested,
                                .wait_requested = daso.batches_to_wait_requested,
                                .local_period = daso.local_skip,
                                .last_age = daso.last_age,
                                .phase = daso.phase,
                                .wait_ms = daso.wait_ms,
                                .last_wait_ms = daso.last_wait_ms,
                                .work_ms = daso.work_ms,
                                .exchange_ms = daso.exchange_ms,
                                .divergence = daso.divergence,
                                .bytes_sent = daso.bytes_sent,
                                .bytes_between_nodes = daso.bytes_between_nodes};
    memcpy(out->reason, daso.reason, sizeof(out->reason));
    return ISO_OK;
}

// What all that exchange parameters have in common.
#define OF_PARAMETERS(table, count)                                                                \
    .epoch_loss = iso_daso_epoch_loss, .finish = iso_daso_finish, .complete = complete_exchange,   \
    .stats = tell_daso, .setting = (table), .setting_count = (count)
#define OF_DASO(mode, MODE)                                                                        \
    .check = check_daso, .wrap_module = wrap_of_daso, .wrap_optimizer = wrap_daso,                 \
    .user = &mode##_kind, OF_PARAMETERS(iso__##mode##_setting, ISO__##MODE##_SETTINGS)

const iso_strategy iso__builtin_strategy[] = {
    {.name = "blocking", .text = "gradients, each awaited at once", OF_GRADIENTS(blocking)},
    {.name = "lazy",
     .text = "gradients, each awaited when the next forward needs it",
     OF_GRADIENTS(lazy)},
    {.name = "explicit",
     .text = "gradients, all together after each backward",
     .reduce_gradients = all_reduce,
     OF_GRADIENTS(all_at_once)},
    {.name = "daso",
     .text = "gradients within a node, parameters between nodes, without waiting",
     OF_DASO(daso, DASO)},
    {.name = "daso-heat",
     .text = "DASO as HeAT does it",
     .check = check_heat,
     .wrap_optimizer = wrap_heat,
     OF_PARAMETERS(iso__heat_setting, ISO__HEAT_SETTINGS)},
    {.name = "localsgd",
     .text = "parameters, every --period steps, awaited at once",
     OF_DASO(local_sgd, LOCAL_SGD)},
    {.name = "postlocal",
     .text = "first gradients, as in lazy, then parameters, as in localsgd",
     OF_DASO(post_local, POST_LOCAL)},
    {.name = "slowmo",
     .text = "as localsgd, with SlowMo's momentum on the change of the mean",
     OF_DASO(slowmo, SLOWMO)},
    {.name = "diloco",
     .text = "as localsgd, with Nesterov momentum on the change of the mean",
     OF_DASO(diloco, DILOCO)},
    {.name = "streaming-diloco",
     .text = "as diloco, but fragments of the parameters take turns, without waiting",
     OF_DASO(streaming, STREAMING)},
    {.name = "overlap-localsgd",
     .text = "parameters, every --period steps, without waiting; the mean pulls the ranks together",
     OF_DASO(overlap, OVERLAP)},
    {.name = "gossip",
     .text = "parameters, with one other rank every --period steps, awaited --wait steps later",
     OF_DASO(gossip, GOSSIP)},
    {.name = "async",
     .text = "parameters, all the time, without waiting; each rank merges the mean when it arrives",
     OF_DASO(async, ASYNC)},
    {.name = "server",
     .text = "parameters, every --period steps, with a parameter server, whose shards are on the "
             "ranks, without waiting (--push async)",
     OF_DASO(server, SERVER)},
    {.name = "tournament",
     .text = "models, between two nodes every --period steps; each keeps the one that --validation "
             "says is better",
     OF_DASO(tournament, TOURNAMENT)},
};
const int iso__builtin_strategy_count =
    sizeof(iso__builtin_strategy) / sizeof(iso__builtin_strategy[0]);
