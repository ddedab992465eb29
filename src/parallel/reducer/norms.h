// SPDX-License-Identifier: MIT
// Private to the reducer: with ZeRO, sums two numbers for each parameter, such as squares of norms,
// over all of its elements, which lie on several ranks.
#ifndef ISO_NORMS_H
#define ISO_NORMS_H

#include "parallel/reducer/layout.h"

typedef struct iso__norms iso__norms;

// Collective over comm. Borrows the layout. The numbers of a bucket travel together, and buckets in
// the order in which forward needs them. Why no rank waits for ever: a rank sends its numbers of a
// bucket once it has the sums of the bucket's gradients. It waits for the other ranks' numbers of a
// bucket only after it has sent its own for this bucket and all later ones.
iso_status iso__norms_create(const iso__layout *layout, iso_comm *comm, iso__norms **out);
bool iso__norms_destroy(iso__norms **norms); // accepts NULL; false: messages are under way

// This rank's two numbers of each slot of a bucket, in the order of the layout: fill them, then
// send.
double *iso__norms_own(iso__norms *n, int bucket);
iso_status iso__norms_send(iso__norms *n, int bucket);
// The buckets that hold pieces of the parameters of this bucket: *low to *high.
void iso__norms_range(const iso__norms *n, int bucket, int *low, int *high);
bool iso__norms_are_here(const iso__norms *n, int bucket); // those of the latest list have arrived
iso_status iso__norms_wait(iso__norms *n, int bucket, iso__channel_idle idle, void *user);
// The sums of a slot's parameter over its pieces and, for each piece, over the ranks in order. All
// ranks get the same bits.
void iso__norms_total(const iso__norms *n, int slot, double total[2]);

#endif
