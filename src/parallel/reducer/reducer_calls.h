// SPDX-License-Identifier: MIT
// Private to src/parallel and optim: what data_parallel, join, optimizers and resuming ask of a
// reducer beyond its public calls. None of them knows how it works.
#ifndef ISO_REDUCER_CALLS_H
#define ISO_REDUCER_CALLS_H

#include "base/base.h"

#include <isotherm/reducer.h>

// ---- What it is -------------------------------------------------------------------------------------

const char *iso__reducer_name(const iso_reducer *r, int i); // borrowed
// Parameters of one number come back together.
int iso__reducer_bucket_of(const iso_reducer *r, int i);
// Whether it pays to ask for a parameter piece by piece: a device takes its updates together.
bool iso__reducer_awaits_pieces(const iso_reducer *r);
bool iso__reducer_negotiates(const iso_reducer *r); // ISO_UNUSED_NEGOTIATE
// Whether ranks have the same parameters between steps.
bool iso__reducer_keeps_ranks_equal(const iso_reducer *r);
int iso__reducer_appliers(const iso_reducer *r); // how many there are
iso_traffic iso__reducer_traffic(const iso_reducer *r);
// What a communication hook keeps from step to step: *count floats, or NULL. Borrowed.
float *iso__reducer_hook_state(const iso_reducer *r, size_t *count);

// ---- Scope ------------------------------------------------------------------------------------------

iso_scope iso__reducer_scope(const iso_reducer *r);
// Collective. Completes what is pending; the next backward is averaged over this scope. Who changes
// scopes does so in the middle of a run: the first call makes what every scope needs, later ones
// make nothing.
iso_status iso__reducer_set_scope(iso_reducer *r, iso_scope scope);

// ---- A backward whose owner says where it begins and ends -------------------------------------------

// From now on the owner closes every backward: a step without a list is a mistake.
void iso__reducer_set_owner(iso_reducer *r);
// exchanged: false where the gradients stay on this rank (no_sync).
void iso__reducer_enter_backward(iso_reducer *r, bool exchanged);
void iso__reducer_leave_backward(iso_reducer *r);
bool iso__reducer_in_backward(const iso_reducer *r);

bool iso__reducer_has_open_list(const iso_reducer *r); // some gradients are reported, some not
bool iso__reducer_is_ready(const iso_reducer *r, int i);
// No update of it is to come.
bool iso__reducer_is_current(const iso_reducer *r, int i);
// The backward is over: what was not reported is unused.
iso_status iso__reducer_close(iso_reducer *r);
// The gradients in place are averages already: nothing is exchanged for this backward. used:
// [parameters], by this rank.
iso_status iso__reducer_adopt(iso_reducer *r, const bool *used);

// ---- After a backward -------------------------------------------------------------------------------

// No rank has used it in the list that came back last.
bool iso__reducer_was_unused(const iso_reducer *r, int i);
// iso_reducer_zero_grad of what this applier updates.
void iso__reducer_zero_grad_of(iso_reducer *r, int id);

// ---- Ranks without data -----------------------------------------------------------------------------

// A rank without a batch may miss what is otherwise an error.
void iso__reducer_set_unused(iso_reducer *r, iso_unused unused);
// What this rank does not exchange is not updated after this backward.
void iso__reducer_skip_local(iso_reducer *r);
// Every rank counts once again, and updates what it does not exchange.
void iso__reducer_end_join(iso_reducer *r);

// ---- ZeRO -------------------------------------------------------------------------------------------

void iso__reducer_drop(iso_reducer *r, int i);          // zero_grad of one parameter
bool iso__reducer_shares_updates(const iso_reducer *r); // asked for, though this rank may be alone
// Before a wait for ranks that may be waiting for this rank's new values: updates and publishes all
// that this rank updates. Does nothing where updates are not shared out, or no step was made.
iso_status iso__reducer_publish(iso_reducer *r);
// Whether each rank updates its own elements of parameter i.
bool iso__reducer_is_spread(const iso_reducer *r, int i);
iso_comm *iso__reducer_comm(const iso_reducer *r); // of all ranks; borrowed
// Collective. Completes an array with one element for each element of parameter i, of the same type.
// Each rank provides the elements that it updates (iso_reducer_own). Without ZeRO, does nothing.
iso_status iso__reducer_gather(iso_reducer *r, int i, void *array);

#endif
