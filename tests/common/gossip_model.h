// SPDX-License-Identifier: MIT
// Whom gossip averages with, written again from the papers.
#ifndef ISO_TEST_GOSSIP_MODEL_H
#define ISO_TEST_GOSSIP_MODEL_H

#include <isotherm/daso.h>

// The rank whose parameters `rank` mixes with its own in exchange k. It is `rank` itself if it sits
// out.
static inline int gossip_peer(iso_peers peers, int rank, int ranks, int k) {
    int rounds = 0, half = (ranks + 1) / 2;
    while (1 << rounds < ranks) rounds++;
    if (peers == ISO_PEERS_PUSH) {
        int distance = rounds > 0 ? (1 << k % rounds) % ranks : 0;
        return (rank + ranks - distance) % ranks;
    }
    if (peers == ISO_PEERS_RING) return (rank + (k % 2 || ranks == 2 ? 1 : ranks - 1)) % ranks;
    for (int low = 0; low < half; low++) {
        int high = half + (low + k) % half;
        if (high < ranks && rank == low) return high;
        if (rank == high) return low;
    }
    return rank;
}

#endif
