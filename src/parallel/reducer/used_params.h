// SPDX-License-Identifier: MIT
// Private to the reducer: which parameters the backward of this rank used, and which ones no rank
// used (ISO_UNUSED_NEGOTIATE).
#ifndef ISO_USED_PARAMS_H
#define ISO_USED_PARAMS_H

#include "parallel/reducer/layout.h"

typedef struct iso__usage iso__usage;

// Borrows the layout.
iso_status iso__usage_create(const iso__layout *layout, iso__usage **out);
// Accepts NULL. False: a reduction is under way, and its memory must stay.
bool iso__usage_destroy(iso__usage **usage);

// Whether this rank's program used a slot in the backward whose list is out.
void iso__usage_mark(iso__usage *u, int slot, bool used);
// A list is out: starts one small reduction over comm (NULL: this rank alone), which tells which
// ranks used which parameters.
iso_status iso__usage_ask(iso__usage *u, iso_comm *comm);
// Waits for the answer, if one was asked for.
iso_status iso__usage_learn(iso__usage *u);
bool iso__usage_is_asked(const iso__usage *u); // the answer was not waited for yet
// [slots]: no rank used it in the list that came back last.
const bool *iso__usage_skipped(const iso__usage *u);
// Of what is not exchanged.
void iso__usage_skip_local(iso__usage *u, bool skip);

#endif
