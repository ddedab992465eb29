// Private to optim: when periodic training exchanges what. Pure state machines: no MPI, no clock,
// no memory; every rank feeds them the same numbers and so gets the same plans.
#ifndef ISO_SYNC_PLAN_H
#define ISO_SYNC_PLAN_H

#include "base/base.h"

#include <isotherm/daso.h>

typedef enum iso__action_kind {
    ISO__SEND,  // start the exchange of the parameters as they are now
    ISO__MERGE, // wait for the exchange under way and merge it with the parameters of now
    ISO__FULL,  // the mean over nodes replaces the parameters, waiting for it (of what a SEND
                // of this plan has just started, if there is one)
    ISO__NODE_AVERAGE, // the mean over the ranks of the node replaces the parameters
    ISO__NODE_COPY,    // the parameters of local rank `group` replace those of its node's ranks
    ISO__MEASURE       // time an exchange, to choose how long to wait
} iso__action_kind;

typedef struct iso__action {
    iso__action_kind kind;
    int group;      // leader group; ISO__ALL_GROUPS: every local rank its part
    int64_t age;    // MERGE: batches since the send
    int64_t weight; // MERGE: the S of HeAT's formula; progress ignores it
    bool state;     // FULL: optimizer state too
} iso__action;

#define ISO__ALL_GROUPS -1
enum { ISO__PLAN_ACTIONS = 6 };

// What to do after a batch, in this order, and how far the gradients of the next batch reach.
typedef struct iso__sync_plan {
    int count;
    iso__action action[ISO__PLAN_ACTIONS];
    iso_scope next;
} iso__sync_plan;

// ---- HeAT's DASO (daso_heat_schedule.c) -----------------------------------------------------------
// From facts about heat/optim/dp_optimizer.py at 660efece; see iso_daso_heat_config for what
// differs on purpose.

typedef struct iso__heat_schedule {
    iso_daso_heat_config config;
    int groups; // leader groups that take turns
    int64_t epoch, batch;
    int64_t global_skip, local_skip, batches_to_wait;
    int send_group; // of the next send
    bool pending;   // an exchange is under way
    int pending_group;
    int64_t pending_batch;  // batch of its send
    int64_t pending_weight; // batches_to_wait stored with it
    bool local_sync;        // gradients of the next backward are averaged in the node
    iso_plateau plateau;
} iso__heat_schedule;

// The checks of HeAT's constructor: ISO_ERR_ARG names the option, its value and the rule.
iso_status iso__heat_config_check(const iso_daso_heat_config *config);
void iso__heat_schedule_init(iso__heat_schedule *s, const iso_daso_heat_config *config, int groups);
// After a batch: advances batch (and epoch after last_batch). ISO_ERR_STATE without last_batch.
iso_status iso__heat_schedule_step(iso__heat_schedule *s, iso__sync_plan *out);
// epoch_loss_logic with a loss already averaged over all ranks. Returns whether anything changed;
// reason then says why, in one line.
bool iso__heat_schedule_epoch_loss(iso__heat_schedule *s, double loss, char *reason, size_t room);
void iso__heat_schedule_reset(iso__heat_schedule *s);

// ---- Our DASO, local SGD and post-local SGD (daso_schedule.c) -------------------------------------

typedef enum iso__phase { ISO__WARMUP, ISO__CYCLING, ISO__COOLDOWN, ISO__DONE } iso__phase;

typedef struct iso__daso_schedule {
    iso_scope local;                 // in the cycling phase: ISO_SCOPE_NODE or ISO_SCOPE_RANK
    int64_t total, warmup, cooldown; // steps
    int64_t step;                    // finished updates
    iso__phase phase;                // of the next step
    int64_t global_skip, local_skip, batches_to_wait; // in force; wait -1: not yet measured
    bool measure; // batches_to_wait is to be measured when cycling begins
    int64_t next_send;
    bool pending;
    int64_t pending_step, pending_wait; // of the send; the age at which it is merged
} iso__daso_schedule;

// Phases in steps from the config's shares (rounded up; cool-down gives way where the two overlap).
iso_status iso__daso_config_check(const iso_daso_config *config);
void iso__daso_schedule_init(iso__daso_schedule *s, const iso_daso_config *config);
// After a step. WARMUP: no actions, next = WORLD. At its end MEASURE (if wanted), then cycling:
// SEND every global_skip steps counted from its begin, preceded by NODE_AVERAGE where local_skip >
// 1; MERGE batches_to_wait later, at that age exactly, at the latest right before the next SEND;
// batches_to_wait 0: SEND and FULL in one plan. At the end of cycling what is pending is merged,
// then FULL with state; COOLDOWN: next = WORLD. After the last step: FULL unless a cool-down kept
// the replicas equal. With local_skip > 1 only every local_skip-th cycling step (and the one before
// a SEND) has gradients averaged in the node: next is NODE before those and RANK before the others.
void iso__daso_schedule_step(iso__daso_schedule *s, iso__sync_plan *out);
// Takes effect at the next SEND; skip is raised to the wait where it is smaller.
void iso__daso_schedule_set(iso__daso_schedule *s, const iso_daso_decision *decision);
// The wait for an exchange of exchange_ms and steps of step_ms: phases are taken up between steps,
// so each of the three rounds up to the next.
int64_t iso__daso_wait_for(double exchange_ms, double step_ms);

// ---- Policies (daso_policy.c) ---------------------------------------------------------------------
// What the config names decides from what was observed; *out holds the decision in force and is
// changed where the policy wants another, with its reason. Returns whether it was changed.

typedef struct iso__policy_state {
    iso_plateau plateau;                     // plateau: of the epoch loss
    double exchange_ms, step_ms, divergence; // adaptive: smoothed
    int64_t observed;
} iso__policy_state;

void iso__policy_init(iso__policy_state *s, const iso_daso_config *config);
// kind: ISO_OBSERVED_EPOCH or ISO_OBSERVED_SYNC.
bool iso__policy_decide(iso__policy_state *s, const iso_daso_config *config,
                        const iso_daso_observation *observed, iso_daso_decision *out);

#endif
