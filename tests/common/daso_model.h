// SPDX-License-Identifier: MIT
// For tests of periodic training: a serial model of it. All ranks live in this process, each with a
// plain module and a plain optimizer. The model replaces MPI, node groups and the engine: it
// applies the formulas of isotherm/daso.h to the arrays of the ranks, with sums in double
// precision.
#ifndef ISO_TEST_DASO_MODEL_H
#define ISO_TEST_DASO_MODEL_H

#include "common/dp_fixture.h"

#include <isotherm/daso.h>

enum { MODEL_RANKS = 8, MODEL_EXCHANGES = 2 };

typedef struct model_config {
    int ranks, ranks_per_node; // consecutive ranks make a node; the last node may be smaller
    trainer_config train;
} model_config;

typedef struct model_rank {
    iso_module *net;
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_tensor *batch;
    double *now; // parameters, then optimizer state; those of f32 as f32 represents them
} model_rank;

// The record of a send: the mean over the senders, and the values of each rank at that time.
typedef struct model_exchange {
    double *mean;
    double *then[MODEL_RANKS];
    int group;
    int ranks; // > 0: among groups of so many consecutive ranks
    int64_t step;
} model_exchange;

typedef struct daso_model {
    model_config config;
    iso_device *device;
    model_rank rank[MODEL_RANKS];
    int64_t batch_rows;
    int64_t count, total;                     // elements of `now`: parameters; with state
    int nodes, groups;                        // groups: ranks of the largest node
    model_exchange exchange[MODEL_EXCHANGES]; // under way, oldest first
    int pending;
    // For model_daso_step: the decision in force, the decision for the next send, and counters.
    iso_daso_decision force, decided;
    int64_t next_send, syncs, last_age;
} daso_model;

// Every rank begins with the parameters of config.train.build, as with trainer_create.
iso_status model_create(daso_model *m, const model_config *config);
void model_destroy(daso_model *m);

// ---- Events ---------------------------------------------------------------------------------------

// Every rank trains on its rows of global batch `step`, with gradients averaged over scope.
iso_status model_batch(daso_model *m, int step, iso_scope scope);
// Starts an exchange of the ranks' current values. group: the ranks with local rank group (modulo
// the size of their node), weighted by the sizes of their nodes; -1: all ranks.
void model_send(daso_model *m, int group, int64_t step);
// The same among groups of `ranks` consecutive ranks.
void model_send_groups(daso_model *m, int ranks, int64_t step);
// Merges the oldest exchange into the ranks of its group. In the formulas, weight is S and
// participants is P.
typedef struct model_rule {
    iso_merge merge;
    iso_state_sync state;
    int64_t weight, participants;
} model_rule;
void model_merge(daso_model *m, const model_rule *rule);
// The mean of the oldest exchange replaces the parameters of the ranks of its group; state: their
// optimizer state, too.
void model_replace(daso_model *m, bool state);
void model_node_average(daso_model *m, bool state);
// The parameters of local rank k (modulo the size of the node) replace those of its node's ranks.
void model_node_copy(daso_model *m, int k);
// Writes `now` of all ranks to their modules and optimizers. The functions above do.
void model_push(daso_model *m);
// The mean of the parameters over all ranks: count elements.
void model_mean(const daso_model *m, double *out);

// ---- Whole steps ----------------------------------------------------------------------------------

// One batch of daso, as specified in its header, with levels too. warmup_steps, cooldown_steps and
// batches_to_wait must not be negative. Step 0 takes the decision in force from config.
iso_status model_daso_step(daso_model *m, const iso_daso_config *config, int step);
// One batch of HeAT's DASO, with the actions of `plan`. "S1 M2 C0 F C1": send number 1 of the epoch
// starts (its group is 1 modulo the groups), the older exchange is merged with S = 2, local rank 0
// is copied in every node, the mean of the newer exchange replaces the parameters of its group,
// local rank 1 is copied. "~": gradients of this batch are not averaged in the node.
iso_status model_heat_step(daso_model *m, const char *plan, int step);

// ---- Comparing ------------------------------------------------------------------------------------

// Largest |a - b| over the trainable parameters of module (a) and those of a rank of the model (b;
// rank -1: the mean over ranks), divided by the largest |b|; infinite if some a is not finite.
iso_status model_difference(const daso_model *m, int rank, iso_module *module, double *out);
// Largest difference between the parameters of the ranks of the model, relative as above.
double model_spread(const daso_model *m);

#endif
