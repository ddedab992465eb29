// SPDX-License-Identifier: MIT
// For tests of the weighted mean over nodes: arrays that every rank can compute, a model of the
// arithmetic in one process, and exchanges with random delays and polls.
#ifndef ISO_TEST_AVERAGE_FIXTURE_H
#define ISO_TEST_AVERAGE_FIXTURE_H

#include "common/mpi_fixture.h"
#include "exchange/average.h"

enum { MOST_VALUES = 5000, MOST_NODES = 8, MOST_MEANS = 3 };

// Routes with per_node ranks per node (the last node may have fewer), and a mean over them.
typedef struct mean_case {
    int per_node, nodes;
    size_t count;
    iso__average_config config;
    iso__routes *routes;
    const iso_topology *layout; // of the routes
    iso__average *average;
    // The model: the state that exchanges leave, for each element.
    bool has_reference;
    float reference[MOST_VALUES], residual[MOST_NODES][MOST_VALUES], share_residual[MOST_VALUES];
} mean_case;

// Collective. Fails the test on an error. Reuses routes that fit.
void mean_case_create(mean_case *c, int per_node, size_t count, const iso__average_config *config);
void mean_case_destroy(mean_case *c); // the average
void mean_case_close(mean_case *c);   // the routes too
// Values of a rank in exchange t; with ISO__SHARDS those of its node's first rank.
void mean_case_values(const mean_case *c, int group, int rank, int t, float *out);
// Takes part in exchange t with random delays and polls, sometimes with none. values NULL: those of
// mean_case_values.
iso_status mean_case_exchange(mean_case *c, int group, int t, const float *values,
                              const float **mean);
bool mean_case_member(const mean_case *c, int group);
// Computes the result of exchange t in this process, from the state after the previous call.
void mean_case_model(mean_case *c, int group, int t, float *mean);
// Makes exchange t and computes its model. Returns whether the bits are equal, or there is no mean
// on a rank that must not have one.
bool mean_case_agrees(mean_case *c, int group, int t);
// What all ranks hold back of each element of the mean.
void mean_case_left(mean_case *c, double *left);
// Asserts six exchanges each of arrays below a group, of a group and of more, in chunks and as a
// whole, with every number of ranks per node. Closes c.
void mean_case_equals_model(mean_case *c, const iso__codec *wire, bool differences);
// Makes exchange 1 and asserts the bytes that it counts on this rank.
void mean_case_counts(mean_case *c, long long sent, long long between_nodes);
// Asserts of five exchanges, with one and with two ranks per node: mean + what is left = exact mean
// + what was left before, but for the roundings of f32.
void mean_case_loses_nothing(mean_case *c, size_t count, const iso__average_config *config);
// A random number below n, different on every rank.
unsigned mean_case_random(unsigned n);

#endif
