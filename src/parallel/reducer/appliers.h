// SPDX-License-Identifier: MIT
// Private to the reducer: which applier updates which parameters, and which updates are
// outstanding.
#ifndef ISO_APPLIERS_H
#define ISO_APPLIERS_H

#include "parallel/reducer/norms.h"
#include "parallel/reducer/reducer_calls.h"
#include "parallel/reducer/zero.h"

typedef struct iso__appliers iso__appliers;

// Borrows the layout, and the store with its gradients.
iso_status iso__appliers_create(const iso__layout *layout, const iso__store *store,
                                iso__appliers **out);
void iso__appliers_destroy(iso__appliers **appliers); // accepts NULL

// From now on an update covers only this rank's elements (NULL: all of them). Borrows zero.
void iso__appliers_set_zero(iso__appliers *a, const iso__zero *zero);

// ---- Registering appliers: nothing may be pending --------------------------------------------------

// As iso_reducer_add_apply.
iso_status iso__appliers_add(iso__appliers *a, const int *params, int count,
                             iso_reducer_apply apply, size_t hyper_bytes, void *user, int *id);
// Copies the appliers of `from` with their ids to `a`, which must have none. Both layouts must have
// the same parameters. A user pointer equal to `was` becomes `is`. Destroy `a` after an error.
iso_status iso__appliers_copy(iso__appliers *a, const iso__appliers *from, const void *was,
                              void *is);
void iso__appliers_remove(iso__appliers *a, int id);
void iso__appliers_set_piece(iso__appliers *a, int id, iso_reducer_apply_piece apply);
void iso__appliers_set_halves(iso__appliers *a, int id, const iso__reducer_halves *halves);
// Replaces ISO_REDUCER_ONLY by the id of the only applier. ISO_ERR_STATE for an id that is not in
// use.
iso_status iso__appliers_find(const iso__appliers *a, int *id);
int iso__appliers_count(const iso__appliers *a);
// Whether applier id updates this slot.
bool iso__appliers_updates(const iso__appliers *a, int id, int slot);
// Whether two appliers share a parameter. Steps then wait, and update immediately.
bool iso__appliers_are_direct(const iso__appliers *a);
// Whether the parameter of a slot is updated piece by piece; true also if no applier updates it.
bool iso__appliers_take_pieces(const iso__appliers *a, int slot);

// ---- A list of gradients, and steps -----------------------------------------------------------------

// A list was issued. Each applier may use it for one step.
void iso__appliers_list_is_out(iso__appliers *a);
bool iso__appliers_have_list(const iso__appliers *a, int id);
// Whether the applier that updates the slot has a list.
bool iso__appliers_expect_step(const iso__appliers *a, int slot);
// Whether outstanding updates use the frozen hyperparameters.
bool iso__appliers_have_stepped(const iso__appliers *a, int id);
// Whether this applier can update a range of elements separately, or never has to.
bool iso__appliers_can_share(const iso__appliers *a, int id);
// Freezes a copy of the hyperparameters, and uses up the list.
void iso__appliers_freeze(iso__appliers *a, int id, const void *hyper);
// All averages are here: makes all updates immediately, from the gradients in the caller's arrays
// where there are any. skipped: [slots]. Updates in halves are only marked as outstanding.
iso_status iso__appliers_update_all(iso__appliers *a, int id, const bool *skipped);
// Marks the applier's updates as outstanding: each is made when its buckets are complete.
void iso__appliers_mark(iso__appliers *a, int id);

// ---- Buckets that come back -------------------------------------------------------------------------

bool iso__appliers_await(const iso__appliers *a, int bucket); // an update of it is outstanding
// Whether an update of the slot is outstanding, or was made since its bucket left.
bool iso__appliers_use(const iso__appliers *a, int slot);
// Whether updates cover the whole bucket, so that they may apply the remaining factor. A parameter
// that is updated as a whole, with pieces in other buckets, rules this out.
bool iso__appliers_fold(const iso__appliers *a, int bucket);
// Makes the outstanding updates of a bucket. May be called again after an update that failed.
iso_status iso__appliers_apply(iso__appliers *a, int bucket, double scale, const bool *skipped);
// Whether updates of exchanged buckets come in halves; the same on all ranks.
bool iso__appliers_have_halves(const iso__appliers *a);
// Makes the first half of the outstanding updates of a bucket. square: two numbers of each slot, in
// the order of the layout; 0 where nothing is updated. home: the gradients are in the caller's
// arrays, where there are any. If it fails, moments may have changed and the numbers are lost. From
// then on it returns ISO_ERR_STATE for all buckets.
iso_status iso__appliers_measure(iso__appliers *a, int bucket, double scale, bool home,
                                 const bool *skipped, double *square);
// Makes the second half, with the totals of norms. May be called again after it failed.
iso_status iso__appliers_finish(iso__appliers *a, int bucket, const bool *skipped,
                                const iso__norms *norms);
void iso__appliers_bucket_opens(iso__appliers *a, int bucket);
// As iso__appliers_mark, if all updates have been made already and only the values of other ranks
// are outstanding.
void iso__appliers_have_made(iso__appliers *a, int id);
void iso__appliers_restart(iso__appliers *a); // all buckets are complete

#endif
