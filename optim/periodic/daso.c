// SPDX-License-Identifier: MIT
// DASO as recommended here, local SGD and post-local SGD: a schedule in steps, a policy, and the
// periodic engine.
#include "optim/periodic/daso_impl.h"
#include "optim/periodic/daso_settings.h"
#include "optim/resume/resume_impl.h"

#include <string.h>

const iso_daso_config iso_daso_default = ISO_DASO_DEFAULT;

enum { FRAGMENT_NUMBERS = 4 }; // count, order, period, wait

typedef struct daso {
    iso__periodic engine; // first: its base is the optimizer
    iso_daso_config config;
    iso_outer outer;           // config.outer points to it
    iso_tournament tournament; // likewise
    iso__daso_schedule schedule;
    iso__policy_state policy;
    int64_t levels[2 * ISO_DASO_LEVELS]; // periods and ranks, for saved state
    int64_t fragments[FRAGMENT_NUMBERS]; // likewise
    int64_t outer_skip;                  // likewise
    char reason[128];
} daso;

static daso *self_of(iso_optimizer *optimizer) {
    return iso_container_of(optimizer, daso, engine.base);
}

// ---- Policy ---------------------------------------------------------------------------------------

static iso_daso_decision in_force(const daso *self) {
    return (iso_daso_decision){.global_skip = self->schedule.global_skip,
                               .local_skip = self->schedule.local_skip,
                               .batches_to_wait = self->schedule.batches_to_wait};
}

static void tell_change(const daso *self, iso_daso_cause cause) {
    const iso__daso_schedule *s = &self->schedule;
    iso_daso_change change = {.step = s->step,
                              .cause = cause,
                              .global_skip = s->global_skip,
                              .local_skip = s->local_skip,
                              .batches_to_wait = s->batches_to_wait};
    if (self->config.changed) self->config.changed(&change, self->config.changed_user);
    if (iso_comm_rank(self->engine.comm) == 0)
        iso__log(ISO_LOG_INFO, "daso: step %lld: skip %lld, wait %lld: %s",
                 (long long)self->schedule.step, (long long)self->schedule.global_skip,
                 (long long)self->schedule.batches_to_wait, self->reason);
}

static bool same_rhythm(const iso_daso_decision *a, const iso_daso_decision *b) {
    return a->global_skip == b->global_skip && a->local_skip == b->local_skip &&
           a->batches_to_wait == b->batches_to_wait;
}

// A decision beyond the config's limits is cut, and may then equal the one in force.
static void adopt_decision(daso *self, iso_observed kind, const iso_daso_decision *decision) {
    iso_daso_decision before = in_force(self);
    iso__daso_schedule_set(&self->schedule, decision);
    iso_daso_decision after = in_force(self);
    if (same_rhythm(&before, &after)) return;
    snprintf(self->reason, sizeof(self->reason), "%s", decision->reason);
    tell_change(self, kind == ISO_OBSERVED_EPOCH ? ISO_CAUSE_EPOCH : ISO_CAUSE_SYNC);
}

static iso_status check_decision(const daso *self, const iso_daso_decision *d) {
    ISO_CHECK(d->global_skip >= 1 && d->local_skip >= 1 && d->batches_to_wait >= -1, ISO_ERR_ARG,
              "the policy of daso chose skip %lld, local skip %lld and wait %lld at step %lld: "
              "skips are at least 1, and waits at least 0 (-1: unchanged)",
              (long long)d->global_skip, (long long)d->local_skip, (long long)d->batches_to_wait,
              (long long)self->schedule.step);
    return ISO_OK;
}

static iso_status ask_callback(daso *self, const iso_daso_observation *observed,
                               iso_daso_decision *decision) {
    iso_daso_decision before = *decision;
    self->config.callback(observed, decision, self->config.user);
    decision->reason[sizeof(decision->reason) - 1] = 0;
    ISO_TRY(iso_comm_bcast(self->engine.comm, decision, sizeof(*decision), 0));
    ISO_TRY(check_decision(self, decision));
    if (!same_rhythm(decision, &before)) adopt_decision(self, observed->kind, decision);
    return ISO_OK;
}

// What an earlier run changed at this step, for this cause; NULL: nothing.
static const iso_daso_change *find_change(const daso *self, iso_daso_cause cause) {
    for (int64_t i = 0; i < self->config.replay_count; i++) {
        const iso_daso_change *change = &self->config.replay[i];
        if (change->step == self->schedule.step && change->cause == cause) return change;
    }
    return NULL;
}

static void repeat_change(daso *self, iso_observed kind) {
    const iso_daso_change *change =
        find_change(self, kind == ISO_OBSERVED_EPOCH ? ISO_CAUSE_EPOCH : ISO_CAUSE_SYNC);
    if (!change) return;
    iso_daso_decision decision = {change->global_skip, change->local_skip, change->batches_to_wait,
                                  "as in the run that is repeated"};
    adopt_decision(self, kind, &decision);
}

static iso_status consult_policy(daso *self, iso_daso_observation *observed) {
    iso_daso_decision decision = in_force(self);
    if (self->config.replay) {
        repeat_change(self, observed->kind);
        return ISO_OK;
    }
    observed->step = self->schedule.step;
    observed->total_steps = self->schedule.total;
    observed->exchange_ms = self->engine.metrics[ISO__EXCHANGE_MS];
    observed->step_ms = self->engine.metrics[ISO__STEP_MS];
    observed->wait_ms = self->engine.metrics[ISO__WAIT_MS];
    observed->divergence = self->engine.metrics[ISO__DIVERGENCE];
    observed->lr = iso__optimizer_innermost(self->engine.inner)->base.hyper.lr;
    if (self->config.policy == ISO_POLICY_CALLBACK) return ask_callback(self, observed, &decision);
    if (iso__policy_decide(&self->policy, &self->config, observed, &decision))
        adopt_decision(self, observed->kind, &decision);
    return ISO_OK;
}

// ---- Steps ----------------------------------------------------------------------------------------

// An earlier version measured at the end of warm-up.
static iso_status check_replay(const daso *self) {
    int64_t at = self->schedule.step;
    for (int64_t i = 0; i < self->config.replay_count; i++)
        ISO_CHECK(
            self->config.replay[i].cause != ISO_CAUSE_MEASURED || self->config.replay[i].step == at,
            ISO_ERR_ARG,
            "the run that is repeated measured its wait in step %lld, and this version measures "
            "it in step %lld: repeat it with the version that wrote the log",
            (long long)self->config.replay[i].step, (long long)at);
    return ISO_OK;
}

// A run that was resumed just before the measurement has not timed a step.
static int64_t measured_wait(const daso *self, double exchange_ms, double step_ms) {
    bool known = step_ms > 0 || !(exchange_ms > 0);
    return known ? iso__daso_wait_for(exchange_ms, step_ms) : self->schedule.global_skip;
}

static iso_status measure_wait(daso *self) {
    double exchange_ms, step_ms;
    const iso_daso_change *change = find_change(self, ISO_CAUSE_MEASURED);
    ISO_TRY(check_replay(self));
    ISO_TRY(iso__periodic_measure(&self->engine, &exchange_ms, &step_ms));
    int64_t wait = change ? change->batches_to_wait : measured_wait(self, exchange_ms, step_ms);
    iso__daso_schedule_measured(&self->schedule, wait);
    // An earlier version had another rule for the skip.
    if (change) self->schedule.global_skip = iso__larger(change->global_skip, wait);
    bool cut = self->schedule.batches_to_wait < wait;
    snprintf(self->reason, sizeof(self->reason),
             "an exchange was measured to take %.1f ms, a step %.1f ms%s", exchange_ms, step_ms,
             cut ? "; a longer period would hide more of it" : "");
    tell_change(self, ISO_CAUSE_MEASURED);
    return ISO_OK;
}

static bool plan_measures(const iso__sync_plan *plan) {
    for (int i = 0; i < plan->count; i++)
        if (plan->action[i].kind == ISO__MEASURE) return true;
    return false;
}

// A callback, QSR and a replay decide in every round, other policies only after a merge.
static iso_status decide_on_round(daso *self) {
    bool always = self->config.policy == ISO_POLICY_CALLBACK ||
                  self->config.policy == ISO_POLICY_QSR || self->config.replay;
    if (!always && !self->schedule.observed) return ISO_OK;
    iso_daso_observation observed = {.kind = ISO_OBSERVED_SYNC, .loss = NAN};
    return consult_policy(self, &observed);
}

static iso_status begin_round(daso *self, iso__sync_plan *plan) {
    ISO_TRY(decide_on_round(self));
    iso__daso_schedule_begin(&self->schedule, plan);
    return ISO_OK;
}

// Begins the first round, or one that the last step() failed to begin, with its send.
static iso_status begin_late(daso *self) {
    iso__sync_plan plan;
    ISO_TRY(iso__periodic_check_training(&self->engine));
    ISO_TRY(begin_round(self, &plan));
    if (plan.count == 0) return ISO_OK;
    plan.next = self->engine.scope; // of the gradients that this step has got
    return iso__periodic_run(&self->engine, &plan, ISO__PAYLOAD_WIRE);
}

// After a step of the cycling phase.
static iso_status finish_async(daso *self, const iso__sync_plan *plan) {
    const iso__daso_schedule *s = &self->schedule;
    bool ends = s->phase != ISO__CYCLING, server = self->config.server;
    iso__sync_plan rest = *plan;
    if (ends) ISO_TRY((server ? iso__worker_end : iso__async_end)(&self->engine, s->step));
    if (server && s->cooldown == 0) rest.count = 0; // all ranks have the same parameters
    ISO_TRY(iso__periodic_run(&self->engine, &rest, ISO__PAYLOAD_WIRE));
    if (ends) return ISO_OK;
    return (server ? iso__worker_step : iso__async_step)(&self->engine, s->step);
}

static iso_status step_daso(iso_optimizer *optimizer) {
    daso *self = self_of(optimizer);
    iso__sync_plan plan;
    bool free = self->config.asynchronous && self->schedule.phase == ISO__CYCLING;
    ISO_CHECK(
        self->schedule.step < self->schedule.total, ISO_ERR_STATE,
        "daso was created for total_steps %lld, and all are done: create it for more, or call "
        "iso_daso_reset",
        (long long)self->schedule.total);
    if (self->schedule.step == 0) ISO_TRY(iso__periodic_begin(&self->engine));
    if (self->schedule.begins) ISO_TRY(begin_late(self));
    if (free) ISO_TRY(iso__worker_begin(&self->engine));
    ISO_TRY(iso__periodic_step(&self->engine));
    iso__daso_schedule_step(&self->schedule, &plan);
    if (free) return finish_async(self, &plan);
    ISO_TRY(iso__periodic_run(&self->engine, &plan, ISO__PAYLOAD_WIRE));
    if (plan_measures(&plan)) ISO_TRY(measure_wait(self));
    if (!self->schedule.begins) return ISO_OK;
    ISO_TRY(begin_round(self, &plan));
    return iso__periodic_run(&self->engine, &plan, ISO__PAYLOAD_WIRE);
}

static iso_status take_epoch_loss(iso_optimizer *optimizer, double loss) {
    iso_daso_observation observed = {.kind = ISO_OBSERVED_EPOCH, .loss = loss};
    daso *self = self_of(optimizer);
    ISO_TRY(consult_policy(self, &observed));
    // A round that has just begun follows the decision.
    return iso__periodic_set_scope(&self->engine, iso__daso_schedule_scope(&self->schedule));
}

static iso_status start_over(daso *self) {
    int64_t warmup, cooldown;
    iso__daso_phases(&self->config, &warmup, &cooldown);
    if (warmup > 0) ISO_TRY(iso__match_hyper_equal(&self->engine));
    iso__daso_schedule_init(&self->schedule, &self->config);
    iso__policy_init(&self->policy, &self->config);
    self->reason[0] = 0;
    iso__async_continue(&self->engine, 0);
    ISO_TRY(iso__periodic_set_scope(&self->engine, iso__daso_schedule_scope(&self->schedule)));
    return ISO_OK;
}

static iso_status reset_daso(iso_optimizer *optimizer) {
    ISO_TRY(iso__worker_check_reset(&self_of(optimizer)->engine));
    ISO_TRY(iso__periodic_finish(&self_of(optimizer)->engine, true));
    ISO_TRY(start_over(self_of(optimizer)));
    iso_optimizer_zero_grad(optimizer);
    return ISO_OK;
}

static void get_stats(const iso_optimizer *optimizer, iso_daso_stats *out) {
    static const char *const phase[] = {"warm-up", "cycling", "cool-down", "done"};
    const daso *self = iso_container_of(optimizer, daso, engine.base);
    iso__periodic_stats(&self->engine, out);
    out->phase = phase[self->schedule.phase];
    out->global_skip = self->schedule.global_skip;
    out->local_skip = self->schedule.local_skip;
    out->batches_to_wait = self->schedule.batches_to_wait;
    out->global_skip_requested = self->config.global_skip;
    out->batches_to_wait_requested = self->config.batches_to_wait;
    if (self->config.asynchronous && self->config.push == ISO_PUSH_ASYNC) { // it has no rhythm
        out->global_skip = out->global_skip_requested = 0;
        out->batches_to_wait = out->batches_to_wait_requested = -1;
    }
    out->pending = out->pending || iso__worker_pending(&self->engine);
    snprintf(out->reason, sizeof(out->reason), "%s", self->reason);
}

// ---- The optimizer --------------------------------------------------------------------------------

static void list_levels(const iso_daso_config *config, int64_t *out) {
    for (int i = 0; i < config->level_count; i++) {
        out[2 * i] = config->level[i].period;
        out[2 * i + 1] = config->level[i].ranks;
    }
}

static void list_fragments(const iso_daso_config *config, int64_t out[FRAGMENT_NUMBERS]) {
    out[0] = config->fragments;
    out[1] = config->fragment_order;
    out[2] = config->global_skip;
    out[3] = config->batches_to_wait;
}

static iso_status list_state(iso_optimizer *optimizer, iso_state *to) {
    daso *self = self_of(optimizer);
    ISO_TRY(iso__periodic_state(&self->engine, to));
    ISO_TRY(iso__state_add_own(to, ISO_OWN_RANK0, "daso/schedule", ISO_STATE_U8,
                               ISO__DASO_SCHEDULE_SAVED, &self->schedule));
    if (self->config.level_count > 0) {
        list_levels(&self->config, self->levels);
        ISO_TRY(iso__state_add_own(to, ISO_OWN_RANK0, "daso/levels", ISO_STATE_I64,
                                   2 * self->config.level_count, self->levels));
    }
    if (self->config.fragments > 1) {
        list_fragments(&self->config, self->fragments);
        ISO_TRY(iso__state_add_own(to, ISO_OWN_RANK0, "daso/fragments", ISO_STATE_I64,
                                   FRAGMENT_NUMBERS, self->fragments));
    }
    if (self->config.outer_skip > 0) {
        self->outer_skip = self->config.outer_skip;
        ISO_TRY(iso__state_add_own(to, ISO_OWN_RANK0, "daso/outer_skip", ISO_STATE_I64, 1,
                                   &self->outer_skip));
    }
    ISO_TRY(iso__match_state(&self->engine, to));
    if (self->config.asynchronous)
        ISO_TRY(iso__state_add_own(to, ISO_OWN_RANK0, "daso/sent_at", ISO_STATE_I64, 1,
                                   &self->engine.async.sent_at));
    ISO_TRY(iso__state_add_own(to, ISO_OWN_RANK0, "daso/policy", ISO_STATE_U8, sizeof(self->policy),
                               &self->policy));
    return iso__state_add_own(to, ISO_OWN_RANK0, "daso/reason", ISO_STATE_U8, sizeof(self->reason),
                              self->reason);
}

static iso_status check_levels(const daso *self) {
    int64_t mine[2 * ISO_DASO_LEVELS];
    iso_daso_level saved[ISO_DASO_LEVELS];
    char before[ISO__DASO_LEVELS_ROOM], now[ISO__DASO_LEVELS_ROOM];
    int count = self->config.level_count;
    list_levels(&self->config, mine);
    for (int i = 0; i < count; i++)
        saved[i] = (iso_daso_level){self->levels[2 * i], (int)self->levels[2 * i + 1]};
    iso__daso_levels_write(saved, count, before);
    iso__daso_levels_write(self->config.level, count, now);
    ISO_CHECK(memcmp(mine, self->levels, 2 * (size_t)count * sizeof(*mine)) == 0, ISO_ERR_MISMATCH,
              "the state was saved by a daso with levels %s, and this one has %s: continue with "
              "the same settings",
              before, now);
    return ISO_OK;
}

static iso_status check_fragments(const daso *self) {
    int64_t mine[FRAGMENT_NUMBERS];
    const int64_t *saved = self->fragments;
    if (self->config.fragments <= 1) return ISO_OK;
    list_fragments(&self->config, mine);
    ISO_CHECK(memcmp(mine, saved, sizeof(mine)) == 0, ISO_ERR_MISMATCH,
              "the state was saved by a daso with %lld fragments, period %lld and wait %lld, and "
              "this one has %lld, %lld and %lld, or another order: continue with the same settings",
              (long long)saved[0], (long long)saved[2], (long long)saved[3], (long long)mine[0],
              (long long)mine[2], (long long)mine[3]);
    return ISO_OK;
}

static iso_status check_outer_skip(const daso *self) {
    int64_t mine = self->config.outer_skip;
    ISO_CHECK(mine == 0 || self->outer_skip == mine, ISO_ERR_MISMATCH,
              "the state was saved by a gossip with a step of the outer optimizer every %lld "
              "steps, and this one has %lld: continue with the same settings",
              (long long)self->outer_skip, (long long)mine);
    return ISO_OK;
}

// The length of a warm-up that is over does not matter.
static bool has_phases(const iso__daso_schedule *saved, const iso__daso_schedule *mine) {
    bool warm = saved->warmup == mine->warmup || saved->step >= saved->warmup;
    return saved->total == mine->total && saved->cooldown == mine->cooldown && warm;
}

// All ranks have the same parameters. The schedule's pending fragments were never sent: their
// merges are dropped. cycled: the run cycled until its end, and goes on; otherwise it begins anew.
static iso_status return_to_cycling(daso *self, bool cycled) {
    const iso__daso_schedule *s = &self->schedule;
    iso_scope scope = iso__daso_schedule_scope(s);
    for (int i = 0; s->fragments > 1 && i < s->fragments; i++)
        self->engine.exchange[i].dropped = iso__daso_fragment_is_open(s, i);
    if (cycled) return iso__periodic_return(&self->engine, scope);
    return iso__periodic_set_scope(&self->engine, scope);
}

static iso_status check_loaded(iso_optimizer *optimizer) {
    daso *self = self_of(optimizer);
    self->reason[sizeof(self->reason) - 1] = 0;
    ISO_CHECK((int)self->schedule.phase >= 0 && self->schedule.phase <= ISO__DONE, ISO_ERR_FORMAT,
              "the saved state of daso is damaged: its schedule is invalid");
    ISO_TRY(check_levels(self));
    ISO_TRY(check_fragments(self));
    ISO_TRY(check_outer_skip(self));
    ISO_TRY(iso__match_loaded(&self->engine));
    iso__daso_schedule mine;
    const iso__daso_schedule *s = &self->schedule;
    bool returns = false, cycled = s->cooldown == 0 && s->total > s->warmup && s->step >= s->total;
    iso__daso_schedule_init(&mine, &self->config);
    bool same = has_phases(&self->schedule, &mine);
    ISO_CHECK(
        (same || self->config.extends) && self->schedule.local == mine.local, ISO_ERR_MISMATCH,
        "the state was saved by a daso of %lld step%s, %lld of them warm-up and %lld cool-down; "
        "this one has %lld, %lld and %lld: continue with the same settings",
        (long long)self->schedule.total, ISO_PLURAL(self->schedule.total),
        (long long)self->schedule.warmup, (long long)self->schedule.cooldown, (long long)mine.total,
        (long long)mine.warmup, (long long)mine.cooldown);
    if (!same) ISO_TRY(iso__daso_schedule_extend(&self->schedule, &mine, &returns));
    ISO_TRY(iso__periodic_loaded(&self->engine));
    iso__async_continue(&self->engine, self->schedule.step);
    return returns ? return_to_cycling(self, cycled) : ISO_OK;
}

static const iso__daso_ops daso_ops = {
    .base.name = "daso",
    ISO__DASO_OPS,
    .base.step = step_daso,
    .base.state = list_state,
    .base.loaded = check_loaded,
    .epoch_loss = take_epoch_loss,
    .reset = reset_daso,
    .stats = get_stats,
};

static iso__average_kind exchange_kind(const iso_daso_config *config) {
    if (config->tournament) return ISO__SWAP;
    static const iso__average_kind kind[] = {ISO__GOSSIP, ISO__GOSSIP_PAIRS, ISO__GOSSIP_RING};
    return config->gossip ? kind[config->peers] : ISO__MEAN;
}

static double consensus_step(const iso_daso_config *config) {
    if (config->consensus_step > 0) return config->consensus_step;
    return iso__wire_consensus(config->wire, config->topk_ratio);
}

static iso__periodic_config engine_config(const iso_daso_config *config) {
    iso__periodic_config engine = {
        .topology = {.unit = config->unit, .use_mpi_groups = true},
        .wire = {.wire = iso__wire_codec(config->wire, config->topk_ratio),
                 .differences = config->wire != ISO_WIRE_F32,
                 .consensus_step = consensus_step(config),
                 .kind = exchange_kind(config),
                 .unordered = config->asynchronous || config->gossip},
        .full = {.wire = &iso__codec_f32},
        .merge = config->merge,
        .tournament = config->tournament,
        .outer = config->outer,
        .state = config->state,
        .ranks_part = config->local_skip != 1,
    };
    engine.exchanges = config->fragments > 1 ? config->fragments : 1;
    engine.server = config->server;
    engine.servers = config->servers;
    engine.strides = config->fragment_order == ISO_FRAGMENT_STRIDES;
    engine.lower_count = config->level_count > 0 ? config->level_count - 1 : 0;
    if (config->gossip && config->outer) engine.lower_count = 1;
    for (int k = 0; k + 1 < config->level_count; k++)
        engine.lower_ranks[k] = config->level[k].ranks;
    return engine;
}

// A module that is not a data_parallel is refused later.
static iso_status check_config(const iso_daso_config *config, iso_module *data_parallel) {
    bool known = iso_data_parallel_reducer(data_parallel) != NULL;
    int ranks = known ? iso_comm_size(iso_data_parallel_comm(data_parallel)) : 0;
    return iso__daso_config_check(config, ranks);
}

iso_status iso_daso_create_take(iso_optimizer *wrapped, iso_module *data_parallel,
                                const iso_daso_config *config, iso_optimizer **out) {
    iso_status status;
    void *memory = NULL;
    iso__periodic_config engine = {0};
    char settings[ISO__SETTINGS_ROOM] = "";
    iso_status valid = check_config(config, data_parallel);
    if (valid == ISO_OK) engine = engine_config(config);
    if (valid == ISO_OK) iso__daso_settings_write(config, settings, sizeof(settings));
    ISO_TRY_GOTO(iso__periodic_alloc_owner(data_parallel, sizeof(daso), &memory));
    daso *self = memory;
    self->engine.base.ops = &daso_ops.base;
    self->config = *config;
    if (config->outer) {
        self->outer = *config->outer;
        engine.outer = self->config.outer = &self->outer;
    }
    if (config->tournament) {
        self->tournament = *config->tournament;
        engine.tournament = self->config.tournament = &self->tournament;
    }
    iso_optimizer *taken = wrapped;
    wrapped = NULL;
    ISO_TRY_GOTO(iso__periodic_init(&self->engine, taken, data_parallel, &engine, valid, settings));
    status = ISO_OK;
    if (config->asynchronous)
        status = (config->server ? iso__worker_open : iso__async_open)(&self->engine, config);
    if (status == ISO_OK) status = start_over(self);
    if (status < 0) iso__periodic_destroy(&self->engine);
    ISO_TRY_GOTO(status);
    iso__match_hyper_spread(&self->engine);
    *out = &self->engine.base;
    return ISO_OK;
fail:
    if (!memory && config->outer && config->outer->destroy)
        config->outer->destroy(config->outer->user);
    iso_optimizer_destroy(&wrapped);
    iso__free(memory);
    *out = NULL; // often the caller's pointer to the optimizer that is gone
    return status;
}
