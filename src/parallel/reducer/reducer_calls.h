// SPDX-License-Identifier: MIT
// Private to src/parallel and optim: calls of a reducer for data_parallel, join, optimizers and
// resuming, beyond the public ones. They do not depend on its implementation.
#ifndef ISO_REDUCER_CALLS_H
#define ISO_REDUCER_CALLS_H

#include "base/base.h"

#include <isotherm/reducer.h>

// ---- What it is -------------------------------------------------------------------------------------

const char *iso__reducer_name(const iso_reducer *r, int i); // borrowed
// Its name, value, count, type and row, and its gradient, also if that is the reducer's; borrowed.
iso_reducer_param iso__reducer_param(iso_reducer *r, int i);
iso_dtype iso__reducer_grad_type(const iso_reducer *r, int i); // of that gradient
// Parameter k in the order that all ranks share: that of rank 0's list, if they match names.
int iso__reducer_shared(const iso_reducer *r, int k);
// The device of its memory; for memory of the host, a CPU device. Owned by the reducer.
iso_status iso__reducer_device(iso_reducer *r, iso_device **out);
// The bucket of parameter i. Parameters of one bucket come back together.
int iso__reducer_bucket_of(const iso_reducer *r, int i);
// Whether to wait for a parameter piece by piece. Not on a device, which launches its updates
// together.
bool iso__reducer_awaits_pieces(const iso_reducer *r);
bool iso__reducer_weighs(const iso_reducer *r);     // config.by_weight
bool iso__reducer_negotiates(const iso_reducer *r); // ISO_UNUSED_NEGOTIATE, ISO_UNUSED_STATIC
// Whether ranks have the same parameters between steps.
bool iso__reducer_keeps_ranks_equal(const iso_reducer *r);
int iso__reducer_appliers(const iso_reducer *r); // their number
iso_traffic iso__reducer_traffic(const iso_reducer *r);
// What a communication hook keeps from step to step: *count floats, or NULL. Borrowed.
float *iso__reducer_hook_state(const iso_reducer *r, size_t *count);
// The number of first floats of that state that count exchanges, the same on all ranks.
size_t iso__reducer_hook_counts(const iso_reducer *r);

// ---- The order of lists ------------------------------------------------------------------------------

// Collective, without a reducer. Matches the lists of the ranks by name, as with
// iso_reducer_config.by_name: from[k] is this rank's number of rank 0's parameter k. from: [count].
iso_status iso__reducer_match_names(iso_comm *comm, const iso_reducer_param *params, int count,
                                    int *from);

// ---- Other buckets -----------------------------------------------------------------------------------
//
// A reducer takes the place of one with the same parameters, between steps.

// As iso_reducer_create, but with the parameters in the order of their keys. key: a key for each
// parameter; NULL: the order of the list. Parameters keep their numbers in the list. Those of one
// layer must have the same key. Entries with `layers` cannot have keys.
iso_status iso__reducer_create_sorted(iso_comm *comm, const iso_reducer_param *params, int count,
                                      const iso_reducer_config *config, const int *key,
                                      iso_reducer **out);
// Local. Computes such keys: the layer whose gradients became ready last in this rank's latest
// backward comes first. params: the list from which the reducer was created.
iso_status iso__reducer_ready_keys(const iso_reducer *r, const iso_reducer_param *params, int count,
                                   int *key);
// Local. ISO_ERR_UNSUPPORTED if no other reducer can replace this one. ISO_ERR_STATE during a
// backward, or before a step has used its gradients.
iso_status iso__reducer_check_place(const iso_reducer *r);
// Collective. Copies from `from`: update functions with their ids, what the hook remembers of
// buckets that are the same, weights, owner, and totals of the statistics. `from` must have nothing
// pending.
iso_status iso__reducer_go_on(iso_reducer *r, iso_reducer *from);
const iso_comm_hook *iso__reducer_hook(const iso_reducer *r); // borrowed

// ---- Scope ------------------------------------------------------------------------------------------

iso_scope iso__reducer_scope(const iso_reducer *r);
// As iso_reducer_param_needed, iso_reducer_piece_needed and iso_reducer_finish, for work that goes
// through the library: a device may still hold updates back.
iso_status iso__reducer_param_needed(iso_reducer *r, int i);
iso_status iso__reducer_piece_needed(iso_reducer *r, int i, int k);
iso_status iso__reducer_finish(iso_reducer *r);
// Collective. Completes pending work first. The next backward is averaged over this scope. The
// first call creates what all scopes need, so later calls, in the middle of a run, create nothing.
iso_status iso__reducer_set_scope(iso_reducer *r, iso_scope scope);

// ---- A backward with an owner, who begins and ends it -----------------------------------------------

// From now on an owner closes every backward. A step without a list is then an error.
void iso__reducer_set_owner(iso_reducer *r);
// exchanged: false if the gradients stay on this rank (no_sync).
void iso__reducer_enter_backward(iso_reducer *r, bool exchanged);
void iso__reducer_leave_backward(iso_reducer *r);
bool iso__reducer_in_backward(const iso_reducer *r);

bool iso__reducer_has_open_list(const iso_reducer *r); // some gradients are reported, some not
bool iso__reducer_is_ready(const iso_reducer *r, int i);
// No update of parameter i is outstanding.
bool iso__reducer_is_current(const iso_reducer *r, int i);
// Ends the backward. Parameters that were not reported are unused.
iso_status iso__reducer_close(iso_reducer *r);
// Ends the backward without an exchange, because the gradients are averages already. used:
// [parameters], whether this rank used them.
iso_status iso__reducer_adopt(iso_reducer *r, const bool *used);

// ---- After a backward -------------------------------------------------------------------------------

// No rank used parameter i in the list that came back last.
bool iso__reducer_was_unused(const iso_reducer *r, int i);
// iso_reducer_zero_grad for the parameters that this applier updates.
void iso__reducer_zero_grad_of(iso_reducer *r, int id);
// Forgets what iso_reducer_add_weight added for the next exchange. Does nothing without by_weight.
void iso__reducer_drop_weight(iso_reducer *r);

// ---- Ranks without data -----------------------------------------------------------------------------

// While excused, a rank without a batch may lack gradients, which is an error otherwise.
void iso__reducer_excuse(iso_reducer *r, bool excused);
// Parameters that are not exchanged are not updated after this backward.
void iso__reducer_skip_local(iso_reducer *r);
// All ranks have weight 1 again, and update parameters that are not exchanged.
void iso__reducer_end_join(iso_reducer *r);

// ---- ZeRO -------------------------------------------------------------------------------------------

void iso__reducer_drop(iso_reducer *r, int i);          // zero_grad for one parameter
bool iso__reducer_shares_updates(const iso_reducer *r); // config.zero, also on a single rank
// Call it before a wait for other ranks. They may be waiting for this rank's new values (ZeRO), or
// for a later phase of its gradients (a hook that owns its exchange). Waits until they no longer
// depend on this rank's program. waits true: all ranks will make such a call, or a forward, without
// further calls of this rank. So ZeRO stage 2 may wait for their values, and keeps its limit of
// memory. waits false: a rank may have failed before its step, so stage 2 may hold the values of
// all buckets.
iso_status iso__reducer_publish(iso_reducer *r, bool waits);
// An update in two halves, for a rule that needs sums over a whole parameter, whose elements lie on
// several ranks. measure is called as iso_reducer_apply_piece, and gives numbers that are added
// over the pieces of a parameter and over the ranks, in their order. finish gets the sums. collect
// is called after a series of calls of measure, even if one has failed. The numbers need not be
// valid before that. collect NULL: they are valid at once.
typedef struct iso__reducer_halves {
    iso_status (*measure)(int i, size_t first, size_t count, const void *gradient, double scale,
                          const void *hyper, void *user, double square[2]);
    iso_status (*finish)(int i, size_t first, size_t count, const double square[2],
                         const void *hyper, void *user);
    iso_status (*collect)(void *user);
} iso__reducer_halves;
// With ZeRO. Elements that no other rank shares are updated by the applier's iso_reducer_apply.
iso_status iso__reducer_set_halves(iso_reducer *r, int id, const iso__reducer_halves *halves);
// Whether each rank updates its own elements of parameter i.
bool iso__reducer_is_spread(const iso_reducer *r, int i);
iso_comm *iso__reducer_comm(const iso_reducer *r); // of all ranks; borrowed
// The ranks among which ZeRO divides the updates: all, or those of this node. Borrowed.
iso_comm *iso__reducer_owners(const iso_reducer *r);
bool iso__reducer_shares_in_nodes(const iso_reducer *r); // zero_scope is ISO_SCOPE_NODE
// Collective. Completes an array with one element for each element of parameter i, of the type in
// which its gradient is summed. Each rank provides the elements that it updates (iso_reducer_own).
// Without ZeRO, does nothing.
iso_status iso__reducer_gather(iso_reducer *r, int i, void *array);

// ---- ZeRO stage 3, for the module whose values the reducer holds -------------------------------------

// Whether values are divided; not on a single rank. The calls below are for this case, except
// iso__reducer_gather_values.
bool iso__reducer_divides_values(const iso_reducer *r);
// Local, once for each parameter, before the first pass. Copies this rank's elements of the value;
// returns the place of the value from now on.
void *iso__reducer_take_value(iso_reducer *r, int i, const void *value);
// Local. The memory of the values outlives the reducer, and is never freed.
void iso__reducer_leave_values(iso_reducer *r);
int iso__reducer_bucket_count(const iso_reducer *r);
int iso__reducer_bucket_of_piece(const iso_reducer *r, int i, int k);

// A forward or a backward, in which all values are used. All ranks make the same passes, in the
// same order.
typedef enum iso__pass { ISO__NO_PASS, ISO__FORWARD, ISO__BACKWARD } iso__pass;
iso__pass iso__reducer_pass(const iso_reducer *r);
iso_status iso__reducer_begin_pass(iso_reducer *r, iso__pass pass);
// Collective. The first waits for the values of a bucket, whose updates the caller has completed.
// The values stay until the pass ends. Call the second earlier if the pass needs them no more.
iso_status iso__reducer_need_values(iso_reducer *r, int bucket);
void iso__reducer_release_values(iso_reducer *r, int bucket);
// Call these when the pass needs no further values. The first sends what other ranks may need, and
// does not wait for them. The second ends the pass, and drops the values.
iso_status iso__reducer_end_uses(iso_reducer *r);
iso_status iso__reducer_end_pass(iso_reducer *r);
// Call it in place of both if the pass has failed with this status. Keeps the error record.
void iso__reducer_fail_pass(iso_reducer *r, iso_status status);
// Collective; but outside a pass, the other ranks may begin their next forward instead.
// Completes pending updates, and waits for all values. They stay until a pass has used them, or a
// step updates them.
iso_status iso__reducer_gather_values(iso_reducer *r);
bool iso__reducer_has_whole_values(const iso_reducer *r);
long long iso__reducer_steps(const iso_reducer *r); // that have begun
// The size of the pages with values that are in memory, as the system says.
size_t iso__reducer_resident_values(const iso_reducer *r);

#endif
