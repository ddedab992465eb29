// SPDX-License-Identifier: MIT
// For tests of gossip: the parameters of all ranks, and what exchanges do to them.
#ifndef ISO_TEST_GOSSIP_FIXTURE_H
#define ISO_TEST_GOSSIP_FIXTURE_H

#include "common/daso_fixture.h"

// Collective over the world. The parameters of all ranks, rank after rank, to be freed.
float *gossip_gather(trainer *t, int64_t *count);

typedef struct gossip_figures {
    double largest_sum, moved_sum; // over ranks, of any element; how far from that at the start
    double distance;               // from the mean, of all elements
} gossip_figures;
// Of what gossip_gather returned at the start and now.
gossip_figures gossip_compare(const float *start, const float *now, int64_t count);

// Opens a run with a learning rate of 0, whose ranks have different parameters.
void gossip_open_apart(trainer *t, daso_case *c);
// Distances from the mean after each exchange, relative to that at the start.
void gossip_distances(daso_case *c, int exchanges, double *out);

#endif
