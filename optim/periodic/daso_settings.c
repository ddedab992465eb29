// SPDX-License-Identifier: MIT
// The settings of DASO, local SGD, post-local SGD and HeAT's DASO: the tables by which they are
// read, and compared between ranks.
#include "optim/periodic/daso_settings.h"

#include "base/base.h"
#include "optim/periodic/outer_impl.h"
#include "optim/periodic/sync_plan.h"
#include "optim/strategy_impl.h"

#include <stdio.h>
#include <string.h>

#define INTEGER           .kind = ISO_SETTING_INTEGER
#define NUMBER            .kind = ISO_SETTING_NUMBER
#define INDEX             .kind = ISO_SETTING_INDEX
#define COUNT_FROM(least) .low = (least), .high = 1e12
#define COUNTS(table, count)                                                                       \
    _Static_assert(sizeof(table) / sizeof((table)[0]) == (count), "what the header says")

#define DTYPES "f32|bf16|f16"
#define WIRES  DTYPES "|int8|fp8|int4|topk"
static const iso_wire wires[] = {ISO_WIRE_F32, ISO_WIRE_BF16, ISO_WIRE_F16, ISO_WIRE_INT8,
                                 ISO_WIRE_FP8, ISO_WIRE_INT4, ISO_WIRE_TOPK};
static const iso__codec *const codecs[] = {&iso__codec_f32,  &iso__codec_bf16, &iso__codec_f16,
                                           &iso__codec_int8, &iso__codec_fp8,  &iso__codec_int4,
                                           &iso__codec_topk};
enum { WIRE_COUNT = sizeof(wires) / sizeof(wires[0]) };
COUNTS(codecs, WIRE_COUNT);

// WIRE_COUNT if it is none.
static int place_of_wire(int wire) {
    int place = 0;
    while (place < WIRE_COUNT && (int)wires[place] != wire) place++;
    return place;
}

// How many of 256 differences are sent; 0: the ratio is not allowed.
static int count_kept(double ratio) {
    int kept = 4;
    if (ratio == 0) return 8;
    while (kept <= 64 && ratio * 256 > kept) kept *= 2;
    return ratio > 0 && kept <= 64 ? kept : 0;
}

static const iso__codec *choose_topk(double ratio) {
    static const iso__codec *const topk[] = {&iso__codec_topk4, &iso__codec_topk,
                                             &iso__codec_topk16, &iso__codec_topk32,
                                             &iso__codec_topk64};
    int kept = count_kept(ratio), k = 0;
    while (k < 5 && 4 << k != kept) k++;
    return k < 5 ? topk[k] : NULL;
}

const iso__codec *iso__wire_codec(iso_wire wire, double topk_ratio) {
    int place = place_of_wire((int)wire);
    if (wire == ISO_WIRE_TOPK) return choose_topk(topk_ratio);
    return place < WIRE_COUNT ? codecs[place] : NULL;
}

double iso__wire_consensus(iso_wire wire, double topk_ratio) {
    return wire == ISO_WIRE_TOPK ? count_kept(topk_ratio) / 128.0 : 1;
}

// ---- DASO, local SGD, post-local SGD --------------------------------------------------------------

// The fields that the tables of settings fill: a config, and the indices of choices that the config
// holds as other enumerations.
typedef struct daso_values {
    iso_daso_config config;
    int unit, wire, outer;
    int64_t fragments, servers;
    double outer_lr, outer_momentum, mix; // -1: the rule's own
    const char *levels;                   // NULL: none
    int metric, moves, mutates;           // of tournaments
    double spread, perturb;
    const char *weights, *hyper;
    bool zero;
    int64_t zero_stage;
} daso_values;

#define FIELD(name) offsetof(daso_values, config.name)
#define PERIOD                                                                                     \
    "period", INTEGER, FIELD(global_skip), COUNT_FROM(1),                                          \
        .word = "auto", .initial = "auto",                                                         \
        .meaning = "steps between exchanges of parameters; auto: 8, or 1.5 times --wait if longer"
#define WARMUP                                                                                     \
    "warmup", NUMBER, FIELD(warmup), 0, 1,                                                         \
        .meaning = "fraction of the run, at its start, that averages gradients over all ranks"
#define WARMUP_STEPS                                                                               \
    "warmup-steps", INTEGER, FIELD(warmup_steps), COUNT_FROM(0),                                   \
        .meaning = "length of the warm-up in steps, instead of --warmup", .instead = "warmup"

#define WIRE                                                                                       \
    "wire", INDEX, offsetof(daso_values, wire),                                                    \
        .choices = WIRES,                                                                          \
        .meaning = "how parameters travel; int8 has a scale for each 256 elements, fp8 and int4 "  \
                   "for each 128; topk sends the largest of each 256, --topk-ratio of them"

#define TOPK_RATIO                                                                                 \
    {                                                                                              \
        "topk-ratio", NUMBER, FIELD(topk_ratio), 1e-9, 0.25,                                       \
            .initial = "0.03125",                                                                  \
            .meaning =                                                                             \
                "fraction of the differences that travel, rounded up to 4, 8, 16, 32 or 64 of "    \
                "each 256",                                                                        \
            .of = "wire", .among = "topk"                                                          \
    }

#define LEVELS                                                                                     \
    "levels", ISO_SETTING_TEXT, offsetof(daso_values, levels),                                     \
        .choices = "PERIOD:RANKS,...",                                                             \
        .meaning = "groups of RANKS consecutive ranks average parameters every PERIOD steps; "     \
                   "the largest period that divides the number of earlier steps wins",             \
        .instead = "period"

#define OUTER_LR                                                                                   \
    "outer-lr", NUMBER, offsetof(daso_values, outer_lr), 1e-9, 1e6,                                \
        .meaning = "learning rate of the outer optimizer"
#define OUTER_MOMENTUM                                                                             \
    "outer-momentum", NUMBER, offsetof(daso_values, outer_momentum), 0, 0.999999,                  \
        .meaning = "momentum of the outer optimizer (adam: beta1)"
#define MIX                                                                                        \
    "mix", NUMBER, offsetof(daso_values, mix), 0, 1,                                               \
        .meaning = "fraction of its own parameters that a rank keeps in a merge; pull: fraction "  \
                   "of the way to the anchor"
#define FRAGMENTS                                                                                  \
    "fragments", INTEGER, offsetof(daso_values, fragments),                                        \
        .low = 1, .high = ISO_DASO_FRAGMENTS,                                                      \
        .meaning = "divide the parameters into N parts that are exchanged in turn, each every "    \
                   "--period steps"
#define FRAGMENT_ORDER                                                                             \
    "fragment-order", INDEX, FIELD(fragment_order),                                                \
        .choices = "runs|strides",                                                                 \
        .meaning = "runs: a fragment has consecutive parameters; strides: every N-th layer"
#define POLICY                                                                                     \
    {"policy",                                                                                     \
     INDEX,                                                                                        \
     FIELD(policy),                                                                                \
     .choices = "fixed|plateau|adaptive|qsr|adacomm",                                              \
     .initial = "fixed",                                                                           \
     .meaning =                                                                                    \
         "how --period and --wait change; plateau: when the epoch loss stalls; adaptive: "         \
         "by measured times and divergence; qsr: with the learning rate; adacomm: with the "       \
         "epoch loss"},                                                                            \
        {"max-period",           INTEGER,                                                          \
         FIELD(max_global_skip), COUNT_FROM(1),                                                    \
         .initial = "64",        .meaning = "maximum period and wait that the policy may choose",  \
         .of = "policy",         .among = "plateau|adaptive|qsr|adacomm"},                         \
        {"max-divergence",                                                                         \
         NUMBER,                                                                                   \
         FIELD(max_divergence),                                                                    \
         1e-12,                                                                                    \
         1e6,                                                                                      \
         .initial = "0.05",                                                                        \
         .meaning =                                                                                \
             "relative distance of parameters from their mean above which the period shrinks",     \
         .of = "policy",                                                                           \
         .among = "adaptive"},                                                                     \
    {                                                                                              \
        "qsr-alpha", NUMBER, FIELD(qsr_alpha), 1e-12, 1e6,                                         \
            .initial = "0.2",                                                                      \
            .meaning = "the period is (X / learning rate)^2, but at least --period",               \
            .of = "policy", .among = "qsr"                                                         \
    }
#define RULES "mean|sgd|nesterov|slowmo|pull|adam"
#define OUTER                                                                                      \
    {"outer",                                                                                      \
     INDEX,                                                                                        \
     offsetof(daso_values, outer),                                                                 \
     .choices = "none|" RULES,                                                                     \
     .initial = "none",                                                                            \
     .meaning = "outer optimizer: makes a step with the mean of the ranks' parameters"},           \
        {OUTER_LR, .of = "outer", .among = "sgd|nesterov|slowmo|pull|adam"},                       \
        {OUTER_MOMENTUM, .of = "outer", .among = "sgd|nesterov|slowmo|pull|adam"}, {               \
        MIX, .of = "outer", .among = RULES                                                         \
    }

const iso_setting iso__local_sgd_setting[] = {{PERIOD},   {LEVELS}, {WIRE, .initial = "f32"},
                                              TOPK_RATIO, POLICY,   OUTER};
const iso_setting iso__post_local_setting[] = {{PERIOD},
                                               {LEVELS},
                                               {WARMUP, .initial = "0.5"},
                                               {WARMUP_STEPS},
                                               {WIRE, .initial = "f32"},
                                               TOPK_RATIO,
                                               POLICY,
                                               OUTER};
const iso_setting iso__slowmo_setting[] = {{PERIOD},
                                           {WARMUP, .initial = "0"},
                                           {WARMUP_STEPS},
                                           {WIRE, .initial = "f32"},
                                           TOPK_RATIO,
                                           {OUTER_LR, .initial = "1"},
                                           {OUTER_MOMENTUM, .initial = "0.5"},
                                           POLICY};
const iso_setting iso__diloco_setting[] = {{PERIOD},
                                           {WARMUP, .initial = "0"},
                                           {WARMUP_STEPS},
                                           {WIRE, .initial = "f32"},
                                           TOPK_RATIO,
                                           {OUTER_LR, .initial = "0.7"},
                                           {OUTER_MOMENTUM, .initial = "0.9"},
                                           POLICY};
const iso_setting iso__streaming_setting[] = {{PERIOD},
                                              {FRAGMENTS, .initial = "2"},
                                              {FRAGMENT_ORDER, .initial = "strides"},
                                              {"wait", INTEGER, FIELD(batches_to_wait),
                                               COUNT_FROM(0), .initial = "1",
                                               .meaning = "steps from send to merge"},
                                              {WARMUP, .initial = "0"},
                                              {WARMUP_STEPS},
                                              {WIRE, .initial = "f32"},
                                              TOPK_RATIO,
                                              {OUTER_LR, .initial = "0.7"},
                                              {OUTER_MOMENTUM, .initial = "0.9"},
                                              {MIX, .initial = "0.5"}};
const iso_setting iso__gossip_setting[] = {
    {"period", INTEGER, FIELD(global_skip), COUNT_FROM(1), .initial = "1",
     .meaning = "steps between exchanges of parameters"},
    {"wait", INTEGER, FIELD(batches_to_wait), COUNT_FROM(0), .initial = "0",
     .meaning = "steps from send to merge"},
    {WARMUP, .initial = "0"},
    {WARMUP_STEPS},
    {"peers", INDEX, FIELD(peers), .choices = "push|pair|ring", .initial = "push",
     .meaning = "push: a rank sends parameters to one rank and receives from another; pair: two "
                "ranks average theirs; ring: as push, with the two neighbours in turn"},
    {"outer-period", INTEGER, FIELD(outer_skip), COUNT_FROM(1), .initial = "48",
     .meaning = "gossip: steps between two steps of the outer "
                "optimizer, with the mean of all ranks",
     .of = "outer", .among = RULES},
    {WIRE, .initial = "f32"},
    TOPK_RATIO,
    {"consensus-step", NUMBER, FIELD(consensus_step), 1e-9, 1,
     .meaning =
         "gossip: fraction of the way to the mean of the two ranks in an exchange (default: 1; "
         "topk: twice --topk-ratio)",
     .of = "wire", .among = "bf16|f16|int8|fp8|int4|topk"},
    OUTER};
const iso_setting iso__async_setting[] = {
    {"sync-interval-ms", NUMBER, FIELD(interval_ms), 0, 1e9, .initial = "0",
     .meaning = "least time in ms from the start of an exchange of parameters to that of the next"},
    {WARMUP, .initial = "0"},
    {WARMUP_STEPS},
    {WIRE, .initial = "f32"},
    TOPK_RATIO};
const iso_setting iso__server_setting[] = {
    {"period", INTEGER, FIELD(global_skip), COUNT_FROM(1), .initial = "8",
     .meaning = "steps between exchanges of parameters"},
    {"push", INDEX, FIELD(push), .choices = "async|sync", .initial = "async",
     .meaning = "async: the parameter server adds what a rank pushes at once, and no rank waits; "
                "sync: ranks push together, and each waits for all"},
    {"push-scale", NUMBER, FIELD(push_scale), 1e-9, 1e6,
     .meaning = "factor of the changes that a rank pushes to the parameter server (default: 1 / "
                "ranks that train)"},
    {"servers", INTEGER, offsetof(daso_values, servers), .low = 0, .high = 1e6, .initial = "0",
     .meaning = "ranks that only serve the parameters, the last ones; 0: every rank trains and "
                "serves a part"},
    {WARMUP, .initial = "0"},
    {WARMUP_STEPS}};
const iso_setting iso__tournament_setting[] = {
    {"period", INTEGER, FIELD(global_skip), COUNT_FROM(1), .initial = "64",
     .meaning = "steps between tournaments"},
    {"wait", INTEGER, FIELD(batches_to_wait), COUNT_FROM(0), .initial = "0",
     .meaning = "steps from send to tournament"},
    {WARMUP, .initial = "0"},
    {WARMUP_STEPS},
    {"unit", INDEX, offsetof(daso_values, unit), .choices = "node|rank", .initial = "node",
     .meaning = "node: each node is a trainer; rank: each rank"},
    {"tournament-metric", INDEX, offsetof(daso_values, metric), .choices = "loss|accuracy",
     .initial = "loss",
     .meaning = "which of two models wins: the one with the lower loss, or with "
                "the higher accuracy, on --validation"},
    {"tournament-state", INDEX, offsetof(daso_values, moves), .choices = "move|keep",
     .initial = "move",
     .meaning = "move: the model that wins brings its optimizer state; keep: trainers keep theirs"},
    {"tournament-spread", NUMBER, offsetof(daso_values, spread), 1e-3, 1e3, .initial = "1",
     .meaning = "trainers begin with learning rates from --lr / X to --lr * X; the "
                "numbers of --tournament-hyper likewise"},
    {"tournament-perturb", NUMBER, offsetof(daso_values, perturb), 0, 0.99, .initial = "0",
     .meaning = "a trainer that takes a model multiplies its learning rate by 1 - X or 1 + X, and "
                "likewise the numbers of --tournament-hyper"},
    {"tournament-hyper", ISO_SETTING_TEXT, offsetof(daso_values, hyper), .choices = "NAME,...",
     .meaning = "numbers of the optimizer that move with models, too: momentum, dampening, "
                "weight_decay, beta1, beta2, rho, alpha, eps, lr_decay or momentum_decay"},
    {"tournament-mutate", INDEX, offsetof(daso_values, mutates), .choices = "none|layers",
     .initial = "none",
     .meaning = "layers: a trainer that takes a model replaces one of its layers by another "
                "alternative, drawn at random"},
    {"tournament-weights", ISO_SETTING_TEXT, offsetof(daso_values, weights),
     .choices = "PATTERN,...",
     .meaning = "only parameters and buffers with such names move, and the others stay with their "
                "trainer; * stands for any characters"}};
const iso_setting iso__overlap_setting[] = {{PERIOD},
                                            {WARMUP, .initial = "0"},
                                            {WARMUP_STEPS},
                                            {WIRE, .initial = "f32"},
                                            TOPK_RATIO,
                                            {MIX, .initial = "0.6"},
                                            {OUTER_MOMENTUM, .initial = "0.7"}};
const iso_setting iso__daso_setting[] = {
    {PERIOD},
    {WARMUP, .initial = "0.02"},
    {WARMUP_STEPS},
    {"cooldown", NUMBER, FIELD(cooldown), 0, 1, .initial = "0.02",
     .meaning = "fraction of the run, at its end, that averages gradients over all ranks"},
    {"cooldown-steps", INTEGER, FIELD(cooldown_steps), COUNT_FROM(0),
     .meaning = "length of the cool-down in steps, instead of --cooldown", .instead = "cooldown"},
    {"wait", INTEGER, FIELD(batches_to_wait), COUNT_FROM(0), .word = "auto", .initial = "auto",
     .meaning = "steps from send to merge; auto: measured; at most --period if given, else at most "
                "--max-period (64 if not given)"},
    {"local-skip", INTEGER, FIELD(local_skip), COUNT_FROM(1), .initial = "1",
     .meaning = "steps between gradient averages inside a node"},
    {"unit", INDEX, offsetof(daso_values, unit), .choices = "node|rank", .initial = "node",
     .meaning = "node: average gradients within a node; rank: do not average gradients"},
    {WIRE, .initial = "bf16"},
    TOPK_RATIO,
    {"merge", INDEX, FIELD(merge), .choices = "progress|heat", .initial = "progress",
     .meaning = "progress: keep the progress made while waiting; heat: HeAT's weighted mean"},
    {"state", INDEX, FIELD(state), .choices = "keep|average|reset", .initial = "keep",
     .meaning = "what a merge does with optimizer state (such as momentum) and running statistics"},
    POLICY,
    {"stability-level", NUMBER, FIELD(stability_level), 0, 1e6, .initial = "0.05",
     .meaning = "threshold of the plateau detector"},
    {FRAGMENTS, .initial = "1"},
    {FRAGMENT_ORDER, .initial = "runs"},
    {"zero", ISO_SETTING_SWITCH, offsetof(daso_values, zero), ISO__ZERO_MEANING},
    {"zero-stage", INTEGER, offsetof(daso_values, zero_stage), ISO__ZERO_STAGES},
    OUTER,
};
#undef FIELD
_Static_assert(sizeof(iso_merge) == sizeof(int) && sizeof(iso_state_sync) == sizeof(int) &&
                   sizeof(iso_policy) == sizeof(int) && sizeof(iso_peers) == sizeof(int) &&
                   sizeof(iso_push) == sizeof(int),
               "read as numbers of choices, in the order of the enumerations");
COUNTS(iso__local_sgd_setting, ISO__LOCAL_SGD_SETTINGS);
COUNTS(iso__post_local_setting, ISO__POST_LOCAL_SETTINGS);
COUNTS(iso__daso_setting, ISO__DASO_SETTINGS);
COUNTS(iso__slowmo_setting, ISO__SLOWMO_SETTINGS);
COUNTS(iso__diloco_setting, ISO__DILOCO_SETTINGS);
COUNTS(iso__streaming_setting, ISO__STREAMING_SETTINGS);
COUNTS(iso__overlap_setting, ISO__OVERLAP_SETTINGS);
COUNTS(iso__gossip_setting, ISO__GOSSIP_SETTINGS);
COUNTS(iso__async_setting, ISO__ASYNC_SETTINGS);
COUNTS(iso__server_setting, ISO__SERVER_SETTINGS);
COUNTS(iso__tournament_setting, ISO__TOURNAMENT_SETTINGS);

static daso_values values_of_daso(const iso_daso_config *config) {
    return (daso_values){.config = *config,
                         .unit = config->unit == ISO_SCOPE_RANK,
                         .fragments = config->fragments > 1 ? config->fragments : 1,
                         .servers = config->servers,
                         .outer_lr = -1,
                         .outer_momentum = -1,
                         .mix = -1,
                         .wire = place_of_wire((int)config->wire)};
}

static iso_status choose_outer(const daso_values *v, iso_outer *outer) {
    static const char *const name[] = {NULL, "mean", "sgd", "nesterov", "slowmo", "pull", "adam"};
    const iso_outer *rule;
    if (name[v->outer]) {
        ISO_TRY(iso_outer_parse(name[v->outer], &rule));
        *outer = *rule;
    }
    if (v->outer_lr >= 0) outer->lr = v->outer_lr;
    if (v->outer_momentum >= 0) outer->momentum = v->outer_momentum;
    if (v->mix >= 0) outer->mix = v->mix;
    return ISO_OK;
}

iso_status iso__daso_settings_read(iso_settings *settings, const iso_setting *table, int count,
                                   iso_daso_config *config, iso__daso_rules *rules) {
    daso_values v = values_of_daso(config);
    ISO_TRY(iso_settings_read(settings, table, count, &v));
    ISO_TRY(choose_outer(&v, &rules->outer));
    if (rules->outer.name) v.config.outer = &rules->outer;
    rules->tournament.metric = (iso_tournament_metric)v.metric;
    rules->tournament.keep_state = v.moves == 1;
    rules->tournament.spread = v.spread;
    rules->tournament.perturb = v.perturb;
    if (v.mutates == 1) rules->tournament.mutate_model = iso_choice_mutate;
    if (v.weights) rules->tournament.weights = v.weights;
    rules->hyper_names = v.hyper;
    rules->zero = v.zero ? 1 : (int)v.zero_stage;
    if (!v.config.outer) v.config.outer_skip = 0; // which has a default
    if (v.levels) ISO_TRY(iso_daso_levels_parse(v.levels, &v.config));
    *config = v.config;
    config->unit = v.unit == 1 ? ISO_SCOPE_RANK : ISO_SCOPE_NODE;
    config->wire = wires[v.wire];
    config->fragments = (int)v.fragments;
    config->servers = (int)v.servers;
    return ISO_OK;
}

static int write_tournament(const iso_tournament *t, char *text, size_t room) {
    return snprintf(
        text, room,
        "tournament: metric %d, seed %llu, keep_state %d, mutate_model %d, weights %016llx\n"
        "hyperparameters: perturb %.9g, spread %.9g, mutate %d, %d of %016llx\n",
        (int)t->metric, (unsigned long long)t->seed, t->keep_state, t->mutate_model != NULL,
        (unsigned long long)iso__tournament_weights_hash(t), t->perturb, t->spread,
        t->mutate != NULL, t->hyper_count, (unsigned long long)iso__tournament_hyper_hash(t));
}

void iso__daso_settings_write(const iso_daso_config *config, char *text, size_t room) {
    daso_values v = values_of_daso(config);
    int used = snprintf(text, room, "total_steps: %lld\n", (long long)config->total_steps);
    if (config->replay)
        used += snprintf(text + used, room - (size_t)used, "replay: %lld changes, %016llx\n",
                         (long long)config->replay_count,
                         (unsigned long long)iso__daso_hash_changes(config));
    if (config->asynchronous)
        used += snprintf(text + used, room - (size_t)used, "asynchronous: every %g ms\n",
                         config->interval_ms);
    if (config->server)
        used += snprintf(text + used, room - (size_t)used,
                         "server: push_scale %g, servers %d, push %s\n", config->push_scale,
                         config->servers, config->push == ISO_PUSH_SYNC ? "sync" : "async");
    static const char *const among[] = {"yes", "in pairs", "in a ring"};
    if (config->gossip)
        used += snprintf(text + used, room - (size_t)used, "gossip: %s, consensus_step %g\n",
                         among[config->peers], config->consensus_step);
    if (config->tournament)
        used += write_tournament(config->tournament, text + used, room - (size_t)used);
    if (config->outer_skip > 0)
        used += snprintf(text + used, room - (size_t)used, "outer_skip: %lld\n",
                         (long long)config->outer_skip);
    if (config->outer) used += iso__outer_write(config->outer, text + used, room - (size_t)used);
    if (config->level_count > 0) {
        char levels[ISO__DASO_LEVELS_ROOM];
        iso__daso_levels_write(config->level, config->level_count, levels);
        used += snprintf(text + used, room - (size_t)used, "levels: %s\n", levels);
    }
    int written = ISO__DASO_SETTINGS - ISO__OUTER_SETTINGS - ISO__ZERO_SETTINGS;
    iso__settings_write(iso__daso_setting, written, &v, text + used, room - (size_t)used);
}

// ---- HeAT's DASO ----------------------------------------------------------------------------------

typedef struct heat_values {
    iso_daso_heat_config config;
    int wire, groups;
} heat_values;

#define FIELD(name) offsetof(heat_values, config.name)
const iso_setting iso__heat_setting[] = {
    {"warmup-epochs", INTEGER, FIELD(warmup_epochs), COUNT_FROM(0),
     .meaning =
         "epochs of blocking averages at the start (default: 4, but at most a third of the run)"},
    {"cooldown-epochs", INTEGER, FIELD(cooldown_epochs), COUNT_FROM(0),
     .meaning =
         "epochs of blocking averages at the end (default: 4, but at most a third of the run)"},
    {"max-global-skips", INTEGER, FIELD(max_global_skips), COUNT_FROM(0), .initial = "8",
     .meaning = "maximum number of steps between exchanges"},
    {"sending-chunk-size", INTEGER, FIELD(sending_chunk_size), COUNT_FROM(1), .initial = "10000000",
     .meaning = "elements per message"},
    {"downcast-type", INDEX, offsetof(heat_values, wire), .choices = DTYPES, .initial = "bf16",
     .meaning = "element type in which blocking averages travel"},
    {"use-mpi-groups", INDEX, offsetof(heat_values, groups), .choices = "yes|no", .initial = "yes",
     .meaning = "how to create the groups of one rank per node; yes: from MPI groups; no: by "
                "splitting communicators"},
    {"skip-reduction-factor", INTEGER, FIELD(skip_reduction_factor), COUNT_FROM(1), .initial = "2",
     .meaning = "divide global and local skip by N on a plateau"},
    {"local-skip-factor", INTEGER, FIELD(local_skip_factor), COUNT_FROM(1), .initial = "4",
     .meaning = "ratio of global to local skips"},
    {"stability-level", NUMBER, FIELD(stability_level), 0, 1e6, .initial = "0.05",
     .meaning = "threshold of the plateau detector"},
};
#undef FIELD
COUNTS(iso__heat_setting, ISO__HEAT_SETTINGS);

static heat_values values_of_heat(const iso_daso_heat_config *config) {
    return (heat_values){.config = *config,
                         .wire = place_of_wire((int)config->downcast_type),
                         .groups = !config->use_mpi_groups};
}

iso_status iso__heat_settings_read(iso_settings *settings, iso_daso_heat_config *config) {
    heat_values v = values_of_heat(config);
    ISO_TRY(iso_settings_read(settings, iso__heat_setting, ISO__HEAT_SETTINGS, &v));
    *config = v.config;
    config->downcast_type = (iso_dtype)wires[v.wire];
    config->use_mpi_groups = v.groups == 0;
    return ISO_OK;
}

void iso__heat_settings_write(const iso_daso_heat_config *config, char *text, size_t room) {
    heat_values v = values_of_heat(config);
    int used = snprintf(text, room, "total_epochs: %lld\nlast_batch: %lld\n",
                        (long long)config->total_epochs, (long long)config->last_batch);
    iso__settings_write(iso__heat_setting, ISO__HEAT_SETTINGS, &v, text + used,
                        room - (size_t)used);
}
