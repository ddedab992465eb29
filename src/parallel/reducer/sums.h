// SPDX-License-Identifier: MIT
// Private to the reducer: a few numbers of the program that are summed over the ranks along with a
// list of gradients.
//
// They lie behind the gradients of a bucket and so need no message of their own. They are stored as
// digits, so that sums of 32-bit elements do not round them. With a device, or a hook that
// converts, they travel in a message of their own.
#ifndef ISO_SUMS_H
#define ISO_SUMS_H

#include "exchange/store.h"
#include "exchange/transport.h"

typedef struct iso__sums iso__sums;

// Elements that `count` numbers take behind a bucket. Sums are exact over at most
// ISO_SUMS_MOST_RANKS ranks.
#define ISO_SUMS_MOST_RANKS 16384
size_t iso__sums_elements(int count);

// world: sums are over some of its ranks, or all.
iso_status iso__sums_create(const iso_comm *world, int count, iso__sums **out);
// Accepts NULL. Returns false if a message is under way; the sums then remain.
bool iso__sums_destroy(iso__sums **sums);

int iso__sums_count(const iso__sums *s); // NULL: 0
void iso__sums_add(iso__sums *s, int k, double value);
double iso__sums_get(const iso__sums *s, int k);

// The next three calls accept NULL. Call this one before the last bucket of a list leaves: this
// rank's numbers for the list are then final. Writes them to the bucket's tail. If the bucket has
// no tail, iso__sums_send sends them.
void iso__sums_leave(iso__sums *s, const iso__store *store, const iso__bucket *last);
// Call it when a bucket has come back. Reads the sums from its tail, if it has one.
void iso__sums_come(iso__sums *s, const iso__store *store, const iso__bucket *bucket);
// Send the numbers that are not in a tail as a message over comm (NULL: this rank alone), and wait
// for it.
iso_status iso__sums_send(iso__sums *s, iso_comm *comm);
iso_status iso__sums_wait(iso__sums *s);

#endif
