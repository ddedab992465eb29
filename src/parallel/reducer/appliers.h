// SPDX-License-Identifier: MIT
// Private to the reducer: who updates which parameters, and which updates are still to come.
#ifndef ISO_APPLIERS_H
#define ISO_APPLIERS_H

#include "parallel/reducer/zero.h"

typedef struct iso__appliers iso__appliers;

// Borrows the layout; gradients: where the offsets of slots begin.
iso_status iso__appliers_create(const iso__layout *layout, char *gradients, iso__appliers **out);
void iso__appliers_destroy(iso__appliers **appliers); // accepts NULL

// From now on updates are made by elements, of those that are this rank's (NULL: of all). Borrowed.
void iso__appliers_set_zero(iso__appliers *a, const iso__zero *zero);

// ---- Who ---- nothing may be pending ----------------------------------------------------------------

// As iso_reducer_add_apply.
iso_status iso__appliers_add(iso__appliers *a, const int *params, int count,
                             iso_reducer_apply apply, size_t hyper_bytes, void *user, int *id);
void iso__appliers_remove(iso__appliers *a, int id);
void iso__appliers_set_piece(iso__appliers *a, int id, iso_reducer_apply_piece apply);
// ISO_REDUCER_ONLY becomes the id of the one there is; ISO_ERR_STATE for an id that is not in use.
iso_status iso__appliers_find(const iso__appliers *a, int *id);
int iso__appliers_count(const iso__appliers *a);
bool iso__appliers_updates(const iso__appliers *a, int id, int slot); // whether this one does
// Two of them share a parameter: steps wait and update at once.
bool iso__appliers_are_direct(const iso__appliers *a);
// Whether the owner of a slot takes its parameter piece by piece (also where nobody owns it).
bool iso__appliers_take_pieces(const iso__appliers *a, int slot);

// ---- A list of gradients, and steps -----------------------------------------------------------------

// A whole list was issued, which each may use for one step.
void iso__appliers_list_is_out(iso__appliers *a);
bool iso__appliers_have_list(const iso__appliers *a, int id);
// Hyperparameters are in use by updates that are still to come.
bool iso__appliers_have_stepped(const iso__appliers *a, int id);
// This one can update some elements of a parameter, or need not.
bool iso__appliers_can_share(const iso__appliers *a, int id);
// Freezes hyperparameters, and uses the list.
void iso__appliers_freeze(iso__appliers *a, int id, const void *hyper);
// Everything is back, as averages: updates at once. skipped: [slots].
iso_status iso__appliers_update_all(iso__appliers *a, int id, const bool *skipped);
// Its updates are to come when their buckets are complete.
void iso__appliers_mark(iso__appliers *a, int id);

// ---- Buckets that come back -------------------------------------------------------------------------

bool iso__appliers_await(const iso__appliers *a, int bucket); // an update of it is to come
// Whether all of the bucket is updated, so that updates may take a factor along. A parameter that
// is updated as a whole with pieces of other buckets may not.
bool iso__appliers_fold(const iso__appliers *a, int bucket);
// Whatever of this bucket has an update to come. May be called again after an update that failed.
iso_status iso__appliers_apply(iso__appliers *a, int bucket, double scale, const bool *skipped);
void iso__appliers_bucket_opens(iso__appliers *a, int bucket);
// The same, where all updates are made: only the values of others are to come.
void iso__appliers_have_made(iso__appliers *a, int id);
void iso__appliers_restart(iso__appliers *a); // all buckets are complete

#endif
