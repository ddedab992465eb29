// SPDX-License-Identifier: MIT
// Periodic synchronisation for slow networks: DASO (Coquelin et al., J. Big Data 9:14, 2022), as in
// HeAT (isotherm/daso_heat.h) and in Isotherm's own variant, local SGD (Stich, ICLR 2019), and
// post-local SGD (Lin et al., ICLR 2020). Also gossip, asynchronous averages, a parameter server,
// and tournaments (isotherm/tournament.h).
//
// The ranks of a node average gradients every local_skip batches. Nodes exchange parameters every
// global_skip batches without blocking and merge the result batches_to_wait batches later. This is
// the cycling phase; before and after it, warm-up and cool-down average over all ranks. As in HeAT,
// a batch here is one update, even with gradient accumulation. A sync is a merged exchange or a
// full average.
//
// A daso optimizer wraps an optimizer and controls the data_parallel module that it is tied to, so
// the training loop stays the same: zero_grad, forward, loss, backward, step. In evaluation mode
// the parameters are the mean over all ranks; back in training mode each rank has its own again.
// Except where noted, functions of this header are collective over the communicator of
// data_parallel.
#ifndef ISOTHERM_DASO_H
#define ISOTHERM_DASO_H

#include <isotherm/daso_heat.h>
#include <isotherm/optim.h>
#include <isotherm/outer.h>
#include <isotherm/plateau.h>
#include <isotherm/topology.h>
#include <isotherm/tournament.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- Common to both variants ----------------------------------------------------------------------

typedef struct iso_daso_stats {
    // Batches (updates); merged exchanges, including full averages. Server: steps in which this
    // rank merged answers of other ranks.
    int64_t steps, syncs;
    // Current values. With levels global_skip is the shortest period. Asynchronous: 0, and a wait
    // of -1.
    int64_t global_skip, local_skip, batches_to_wait;
    // As configured. -1: automatic. Always -1 with daso_heat; asynchronous: 0 and -1.
    int64_t global_skip_requested, batches_to_wait_requested;
    const char *phase;           // "warm-up", "cycling", "cool-down", "done"
    bool pending;                // an exchange is in flight or not yet merged
    int64_t last_age;            // batches from send to merge of the last exchange
    double wait_ms, work_ms;     // total of this rank: waiting; converting, summing and merging
    double last_wait_ms;         // waiting for the last exchange
    double exchange_ms, step_ms; // last measured, maximum over ranks; 0: not yet
    // Distance of a rank from the mean, |x_rank - mean| / |mean|, at a send; maximum over ranks. It
    // travels with the next send, so it describes the exchange before the last one. 0: not known.
    // Gossip: maxima over this rank and the one it receives from; exchange_ms is this rank's.
    double divergence;
    int64_t bytes_sent, bytes_between_nodes; // of this rank (see iso_traffic), without gradients
    char reason[128];                        // of the last change of skip and wait
} iso_daso_stats;
// Local. Statistics of a daso or daso_heat optimizer, also through wrappers. ISO_ERR_ARG for
// another optimizer.
iso_status iso_daso_get_stats(iso_optimizer *daso, iso_daso_stats *out);
// Reports the end of an epoch (HeAT: epoch_loss_logic); the policy then decides. loss is this
// rank's mean over the epoch, or the mean over all ranks if globally_averaged. ISO_ERR_STATE for a
// NaN or infinite loss.
iso_status iso_daso_epoch_loss(iso_optimizer *daso, double loss, bool globally_averaged);
// Waits until the exchange in flight, if any, has arrived. The exchange is merged at its usual
// step, so results are bitwise identical (but not if exchanges are asynchronous). Evaluations and
// saves also wait for it. Call this before you stop a timer, so that the wait counts as training
// time. If the exchange failed, every rank gets an error, the exchange is discarded, and training
// may continue.
iso_status iso_daso_complete(iso_optimizer *daso);
// Discards the exchange in flight and sets the parameters of every rank to the mean over all ranks.
// Call it after the last step.
iso_status iso_daso_finish(iso_optimizer *daso);
// Resets epoch and batch counters, the plateau detector, skips and waits. Discards the exchange in
// flight. Sets parameters and optimizer state to their mean over all ranks.
iso_status iso_daso_reset(iso_optimizer *daso);

// ---- Isotherm's DASO ------------------------------------------------------------------------------

typedef enum iso_merge {
    // x = mean at send + (x now - x at send): keeps the progress made while waiting
    ISO_MERGE_PROGRESS,
    // x = (2 S (x now) + P mean) / (2 S + P) for P nodes and S batches since the send (DASO's
    // formula)
    ISO_MERGE_HEAT
} iso_merge;

// What a merge does with optimizer state (momentum etc.) and with buffers of the module (running
// statistics). The full average before the cool-down always averages them, because replicas must be
// equal from then on. Each rank counts the updates of a parameter by itself (see
// ISO_UNUSED_NEGOTIATE). An average of states over all ranks, or over a node, gives each of these
// ranks the largest count. ISO_STATE_SYNC_RESET does not reset counts.
typedef enum iso_state_sync {
    ISO_STATE_SYNC_KEEP, // each rank keeps its own
    // They travel, too, and become (2 S now + P mean) / (2 S + P). ISO_ERR_ARG unless the wire is
    // f32, bf16 or f16: others would lose small second moments beside large ones.
    ISO_STATE_SYNC_AVERAGE,
    ISO_STATE_SYNC_RESET // state: zero; buffers: their values when the optimizer was created
} iso_state_sync;

// How f32 parameters travel between nodes. f32 sends the parameters themselves. Other wires send
// differences from the last mean, or from the anchor of an outer optimizer without `send`. What the
// wire leaves out is added to the next difference (error feedback). Gossip: see `gossip`. f64
// parameters travel and merge in f64. Values of element types are those of iso_dtype.
typedef enum iso_wire {
    ISO_WIRE_F32 = ISO_F32,
    ISO_WIRE_BF16 = ISO_BF16,
    ISO_WIRE_F16 = ISO_F16,
    ISO_WIRE_INT8 = 64, // integers with an f32 scale for each 256 elements
    // Floats of one sign bit and three exponent bits with an f32 scale for each 128 elements, as in
    // Streaming DiLoCo (Douillard et al., 2025)
    ISO_WIRE_INT4,
    // Of each 256 differences, the 256 * topk_ratio largest, as bf16 with their indices. The mean
    // comes back in the same form (QSparse-local-SGD: Basu et al., NeurIPS 2019)
    ISO_WIRE_TOPK,
    // Floats of one sign bit, four exponent bits and three bits of a fraction (E4M3: OCP 8-bit
    // Floating Point Specification 1.0, 2023) with an f32 scale for each 128 elements
    ISO_WIRE_FP8
} iso_wire;

typedef enum iso_policy {
    ISO_POLICY_FIXED,
    // HeAT's rule. A plateau of the epoch loss halves global_skip and local_skip, and reduces a
    // configured wait (> 0) by 1, but not below 1. Once global_skip cannot shrink further, it
    // restarts at max_global_skip, local_skip at its configured value, and a configured wait at
    // max_global_skip / 4. A measured wait does not change. The policy decides only in
    // iso_daso_epoch_loss, at the earliest in the fourth call of the cycling phase, which begins
    // right after the last step of the warm-up. In a run with fewer calls, it does nothing.
    ISO_POLICY_PLATEAU,
    // Decides in every round. A wait above 0 follows the measured duration of an exchange, plus a
    // margin of 3 steps. The skip shrinks if the divergence exceeds max_divergence, but not below
    // 1.5 times the wait (or max_global_skip, if that is less). It grows by half if the divergence
    // is below half of max_divergence.
    ISO_POLICY_ADAPTIVE,
    // Quadratic synchronisation rule (Gu et al., ICLR 2024): a round has max(global_skip,
    // (qsr_alpha / lr)^2) steps, rounded down, but at most max_global_skip. lr is the learning rate
    // of the step before the round; if the run begins with the round, that of its first step.
    ISO_POLICY_QSR,
    // AdaComm (Wang and Joshi, MLSys 2019): after each epoch the skip becomes global_skip *
    // sqrt(lr0 loss / (lr loss0)), rounded up, from 1 to max_global_skip. loss0 and lr0 are those
    // of the first epoch whose loss was reported in the cycling phase.
    ISO_POLICY_ADACOMM,
    ISO_POLICY_CALLBACK
} iso_policy;

// When a policy decides. A round lasts from one send to the next. The first round begins with the
// cycling phase.
//
// SYNC: a round begins, and the previous exchange has been merged. The decision sets the number of
// steps of this round, and the wait for the exchange that is sent now. When the first round begins,
// nothing is sent. If the wait is 0, the average has already been taken, and the decision sets the
// wait of the next send. Times and divergence are those of the previous exchange. Before the first
// exchange they are 0, or the times measured for an automatic wait. Without a warm-up, the first
// round begins in the first step(); the gradients of this step are averaged as configured.
//
// EPOCH: iso_daso_epoch_loss was called. The decision applies to the round that began in the last
// step, if one did, otherwise from the next round on.
typedef enum iso_observed { ISO_OBSERVED_SYNC, ISO_OBSERVED_EPOCH } iso_observed;
// What a policy sees. The numbers are the same on every rank.
typedef struct iso_daso_observation {
    iso_observed kind;
    int64_t step, total_steps;
    double loss;        // EPOCH: mean over ranks; SYNC: NaN
    double exchange_ms; // from send to arrival, on the slowest rank; 0: not measured
    double step_ms;     // mean step since the last sync, without waits, on the slowest rank
    double wait_ms;     // wait in the last sync, on the slowest rank
    double divergence;  // see iso_daso_stats
    double lr;          // learning rate of the last step; before the first one, of that step
} iso_daso_observation;
// batches_to_wait -1: unchanged. A global_skip below batches_to_wait is raised to it. Both are
// limited to max_global_skip. A skip below 1 or a wait below -1 is ISO_ERR_ARG on every rank; the
// next step() asks again, and no exchange is lost.
typedef struct iso_daso_decision {
    int64_t global_skip, local_skip, batches_to_wait;
    char reason[128];
} iso_daso_decision;
// Called on every rank with equal arguments. Rank 0's decision is used. On entry *decision has the
// current values.
typedef void (*iso_daso_callback)(const iso_daso_observation *observed, iso_daso_decision *decision,
                                  void *user);

// A change of the period or the wait. A run can repeat those of an earlier one, see `replay` below.
typedef enum iso_daso_cause {
    ISO_CAUSE_SYNC,     // a policy decided when a round began
    ISO_CAUSE_EPOCH,    // a policy decided in iso_daso_epoch_loss
    ISO_CAUSE_MEASURED, // an automatic wait was measured
    ISO_CAUSE_RANK // asynchronous: a rank merged, sent, or noticed how far an exchange had come
} iso_daso_cause;
typedef struct iso_daso_change {
    int64_t step; // the number of updates before the change
    iso_daso_cause cause;
    int64_t global_skip, local_skip, batches_to_wait; // from then on; 0 for ISO_CAUSE_RANK
    // ISO_CAUSE_RANK: the rank, and what it did after update `step`. Asynchronous averages: a sum
    // of 1 if it merged, 2 if it sent, and 4 times the progress of the exchange in flight, from 1
    // (sent) to 5 (arrived). Server: one change per action, in order. It is a sum of 1 if it served
    // the push of rank r, or 2 if it merged the answer of rank r; 4 if the ranks met after the
    // update and it did so there; and 8 r.
    int rank, actions;
} iso_daso_change;

// A level of a hierarchy: with `period`, groups of `ranks` consecutive ranks average their
// parameters.
typedef struct iso_daso_level {
    int64_t period;
    int ranks;
} iso_daso_level;
#define ISO_DASO_LEVELS 8

// Whom a rank averages with in gossip, see `gossip` below.
typedef enum iso_peers {
    ISO_PEERS_PUSH, // it sends to one rank and receives from another
    ISO_PEERS_PAIR, // two ranks send each other their parameters
    ISO_PEERS_RING  // its two neighbours, in turn
} iso_peers;

// When a parameter server takes what workers push, see `server` below.
typedef enum iso_push {
    ISO_PUSH_ASYNC, // as it comes: no worker waits
    ISO_PUSH_SYNC   // of all workers together: each waits for all
} iso_push;

// How parameters are divided into fragments. A layer's parameters are those whose names agree up to
// the last dot.
typedef enum iso_fragment_order {
    ISO_FRAGMENT_RUNS, // consecutive parameters, with nearly equally many elements in each fragment
    ISO_FRAGMENT_STRIDES // layer i, from 0, belongs to fragment i modulo the number of fragments
} iso_fragment_order;
#define ISO_DASO_FRAGMENTS 32

typedef struct iso_daso_config {
    int64_t total_steps; // required, > 0: of the whole run; a further step() is ISO_ERR_STATE
    double warmup,
        cooldown; // fractions of total_steps with lazy data parallelism over all ranks
    int64_t warmup_steps, cooldown_steps; // >= 0: used instead of the fractions
    // Batches between two sends. A value >= 1 stays unless a policy changes it; each change is
    // logged. -1: ISO_DASO_AUTO_SKIP, or 1.5 times batches_to_wait if that is larger, so that the
    // correction of a merge settles before the next send. A policy or a measured wait raises it to
    // at most max_global_skip.
    int64_t global_skip;
    int64_t max_global_skip; // upper limit for policies and for measured values
    // Batches from a send to its merge, at most global_skip: the merge precedes the next send. 0: a
    // blocking full average. -1: automatic, measured in the step before the first send: the batches
    // that an exchange takes, plus a margin of 3. The time of a batch is the median of the last 8.
    // The limit is global_skip if you set it, else max_global_skip. If an exchange takes longer,
    // its merge blocks. If the first send comes before the third step, or global_skip is 1, nothing
    // is measured, and the wait is global_skip.
    int64_t batches_to_wait;
    int64_t local_skip; // batches between averages of gradients inside a node
    iso_scope unit;     // ISO_SCOPE_NODE; ISO_SCOPE_RANK: every rank is alone between syncs
    iso_merge merge;
    // An outer optimizer, copied; NULL: `merge` applies. Its anchor starts as the parameters at the
    // start of the cycling phase. With batches_to_wait 0, its step replaces the full average at the
    // end of every whole round. Afterwards ranks may have different parameters (if mix > 0, or if
    // `replaces` is false). The last step of the cycling phase merges the exchange in flight,
    // whatever its age, and then sets the parameters to the mean over all ranks. Evaluation and
    // iso_daso_finish use that mean, too. With ISO_STATE_SYNC_AVERAGE, optimizer state and buffers
    // travel along. With batches_to_wait 0 they become the mean (fairseq's BMUF: average_sync);
    // otherwise ISO_MERGE_HEAT merges them. Not with levels. With gossip, outer_skip says when the
    // outer optimizer makes a step.
    const iso_outer *outer;
    iso_wire wire;
    // ISO_WIRE_TOPK: the fraction of differences that travel, at most 1/4, rounded up to 4, 8, 16,
    // 32 or 64 of each 256. 0: 8 of 256
    double topk_ratio;
    iso_state_sync state;
    iso_policy policy;
    double stability_level; // ISO_POLICY_PLATEAU: threshold of the detector
    double max_divergence;  // ISO_POLICY_ADAPTIVE
    double qsr_alpha;       // ISO_POLICY_QSR, > 0
    iso_daso_callback callback;
    void *user;
    // Levels, as PyTorch's HierarchicalModelAverager(period_group_size_dict). 0: none, and all
    // ranks exchange every global_skip batches. Otherwise let k be the number of updates before a
    // batch. From the end of the warm-up on, the level whose period divides k exchanges after this
    // batch. If several periods divide k, the largest counts; if none does, no level exchanges.
    // global_skip must be the first period. Periods and ranks must rise from level to level.
    // `ranks` must divide the number of ranks, and at the last level equal it. Requires
    // ISO_SCOPE_RANK, ISO_POLICY_FIXED and batches_to_wait of at least 0.
    int level_count;
    iso_daso_level level[ISO_DASO_LEVELS];
    // Fragments of the parameters that are exchanged in turn (Streaming DiLoCo: Douillard et al.,
    // 2025), each one every global_skip steps. 0 or 1: none. In each period, fragment f, from 0, is
    // merged at step (f + 1) global_skip / fragments, rounded down, and is sent batches_to_wait
    // steps earlier. Steps count from the start of the cycling phase. So an exchange carries only
    // some of the parameters, and several exchanges can be in flight. At most ISO_DASO_FRAGMENTS
    // and global_skip. Requires ISO_POLICY_FIXED, ISO_STATE_SYNC_KEEP, local_skip 1, a configured
    // global_skip, batches_to_wait of at least 0, and no levels.
    int fragments;
    iso_fragment_order fragment_order;
    // Stochastic Gradient Push (SGP: Assran et al., ICML 2019): instead of the mean over all ranks,
    // each rank takes the mean of its parameters and those of one other rank. In exchange k of P
    // ranks, from 0, it sends to rank + d and receives from rank - d, modulo P, with d = 2^(k mod
    // ceil(log2 P)). P may be any number. The mixing matrix is doubly stochastic. So the push-sum
    // weights of SGP stay 1 and do not travel, and the sum over ranks changes only by rounding. If
    // P is a power of two, log2(P) exchanges without updates in between leave the mean on all
    // ranks. With 2 ranks, results are bitwise identical to local SGD. Ranks have different
    // parameters until the end of the cycling phase, which sets them to the mean over all ranks;
    // evaluation and iso_daso_finish use that mean, too. `divergence` is the distance to the mean
    // of the two (times consensus_step, unless wire is ISO_WIRE_F32). A late rank directly delays
    // only the ranks that exchange with it. If a rank's parameters are not finite or too large,
    // this rank and the one that receives from it get an error, and the program must end the job:
    // see iso_daso_create_take. If ranks find the error where all of them meet, all get it.
    // Requires unit, merge, state and policy as iso_gossip_config sets them, and neither levels nor
    // fragments.
    //
    // ISO_PEERS_PAIR: two ranks take the mean of their parameters, bitwise identical on both:
    // D-PSGD (Lian et al., NeurIPS 2017) with the pairs of Bagua's shift_one. With H = P / 2,
    // rounded up, exchange k pairs rank i < H with rank H + (i + k) mod H. If P is odd, rank P does
    // not exist, and its partner sits out. With global_skip 1, batches_to_wait 1 is D-PSGD:
    // x_p(k+1) = (x_p(k) + x_q(k)) / 2 plus the update of x_p(k).
    //
    // ISO_PEERS_RING: even exchanges, from 0, go to rank p + 1, odd ones to rank p - 1, modulo P.
    // Two exchanges mix as a ring does: x_p = x_p / 2 + (x_p-1 + x_p+1) / 4. Ranks need more
    // exchanges to agree than with other peers, but each has only two peers, and few copies.
    //
    // Wires other than ISO_WIRE_F32 send differences, as in CHOCO-SGD (Koloskova et al., ICML
    // 2019). For each peer and direction, a rank keeps a copy of the sender's parameters as both
    // ends know them: 2 ceil(log2 P) arrays, 2 H with pairs, 4 in a ring (2 with two ranks), also
    // in saved states. The sender encodes its difference from this copy, and both ends add it to
    // their copies. Then x = x + consensus_step / 2 (copy of the sender - copy of this rank). The
    // sum over ranks changes only by rounding, but a pair is no longer bitwise identical. Copies
    // start as the parameters at creation, at the end of warm-up, and when another number of ranks
    // loads a state.
    bool gossip;
    iso_peers peers; // ISO_PEERS_PUSH, unless gossip is set
    // gossip, unless wire is ISO_WIRE_F32: at most 1. A wire that leaves much out needs a small
    // value, or ranks drift apart. 0: 1, or with ISO_WIRE_TOPK twice the fraction that travels.
    double consensus_step;
    // gossip with `outer`, 1 or more: every outer_skip steps of the cycling phase, a mean over all
    // ranks and a step of the outer optimizer replace the gossip (SlowMo with SGP as its base
    // algorithm: Wang et al., ICLR 2020; with iso_outer_mean, Gossip-PGA: Chen et al., ICML 2021).
    // This step first merges the gossip in flight, and blocks. The steps to the next gossip count
    // from it. Requires a configured global_skip, and batches_to_wait of at least 0. Otherwise 0
    // (else ISO_ERR_ARG).
    int64_t outer_skip;
    // Asynchronous averages (Bagua's AsyncModelAverageAlgorithm; Gan et al., VLDB 2022). An
    // exchange of parameters is always in flight. After each step of the cycling phase, a rank
    // checks whether it has arrived. If so, the rank merges it, x = x + (mean of what ranks sent) -
    // (what this rank sent), and sends its new parameters, which starts the next exchange. A rank
    // never waits. Each rank does this at its own steps, so a slow rank slows down the exchanges,
    // but not the steps of others. An exchange that all ranks have merged leaves the mean of their
    // parameters unchanged, up to rounding.
    //
    // Ranks meet at evaluations, saves, iso_daso_complete and the end of the cycling phase. There
    // they complete exchanges until all ranks have started and merged the same ones, so some ranks
    // merge earlier than in their next step. The end of the cycling phase also merges the exchange
    // in flight, and then sets the parameters to the mean over all ranks. Results depend on timing,
    // and repeat only with `replay`. Requires what iso_async_config sets, except total_steps,
    // phases, interval_ms, wire and topk_ratio.
    bool asynchronous;
    double interval_ms; // asynchronous: the least time from a send to the next, >= 0
    // asynchronous: a parameter server instead of averages (Downpour SGD: Dean et al., NeurIPS
    // 2012). Every rank is a worker, and rank s also serves shard s, one P-th of the parameters
    // (but see `servers`). Let x be a worker's values of a shard, k the values that it last knew or
    // pushed, y those of the server, and a the scale push_scale. Every global_skip steps, the
    // worker pushes a (x - k) to each server and sets k = x. At the end of its next step, the
    // server adds this to y and answers with y. When the answer is there, the worker merges it
    // after a step: x = y + (x - k), k = y. No step waits. A rank that makes no step delays only
    // the answers of its own shard. A worker pushes a shard again only after it has merged the
    // answer.
    //
    // Where ranks meet (see `asynchronous`), all push what they have not pushed, and take the
    // values of the servers. So all ranks continue with equal parameters, and each with its own
    // optimizer state. Saved states hold nothing of the servers. A single rank trains alone;
    // nothing changes its parameters. A step that is to push parameters that are not finite returns
    // an error on this rank. All ranks get the error where they meet next, and then push nothing.
    // Requires what iso_server_config sets, except total_steps, phases, global_skip, push,
    // push_scale and servers. `divergence` and `exchange_ms` are not measured.
    bool server;
    // server: with ISO_PUSH_SYNC, ranks meet after every global_skip steps, counted from the last
    // meeting, and push and pull only there. This is synchronous SGD by a server if global_skip is
    // 1 and the optimizer is SGD, else local SGD. Results do not depend on timing; `replay` is
    // ISO_ERR_ARG. Without server: ISO_PUSH_ASYNC.
    iso_push push;
    double push_scale; // server: a; 0: 1 / workers, so that progress that all make counts once
    // server: the last `servers` ranks, fewer than P, only serve, one shard each. The other W ranks
    // are the workers, and serve nothing. 0: all ranks do both. Divide samples among the workers
    // only: create their samplers for W ranks. On a rank that only serves, step() needs no forward
    // or backward: it counts, changes no parameter, and serves the pushes that have arrived. So let
    // this rank make all its steps at once. Afterwards it serves while it waits for the workers:
    // where ranks meet, and in any call on the communicator of data_parallel. These waits have no
    // time limit; another worker, or ISO_STEP_TIMEOUT, detects a worker that hangs. Means of
    // buffers ignore this rank. Buffers may be synchronised only at evaluations or on call (else
    // ISO_ERR_UNSUPPORTED). Requires phases of 0 steps, and no other such server on the
    // communicator (ISO_ERR_STATE). Only a run with the same ranks and servers can load a saved
    // state (ISO_ERR_MISMATCH). iso_daso_reset is ISO_ERR_UNSUPPORTED.
    int servers;
    // Tournaments, see isotherm/tournament.h; copied. NULL: none. Each node is a trainer, or each
    // rank with ISO_SCOPE_RANK. Parameters and buffers travel, and optimizer state unless
    // keep_state is set; nothing is averaged. `seed` and the number of the tournament determine the
    // pairs. Of an odd number of trainers, one has no partner. With batches_to_wait 0, the step
    // waits for the partner's model, and scores its own model in the meantime. Otherwise training
    // continues while models travel: then the partner's model as it was sent competes with this
    // trainer's current model. All ranks wait for all scores.
    //
    // Where other modes take the mean over all ranks (in evaluation mode, at the end of the cycling
    // phase, and in iso_daso_finish), each trainer's own model is scored, and all ranks take the
    // best one; of equal ones, that of the first trainer. Only a run with the same number of
    // trainers and ranks can load a saved state (ISO_ERR_MISMATCH). `divergence` is not measured.
    // Requires what iso_tournament_config sets, except total_steps, phases, unit, global_skip and
    // batches_to_wait.
    const iso_tournament *tournament;
    // Called on every rank after each change; NULL: not called. ISO_CAUSE_RANK: called on rank 0
    // for all ranks, where ranks meet.
    void (*changed)(const iso_daso_change *change, void *user);
    void *changed_user;
    // Changes of an earlier run, in the order of their steps, the same on every rank; borrowed
    // until the optimizer is destroyed. They replace the policy and the measurement of a wait,
    // which depend on timing. So a run with the same config, ranks and data, and all changes of the
    // earlier run, is bitwise identical to it. NULL: none. ISO_CAUSE_RANK: any order, but with a
    // server the changes of one rank must stay in the order in which they were reported; the ranks
    // must meet after the same steps as then; and a step without a change merges and sends nothing.
    const iso_daso_change *replay;
    int64_t replay_count;
    // Lets iso_training_loaded take the state of a daso that was created for fewer steps, finished
    // or not, or for another warm-up or cool-down. The run continues to this config's total_steps,
    // with its cool-down. A completed warm-up keeps its length. A run that had left the cycling
    // phase returns to it with a new round; after a cool-down, an outer optimizer starts over. A
    // run that is still in the cycling phase ends bitwise identical to a run with this config, if
    // the warm-up is the same. ISO_ERR_ARG if total_steps is smaller than that of the state or not
    // above its step, or if a state from the cycling phase would be past that phase.
    bool extends;
} iso_daso_config;
#define ISO_DASO_AUTO_SKIP 8
extern const iso_daso_config iso_daso_default; // the default as an object, for C++
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
                       .wire = ISO_WIRE_BF16,                                                      \
                       .topk_ratio = 0.03125,                                                      \
                       .stability_level = 0.05,                                                    \
                       .max_divergence = 0.05,                                                     \
                       .qsr_alpha = 0.2})
#endif
// Local SGD: ranks train alone; every `period` steps a blocking mean of parameters (ISO_WIRE_F32).
iso_daso_config iso_local_sgd_config(int64_t total_steps, int64_t period);
// Post-local SGD: warmup_steps of data parallelism, then local SGD. The first mean comes `period`
// steps after the warm-up. PyTorch's PeriodicModelAverager(period, warmup_steps) takes it one step
// after the warm-up. With SGD without momentum, warmup_steps + 1 gives the same results here.
iso_daso_config iso_post_local_sgd_config(int64_t total_steps, int64_t warmup_steps,
                                          int64_t period);
// Local SGD with levels: warmup_steps of data parallelism (0: none), then every rank trains alone,
// and groups of ranks average their parameters. iso_daso_create_take refuses the config unless
// count is 1 to ISO_DASO_LEVELS.
iso_daso_config iso_hierarchical_sgd_config(int64_t total_steps, int64_t warmup_steps,
                                            const iso_daso_level *levels, int count);
// Gossip: ranks train alone; every `period` steps (SGP: 1) each one takes the mean of its
// parameters and those of one other rank, and waits for it. With batches_to_wait > 0 it merges them
// later. Set `peers` for pairs.
iso_daso_config iso_gossip_config(int64_t total_steps, int64_t period);
// Asynchronous averages, see `asynchronous` above: warmup_steps of data parallelism (0: none), then
// ranks train alone, and merge averages as they arrive. interval_ms is 0 (Bagua's sync_interval_ms
// is 500 by default).
iso_daso_config iso_async_config(int64_t total_steps, int64_t warmup_steps);
// A parameter server, see `server` above: ranks train alone, and push and pull every `period`
// steps.
iso_daso_config iso_server_config(int64_t total_steps, int64_t period);
// Tournaments: the ranks of a node are a trainer, which trains alone; every `period` steps each
// trainer meets another one and keeps the better model. *tournament is borrowed until the optimizer
// is created.
iso_daso_config iso_tournament_config(int64_t total_steps, int64_t period,
                                      const iso_tournament *tournament);
// Parses "4:2,8:4,16:8" (PERIOD:RANKS, separated by ',' or '+') into level, level_count and
// global_skip of config. ISO_ERR_ARG for another text.
iso_status iso_daso_levels_parse(const char *text, iso_daso_config *config);

// As iso_daso_heat_create_take, but takes ZeRO within nodes (isotherm/parallel.h), too. If an
// exchange fails on any rank, every rank gets an error at the same batch, and no parameter changes.
// Exception: with `asynchronous`, ranks get the error in different steps, and with `gossip` not all
// ranks get it. So end the job then (MPI_Abort). Destroy an asynchronous optimizer on all ranks,
// after the same step.
iso_status iso_daso_create_take(iso_optimizer *inner, iso_module *data_parallel,
                                const iso_daso_config *config, iso_optimizer **out);

#ifdef __cplusplus
}
#endif
#endif
