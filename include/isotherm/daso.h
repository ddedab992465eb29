// Periodic synchronisation for slow networks: DASO (Coquelin et al., J. Big Data 9:14, 2022),
// HeAT's and ours, local SGD (Stich, ICLR 2019) and post-local SGD (Lin et al., ICLR 2020).
//
// Ranks of a node average gradients every step; nodes exchange parameters every global_skip batches
// without waiting, and merge what comes back batches_to_wait batches later. A daso optimizer wraps
// an optimizer and steers the data_parallel module it is tied to, so a training loop reads as ever:
// zero_grad, forward, loss, backward, step. In evaluation mode the module's parameters are the mean
// over all ranks; back in training mode each rank has its own again. All functions here are
// collective over the communicator of data_parallel.
#ifndef ISOTHERM_DASO_H
#define ISOTHERM_DASO_H

#include <isotherm/optim.h>
#include <isotherm/plateau.h>
#include <isotherm/topology.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- What both kinds share ------------------------------------------------------------------------

typedef struct iso_daso_stats {
    int64_t steps, syncs; // batches; exchanges merged (full averages included)
    int64_t global_skip, local_skip, batches_to_wait; // in force
    // As the config has them; -1: automatic, and always with daso_heat, whose rule sets them.
    int64_t global_skip_requested, batches_to_wait_requested;
    const char *phase;           // "warm-up", "cycling", "cool-down", "done"
    bool pending;                // an exchange is sent and not yet merged
    int64_t last_age;            // batches between send and merge of the last sync
    double wait_ms, work_ms;     // of this rank, total: waiting; converting, summing and merging
    double last_wait_ms;         // of the last sync
    double exchange_ms, step_ms; // last measured, largest over ranks; 0: not yet
    // |x_rank - mean| / |mean| at a send, largest over ranks. It travels with the next send, so it
    // is of the sync before the last; 0: not yet.
    double divergence;
    int64_t bytes_sent, bytes_between_nodes; // of this rank (see iso_traffic), without gradients
    char reason[128];                        // of the last change of skip and wait
} iso_daso_stats;
// Of a daso or daso_heat optimizer (through wrappers). Local. ISO_ERR_ARG for another optimizer.
iso_status iso_daso_get_stats(iso_optimizer *daso, iso_daso_stats *out);
// Reports the end of an epoch (HeAT: epoch_loss_logic), at which the policy decides. loss is this
// rank's mean over the epoch, or the mean over all ranks if globally_averaged. ISO_ERR_STATE for a
// loss that is NaN or infinite.
iso_status iso_daso_epoch_loss(iso_optimizer *daso, double loss, bool globally_averaged);
// Waits for the mean of the exchange under way, if there is one. The mean is still merged at its
// step, so no bit changes. Evaluations and saves wait in the same way; to measure the time of
// training without them, call this before the clock stops. If the exchange failed, this is an error
// on every rank; the exchange is dropped, and training may continue.
iso_status iso_daso_complete(iso_optimizer *daso);
// Drops the exchange under way and gives every rank the mean over all ranks. Call it after the last
// step.
iso_status iso_daso_finish(iso_optimizer *daso);
// Starts again from the first epoch and batch: resets plateau, skips and waits, drops the exchange
// under way, and gives all ranks the mean of parameters and optimizer state.
iso_status iso_daso_reset(iso_optimizer *daso);

// ---- HeAT's DASO ----------------------------------------------------------------------------------

// HeAT's constructor arguments with HeAT's names and defaults. After the warm-up global_skip is 4,
// as there, but at most max_global_skips. Differences: frozen parameters are left out; chunks may
// cut parameters anywhere; without a warm-up, cycling begins after the first epoch; batches_to_wait
// never falls below 0, and global_skip never below 1; a node may have any number of ranks, and
// nodes are weighted by it.
typedef struct iso_daso_heat_config {
    int64_t total_epochs;          // required, > 0
    int64_t warmup_epochs;         // blocking full average after every batch
    int64_t cooldown_epochs;       // the same at the end
    const iso_schedule *scheduler; // borrowed; applied before every update; NULL: none
    double stability_level;        // threshold of the plateau detector (min, rel, patience 2)
    int64_t max_global_skips;
    int64_t sending_chunk_size; // elements, > 0
    iso_dtype downcast_type;    // of blocking averages: ISO_BF16, ISO_F16 or ISO_F32; cycling: f32
    bool use_mpi_groups;
    int64_t skip_reduction_factor, local_skip_factor; // > 0
    bool verbose;       // changes are logged as warnings are, not only at ISO_LOG=info
    int64_t last_batch; // number of batches - 1; -1: to be set before the first step
} iso_daso_heat_config;
extern const iso_daso_heat_config iso_daso_heat_default; // the same, as C++ takes it
#ifdef __cplusplus
#define ISO_DASO_HEAT_DEFAULT iso_daso_heat_default
#else
#define ISO_DASO_HEAT_DEFAULT                                                                      \
    ((iso_daso_heat_config){.warmup_epochs = 4,                                                    \
                            .cooldown_epochs = 4,                                                  \
                            .stability_level = 0.05,                                               \
                            .max_global_skips = 8,                                                 \
                            .sending_chunk_size = 10000000,                                        \
                            .downcast_type = ISO_BF16,                                             \
                            .use_mpi_groups = true,                                                \
                            .skip_reduction_factor = 2,                                            \
                            .local_skip_factor = 4,                                                \
                            .last_batch = -1})
#endif

// Collective. Takes inner (a dp_optimizer tied to data_parallel), on failure too; retains
// data_parallel. ISO_ERR_ARG names an option whose value HeAT refuses.
iso_status iso_daso_heat_create_take(iso_optimizer *inner, iso_module *data_parallel,
                                     const iso_daso_heat_config *config, iso_optimizer **out);
// Local. Sets the number of batches per epoch, minus 1; without it step() is ISO_ERR_STATE.
iso_status iso_daso_heat_set_last_batch(iso_optimizer *daso, int64_t last_batch);

// ---- Our DASO -------------------------------------------------------------------------------------

typedef enum iso_merge {
    // x = mean at send + (x now - x at send): the steps made while waiting are kept
    ISO_MERGE_PROGRESS,
    // x = (2 S x now + P mean) / (2 S + P), P nodes, S the true age (DASO's formula)
    ISO_MERGE_HEAT
} iso_merge;

// Momentum and other state of the optimizer, and buffers of the module (running statistics of batch
// norms), when parameters are merged. In the full average before the cool-down they are averaged in
// any case, because replicas must be equal from there on. Each
// rank counts for itself how often a parameter was updated (see ISO_UNUSED_NEGOTIATE); where all
// ranks, or those of a node, get the mean of their states, the largest count holds, and nothing
// resets it.
typedef enum iso_state_sync {
    ISO_STATE_KEEP,    // each rank its own
    ISO_STATE_AVERAGE, // travels too: (2 S now + P mean) / (2 S + P), which keeps second moments >=
                       // 0
    ISO_STATE_RESET    // zero; buffers: what they were when the optimizer was made
} iso_state_sync;

typedef enum iso_policy {
    ISO_POLICY_FIXED,
    // HeAT's: on a plateau of the epoch loss skip and wait shrink, then start again from the
    // maximum. It decides in iso_daso_epoch_loss only, at the earliest at the end of the fourth
    // epoch that ends while cycling: in a shorter run, as in one of less than an epoch, it does
    // nothing.
    ISO_POLICY_PLATEAU,
    // Of every round: wait as long as the exchange was measured to need, and skip as often as keeps
    // divergence under max_divergence.
    ISO_POLICY_ADAPTIVE,
    ISO_POLICY_CALLBACK
} iso_policy;

// A round lasts from one send to the next; the first one begins with the cycling phase.
// SYNC: a round begins. What came before is merged, and the decision holds for this round: how many
// steps to its end, and how long to wait for what is sent now (nothing is sent in the first round;
// with a wait of 0 it has just been averaged, and the wait is that of the next send). Times and
// divergence are of the sync before; before the first one they are 0, or as measured for an
// automatic wait. Without a warm-up the first round begins in the first step(), whose gradients are
// averaged as the config says.
// EPOCH: iso_daso_epoch_loss was called. The decision holds from the next round on, or for the one
// that began with the last step.
typedef enum iso_observed { ISO_OBSERVED_SYNC, ISO_OBSERVED_EPOCH } iso_observed;
// The same numbers on every rank.
typedef struct iso_daso_observation {
    iso_observed kind;
    int64_t step, total_steps;
    double loss;        // EPOCH: mean over ranks; SYNC: NaN
    double exchange_ms; // from send until the data were back, the slowest rank's; 0: not measured
    double step_ms;     // mean step without waits since the last sync, the slowest rank's
    double wait_ms;     // that the slowest rank waited in the last sync
    double divergence;  // see iso_daso_stats
} iso_daso_observation;
// batches_to_wait -1: as it is. A global_skip below batches_to_wait is raised to it, and neither
// exceeds max_global_skip and what the config begins with. A skip below 1 or a wait below -1 is
// ISO_ERR_ARG on every rank; the next step() asks again, and no exchange is lost.
typedef struct iso_daso_decision {
    int64_t global_skip, local_skip, batches_to_wait;
    char reason[128];
} iso_daso_decision;
// Called on every rank with equal arguments; rank 0's decision holds. On entry decision has the
// values in force.
typedef void (*iso_daso_callback)(const iso_daso_observation *observed, iso_daso_decision *decision,
                                  void *user);

typedef struct iso_daso_config {
    int64_t total_steps; // required, > 0: of the whole run; step() beyond it is ISO_ERR_STATE
    double warmup,
        cooldown; // shares of total_steps with plain lazy data parallelism over all ranks
    int64_t warmup_steps, cooldown_steps; // >= 0: instead of the shares
    // Batches between two sends. One that is given (>= 1) is kept, unless a policy changes it, and
    // that is logged. -1: ISO_DASO_AUTO_SKIP, or batches_to_wait where that is longer.
    int64_t global_skip;
    int64_t max_global_skip; // the most that a policy, or measuring, may choose
    // Batches between a send and its merge, which comes before the next send: at most global_skip.
    // 0: full average without delay. -1: what an exchange is measured to need when cycling begins,
    // but no more than a global_skip that is given; each merge then waits for the rest. Nothing is
    // measured where the first send comes before the third step: the wait is then global_skip.
    int64_t batches_to_wait;
    int64_t local_skip; // gradients are averaged in the node every so many batches
    iso_scope unit;     // ISO_SCOPE_NODE; ISO_SCOPE_RANK: every rank works alone between syncs
    iso_merge merge;
    iso_dtype wire; // ISO_F32, ISO_BF16, ISO_F16; 16 bit: differences with error feedback
    iso_state_sync state;
    iso_policy policy;
    double stability_level; // plateau: threshold
    double max_divergence;  // adaptive
    iso_daso_callback callback;
    void *user;
} iso_daso_config;
#define ISO_DASO_AUTO_SKIP 8
extern const iso_daso_config iso_daso_default; // the same, as C++ takes it
#ifdef __cplusplus
#define ISO_DASO_DEFAULT iso_daso_default
#else
#define ISO_DASO_DEFAULT                                                                           \
    ((iso_daso_config){.warmup = 0.02,                                                             \
                       .cooldown = 0.02,                                                           \
                       .warmup_steps = -1,                                                         \
                       .cooldown_steps = -1,                                                       \
                       .global_skip = -1,                                                          \
                       .max_global_skip = 64,                                                      \
                       .batches_to_wait = -1,                                                      \
                       .local_skip = 1,                                                            \
                       .unit = ISO_SCOPE_NODE,                                                     \
                       .wire = ISO_BF16,                                                           \
                       .stability_level = 0.05,                                                    \
                       .max_divergence = 0.05})
#endif
// Local SGD: every rank alone, plain f32 mean every `period` steps, nothing else.
iso_daso_config iso_local_sgd_config(int64_t total_steps, int64_t period);
// Post-local SGD: warmup_steps of plain data parallelism, then local SGD.
iso_daso_config iso_post_local_sgd_config(int64_t total_steps, int64_t warmup_steps,
                                          int64_t period);

// Collective. As iso_daso_heat_create_take. If an exchange fails on any rank, every rank gets an
// error and no parameter changes. Merges happen at a fixed age, the same on all ranks.
iso_status iso_daso_create_take(iso_optimizer *inner, iso_module *data_parallel,
                                const iso_daso_config *config, iso_optimizer **out);

// Names for options: "progress", "heat"; "keep", "average", "reset"; "fixed", "plateau",
// "adaptive".
iso_status iso_merge_parse(const char *name, iso_merge *out);
iso_status iso_state_sync_parse(const char *name, iso_state_sync *out);
iso_status iso_policy_parse(const char *name, iso_policy *out);

#ifdef __cplusplus
}
#endif
#endif
