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
} transport_case;

// Collective. Several rounds: ranks post in orders of their own where the transport allows it, some
// late; buckets arrive in another order, some twice, with and without a factor left to the caller.
// Fails the test where any value differs from the sum, which is exact, times the factors.
void transport_conforms(const transport_case *c);

#endif
