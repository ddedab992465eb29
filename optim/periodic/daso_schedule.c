// SPDX-License-Identifier: MIT
// DASO as recommended here, local SGD and post-local SGD as a state machine: what to do after a
// step.
#include "optim/periodic/daso_settings.h"
#include "optim/periodic/outer_impl.h"
#include "optim/periodic/sync_plan.h"

#include <math.h>
#include <string.h>

// ---- Configs --------------------------------------------------------------------------------------

static const char *const policy_name[] = {"fixed", "plateau", "adaptive",
                                          "qsr",   "adacomm", "callback"};

iso_daso_config iso_post_local_sgd_config(int64_t total_steps, int64_t warmup_steps,
                                          int64_t period) {
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.total_steps = total_steps;
    config.warmup = config.cooldown = 0;
    config.warmup_steps = warmup_steps;
    config.cooldown_steps = 0;
    config.global_skip = config.max_global_skip = period;
    config.batches_to_wait = 0;
    config.unit = ISO_SCOPE_RANK;
    config.wire = ISO_WIRE_F32;
    return config;
}

iso_daso_config iso_local_sgd_config(int64_t total_steps, int64_t period) {
    return iso_post_local_sgd_config(total_steps, 0, period);
}

iso_daso_config iso_hierarchical_sgd_config(int64_t total_steps, int64_t warmup_steps,
                                            const iso_daso_level *levels, int count) {
    int64_t period = count > 0 ? levels[0].period : 1;
    iso_daso_config config = iso_post_local_sgd_config(total_steps, warmup_steps, period);
    config.level_count = count > 0 ? count : -1; // -1 is refused later
    for (int i = 0; i < count && i < ISO_DASO_LEVELS; i++) config.level[i] = levels[i];
    return config;
}

iso_daso_config iso_gossip_config(int64_t total_steps, int64_t period) {
    iso_daso_config config = iso_local_sgd_config(total_steps, period);
    config.gossip = true;
    return config;
}

iso_daso_config iso_async_config(int64_t total_steps, int64_t warmup_steps) {
    iso_daso_config config = iso_post_local_sgd_config(total_steps, warmup_steps, 1);
    config.asynchronous = true;
    return config;
}

iso_daso_config iso_server_config(int64_t total_steps, int64_t period) {
    iso_daso_config config = iso_local_sgd_config(total_steps, period);
    config.asynchronous = config.server = true;
    return config;
}

iso_daso_config iso_tournament_config(int64_t total_steps, int64_t period,
                                      const iso_tournament *tournament) {
    iso_daso_config config = iso_local_sgd_config(total_steps, period);
    config.unit = ISO_SCOPE_NODE;
    config.tournament = tournament;
    return config;
}

iso_status iso__daso_at_least(const char *option, int64_t value, int64_t least) {
    ISO_CHECK(value >= least, ISO_ERR_ARG, "daso: %s is %lld, it must be %lld or more", option,
              (long long)value, (long long)least);
    return ISO_OK;
}

static iso_status check_share(const char *option, double share) {
    ISO_CHECK(share >= 0 && share <= 1, ISO_ERR_ARG,
              "daso: %s is %g, it must be a share of total_steps between 0 and 1", option, share);
    return ISO_OK;
}

static iso_status check_choice(const char *option, int value, int last) {
    ISO_CHECK(value >= 0 && value <= last, ISO_ERR_ARG,
              "daso: %s is %d, it must be a value of its enumeration (0 to %d)", option, value,
              last);
    return ISO_OK;
}

static iso_status check_policy(const iso_daso_config *c) {
    ISO_TRY(check_choice("policy", (int)c->policy, ISO_POLICY_CALLBACK));
    ISO_CHECK(c->policy != ISO_POLICY_CALLBACK || c->callback, ISO_ERR_ARG,
              "daso: callback is NULL, it must be set for ISO_POLICY_CALLBACK");
    ISO_CHECK(isfinite(c->stability_level) && c->stability_level >= 0, ISO_ERR_ARG,
              "daso: stability_level is %g, it must be a finite number of at least 0",
              c->stability_level);
    ISO_CHECK(isfinite(c->max_divergence) && c->max_divergence > 0, ISO_ERR_ARG,
              "daso: max_divergence is %g, it must be a finite number greater than 0",
              c->max_divergence);
    ISO_CHECK(c->policy != ISO_POLICY_QSR || (isfinite(c->qsr_alpha) && c->qsr_alpha > 0),
              ISO_ERR_ARG, "daso: qsr_alpha is %g, it must be a finite number greater than 0",
              c->qsr_alpha);
    return ISO_OK;
}

static iso_status check_outer(const iso_daso_config *c) {
    if (!c->outer) return ISO_OK;
    ISO_TRY(iso__outer_check(c->outer));
    ISO_CHECK(c->level_count == 0, ISO_ERR_ARG,
              "daso: levels average groups of ranks, and an outer optimizer needs the mean of all "
              "ranks: use one of them");
    return ISO_OK;
}

static iso_status check_consensus(const iso_daso_config *c) {
    double step = c->consensus_step;
    ISO_CHECK(isfinite(step) && step >= 0 && step <= 1, ISO_ERR_ARG,
              "daso: consensus_step is %g, it must be from 0 (the wire's own) to 1", step);
    ISO_CHECK(step == 0 || (c->gossip && c->wire != ISO_WIRE_F32), ISO_ERR_ARG,
              "daso: consensus_step is %g, but only gossip in a wire other than ISO_WIRE_F32 has "
              "one: leave it 0",
              step);
    return ISO_OK;
}

static iso_status check_gossip(const iso_daso_config *c) {
    bool plain = c->merge == ISO_MERGE_PROGRESS && c->state == ISO_STATE_SYNC_KEEP &&
                 c->policy == ISO_POLICY_FIXED;
    bool single = c->level_count == 0 && c->fragments <= 1;
    ISO_CHECK(!c->gossip || (c->unit == ISO_SCOPE_RANK && plain && single), ISO_ERR_ARG,
              "daso: gossip needs unit ISO_SCOPE_RANK, ISO_MERGE_PROGRESS, ISO_STATE_SYNC_KEEP and "
              "ISO_POLICY_FIXED, as iso_gossip_config sets them, and neither levels nor fragments");
    bool known = c->peers == ISO_PEERS_PUSH ||
                 ((c->peers == ISO_PEERS_PAIR || c->peers == ISO_PEERS_RING) && c->gossip);
    ISO_CHECK(known, ISO_ERR_ARG,
              "daso: peers is %d%s: use ISO_PEERS_PUSH or, with gossip, ISO_PEERS_PAIR or "
              "ISO_PEERS_RING",
              (int)c->peers, c->gossip ? "" : " without gossip");
    return check_consensus(c);
}

static iso_status check_async(const iso_daso_config *c) {
    bool plain = c->unit == ISO_SCOPE_RANK && c->merge == ISO_MERGE_PROGRESS &&
                 c->state == ISO_STATE_SYNC_KEEP && c->policy == ISO_POLICY_FIXED;
    bool single = !c->gossip && !c->outer && c->level_count == 0 && c->fragments <= 1;
    bool rhythm =
        (c->global_skip == 1 || c->server) && c->batches_to_wait == 0 && c->local_skip == 1;
    ISO_CHECK(!c->asynchronous || (plain && single && rhythm), ISO_ERR_ARG,
              "daso: asynchronous needs unit ISO_SCOPE_RANK, ISO_MERGE_PROGRESS, "
              "ISO_STATE_SYNC_KEEP, ISO_POLICY_FIXED, global_skip and local_skip 1 and "
              "batches_to_wait 0, as iso_async_config sets them, and neither gossip, outer, levels "
              "nor fragments");
    ISO_CHECK(isfinite(c->interval_ms) && c->interval_ms >= 0, ISO_ERR_ARG,
              "daso: interval_ms is %g, it must be a finite number of at least 0", c->interval_ms);
    return ISO_OK;
}

bool iso__daso_carries_state(const iso_daso_config *c) {
    return c->state != ISO_STATE_SYNC_AVERAGE || c->wire == ISO_WIRE_F32 ||
           c->wire == ISO_WIRE_BF16 || c->wire == ISO_WIRE_F16;
}

static iso_status check_state(const iso_daso_config *c) {
    ISO_CHECK(iso__daso_carries_state(c), ISO_ERR_ARG,
              "daso: with ISO_STATE_SYNC_AVERAGE second moments travel, too, and the wire would "
              "lose small ones: set ISO_WIRE_F32, ISO_WIRE_BF16 or ISO_WIRE_F16");
    return ISO_OK;
}

static iso_status check_outer_skip(const iso_daso_config *c) {
    bool slow = c->gossip && c->outer;
    ISO_CHECK(slow || c->outer_skip == 0, ISO_ERR_ARG,
              "daso: outer_skip is %lld without gossip and outer: set them, or leave it 0",
              (long long)c->outer_skip);
    ISO_CHECK(!slow || c->outer_skip >= 1, ISO_ERR_ARG,
              "daso: gossip with an outer optimizer needs an outer_skip of 1 or more, and it is "
              "%lld: set it to the steps between two steps of the outer optimizer",
              (long long)c->outer_skip);
    ISO_CHECK(!slow || (c->global_skip >= 1 && c->batches_to_wait >= 0), ISO_ERR_ARG,
              "daso: gossip with an outer optimizer needs a given global_skip and batches_to_wait, "
              "and they are %lld and %lld",
              (long long)c->global_skip, (long long)c->batches_to_wait);
    return ISO_OK;
}

iso_status iso__daso_rhythm_check(const iso_daso_config *c, const iso__daso_names *n) {
    int64_t period = c->global_skip, wait = c->batches_to_wait, most = c->max_global_skip;
    bool high = period > most;
    ISO_CHECK(period < 0 || wait <= period, ISO_ERR_ARG,
              "%s%s %lld is longer than %s %lld, but an exchange is merged before the next one is "
              "sent: lower it, or raise %s",
              n->whose, n->wait, (long long)wait, n->period, (long long)period, n->period);
    ISO_CHECK(c->policy == ISO_POLICY_FIXED || (!high && wait <= most), ISO_ERR_ARG,
              "%s%s %lld is above %s %lld, the limit of %s %s: lower it, or raise %s", n->whose,
              high ? n->period : n->wait, (long long)(high ? period : wait), n->most,
              (long long)most, n->policy, policy_name[c->policy], n->most);
    return ISO_OK;
}

iso_status iso__daso_config_check(const iso_daso_config *c, int ranks) {
    static const iso__daso_names fields = {"daso: ", "global_skip", "batches_to_wait",
                                           "max_global_skip", "policy"};
    ISO_TRY(iso__daso_levels_check(c, ranks));
    ISO_TRY(iso__daso_at_least("total_steps", c->total_steps, 1));
    ISO_TRY(check_share("warmup", c->warmup));
    ISO_TRY(check_share("cooldown", c->cooldown));
    ISO_TRY(iso__daso_at_least("warmup_steps", c->warmup_steps, -1));
    ISO_TRY(iso__daso_at_least("cooldown_steps", c->cooldown_steps, -1));
    ISO_TRY(iso__daso_at_least("max_global_skip", c->max_global_skip, 1));
    ISO_TRY(iso__daso_at_least("batches_to_wait", c->batches_to_wait, -1));
    ISO_TRY(iso__daso_at_least("local_skip", c->local_skip, 1));
    ISO_CHECK(c->global_skip >= 1 || c->global_skip == -1, ISO_ERR_ARG,
              "daso: global_skip is %lld, it must be 1 or more, or -1 for automatic",
              (long long)c->global_skip);
    ISO_CHECK(c->unit == ISO_SCOPE_NODE || c->unit == ISO_SCOPE_RANK, ISO_ERR_ARG,
              "daso: unit is scope %d, it must be ISO_SCOPE_NODE or ISO_SCOPE_RANK", (int)c->unit);
    ISO_TRY(check_choice("merge", (int)c->merge, ISO_MERGE_HEAT));
    ISO_CHECK(iso__wire_codec(c->wire, 0), ISO_ERR_ARG,
              "daso: wire is %d, it must be ISO_WIRE_F32, ISO_WIRE_BF16, ISO_WIRE_F16, "
              "ISO_WIRE_INT8, ISO_WIRE_FP8, ISO_WIRE_INT4 or ISO_WIRE_TOPK",
              (int)c->wire);
    ISO_CHECK(iso__wire_codec(c->wire, c->topk_ratio), ISO_ERR_ARG,
              "daso: topk_ratio is %g, it must be from 0 to 1/4", c->topk_ratio);
    ISO_TRY(check_choice("state", (int)c->state, ISO_STATE_SYNC_RESET));
    ISO_TRY(check_policy(c));
    ISO_TRY(check_outer(c));
    ISO_TRY(iso__daso_fragments_check(c));
    ISO_TRY(check_gossip(c));
    ISO_TRY(check_async(c));
    ISO_TRY(iso__daso_server_check(c, ranks));
    ISO_TRY(iso__daso_tournament_check(c));
    ISO_TRY(check_state(c));
    ISO_TRY(check_outer_skip(c));
    return iso__daso_rhythm_check(c, &fields);
}

// ---- Phases ---------------------------------------------------------------------------------------

// Rounds up. But 0.07 of 100 is 7, although the product in doubles is slightly above 7.
static int64_t steps_of(int64_t steps, double share, int64_t total) {
    if (steps >= 0) return iso__smaller(steps, total);
    double exact = share * (double)total;
    return iso__smaller((int64_t)ceil(exact * (1 - 1e-12)), total);
}

void iso__daso_phases(const iso_daso_config *config, int64_t *warmup, int64_t *cooldown) {
    int64_t total = config->total_steps;
    *warmup = steps_of(config->warmup_steps, config->warmup, total);
    *cooldown =
        iso__smaller(steps_of(config->cooldown_steps, config->cooldown, total), total - *warmup);
}

static int64_t end_of_cycling(const iso__daso_schedule *s) { return s->total - s->cooldown; }

static iso__phase phase_of(const iso__daso_schedule *s, int64_t step) {
    if (step > s->total) return ISO__DONE;
    if (step <= s->warmup) return ISO__WARMUP;
    return step <= end_of_cycling(s) ? ISO__CYCLING : ISO__COOLDOWN;
}

// Such a short skip leaves no cycling step before the send to measure in. A measured wait is at
// least 4 steps (iso__daso_wait_for), longer than the skip.
static void wait_unmeasured(iso__daso_schedule *s) {
    s->batches_to_wait = s->global_skip;
    s->measure = false;
}

// Steps of the round, the last one of which sends.
static int64_t interval_length(const iso__daso_schedule *s) {
    int64_t into = s->round_step - s->warmup; // cycling, when the round began
    if (s->outer_skip > 0)
        return iso__smaller(s->global_skip, s->outer_skip - into % s->outer_skip);
    if (s->level_count == 0) return s->global_skip;
    return iso__daso_level_next(s->level, s->level_count, s->round_step) + 1 - s->round_step;
}

static void set_round_end(iso__daso_schedule *s) {
    int64_t length = interval_length(s), left = s->total - s->round_step;
    s->whole = length <= left;
    s->next_send = s->round_step + iso__smaller(length, left);
}

// The next step is the first of an interval that ends with a send.
static void begin_interval(iso__daso_schedule *s) {
    s->round_step = s->step;
    set_round_end(s);
    s->interval_local_skip = s->local_skip;
    if (s->step > s->warmup || s->batches_to_wait >= 0 || !s->measure) return;
    if (s->global_skip < iso__larger(3 - s->step, 2))
        wait_unmeasured(s);
    else
        s->measure_at = iso__larger(s->next_send, 3) - 1;
}

static int64_t first_skip(const iso_daso_config *config) {
    if (config->global_skip > 0) return config->global_skip;
    int64_t skip = ISO_DASO_AUTO_SKIP;
    if (config->policy != ISO_POLICY_FIXED) skip = iso__smaller(skip, config->max_global_skip);
    int64_t spaced = iso__daso_skip_for(config->batches_to_wait);
    if (config->policy != ISO_POLICY_FIXED) spaced = iso__smaller(spaced, config->max_global_skip);
    return iso__larger(skip, spaced);
}

void iso__daso_schedule_init(iso__daso_schedule *s, const iso_daso_config *config) {
    memset(s, 0, sizeof(*s));
    s->local = config->unit;
    s->total = config->total_steps;
    iso__daso_phases(config, &s->warmup, &s->cooldown);
    s->auto_skip = config->global_skip < 0;
    s->global_skip = first_skip(config);
    s->local_skip = config->local_skip;
    s->batches_to_wait = config->batches_to_wait;
    s->measure = config->batches_to_wait < 0;
    s->max_skip = iso__larger(s->global_skip, config->max_global_skip);
    s->measure_at = -1; // until the first round begins
    s->level_count = config->level_count;
    memcpy(s->level, config->level, sizeof(s->level));
    s->fragments = config->fragments;
    s->outer_skip = config->outer_skip;
    s->asynchronous = config->asynchronous;
    s->outer = config->outer != NULL;
    s->outer_equal = s->outer && iso__outer_equalises(config->outer);
    s->phase = phase_of(s, 1);
    s->begins = s->phase == ISO__CYCLING;
    if (s->begins) begin_interval(s);
}

// ---- A longer run ---------------------------------------------------------------------------------

static iso_status check_longer(const iso__daso_schedule *s, const iso__daso_schedule *now) {
    ISO_CHECK(now->total >= s->total && now->total > s->step, ISO_ERR_ARG,
              "the state was saved after step %lld by a daso for %lld step%s, and this one is for "
              "%lld: a run can only become longer",
              (long long)s->step, (long long)s->total, ISO_PLURAL(s->total), (long long)now->total);
    ISO_CHECK(s->phase != ISO__CYCLING || s->step < end_of_cycling(now), ISO_ERR_ARG,
              "the state was saved after step %lld, while daso was cycling, and with a cool-down "
              "of %lld of %lld steps that would be over: give a shorter cool-down",
              (long long)s->step, (long long)now->cooldown, (long long)now->total);
    return ISO_OK;
}

iso_status iso__daso_schedule_extend(iso__daso_schedule *s, const iso__daso_schedule *now,
                                     bool *returns) {
    bool cycles = s->phase == ISO__CYCLING;
    ISO_TRY(check_longer(s, now));
    s->total = now->total;
    s->cooldown = now->cooldown;
    if (s->step < s->warmup) {
        s->warmup = now->warmup;
        s->measure_at = now->measure_at;
    }
    s->phase = phase_of(s, s->step + 1);
    *returns = !cycles && s->phase == ISO__CYCLING;
    if (*returns) s->begins = s->averaged = s->pending = false;
    if (*returns) begin_interval(s);
    if (cycles && !s->begins && !s->whole) set_round_end(s); // the end had cut it short
    return ISO_OK;
}

// ---- Steps ----------------------------------------------------------------------------------------

static void plan_merge(iso__daso_schedule *s, iso__sync_plan *out) {
    iso__action *action = iso__plan_add(out, ISO__MERGE);
    action->age = action->weight = s->step - s->pending_step;
    s->pending = false;
    s->observed = true;
}

// With local_skip the ranks of a node went their own ways since the last send.
static void average_node(iso__daso_schedule *s, iso__sync_plan *out) {
    if (s->local == ISO_SCOPE_NODE && s->interval_local_skip > 1)
        iso__plan_add(out, ISO__NODE_AVERAGE);
}

// Gossip ends with a step of the outer optimizer here, which blocks.
static bool outer_due(const iso__daso_schedule *s) {
    return s->outer_skip > 0 && (s->step - s->warmup) % s->outer_skip == 0;
}

static void plan_send(iso__daso_schedule *s, iso__sync_plan *out) {
    average_node(s, out);
    int level = iso__daso_level_at(s->level, s->level_count, s->step - 1);
    if (outer_due(s)) level = 1;
    iso__plan_add(out, ISO__SEND)->level = level > 0 ? level : 0;
    s->pending = s->batches_to_wait != 0 && !outer_due(s);
    if (!s->pending) iso__plan_add(out, ISO__FULL);
    s->observed = s->observed || !s->pending;
    s->pending_step = s->step;
    // A wait that was not measured is as long as possible.
    s->pending_wait = s->batches_to_wait < 0 ? s->global_skip : s->batches_to_wait;
}

// With an outer optimizer the mean does not replace the parameters at the end of a round.
static bool ends_by_outer(const iso__daso_schedule *s) {
    if (s->outer_skip > 0) return outer_due(s);
    return s->outer && s->batches_to_wait == 0 && s->step == s->next_send && s->whole;
}

static void plan_end(iso__daso_schedule *s, iso__sync_plan *out) {
    bool outer = ends_by_outer(s);
    if (outer)
        plan_send(s, out);
    else
        average_node(s, out);
    if (!outer || !s->outer_equal || s->cooldown > 0)
        iso__plan_add(out, ISO__FULL)->state = s->cooldown > 0;
}

static void plan_cycle(iso__daso_schedule *s, iso__sync_plan *out) {
    bool ends = s->step == end_of_cycling(s), sends = s->step == s->next_send;
    bool due = s->step - s->pending_step >= s->pending_wait;
    if (s->fragments > 1) {
        iso__daso_fragments_plan(s, ends, out);
        return;
    }
    if (s->pending && (ends || sends || due)) plan_merge(s, out);
    if (ends) {
        plan_end(s, out);
    } else if (sends && !s->asynchronous) {
        s->begins = true;
        s->averaged = s->batches_to_wait == 0 || outer_due(s);
        if (s->averaged) plan_send(s, out);
    }
}

iso_scope iso__daso_schedule_scope(const iso__daso_schedule *s) {
    int64_t next = s->step + 1;
    if (s->phase != ISO__CYCLING) return ISO_SCOPE_WORLD;
    if (s->local == ISO_SCOPE_RANK) return ISO_SCOPE_RANK;
    bool averaged = (next - s->warmup) % s->interval_local_skip == 0 || next == s->next_send ||
                    next == end_of_cycling(s);
    return averaged ? ISO_SCOPE_NODE : ISO_SCOPE_RANK;
}

void iso__daso_schedule_step(iso__daso_schedule *s, iso__sync_plan *out) {
    iso__phase finished = s->phase;
    iso_scope scope = iso__daso_schedule_scope(s);
    out->count = 0;
    s->begins = s->averaged = false;
    s->step++;
    s->phase = phase_of(s, s->step + 1);
    if (finished == ISO__CYCLING)
        plan_cycle(s, out);
    else if (s->step == s->total && s->cooldown == 0)
        iso__plan_add(out, ISO__FULL); // all was warm-up
    else
        s->begins = s->phase == ISO__CYCLING;
    if (s->phase == ISO__CYCLING && s->measure && s->step == s->measure_at)
        iso__plan_add(out, ISO__MEASURE);
    out->next = s->begins ? scope : iso__daso_schedule_scope(s);
}

void iso__daso_schedule_begin(iso__daso_schedule *s, iso__sync_plan *out) {
    out->count = 0;
    if (s->step > s->warmup && !s->averaged) plan_send(s, out);
    s->begins = s->averaged = s->observed = false;
    begin_interval(s);
    out->next = iso__daso_schedule_scope(s);
}

// Applies a new decision to a round of which no step was made yet.
static void begin_anew(iso__daso_schedule *s) {
    if (s->phase != ISO__CYCLING || s->begins || s->step != s->round_step) return;
    begin_interval(s);
    if (s->pending && s->batches_to_wait > 0) s->pending_wait = s->batches_to_wait;
}

void iso__daso_schedule_set(iso__daso_schedule *s, const iso_daso_decision *decision) {
    if (decision->batches_to_wait >= 0) {
        s->batches_to_wait = iso__smaller(decision->batches_to_wait, s->max_skip);
        s->measure = false;
    }
    int64_t skip = iso__larger(iso__larger(decision->global_skip, s->batches_to_wait), 1);
    s->global_skip = iso__smaller(skip, s->max_skip);
    s->local_skip = iso__larger(decision->local_skip, 1);
    begin_anew(s);
}

void iso__daso_schedule_measured(iso__daso_schedule *s, int64_t wait) {
    s->batches_to_wait = iso__smaller(wait, s->auto_skip ? s->max_skip : s->global_skip);
    int64_t spaced = iso__smaller(iso__daso_skip_for(s->batches_to_wait), s->max_skip);
    s->global_skip = iso__larger(s->global_skip, s->auto_skip ? spaced : s->batches_to_wait);
    s->measure = false;
}

int64_t iso__daso_wait_for(double exchange_ms, double step_ms) {
    double steps = exchange_ms / step_ms;
    if (!(exchange_ms > 0 && step_ms > 0) || isnan(steps)) return 1;
    return (int64_t)ceil(fmin(steps, 1e9)) + 3;
}

int64_t iso__daso_skip_for(int64_t wait) {
    if (wait <= 0) return 0;
    return wait + iso__smaller(wait / 2 + wait % 2, INT64_MAX - wait);
}
