// SPDX-License-Identifier: MIT
// Private to the reducer: a few numbers of the program that are summed over the ranks along with a
// list of gradients.
//
// They lie behind the gradients of a bucket, as whole digits, so that elements of 32 bits sum them
// without rounding, and a message of their own is saved. Where that cannot be (a device, a hook
// that converts), they travel by themselves.
#ifndef ISO_SUMS_H
#define ISO_SUMS_H

#include "exchange/store.h"
#include "exchange/transport.h"

typedef struct iso__sums iso__sums;

// Elements that `count` numbers take behind a bucket; of so many ranks at most a sum is exact.
#define ISO_SUMS_MOST_RANKS 16384
size_t iso__sums_elements(int count);

iso_status iso__sums_create(int count, iso__sums **out);
// Accepts NULL. False: a message is under way, and stays.
bool iso__sums_destroy(iso__sums **sums);

int iso__sums_count(const iso__sums *s); // of NULL: 0
void iso__sums_add(iso__sums *s, int k, double value);
double iso__sums_get(const iso__sums *s, int k);

// The calls below accept NULL.
// The last bucket of a list leaves, so this rank's numbers for the list are final. They ride in the
// bucket's tail; if it has none, iso__sums_send sends them.
void iso__sums_leave(iso__sums *s, const iso__store *store, const iso__bucket *last);
// A bucket is back. If it has a tail, so are the sums.
void iso__sums_come(iso__sums *s, const iso__store *store, const iso__bucket *bucket);
// Send the numbers that do not ride as a message over comm (NULL: this rank alone), and wait for
// it.
iso_status iso__sums_send(iso__sums *s, iso_comm *comm);
iso_status iso__sums_wait(iso__sums *s);

#endif
