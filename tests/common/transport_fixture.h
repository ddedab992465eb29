// SPDX-License-Identifier: MIT
// For tests of transports: all of them must return the same sums, bit for bit.
#ifndef ISO_TEST_TRANSPORT_FIXTURE_H
#define ISO_TEST_TRANSPORT_FIXTURE_H

#include "exchange/scopes.h"

typedef struct transport_case {
    const char *name; // of the transport that must have been chosen
    iso_scope scope;
    const iso_comm_hook *hook; // NULL: plain
    iso_device *device;        // NULL: the host's memory
    bool zero;                 // ranks divide the updates; they publish the sums
    bool sparse;               // some buckets are sparse, with as many rows as there are
} transport_case;

// Collective. Tests the contract of transport.h in several rounds:
// - ranks post in orders of their own where the transport allows it, some late; buckets arrive in
//   another order, some twice, with and without a factor left to the caller. Each value is the sum,
//   which is exact, times the factors; a tail is the sum alone;
// - is_back is never true before the last rank has posted, and once it is true, nobody waits;
// - a rank that waits for a late one calls idle;
// - a plan may reverse the order of long buckets;
// - sums that are rounded are the same on all ranks and when they are made again.
void transport_conforms(const transport_case *c);

// Collective. Makes arrive() of bucket `b` fail once, and calls it again: it must then return the
// sum, and the times of the whole exchange. fault makes it fail on this rank. NULL: half of the
// ranks are late, so that it times out on the others.
enum { TRANSPORT_F32 = 4, TRANSPORT_LAST = 6 };
void transport_keeps_times(const transport_case *c, int b, void (*fault)(void));

// Collective, for a transport whose calls ranks pair by their order. Rank 1 fails to post a bucket
// (fault) and continues: its next post must be refused, and no other rank may get a sum.
void transport_stays_in_step(const transport_case *c, void (*fault)(void));

#endif
