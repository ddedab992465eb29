// SPDX-License-Identifier: MIT
// Ranks that train alone, several on each node: their means add up inside nodes first. Against runs
// with every rank on a node of its own, which other tests compare with models: results are the same
// but for rounding, and less crosses between nodes.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(np4_node_means, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np6_node_means, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 22 };

// What a run ends with, and what it has moved.
typedef struct result {
    float *values; // to be freed
    int64_t count;
    int64_t crossed; // bytes between nodes, of all ranks
    uint64_t hash;
    bool equal; // on all ranks
} result;

static result train(const daso_case *like, int per_node) {
    trainer t;
    result r;
    iso_daso_stats stats;
    daso_case c = *like;
    c.ranks_per_node = per_node;
    c.delay_us = 500;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int step = 0; step < STEPS; step++) iso_assert_ok(daso_delayed_step(&t, &c, step));
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    r.crossed = stats.bytes_between_nodes;
    iso_assert_ok(iso_comm_allreduce_i64(t.comm, &r.crossed, 1, ISO_SUM));
    iso_assert_ok(daso_own_hash(&t, &r.hash));
    r.equal = daso_equal(&t);
    r.values = daso_values(&t, &r.count);
    daso_close(&t);
    return r;
}

static double difference(const result *a, const result *b) {
    double apart = 0, most = 0;
    for (int64_t i = 0; i < a->count; i++) {
        apart = fmax(apart, fabs((double)a->values[i] - (double)b->values[i]));
        most = fmax(most, fabs((double)a->values[i]));
    }
    return apart / most;
}

// An array of n bytes crosses between N nodes 2 (N - 1) times, with one rank on each or several.
// Messages of so small a network are rounded up.
static void compare(const daso_case *c, int per_node, const char *what) {
    result alone = train(c, 1), together = train(c, per_node);
    int nodes = (test_size + per_node - 1) / per_node;
    double share = (double)together.crossed / (double)alone.crossed;
    double expected = (nodes - 1) / (test_size - 1.0), apart = difference(&alone, &together);
    bool right = alone.equal && together.equal && apart < DASO_ROUNDING;
    if (!right || fabs(share - expected) > 0.15 * expected)
        fprintf(stderr, "%s: %g apart, share %g instead of %g\n", what, apart, share, expected);
    iso_assert_all(right);
    iso_assert_all(fabs(share - expected) <= 0.15 * expected);
    free(alone.values);
    free(together.values);
}

static daso_case case_of(int64_t period, int64_t wait) {
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_local_sgd_config(STEPS, period);
    c.daso.batches_to_wait = wait;
    return c;
}

static void exchanges(int per_node) {
    for (int wait = 0; wait <= 3; wait++) {
        daso_case c = case_of(4, wait);
        compare(&c, per_node, "local SGD");
    }
}
Test(np4_node_means, local_sgd) { exchanges(2); }
Test(np6_node_means, local_sgd) { exchanges(2); }
Test(np6_node_means, local_sgd_on_larger_nodes) { exchanges(3); }

static void rules(int per_node) {
    const iso_outer *rule[] = {&iso_outer_nesterov, &iso_outer_slowmo, &iso_outer_adam};
    for (int i = 0; i < 3; i++) {
        daso_case c = case_of(4, i);
        c.daso.outer = rule[i];
        compare(&c, per_node, rule[i]->name);
    }
}
Test(np4_node_means, outer_optimizers) { rules(2); }

// Several exchanges are under way at once, each with its own memory.
static void fragments(int per_node) {
    for (int count = 2; count <= 4; count++) {
        daso_case c = case_of(6, count - 1);
        c.daso.outer = &iso_outer_nesterov;
        c.daso.fragments = count;
        compare(&c, per_node, "fragments");
    }
}
Test(np4_node_means, fragments) { fragments(2); }
Test(np6_node_means, fragments) { fragments(3); }

// Optimizer state travels with the parameters.
Test(np4_node_means, state) {
    daso_case c = case_of(5, 2);
    c.daso.state = ISO_STATE_SYNC_AVERAGE;
    compare(&c, 2, "state");
}

// Groups of a level need not be nodes: here they cross them.
static void levels(const char *text, int per_node) {
    for (int wait = 0; wait <= 1; wait++) {
        daso_case c = case_of(1, wait);
        iso_assert_ok(iso_daso_levels_parse(text, &c.daso));
        result alone = train(&c, 1), together = train(&c, per_node);
        iso_assert_all(alone.equal && together.equal);
        iso_assert_all(together.crossed < alone.crossed);
        iso_assert_all(difference(&alone, &together) < DASO_ROUNDING);
        free(alone.values);
        free(together.values);
    }
}
Test(np4_node_means, levels) { levels("2:2,4:4", 2); }
Test(np6_node_means, levels_across_nodes) { levels("2:2,6:6", 3); }

// Nodes of different sizes, and values in bf16, do not add up inside nodes.
Test(np4_node_means, unequal_nodes_have_the_bits_of_ranks_alone) {
    daso_case c = case_of(4, 2);
    result alone = train(&c, 1), together = train(&c, 3);
    iso_assert_all(alone.hash == together.hash && together.equal);
    free(alone.values);
    free(together.values);
}

Test(np4_node_means, bf16_has_the_bits_of_ranks_alone) {
    daso_case c = case_of(4, 2);
    c.daso.wire = ISO_WIRE_BF16;
    result alone = train(&c, 1), together = train(&c, 2);
    iso_assert_all(alone.hash == together.hash && together.equal);
    free(alone.values);
    free(together.values);
}
