// SPDX-License-Identifier: MIT
// Private to optim: the schedules of periodic training. They are pure state machines without MPI,
// clock or allocated memory. Every rank passes the same numbers, so it gets the same plans.
#ifndef ISO_SYNC_PLAN_H
#define ISO_SYNC_PLAN_H

#include "base/base.h"

#include <assert.h>
#include <isotherm/daso.h>
#include <stddef.h>

typedef enum iso__action_kind {
    ISO__SEND,  // start the exchange of the parameters as they are now
    ISO__MERGE, // wait for the exchange under way and merge it with the current parameters
    ISO__FULL,  // blocking: the mean over nodes replaces the parameters (with a SEND in the same
                // plan, the mean of that exchange)
    ISO__NODE_AVERAGE, // the mean over the ranks of the node replaces the parameters
    ISO__NODE_COPY,    // the parameters of local rank `group` replace those of its node's ranks
    ISO__MEASURE       // time an exchange, to choose how long to wait
} iso__action_kind;

typedef struct iso__action {
    iso__action_kind kind;
    int exchange;   // SEND, MERGE: index of the engine's exchange
    int level;      // SEND: of the engine's levels; 0 without levels
    int group;      // leader group; ISO__ALL_GROUPS: each local rank exchanges its shard
    int64_t age;    // MERGE: batches since the send
    int64_t weight; // MERGE: the S of HeAT's formula; progress ignores it
    bool state;     // FULL: optimizer state too
} iso__action;

#define ISO__ALL_GROUPS -1
enum { ISO__PLAN_ACTIONS = ISO_DASO_FRAGMENTS + 4 };

// What to do after a batch, in this order, and the scope over which the next batch's gradients are
// averaged. HeAT packs a new exchange before it merges the last one, so its plans may have a SEND
// before the MERGE of the earlier exchange. In ours SEND always follows it.
typedef struct iso__sync_plan {
    int count;
    iso__action action[ISO__PLAN_ACTIONS];
    iso_scope next;
} iso__sync_plan;

// Appends an action, of exchange 0 and all groups.
static inline iso__action *iso__plan_add(iso__sync_plan *plan, iso__action_kind kind) {
    assert(plan->count < ISO__PLAN_ACTIONS);
    iso__action *action = &plan->action[plan->count++];
    *action = (iso__action){.kind = kind, .group = ISO__ALL_GROUPS};
    return action;
}

// ISO_ERR_ARG naming a daso option that is below `least`.
iso_status iso__daso_at_least(const char *option, int64_t value, int64_t least);
uint64_t iso__daso_hash_changes(const iso_daso_config *config); // of `replay`

// ---- HeAT's DASO (daso_heat_schedule.c) -----------------------------------------------------------
// As heat/optim/dp_optimizer.py at 660efece; for intended differences see iso_daso_heat_config.
// Three values (global_skip, local_skip, batches_to_wait) are defined here: cycling begins with (4,
// 1, 1) as in HeAT, but with no more than max_global_skips instead of 4; max_global_skips 0 counts
// as 1; local_skip is never 0 while cycling (HeAT divides by it). If max_global_skips <
// local_skip_factor, starting again from the maximum gives wait 0, as in HeAT: a full average every
// global_skip batches. Cycling also begins if epoch_loss was not called right at the end of the
// warm-up.

typedef struct iso__heat_schedule {
    iso_daso_heat_config config;
    int groups; // leader groups that take turns
    int64_t epoch, batch;
    int64_t global_skip, local_skip, batches_to_wait; // 0, 0, 0: full average after every batch
    int send_group;                                   // of the next send
    bool pending;                                     // an exchange is under way
    int pending_group;      // of the last send, merged or not; -1 after a full average
    int64_t pending_batch;  // batch of its send
    int64_t pending_weight; // batches_to_wait stored with it, cut off at the end of the epoch
    bool local_sync;        // gradients of the next backward are averaged in the node
    iso_plateau plateau;
} iso__heat_schedule;

// The checks of HeAT's constructor: ISO_ERR_ARG names the option, its value and the rule.
iso_status iso__heat_config_check(const iso_daso_heat_config *config);
// groups >= 1. The first batch has local_sync on.
void iso__heat_schedule_init(iso__heat_schedule *s, const iso_daso_heat_config *config, int groups);
// Call it after a batch: advances batch, and epoch after last_batch. ISO_ERR_STATE if last_batch is
// not set. config.last_batch may be changed between steps.
iso_status iso__heat_schedule_step(iso__heat_schedule *s, iso__sync_plan *out);
// HeAT's epoch_loss_logic, with a loss averaged over all ranks. Returns whether anything changed;
// reason is then one line with the reason.
bool iso__heat_schedule_epoch_loss(iso__heat_schedule *s, double loss, char *reason, size_t room);
void iso__heat_schedule_reset(iso__heat_schedule *s);
// Continues from `saved`. If its nodes had another number of ranks, its groups are taken modulo the
// groups of s.
void iso__heat_schedule_load(iso__heat_schedule *s, const iso__heat_schedule *saved);

// ---- Our DASO, local SGD and post-local SGD (daso_schedule.c) -------------------------------------

typedef enum iso__phase { ISO__WARMUP, ISO__CYCLING, ISO__COOLDOWN, ISO__DONE } iso__phase;

typedef struct iso__daso_schedule {
    iso_scope local;                 // in the cycling phase: ISO_SCOPE_NODE or ISO_SCOPE_RANK
    int64_t total, warmup, cooldown; // steps
    int64_t step;                    // finished updates
    iso__phase phase;                // of the next step
    int64_t max_skip;                // upper limit of skip and wait
    bool auto_skip;                  // global_skip follows the wait
    int64_t global_skip, local_skip, batches_to_wait; // in force; wait -1: not yet measured
    bool measure;                  // batches_to_wait is to be measured before the first send
    bool whole;                    // the end of the run does not cut this round short
    int64_t measure_at, next_send; // steps
    int64_t interval_local_skip;   // local_skip of the steps up to next_send
    int64_t round_step;            // when the round began
    bool begins;                   // a round begins: call iso__daso_schedule_begin
    bool observed;                 // a mean was merged since the last round began
    bool averaged;                 // by a full average, at this step
    bool pending;
    int64_t pending_step, pending_wait; // the step of the send; the age at which to merge it
    // What follows comes from the config and is not saved.
    int level_count;
    iso_daso_level level[ISO_DASO_LEVELS];
    bool outer, outer_equal; // there is an outer optimizer; its merges leave ranks equal
    int fragments;           // > 1: they take turns
    int64_t outer_skip;      // of gossip with an outer optimizer; else 0
    bool asynchronous;       // no rounds: periodic_async.c sends and merges
} iso__daso_schedule;
enum { ISO__DASO_SCHEDULE_SAVED = offsetof(iso__daso_schedule, level_count) }; // bytes

// The names of fields of a config in messages: as in the struct, or as options.
typedef struct iso__daso_names {
    const char *whose, *period, *wait, *most, *policy;
} iso__daso_names;

// ISO_ERR_ARG names the option, its value and the rule. ranks: 0: not known yet.
iso_status iso__daso_config_check(const iso_daso_config *config, int ranks);
// Only the checks that compare global_skip, batches_to_wait and max_global_skip.
iso_status iso__daso_rhythm_check(const iso_daso_config *config, const iso__daso_names *names);
// The actions of fragments after a step of cycling. ends: it was the last one.
void iso__daso_fragments_plan(const iso__daso_schedule *s, bool ends, iso__sync_plan *out);
// Whether this fragment was sent, at this step or earlier, and is not yet merged.
bool iso__daso_fragment_is_open(const iso__daso_schedule *s, int fragment);
// Only the checks of the fragments.
iso_status iso__daso_fragments_check(const iso_daso_config *config);
// Only the checks of the tournament.
iso_status iso__daso_tournament_check(const iso_daso_config *config);
// A hash of the names and limits of the hyperparameters. Their values may differ between trainers.
uint64_t iso__tournament_hyper_hash(const iso_tournament *t);
// A hash of the patterns, which may be longer than the text of the settings; 0: there are none.
uint64_t iso__tournament_weights_hash(const iso_tournament *t);
// Only the checks of the parameter server.
iso_status iso__daso_server_check(const iso_daso_config *config, int ranks);
// The partner of each trainer in tournament `turn`, from 0; a trainer without one is its own
// partner. order: room. Both arrays have `trainers` elements.
void iso__tournament_pairs(uint64_t seed, int64_t turn, int trainers, int *order, int *partner);
// Whether the model with the score `theirs` takes the place of one with the score `own`.
bool iso__tournament_better(iso_tournament_metric metric, double theirs, double own);
enum { ISO__HYPER_NAME = 32 }; // room for the name of a hyperparameter that travels
// For the values, and for the model, that a trainer mutates after tournament `turn`.
uint64_t iso__tournament_random(uint64_t seed, int64_t turn, int trainer);
uint64_t iso__tournament_random_model(uint64_t seed, int64_t turn, int trainer);
// Multiplies value i by 1 + share if bit i of `random` is set, else by 1 - share. count <= 64.
void iso__tournament_perturb(double share, uint64_t random, double *values, int count);
// Only the checks of the levels. ranks 0: not known, those checks are left out.
iso_status iso__daso_levels_check(const iso_daso_config *config, int ranks);
// Writes them as iso_daso_levels_parse reads them; "none" without levels.
enum { ISO__DASO_LEVELS_ROOM = ISO_DASO_LEVELS * 32 };
void iso__daso_levels_write(const iso_daso_level *level, int count,
                            char text[ISO__DASO_LEVELS_ROOM]);
// PyTorch's rule: the level that exchanges when `before` updates came before this one; -1: none.
int iso__daso_level_at(const iso_daso_level *level, int count, int64_t before);
// The smallest number of earlier updates, at least `before`, at which a level exchanges.
int64_t iso__daso_level_next(const iso_daso_level *level, int count, int64_t before);
// Continues the schedule with the phases of `now`. ISO_ERR_ARG if it cannot go on with them;
// nothing is changed then. *returns: the schedule goes back to cycling.
iso_status iso__daso_schedule_extend(iso__daso_schedule *s, const iso__daso_schedule *now,
                                     bool *returns);
// Converts the config's phases to steps (rounded up). If they overlap, the cool-down is shortened.
void iso__daso_phases(const iso_daso_config *config, int64_t *warmup, int64_t *cooldown);
void iso__daso_schedule_init(iso__daso_schedule *s, const iso_daso_config *config);
// After a step. WARMUP: no actions, next = WORLD. Then cycling, in rounds of global_skip steps that
// end with a SEND, preceded by NODE_AVERAGE if local_skip > 1. MERGE follows exactly
// batches_to_wait steps later, at the latest right before the next SEND. batches_to_wait 0: SEND
// and FULL.
//
// When a round begins, `begins` is set, and *out has the actions that end the previous round:
// MERGE, or SEND and FULL, or MEASURE (if wanted) before the first round. A decision made then
// (iso__daso_schedule_set) applies to the round that iso__daso_schedule_begin begins. The *out of
// that call has the last action of the previous round: SEND.
//
// At the end of cycling the pending exchange is merged, then FULL, with state if a cool-down
// follows. With an outer optimizer and batches_to_wait 0, the last round ends like the others, with
// SEND and FULL, if it is as long as they are; another FULL follows only if ranks are unequal then,
// or a cool-down follows. COOLDOWN: next = WORLD. After the last step: FULL, unless a cool-down
// kept the replicas equal. With local_skip > 1, gradients are averaged in the node only in every
// local_skip-th cycling step, and in the step before a SEND or the last FULL: next is NODE before
// those and RANK before the others. NODE_AVERAGE precedes the last FULL too.
//
// With levels, a round ends where iso__daso_level_at names a level, which is that of its SEND.
//
// With an outer_skip, a round also ends outer_skip steps after the start of cycling, 2 outer_skip
// steps after it, and so on, with SEND at level 1 and FULL, whatever the wait. That is gossip's
// outer step. A SEND at level 0 is gossip.
//
// With fragments, fragment f has SEND or MERGE as iso_daso_config says; batches_to_wait 0: SEND and
// FULL. There are no rounds. The end merges all fragments that are under way.
//
// A wait is counted in steps. MEASURE is one step before the first SEND, as late as it can be: the
// first steps of a run, and those of warm-up, take longer than the others. If the first SEND is
// before the third step, or follows each step, nothing is measured, and the wait is global_skip.
//
// Steps after the last one have no actions and next = WORLD. Without a warm-up the first round
// begins before the first step; call iso__daso_schedule_begin all the same, which then has no
// actions.
void iso__daso_schedule_step(iso__daso_schedule *s, iso__sync_plan *out);
void iso__daso_schedule_begin(iso__daso_schedule *s, iso__sync_plan *out);
// The scope over which the next step's gradients are averaged: `next` of the last plan; before any
// plan, that of the first step.
iso_scope iso__daso_schedule_scope(const iso__daso_schedule *s);
// Applies from the next round on, or to the round that began with the last step. A skip below the
// wait is raised to it. Neither exceeds the largest of the config's global_skip, max_global_skip
// and batches_to_wait. A negative wait leaves the wait unchanged.
void iso__daso_schedule_set(iso__daso_schedule *s, const iso_daso_decision *decision);
// The same for a measured wait. A configured skip limits it; an automatic skip is raised to
// iso__daso_skip_for(wait), but at most to the largest skip.
void iso__daso_schedule_measured(iso__daso_schedule *s, int64_t wait);
// The wait for an exchange of exchange_ms and steps of step_ms. The phases of an exchange (SCATTER,
// GATHER, SPREAD of average.h) start between steps, so each costs up to one more step; the verdict
// is short. 1 if one of the times is not known.
int64_t iso__daso_wait_for(double exchange_ms, double step_ms);
// The least automatic skip for a wait: one and a half of it; 0 for a wait of 0 or less.
//
// A merge adds d = mean - sent to parameters that have moved on. Suppose that during the wait
// training multiplies a deviation from the mean, in some direction, by a. The merge then leaves
// (a - 1) times the deviation that was sent. If the next send follows at once, that is the factor
// from send to send: deviations hardly shrink for a near 0, and grow for a < 0. The steps between
// merge and send multiply them by about sqrt(|a|) more, which is small for a near 0.
int64_t iso__daso_skip_for(int64_t wait);
// Whether the wire may carry what the config sends. Codes with one scale for a group of elements
// lose small second moments next to large ones.
bool iso__daso_carries_state(const iso_daso_config *config);

// ---- Policies (daso_policy.c) ---------------------------------------------------------------------

// The policy of the config decides from an observation. *out is the decision in force; a policy
// that wants another one changes it and gives the reason. Returns whether it changed.
//
// plateau: on a plateau of the epoch loss, while cycling, skip is halved and the wait shrinks by 1
// (to 1, not below). If skip is already at its least value, both start again: from max_global_skip
// and a quarter of it (HeAT's skip_reduction_factor 2 and local_skip_factor 4). A wait of 0, or one
// that was measured, stays. Skip does not fall below the wait. local_skip is halved too, and starts
// again from the config's value, so gradients are skipped in a node only if the config says so.
//
// adaptive: exchange_ms and step_ms are smoothed exponentially, a new value weighs 0.3. The wait
// follows iso__daso_wait_for: up at once, down when it is more than 1 + wait / 8 too long; a wait
// of 0 stays. Skip is at least iso__daso_skip_for(wait), up to max_global_skip. Above
// max_divergence it shrinks in proportion, to where 0.8 of the bound is expected; below half of the
// bound it grows by a half. Observations of the divergence lag: the 3 syncs after a change of skip
// still describe the skip before it. After them 2 are averaged before the next change.

typedef struct iso__policy_state {
    iso_plateau plateau; // plateau: of the epoch loss
    union {
        struct {
            double exchange_ms, step_ms, divergence; // adaptive: smoothed
        };
        struct {
            double first_loss, first_lr; // adacomm: the scale; 0: not known yet
        };
    };
    int64_t observed; // divergences since skip changed
    int64_t settling; // syncs that still describe the previous skip
} iso__policy_state;

void iso__policy_init(iso__policy_state *s, const iso_daso_config *config);
// kind: ISO_OBSERVED_EPOCH or ISO_OBSERVED_SYNC. A divergence or time of 0 is not known.
bool iso__policy_decide(iso__policy_state *s, const iso_daso_config *config,
                        const iso_daso_observation *observed, iso_daso_decision *out);

#endif
