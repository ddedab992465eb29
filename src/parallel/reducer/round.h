// SPDX-License-Identifier: MIT
// Private to the reducer: one list of gradients after the other, from the first that is ready to
// the last that is updated.
//
// A bucket is OPEN while its gradients are being written, POSTED when it belongs to a transport,
// and ARRIVED when its sum is here; with its updates made it is OPEN again. With ZeRO it is
// PUBLISHED in between, until the values of all ranks are here. A list is issued when all of its
// buckets are posted, and the next one begins when all of them are open again.
#ifndef ISO_ROUND_H
#define ISO_ROUND_H

#include "exchange/coder.h"
#include "exchange/store.h"
#include "parallel/reducer/appliers.h"
#include "parallel/reducer/factors.h"
#include "parallel/reducer/planner.h"
#include "parallel/reducer/sums.h"

typedef struct iso__round iso__round;

typedef struct iso__round_config {
    const iso__layout *layout; // all borrowed
    iso__store *store;
    const iso__coder *coder;
    iso__appliers *appliers;
    iso__planner *planner;
    iso__sums *sums; // NULL: there are none
    iso_comm *world;
    iso__transport *alone; // of buckets that are not exchanged
    iso_sync sync;
    iso_unused unused;
    iso__averaging average;
} iso__round_config;

iso_status iso__round_create(const iso__round_config *config, iso__round **out);
// Accepts NULL. False: an exchange is under way, and what it uses must stay.
bool iso__round_destroy(iso__round **round);

// Nothing may be pending. From the next list on, sums are over comm (NULL: this rank alone).
void iso__round_set_transport(iso__round *r, iso__transport *transport, iso_comm *comm);

// Once, with that transport in force. From the next list on updates are shared out.
void iso__round_set_zero(iso__round *r, iso__zero *zero);

// ---- Gradients --------------------------------------------------------------------------------------

iso_status iso__round_piece_ready(iso__round *r, int i, int k);
iso_status iso__round_grad_ready(iso__round *r, int i); // all pieces that were not reported
// The backward is over: what was not reported is unused, and treated as `unused` says.
iso_status iso__round_close(iso__round *r, iso_unused unused);
// As iso__reducer_adopt.
iso_status iso__round_adopt(iso__round *r, const bool *used);
// A list of zeros.
iso_status iso__round_shadow(iso__round *r);

iso_status iso__round_param_needed(iso__round *r, int i);
iso_status iso__round_piece_needed(iso__round *r, int i, int k);
// Completes what is pending.
iso_status iso__round_finish(iso__round *r);
// What was posted needs this rank's program no more to be summed.
iso_status iso__round_flush(iso__round *r);
iso_status iso__round_advance(iso__round *r); // never waits

// ---- Steps ------------------------------------------------------------------------------------------

bool iso__round_is_open(const iso__round *r);  // a backward is: some are reported, some not
bool iso__round_is_idle(const iso__round *r);  // all buckets are open, none of them with a gradient
bool iso__round_is_whole(const iso__round *r); // no bucket of the list is back already
bool iso__round_is_back(const iso__round *r);  // all buckets are open
bool iso__round_travels(const iso__round *r);  // some bucket does
long long iso__round_lists(const iso__round *r);     // issued whole so far
const bool *iso__round_skipped(const iso__round *r); // [slots]: no rank has used it
void iso__round_list_used(iso__round *r);            // a step has taken the list that is out
// The step's updates are to come, or, where all buckets are open, are made. With ZeRO, new values
// go to the other ranks as soon as they are made; otherwise does nothing. Never waits.
iso_status iso__round_share(iso__round *r);
// With ZeRO, waits until this rank has updated and published all that it updates, so that the other
// ranks need this rank's program no more.
iso_status iso__round_publish(iso__round *r);

// ---- Settings ---------------------------------------------------------------------------------------

bool iso__round_param_is_ready(const iso__round *r, int i);
bool iso__round_param_is_current(const iso__round *r, int i); // all of its buckets are open
iso_unused iso__round_unused(const iso__round *r);
void iso__round_set_unused(iso__round *r, iso_unused unused);
void iso__round_set_weight(iso__round *r, double weight, double total);
// The owner closes every backward, so that what it has reported is current, too.
void iso__round_set_owner(iso__round *r);
void iso__round_skip_local(iso__round *r, bool skip); // what is not exchanged
// Averages of what this applier updates (negative: all) need not be kept after an update.
void iso__round_drop(iso__round *r, int i); // the same of one parameter
void iso__round_zero_grad(iso__round *r, int applier);

#endif
