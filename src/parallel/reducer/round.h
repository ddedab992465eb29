// SPDX-License-Identifier: MIT
// Private to the reducer: carries one list of gradients after another from the first gradient that
// is ready to the last update.
//
// A bucket is OPEN while its gradients are being written, POSTED when it belongs to a transport,
// and ARRIVED when its sum is here. Once its updates are made, it is OPEN again. With ZeRO stages 1
// and 2 it is PUBLISHED in between, until the values of all ranks are here. A list is issued when
// all of its buckets are posted. The next list begins when all of them are OPEN again.
#ifndef ISO_ROUND_H
#define ISO_ROUND_H

#include "exchange/coder.h"
#include "exchange/store.h"
#include "parallel/reducer/appliers.h"
#include "parallel/reducer/factors.h"
#include "parallel/reducer/planner.h"
#include "parallel/reducer/sums.h"
#include "parallel/reducer/weights.h"

typedef struct iso__round iso__round;

typedef struct iso__round_config {
    const iso__layout *layout; // all borrowed
    iso__store *store;
    const iso__coder *coder;
    iso__appliers *appliers;
    iso__planner *planner;
    iso__sums *sums;       // NULL: none
    iso__weights *weights; // NULL: gradients are averaged over ranks
    iso_comm *world;
    iso__transport *alone; // for buckets that are not exchanged
    iso_sync sync;
    iso_unused unused;
    iso__averaging average;
} iso__round_config;

iso_status iso__round_create(const iso__round_config *config, iso__round **out);
// Accepts NULL. Returns false if an exchange is under way; the caller must then keep all that the
// exchange uses.
bool iso__round_destroy(iso__round **round);

// Nothing may be pending. From the next list on, gradients are summed over comm (NULL: this rank
// alone).
void iso__round_set_transport(iso__round *r, iso__transport *transport, iso_comm *comm);

// Call it once, with a transport for ZeRO in force. From the next list on, the ranks divide the
// updates.
void iso__round_set_zero(iso__round *r, iso__zero *zero, iso__norms *norms);

// ---- Gradients --------------------------------------------------------------------------------------

iso_status iso__round_piece_ready(iso__round *r, int i, int k);
iso_status iso__round_grad_ready(iso__round *r, int i); // all pieces that were not reported
// Ends the backward. Parameters that were not reported are unused, and are treated as `unused`
// says.
iso_status iso__round_close(iso__round *r, iso_unused unused);
// As iso__reducer_adopt.
iso_status iso__round_adopt(iso__round *r, const bool *used);
// Issues a list of zeros.
iso_status iso__round_shadow(iso__round *r);

iso_status iso__round_param_needed(iso__round *r, int i);
iso_status iso__round_piece_needed(iso__round *r, int i, int k);
// Completes all pending exchanges and updates.
iso_status iso__round_finish(iso__round *r);
// Waits until every posted bucket can complete without this rank's program.
iso_status iso__round_flush(iso__round *r);
iso_status iso__round_advance(iso__round *r); // never waits

// When the last piece of parameter i was ready in the latest backward: it is larger for parameters
// that were ready later; 0: never.
int64_t iso__round_turn(const iso__round *r, int i);
// Takes over the weights and divisors of a round with the same parameters.
void iso__round_go_on(iso__round *r, const iso__round *from);

// ---- Steps ------------------------------------------------------------------------------------------

bool iso__round_is_open(
    const iso__round *r); // in a backward: some gradients are reported, some not
bool iso__round_is_idle(const iso__round *r);  // all buckets are open, none of them with a gradient
bool iso__round_is_whole(const iso__round *r); // no bucket of the list has come back yet
bool iso__round_is_back(const iso__round *r);  // all buckets are open
bool iso__round_travels(const iso__round *r);  // some bucket travels
long long iso__round_lists(const iso__round *r);     // lists issued so far
const bool *iso__round_skipped(const iso__round *r); // [slots]: true if no rank used it
void iso__round_list_used(iso__round *r);            // a step has taken the issued list
// With ZeRO: call it after a step, when the updates are marked or already made. From then on new
// values go to the other ranks as soon as they are made. Otherwise does nothing. Never waits.
iso_status iso__round_share(iso__round *r);
// Waits until the other ranks no longer depend on this rank's program: with ZeRO, until this rank
// has updated and published all of its shards; with a hook that owns its exchange, until the last
// phase of each bucket has begun. waits: stage 2 keeps its bound of memory, for which it also waits
// for other ranks to publish; false: it may hold the values of all buckets.
iso_status iso__round_publish(iso__round *r, bool waits);

// ---- Settings ---------------------------------------------------------------------------------------

bool iso__round_param_is_ready(const iso__round *r, int i);
bool iso__round_param_is_current(const iso__round *r, int i); // all of its buckets are open
bool iso__round_bucket_is_open(const iso__round *r, int b);
iso_unused iso__round_unused(const iso__round *r);
void iso__round_excuse(iso__round *r, bool excused); // as iso__reducer_excuse
void iso__round_set_weight(iso__round *r, double weight, double total);
// From now on an owner closes every backward, so parameters that it has reported are current, too.
void iso__round_set_owner(iso__round *r);
// true: parameters that are not exchanged are not updated after this backward.
void iso__round_skip_local(iso__round *r, bool skip);
// Averages of the parameters that this applier updates (negative: of all) need not be kept after an
// update.
void iso__round_zero_grad(iso__round *r, int applier);
// Whether the slot's gradient came since the last zero_grad, and no step has used it.
bool iso__round_awaits_step(const iso__round *r, int slot);
void iso__round_drop(iso__round *r, int i); // the same for one parameter

#endif
