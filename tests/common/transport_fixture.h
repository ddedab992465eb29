// SPDX-License-Identifier: MIT
// For tests of transports: whatever way buckets travel, the same sums come back, bit for bit.
#ifndef ISO_TEST_TRANSPORT_FIXTURE_H
#define ISO_TEST_TRANSPORT_FIXTURE_H

#include "exchange/scopes.h"

typedef struct transport_case {
    const char *name; // of the transport that must have been chosen
    iso_scope scope;
    const iso_comm_hook *hook; // NULL: plain
    iso_device *device;        // NULL: the host's memory
    bool zero;                 // updates are shared out; what is published are the sums
} transport_case;

// Collective. What transport.h promises, in several rounds:
// - ranks post in orders of their own where the transport allows it, some late; buckets arrive in
//   another order, some twice, with and without a factor left to the caller. Each value is the sum,
//   which is exact, times the factors; a tail is the sum alone;
// - is_back never comes before the last rank has posted, and after it nobody waits;
// - who waits for a late rank calls idle;
// - a plan may turn the order of long buckets round;
// - sums that are rounded are the same on all ranks and when they are made again.
void transport_conforms(const transport_case *c);

// Collective. arrive() of bucket `b` fails once and is asked again: then it gives the sum, and the
// times of the whole exchange. fault: what makes it fail on this rank. NULL: half of the ranks are
// late, and on the others it times out.
enum { TRANSPORT_F32 = 4, TRANSPORT_LAST = 6 };
void transport_keeps_times(const transport_case *c, int b, void (*fault)(void));

// Collective, of a transport whose calls ranks pair by their order. Rank 1 fails to post a bucket
// (fault), and goes on: its next post is refused, and no other rank gets a sum.
void transport_stays_in_step(const transport_case *c, void (*fault)(void));

#endif
