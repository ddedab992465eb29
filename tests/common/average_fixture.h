// SPDX-License-Identifier: MIT
// For tests of the weighted mean over nodes: arrays that every rank can compute, the same
// arithmetic done by one process, and exchanges with delays and polls at random.
#ifndef ISO_TEST_AVERAGE_FIXTURE_H
#define ISO_TEST_AVERAGE_FIXTURE_H

#include "common/mpi_fixture.h"
#include "exchange/average.h"

enum { MOST_VALUES = 5000, MOST_NODES = 8, MOST_MEANS = 3 };

// Routes with so many ranks per node (the last node may have fewer) and a mean over them.
typedef struct mean_case {
    int per_node, nodes;
    size_t count;
    iso__average_config config;
    iso__routes *routes;
    const iso_topology *layout; // of the routes
    iso__average *average;
    // The model: what one element's exchange leaves behind.
    bool has_reference;
    float reference[MOST_VALUES], residual[MOST_NODES][MOST_VALUES], share_residual[MOST_VALUES];
} mean_case;

// Collective. Fails the test if it cannot. Routes that fit are used again.
void mean_case_create(mean_case *c, int per_node, size_t count, const iso__average_config *config);
void mean_case_destroy(mean_case *c); // the average
void mean_case_close(mean_case *c);   // the routes too
// Values of a rank in exchange t; with ISO__SHARDS those of its node's first rank.
void mean_case_values(const mean_case *c, int group, int rank, int t, float *out);
// Takes part in exchange t with delays and polls at random (none at all at times). Values come from
// mean_case_values unless given.
iso_status mean_case_exchange(mean_case *c, int group, int t, const float *values,
                              const float **mean);
bool mean_case_member(const mean_case *c, int group);
// What exchange t gives, computed here; goes on from the last call.
void mean_case_model(mean_case *c, int group, int t, float *mean);
// One of each; whether the bits are the same, or there is rightly no mean.
bool mean_case_agrees(mean_case *c, int group, int t);
// A number below n, another one on every rank.
unsigned mean_case_random(unsigned n);

#endif
