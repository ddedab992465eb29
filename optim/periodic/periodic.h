// SPDX-License-Identifier: MIT
// Private to optim: the engine of periodic synchronisation. It executes plans. The owner's schedule
// decides what is exchanged and when. merge.h defines the merge rule, average.h the wire.
#ifndef ISO_PERIODIC_H
#define ISO_PERIODIC_H

#include "optim/periodic/merge.h"
#include "optim/periodic/outer_impl.h"
#include "optim/optim_impl.h"
#include "optim/periodic/sync_plan.h"
#include "exchange/average.h"

#include <isotherm/resume.h>

// Memory that travels: a parameter, a buffer of the module, or an arena of optimizer state.
typedef struct iso__span {
    void *data;   // device memory
    void *host;   // while mapped
    size_t count; // elements
    bool f64;     // their type; else f32
    int slot;     // of the optimizer, if it is a parameter
    // A parameter of 16 bits: data are its master weights, and these its own elements; else NULL.
    const iso_tensor *rounded;
    bool squares; // never negative: second moments and variances
} iso__span;

static inline size_t iso__span_bytes(const iso__span *span) {
    return span->count * (span->f64 ? sizeof(double) : sizeof(float));
}

// Where the next span of each type begins in a flat array (average.h), in bytes. Spans of one type
// follow each other in the order of the spans.
typedef struct iso__flat_cursor {
    size_t f32, f64;
} iso__flat_cursor;

static inline iso__flat_cursor iso__flat_begin(iso__flat size) {
    return (iso__flat_cursor){.f64 = iso__flat_f64(size)};
}
static inline size_t iso__flat_next(iso__flat_cursor *cursor, const iso__span *span) {
    size_t *next = span->f64 ? &cursor->f64 : &cursor->f32, at = *next;
    *next += iso__span_bytes(span);
    return at;
}

enum { ISO__RECENT_STEPS = 8 }; // iso__periodic_measure takes their median time

// What an exchange carries, and in which type.
typedef enum iso__payload {
    ISO__PAYLOAD_WIRE,  // the exchange while cycling
    ISO__PAYLOAD_FULL,  // a blocking full average
    ISO__PAYLOAD_EXACT, // parameters, in their types
    ISO__PAYLOAD_STATE, // parameters, buffers and optimizer state, in their types
    ISO__PAYLOADS
} iso__payload;

// Consecutive spans that are exchanged separately, and the state of their exchange.
typedef struct iso__periodic_exchange {
    int first, last;                      // spans
    iso__flat size;                       // of a flat array of these
    size_t offset;                        // of that array in the engine's arrays, in floats
    iso__average *average;                // of ISO__PAYLOAD_WIRE, over all ranks
    iso__average *lower[ISO_DASO_LEVELS]; // the same within the groups of the lower levels
    // `held`: complete, its mean copied to `mean`, not yet merged. `dropped`: it failed in
    // iso__periodic_hold, and its merge is outstanding. `queued`: the next values to send are in
    // `room`, and wait for the merge of the pending exchange.
    bool pending, queued, held, member, dropped;
    iso__payload payload, queued_payload;
    int queued_group;
    int level, queued_level;       // of the pending exchange, and of the queued one
    int64_t merges, turns;         // merges of the outer optimizer; gossips, or tournaments
    int64_t starts;                // so far, of this process
    int64_t saved[5], saved_level; // for saved state
} iso__periodic_exchange;

typedef struct iso__periodic_config {
    iso_topology_config topology;
    iso__average_config wire, full;
    iso_merge merge;
    // A tournament instead of merges and means over all ranks; NULL: none. The engine's owner owns
    // it. `wire` then swaps models.
    const iso_tournament *tournament;
    // Replaces `merge` for exchanges over all ranks; NULL: none. The engine's owner owns it. With
    // it, gossip is the only possible lower level: level 0 is then gossip, and level 1 the mean of
    // all ranks.
    const iso_outer *outer;
    iso_state_sync state;
    bool ranks_part; // the ranks of a node may train apart in some steps
    // The number of exchanges of nearly equal size that may be under way at once; 0: one. Above 1
    // only parameters travel while cycling: `state` is ISO_STATE_SYNC_KEEP, and no plan has FULL
    // after SEND.
    int exchanges;
    // true: layer i belongs to exchange i modulo `exchanges`. false: each exchange carries
    // consecutive parameters.
    bool strides;
    // A parameter server takes the place of exchanges: there are none.
    bool server;
    int servers; // number of ranks that only serve: the last ones
    // The number of ranks in the groups of each lower level, except gossip. Level lower_count is
    // all ranks.
    int lower_count, lower_ranks[ISO_DASO_LEVELS];
} iso__periodic_config;

typedef struct iso__worker iso__worker; // of a parameter server

struct iso__periodic;
// Of exchanges that are asynchronous: each rank sends and merges at its own steps.
typedef struct iso__async {
    // Collective. Brings all ranks to the same exchange, see periodic_async.c below. NULL:
    // exchanges are not asynchronous, so all ranks are at the same exchange anyway.
    iso_status (*meet)(struct iso__periodic *p);
    double interval_ms;
    int64_t sent_at, sent_ns; // the last send: its step, and when it was
    int64_t step;             // the last one
    bool apart;               // steps were made since ranks last met, so destroy is collective
    // What this rank did after each step; NULL: not recorded. `did` has been reported up to step
    // `told`. `again` is what to repeat.
    unsigned char *did, *again;
    int64_t told;
    void (*changed)(const iso_daso_change *change, void *user);
    void *changed_user;
} iso__async;

// Of tournaments. In saved state: trainers, ranks, a hash of the trainer of each rank, `chosen`.
enum { ISO__MATCH_NUMBERS = 5 };
typedef struct iso__match {
    int *order, *partner; // [trainers]
    double *table;        // scores of all trainers
    bool *mode;           // [module_count]: of the model and its layers, while it is scored
    int module_count;
    iso_status status;  // of scoring the own model
    iso_evaluation own; // its score
    // Takes the place of iso__periodic_exact_mean. NULL: there are no tournaments.
    iso_status (*choose)(struct iso__periodic *p, iso__payload payload, const float **model);
    bool chosen;     // all ranks have the model that won, and no step was made since
    int64_t members; // a hash of the trainer of each rank
    int64_t saved[ISO__MATCH_NUMBERS];
    int64_t hypers; // a hash of the list
    // What stays when a model moves, in the flat array of the exchange; none: all moves.
    struct iso__stay *stays;
    int stay_count;
    bool *own_state; // [slots]: the parameter stays; NULL: none does
    // Hyperparameters that travel: the list; the values of all trainers, before and after a
    // tournament; and this trainer's for saved state.
    int hyper_count;
    iso_tournament_hyper hyper[ISO_TOURNAMENT_HYPERS];
    char hyper_name[ISO_TOURNAMENT_HYPERS][ISO__HYPER_NAME];
    double *before, *after; // [trainers * hyper_count]
    double saved_hyper[ISO_TOURNAMENT_HYPERS];
} iso__match;

// Bytes of a flat array.
typedef struct iso__stay {
    size_t at, bytes;
} iso__stay;

enum { ISO__PERIODIC_NUMBERS = 16 };

typedef struct iso__periodic {
    iso_optimizer base; // of its owner, which embeds the engine as its first member
    iso__periodic_config config;
    iso_optimizer *inner;      // owned
    iso_module *data_parallel; // retained
    iso_comm *comm;            // borrowed from it, for blocking collectives in program order
    iso_comm *node;            // the same for the node; owned
    iso_comm *across;    // ZeRO: the ranks with the same shards in all nodes; else NULL; owned
    iso__routes *routes; // for the averages, one for each exchange
    iso__routes *lower[ISO_DASO_LEVELS]; // the same within the groups of the lower levels
    const iso_topology *layout;          // that of `ranks`, or of the routes
    // Ranks train alone, and means over all ranks are first summed inside nodes. The routes then
    // join nodes, and `ranks` has a node for each rank. NULL: not so.
    iso_topology *ranks;
    iso__average *average[ISO__PAYLOADS]; // FULL, EXACT and STATE; the last two when first needed
    iso__periodic_exchange *exchange;
    int exchange_count; // 0 with a parameter server
    iso_device *device; // of the parameters; borrowed
    iso__span *span;
    int span_count, parameter_count, buffer_count; // parameters come first, then buffers; the
                                                   // exchanges decide the order of parameters
    // The spans before it are the same arrays on all ranks of a node; those from it on are this
    // rank's shards of optimizer state (ZeRO). span_count without ZeRO.
    int common_count;
    size_t wire_floats;   // size of the flat arrays of all exchanges
    float *first_buffers; // the initial contents of the buffers, for ISO_STATE_SYNC_RESET
    iso_scope scope;      // of the gradients of the next backward
    // Whether all ranks, or those of a node, have the same parameters, and optimizer state.
    bool equal, equal_state, node_equal, node_equal_state;

    float *sent, *room, *mean;            // the flat arrays of the exchanges; worker: `sent` is
                                          // what it knows of the servers' parameters
    float *own;                           // this rank's parameters during evaluation
    float *outer_state[ISO_OUTER_STATES]; // of the outer optimizer: flat arrays of the exchanges
    // [2 * parameters]: room for their steps and products; NULL: each step updates all of them on
    // every rank.
    double *steps;
    // For a device with memory of its own: values that are mapped or on their way to the device,
    // and events in its queues. The arrays above, except `mean`, are pinned then.
    float *stage;
    size_t stage_bytes;
    iso__device_event *computed, *fetched, *put;
    bool shown; // the parameters are the mean of all ranks
    bool moved; // the state being loaded is of another number of ranks

    iso__async async;
    iso__worker *worker; // NULL: there is no parameter server, or only this rank
    bool serves;         // this rank makes no updates, see `servers` of iso_daso_config
    iso__match match;
    double metrics[ISO__METRICS]; // of the last exchange, maximum over ranks
    double last_wait_ms, own_divergence;
    double step_ms_sum; // since the last send, without waits
    int64_t step_ms_count, last_step_ns;
    double recent_ms[ISO__RECENT_STEPS]; // the last steps, without waits; a ring
    int64_t recent_count;                // of steps, since the start
    double reducer_wait_ms;              // at the beginning of the current step
    iso_daso_stats stats;                // bytes: those that the averages do not count
    struct {
        int64_t number[ISO__PERIODIC_NUMBERS];
        double metric[ISO__METRICS + 4];
        int64_t servers, layout;
    } saved; // for saved state, see periodic_state.c
} iso__periodic;

static inline iso__periodic *iso__periodic_of(iso_optimizer *owner) {
    return iso_container_of(owner, iso__periodic, base);
}

// Whether an exchange of this level ends with a step of the outer optimizer.
static inline bool iso__periodic_outer_ends(const iso__periodic *p, int level) {
    return p->config.outer && level == p->config.lower_count;
}
// With gossip a rank may fail alone. Where ranks meet, all of them learn of it. After a time-out no
// rank waits again.
static inline iso_status iso__periodic_agree(const iso__periodic *p, iso_status mine) {
    bool agrees = iso__is_gossip(p->config.wire.kind) && mine != ISO_ERR_TIMEOUT;
    return agrees ? iso_comm_agree(p->comm, mine) : mine;
}
// Whether it is gossip.
static inline bool iso__periodic_gossips(const iso__periodic *p, int level) {
    return iso__is_gossip(p->config.wire.kind) && !iso__periodic_outer_ends(p, level);
}

enum { ISO__EXCHANGE_MS, ISO__STEP_MS, ISO__WAIT_MS, ISO__DIVERGENCE }; // indices of metrics

// ---- periodic_create.c ----------------------------------------------------------------------------

// Collective over the communicator of data_parallel; local, if it is another module. Zeroed memory
// of an owner. ISO_ERR_NOMEM on every rank if any rank has none.
iso_status iso__periodic_alloc_owner(iso_module *data_parallel, size_t bytes, void **out);
// Collective. Takes inner, also on failure (p is then empty). ISO_ERR_ARG unless inner is a
// dp_optimizer tied to data_parallel. owner: the status of this rank's owner so far; an error on
// any rank is an error on every rank. ISO_ERR_MISMATCH if ranks have different settings (lines of
// text).
iso_status iso__periodic_init(iso__periodic *p, iso_optimizer *inner, iso_module *data_parallel,
                              const iso__periodic_config *config, iso_status owner,
                              const char *settings);
void iso__periodic_destroy(iso__periodic *p);
// Functions for the tables of optimizers that own an engine. free destroys the engine and frees its
// owner.
void iso__periodic_zero_grad(iso_optimizer *owner);
iso_status iso__periodic_update(iso_optimizer *owner, int i, const void *gradient, double scale,
                                const iso_hyper *hyper);
iso_optimizer *iso__periodic_inner(iso_optimizer *owner);
iso_status iso__periodic_release(iso_optimizer *owner, iso_optimizer **inner);
void iso__periodic_free(iso_optimizer *owner);

// ---- periodic.c -----------------------------------------------------------------------------------

// Collective. Sets the scope over which the next backward's gradients are averaged.
iso_status iso__periodic_set_scope(iso__periodic *p, iso_scope scope);
// Local. ISO_ERR_STATE in evaluation mode.
iso_status iso__periodic_check_training(const iso__periodic *p);
// The first makes a step of the inner optimizer. The second then carries out the plan of the owner.
iso_status iso__periodic_step(iso__periodic *p);
iso_status iso__periodic_run(iso__periodic *p, const iso__sync_plan *plan, iso__payload payload);
// Collective. Median ms of the first wire exchange, and of the last ISO__RECENT_STEPS steps without
// waits; maximum over ranks.
iso_status iso__periodic_measure(iso__periodic *p, double *exchange_ms, double *step_ms);
// Sets the parameters, and with `state` the optimizer state, of every rank to their mean.
iso_status iso__periodic_finish(iso__periodic *p, bool state);
// Waits for the exchanges under way and discards them.
iso_status iso__periodic_drop(iso__periodic *p);
// Waits for the exchanges under way and holds their means until the merge. If an exchange failed,
// this call returns the error, and the merge then changes nothing.
iso_status iso__periodic_hold(iso__periodic *p);
// Allocates memory for the means of exchanges that are held.
iso_status iso__periodic_reserve_mean(iso__periodic *p);
// Train hook: sets the parameters to the mean in evaluation mode, and to this rank's own in
// training mode.
iso_status iso__periodic_show(bool training, void *periodic);

// ---- periodic_stats.c -----------------------------------------------------------------------------

// Replaces *value by its mean over all ranks.
iso_status iso__periodic_mean_number(iso__periodic *p, double *value);
// Local. Adds what this rank sent outside the averages.
void iso__periodic_add_traffic(iso__periodic *p, const iso_traffic *moved);
void iso__periodic_stats(const iso__periodic *p, iso_daso_stats *out);

// ---- periodic_async.c -----------------------------------------------------------------------------
//
// Exchanges that no schedule plans. A rank that has merged an exchange starts the next one, so all
// ranks start the same exchanges in the same order, but each at its own step. Exchange n + 1 can
// complete only once every rank has merged exchange n. So ranks are at most one exchange apart.
//
// Where ranks meet, for an evaluation, a save or the end, they agree on how many exchanges were
// started and how many were merged. A rank with fewer merges and starts what it lacks.
//
// No rank can deadlock: a step waits for nothing. Before a rank waits for an exchange where ranks
// meet, all of them have started it. A run that repeats another one waits in a step until an
// exchange has come as far as it had then. All messages of others that this needs had been posted
// then, so in the order of causes they come before that step, and the order has no cycle.

// Collective. Takes interval, changes and what is to be repeated from the config.
iso_status iso__async_open(iso__periodic *p, const iso_daso_config *config);
void iso__async_close(iso__periodic *p);
// Local. The next step is number `step` + 1.
void iso__async_continue(iso__periodic *p, int64_t step);
// After an update of the cycling phase, the step-th one: merges an exchange that has arrived, and
// starts the next one. Does not wait, unless it repeats a run.
iso_status iso__async_step(iso__periodic *p, int64_t step);
// Collective. After the last update of the cycling phase: merges what is under way.
iso_status iso__async_end(iso__periodic *p, int64_t step);

// ---- periodic_worker.c ----------------------------------------------------------------------------
//
// A parameter server (server.h) instead of exchanges. After each step a rank serves the pushes that
// have arrived, merges the answers that have arrived, and pushes the shards that it last pushed a
// period ago, or earlier, and whose answers it has. It waits for nothing, unless it repeats a run.
//
// Where ranks meet, all changes are pushed, and all ranks go on with the parameters of the servers,
// which are equal. So nothing of the servers needs to be saved: a run begins, and goes on, with
// copies that are the parameters. Optimizer states stay different.
//
// With ISO_PUSH_SYNC ranks meet after every period, and push and pull nowhere else.
//
// Ranks may only serve: their steps update nothing and push nothing, and they serve while they wait
// in any call on p->comm.
//
// A run that repeats another one serves in the same order, merges in the same steps, and waits for
// what has not arrived. All messages that this needs had been posted then, so no rank can deadlock.

// Collective. Takes period, scale, changes and what is to be repeated from the config.
iso_status iso__worker_open(iso__periodic *p, const iso_daso_config *config);
void iso__worker_close(iso__periodic *p);
// Local. A run goes on after p->async.step.
void iso__worker_continue(iso__periodic *p);
// Before an update of the cycling phase: where ranks have met, it begins anew.
iso_status iso__worker_begin(iso__periodic *p);
// After it, the step-th one. ISO_ERR_STATE if parameters are not finite; the others learn of it
// where ranks meet.
iso_status iso__worker_step(iso__periodic *p, int64_t step);
// Collective. After the last update of the cycling phase: ranks meet.
iso_status iso__worker_end(iso__periodic *p, int64_t step);
bool iso__worker_pending(const iso__periodic *p); // an answer is outstanding
// The number of ranks that make updates.
static inline int iso__periodic_trainers(const iso__periodic *p) {
    return iso_comm_size(p->comm) - p->config.servers;
}
// If ranks only serve, their optimizer states mean nothing. So a state is for the same ranks only.
iso_status iso__worker_state(iso__periodic *p, iso_state *state);
iso_status iso__worker_loaded(const iso__periodic *p);
// ISO_ERR_UNSUPPORTED for the mean of optimizer states, where some ranks have none.
iso_status iso__worker_check_reset(const iso__periodic *p);

// ---- periodic_match.c -----------------------------------------------------------------------------

// These do nothing without a tournament. open is collective.
iso_status iso__match_open(iso__periodic *p);
void iso__match_close(iso__periodic *p);
// loaded: ISO_ERR_MISMATCH, on all ranks, unless all of them have the same trainers as when the
// state was saved.
iso_status iso__match_state(iso__periodic *p, iso_state *state);
iso_status iso__match_loaded(iso__periodic *p);
// The partner of this node in tournament number `turn`.
int iso__match_partner(iso__periodic *p, int64_t turn);
// Scores the model of now, if there are tournaments. Waits for ranks of this node only. Leaves an
// error to the next function.
void iso__match_score_own(iso__periodic *p);
// Collective. Call it after iso__match_score_own. Scores the partner's model, a flat array, and
// leaves the better one in place.
iso_status iso__match_merge(iso__periodic *p, iso__periodic_exchange *x, const float *model);

// ---- periodic_choice.c ----------------------------------------------------------------------------

// These do nothing unless a tournament chooses what moves. open is local: ISO_ERR_ARG if no
// parameter moves. *hash: of the choice, which all ranks must agree on.
iso_status iso__match_choice_open(iso__periodic *p, uint64_t *hash);
void iso__match_choice_close(iso__periodic *p);
// Replaces in `model`, the flat array of an exchange, what stays by what it is in `own`.
void iso__match_choice_keep(const iso__periodic *p, float *model, const float *own);

// ---- periodic_hyper.c -----------------------------------------------------------------------------

// These do nothing unless hyperparameters travel. open is collective: ISO_ERR_ARG for a value or a
// list that is refused, ISO_ERR_MISMATCH if the ranks of a trainer have different values.
iso_status iso__match_hyper_open(iso__periodic *p);
void iso__match_hyper_close(iso__periodic *p);
// Local, once nothing can fail any more. Multiplies the values by what `spread` gives this trainer.
void iso__match_hyper_spread(iso__periodic *p);
// Collective. ISO_ERR_MISMATCH on all ranks unless all trainers have the same values.
iso_status iso__match_hyper_equal(iso__periodic *p);
// Collective. Fills in match.after, and changes no value. took: this trainer takes the model of
// its partner in tournament `turn`. On an error all ranks have one.
iso_status iso__match_hyper_move(iso__periodic *p, int64_t turn, bool took);
// Local. Writes this trainer's row of match.after to its values.
void iso__match_hyper_put(iso__periodic *p);
// The values of a trainer after the last tournament; NULL: none travel.
const double *iso__match_hyper_of(const iso__periodic *p, int trainer);
// Each trainer's own. loaded: ISO_ERR_FORMAT for a number that is not finite.
iso_status iso__match_hyper_state(iso__periodic *p, iso_state *state);
iso_status iso__match_hyper_loaded(iso__periodic *p);

// ---- periodic_state.c -----------------------------------------------------------------------------

iso_status iso__periodic_state(iso__periodic *p, iso_state *state);
iso_status iso__periodic_loaded(iso__periodic *p);
// Returns to averages over this scope as if they had never stopped: the reference of exchanges, the
// anchor and the state of the outer optimizer stay.
iso_status iso__periodic_return(iso__periodic *p, iso_scope scope);

// ---- periodic_reference.c -------------------------------------------------------------------------

// Collective. Call it while all ranks have the same parameters: later exchanges send differences
// from them, and they become the anchor of the outer optimizer.
iso_status iso__periodic_set_reference(iso__periodic *p);
// Collective. The same before the first step of a run, as a model may have been loaded since
// creation. Without an outer optimizer it changes nothing if ranks begin with different parameters.
iso_status iso__periodic_begin(iso__periodic *p);

// ---- periodic_mean.c ------------------------------------------------------------------------------

// Blocking. The mean over all ranks; with tournaments, the model that wins. The parameters stay
// unchanged. *mean is valid until the next exchange. No exchange may be under way.
iso_status iso__periodic_exact_mean(iso__periodic *p, iso__payload payload, const float **mean);
iso_status iso__periodic_node_average(iso__periodic *p);
// Call it after the ranks of comm have averaged their optimizer states. Sets the number of updates
// of each parameter to the maximum over comm, and the product of their factors to the minimum.
iso_status iso__periodic_agree_on_steps(iso__periodic *p, iso_comm *comm);
// Sets the buffers to their mean over comm. (Ranks of a node, too, have different statistics.)
iso_status iso__periodic_mean_buffers(iso__periodic *p, iso_comm *comm);
// Collective. The same for shards of optimizer state, over all nodes; does nothing without ZeRO.
iso_status iso__periodic_mean_shards(iso__periodic *p);
iso_status iso__periodic_node_copy(iso__periodic *p, int group);
// The payload is spans [0, last).
int iso__periodic_last(const iso__periodic *p, iso__payload payload);
// An average of flat arrays of this size. Its wire is for the f32 elements.
iso_status iso__periodic_make_average(iso__routes *routes, iso__flat size,
                                      const iso__average_config *config, iso__average **out);
// The average of the whole array, for all payloads except ISO__PAYLOAD_WIRE.
iso_status iso__periodic_average_of(iso__periodic *p, iso__payload payload, iso__average **out);

// ---- periodic_fragments.c -------------------------------------------------------------------------

// Orders the spans of parameters so that those of an exchange follow each other, and gives every
// exchange its spans and its place in flat arrays. ISO_ERR_ARG if there are too few parameters or
// layers.
iso_status iso__periodic_divide(iso__periodic *p);

// ---- periodic_outer.c -----------------------------------------------------------------------------

// The functions of the outer optimizer, if there is one.
iso_status iso__periodic_outer_open(iso__periodic *p);
void iso__periodic_outer_close(iso__periodic *p);
// values: the flat array of the parameters of x, which become the anchor.
void iso__periodic_outer_begin(iso__periodic *p, iso__periodic_exchange *x, const float *values);
// What x sends, as a flat array.
iso_status iso__periodic_outer_send(iso__periodic *p, const iso__periodic_exchange *x, float *to);
// Merges the mean of what x sent, also a flat array.
iso_status iso__periodic_outer_merge(iso__periodic *p, iso__periodic_exchange *x, int64_t age,
                                     const float *mean);

// ---- periodic_memory.c ----------------------------------------------------------------------------

iso_status iso__periodic_memory_open(iso__periodic *p);
void iso__periodic_memory_close(iso__periodic *p);
// The elements of spans [first, last).
iso__flat iso__periodic_flat(const iso__periodic *p, int first, int last);
// Copy spans [first, last) to a pinned flat array, and from any flat array. fetch waits for the
// device. The caller of put may reuse `from` immediately.
iso_status iso__periodic_fetch(const iso__periodic *p, int first, int last, float *to);
iso_status iso__periodic_put(iso__periodic *p, int first, int last, const float *from);
iso_status iso__periodic_clear(const iso__periodic *p, int first, int last);
// Between map and unmap the host reads and writes spans [first, last) at span.host. No put is
// allowed in between.
iso_status iso__periodic_map(iso__periodic *p, int first, int last);
iso_status iso__periodic_unmap(iso__periodic *p, int first, int last);
// While it is mapped: squares that rounded differences took below 0 become 0.
void iso__periodic_lift(const iso__span *span);

#endif
