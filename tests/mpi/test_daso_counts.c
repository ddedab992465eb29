// SPDX-License-Identifier: MIT
// Nodes, and ranks of a node, that go their own ways pass over different parameters, and optimizers
// count the updates of each: once they share optimizer state, they share the counts.
#include "common/mpi_fixture.h"
#include "common/unused_fixture.h"
#include "optim/optim_impl.h"

#include <criterion/criterion.h>
#include <isotherm/daso.h>
#include <isotherm/parallel.h>
#include <stdlib.h>

TestSuite(np2_daso_counts, .init = unused_setup, .fini = unused_teardown, .timeout = 60);
TestSuite(np4_daso_counts, .init = unused_setup, .fini = unused_teardown, .timeout = 60);

// Each rank uses other parameters.
static double odd_share(int i) { return (i + unused_now.step + unused_now.rank) % 3 == 0 ? 1 : 0; }

static void open_daso(unused_run *r, iso_daso_config config, iso_state_sync state,
                      int ranks_per_node) {
    char nodes[12];
    snprintf(nodes, sizeof(nodes), "%d", ranks_per_node);
    setenv("ISO_RANKS_PER_NODE", nodes, 1);
    unused_case c = unused_cases[UNUSED_ADAM];
    c.hyper.eps = 1e-3;
    *r = unused_create(&c, test_comm, ISO_SYNC_LAZY, false, ISO_F32);
    config.total_steps = UNUSED_STEPS;
    config.warmup_steps = 1;
    config.batches_to_wait = 1;
    config.wire = ISO_WIRE_F32;
    config.state = state;
    iso_assert_ok(iso_daso_create_take(r->optimizer, r->model, &config, &r->optimizer));
}

static void daso_step(unused_run *r, int step, double (*share)(int)) {
    unused_now.share = share;
    iso_assert_ok(unused_backward(r, step));
    iso_assert_ok(iso_optimizer_step(r->optimizer));
    iso_assert_ok(iso_data_parallel_finish(r->model));
}

static bool are_equal(unused_run *r, iso_comm *comm) {
    uint64_t hash;
    bool equal = false;
    iso_assert_ok(iso_parameter_hash(r->model, comm, &hash, &equal));
    return equal;
}

// Whether ranks have made different numbers of updates.
static bool counts_differ(unused_run *r) {
    int64_t step = iso__optimizer_innermost(r->optimizer)->slot[1].step, range[2] = {step, -step};
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, range, 2, ISO_MAX));
    return range[0] != -range[1];
}

// While nodes go their own ways they pass over different parameters; once they come together, equal
// gradients keep them equal.
static void nodes_come_together(iso_state_sync state, int ranks_per_node, int64_t local_skip) {
    enum { COOLDOWN = 4 };
    unused_run r;
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.cooldown_steps = COOLDOWN;
    config.global_skip = 3;
    config.local_skip = local_skip;
    open_daso(&r, config, state, ranks_per_node);
    bool apart = false;
    for (int step = 0; step < UNUSED_STEPS; step++) {
        bool cycling = step >= 1 && step < UNUSED_STEPS - COOLDOWN;
        daso_step(&r, step, cycling ? odd_share : unused_fair_share);
        apart = counts_differ(&r) || apart;
        if (step + 1 >= UNUSED_STEPS - COOLDOWN) iso_assert_all(are_equal(&r, test_comm));
    }
    iso_assert_all(apart); // or nothing was tested
    unused_destroy(&r);
}

static void every_state(int ranks_per_node, int64_t local_skip) {
    nodes_come_together(ISO_STATE_SYNC_KEEP, ranks_per_node, local_skip);
    nodes_come_together(ISO_STATE_SYNC_AVERAGE, ranks_per_node, local_skip);
    nodes_come_together(ISO_STATE_SYNC_RESET, ranks_per_node, local_skip);
}

Test(np2_daso_counts, nodes_that_passed_over_different_parameters_come_together) {
    every_state(1, 1);
}
Test(np4_daso_counts, nodes_that_passed_over_different_parameters_come_together) {
    every_state(2, 1);
    every_state(2, 2);
}

static void send_always(const iso_daso_observation *observed, iso_daso_decision *decision,
                        void *user) {
    (void)user;
    if (observed->step >= 5) decision->global_skip = 1;
}

// Cycling begins after step 0. In step 1 each rank of a node is alone, from then on they share
// gradients; they are made equal at the end of steps 2, 4, and every one after that. A mean of
// their states keeps them equal in between.
static void ranks_of_a_node_come_together(iso_state_sync state) {
    unused_run r;
    iso_comm *node;
    iso_daso_config config = ISO_DASO_DEFAULT;
    MPI_Comm mpi_node;
    config.cooldown_steps = 0;
    config.global_skip = 2;
    config.local_skip = 3;
    config.policy = ISO_POLICY_CALLBACK;
    config.callback = send_always;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, test_rank, &mpi_node);
    iso_assert_ok(iso_comm_create(mpi_node, NULL, &node));
    open_daso(&r, config, state, 2);
    for (int step = 0; step < UNUSED_STEPS; step++) {
        daso_step(&r, step, step == 0 ? unused_fair_share : odd_share);
        if (step == 1) iso_assert_all(counts_differ(&r) && !are_equal(&r, node));
        bool made = step == 2 || step >= 4;
        if (made || (step == 3 && state == ISO_STATE_SYNC_AVERAGE))
            iso_assert_all(are_equal(&r, node));
    }
    unused_destroy(&r);
    iso_comm_destroy(&node);
    MPI_Comm_free(&mpi_node);
}

Test(np4_daso_counts, ranks_that_passed_over_different_parameters_come_together) {
    ranks_of_a_node_come_together(ISO_STATE_SYNC_KEEP);
    ranks_of_a_node_come_together(ISO_STATE_SYNC_AVERAGE);
    ranks_of_a_node_come_together(ISO_STATE_SYNC_RESET);
}
