// SPDX-License-Identifier: MIT
// Private to the reducer: the weights of the ranks in a list of gradients, such as numbers of
// tokens. Their total travels in a message of its own, ahead of the gradients, and divides the sums
// of gradients that come back.
#ifndef ISO_WEIGHTS_H
#define ISO_WEIGHTS_H

#include "base/base.h"

#include <isotherm/comm.h>

typedef struct iso__weights iso__weights;

// world: sums are over some of its ranks, or all.
iso_status iso__weights_create(const iso_comm *world, iso__weights **out);
// Accepts NULL. Returns false if the message is under way; the weights then remain.
bool iso__weights_destroy(iso__weights **weights);

// As iso_reducer_add_weight. open: a list is being reported.
iso_status iso__weights_add(iso__weights *w, double weight, bool open);
// The calls up to iso__weights_are_here accept NULL. ISO_ERR_STATE if the list of this gradient has
// no weight. next: the gradient belongs to the list after the one that is issued.
iso_status iso__weights_check(const iso__weights *w, bool next, const char *name);
void iso__weights_drop(iso__weights *w); // nothing that was accumulated is sent
// Call it before each bucket of a list leaves: starts the sum of the weights over comm (NULL: this
// rank alone) before the first one.
iso_status iso__weights_leave(iso__weights *w, iso_comm *comm);
void iso__weights_go_on(iso__weights *w, const iso__weights *from); // with what was added
void iso__weights_restart(iso__weights *w);                         // the list is back
bool iso__weights_are_here(iso__weights *w); // true: iso__weights_wait does not wait

// Waits for the total of the list that has left.
iso_status iso__weights_wait(iso__weights *w, double *total);
double iso__weights_own(const iso__weights *w); // this rank's weight in it

#endif
