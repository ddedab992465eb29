// SPDX-License-Identifier: MIT
// Private to the reducer: which parameters the backward of this rank used, and which ones no rank
// used (ISO_UNUSED_NEGOTIATE, ISO_UNUSED_STATIC).
#ifndef ISO_USED_PARAMS_H
#define ISO_USED_PARAMS_H

#include "parallel/reducer/layout.h"

typedef struct iso__usage iso__usage;

// Borrows the layout. world: ranks are asked over some of its ranks, or all.
iso_status iso__usage_create(const iso_comm *world, const iso__layout *layout, iso__usage **out);
// Accepts NULL. Returns false if a reduction is under way; its memory then remains.
bool iso__usage_destroy(iso__usage **usage);

// Notes whether this rank used a slot in the backward whose list is being issued.
void iso__usage_mark(iso__usage *u, int slot, bool used);
// Starts one small reduction over comm (NULL: this rank alone) that determines which parameters any
// rank used. Call it once a list is issued.
iso_status iso__usage_ask(iso__usage *u, iso_comm *comm);
// The same for ISO_UNUSED_STATIC: the first list over each comm asks, and later lists use the same
// answer. ISO_ERR_STATE if this rank's use contradicts the answer, unless the rank is excused
// because it has no batch. rank: for the message.
iso_status iso__usage_keep(iso__usage *u, iso_comm *comm, bool excused, int rank);
// Waits for its result, if a reduction was started.
iso_status iso__usage_learn(iso__usage *u);
bool iso__usage_is_asked(const iso__usage *u); // started, and not yet waited for
// [slots]: true if no rank used it in the list that came back last.
const bool *iso__usage_skipped(const iso__usage *u);
// The same for parameters that are not exchanged: true skips their updates.
void iso__usage_skip_local(iso__usage *u, bool skip);

#endif
