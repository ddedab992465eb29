// SPDX-License-Identifier: MIT
// Topology on 1 to 6 ranks: nodes equal and unequal, both ways of making leader groups, life and
// death.
#include "common/balance.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/topology.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_topology, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_topology, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_topology, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_topology, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_topology, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np6_topology, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_topology_life, .init = test_mpi_setup_bare, .timeout = 60);

static iso_topology *make(iso_comm *comm, iso_scope unit, bool use_mpi_groups) {
    iso_topology_config config = {.unit = unit, .use_mpi_groups = use_mpi_groups};
    iso_topology *t = NULL;
    iso_assert_ok(iso_topology_create(comm, &config, &t));
    return t;
}

// What consecutive nodes of per_node ranks are, from their definition.
typedef struct layout {
    int size, rank, per_node, nodes;
} layout;

static int node_size(layout l, int node) {
    return node < l.nodes - 1 ? l.per_node : l.size - (l.nodes - 1) * l.per_node;
}

static bool numbers_are_right(const iso_topology *t, layout l) {
    int node = l.rank / l.per_node, last = node_size(l, l.nodes - 1);
    return t->nodes == l.nodes && t->node_index == node &&
           t->local_rank == l.rank - node * l.per_node && t->local_size == node_size(l, node) &&
           t->smallest == last && t->largest == node_size(l, 0) && t->groups == t->largest &&
           iso_comm_rank(t->node) == t->local_rank && iso_comm_size(t->node) == t->local_size &&
           t->weight == (double)t->local_size / l.size;
}

// The ranks in `world` of the members of `group`, in the group's order, are those expected.
static bool has_members(iso_comm *world, iso_comm *group, int first, const int *expected,
                        int count) {
    MPI_Group a, b;
    bool right = iso_comm_size(group) == count;
    MPI_Comm_group(iso_comm_mpi(group), &a);
    MPI_Comm_group(iso_comm_mpi(world), &b);
    for (int i = 0; right && i < count; i++) {
        int wanted = expected ? expected[i] : first + i, found;
        MPI_Group_translate_ranks(a, 1, &i, b, &found);
        right = found == wanted;
    }
    MPI_Group_free(&a);
    MPI_Group_free(&b);
    return right;
}

static bool group_is_right(const iso_topology *t, layout l, int k) {
    int expected[8];
    bool member = false;
    for (int node = 0; node < l.nodes; node++) {
        expected[node] = node * l.per_node + k % node_size(l, node);
        member = member || expected[node] == l.rank;
    }
    if (!member) return t->leaders[k] == NULL;
    return t->leaders[k] && has_members(t->world, t->leaders[k], 0, expected, l.nodes);
}

static bool groups_are_right(const iso_topology *t, layout l) {
    for (int k = 0; k < t->groups; k++)
        if (!group_is_right(t, l, k)) return false;
    return has_members(t->world, t->node, t->node_index * l.per_node, NULL, t->local_size);
}

// Weights are those of a mean: over the members of any leader group they add up to 1; and the
// groups can talk.
static bool weights_add_up(const iso_topology *t) {
    for (int k = 0; k < t->groups; k++) {
        double sum = t->weight;
        if (!t->leaders[k]) continue;
        if (iso_comm_allreduce_f64(t->leaders[k], &sum, 1, ISO_SUM) < 0) return false;
        if (fabs(sum - 1) > 1e-15) return false;
    }
    return true;
}

static void check(iso_comm *comm, iso_scope unit, int per_node) {
    layout l = {iso_comm_size(comm), iso_comm_rank(comm), per_node, 0};
    l.nodes = (l.size + per_node - 1) / per_node;
    l.per_node = per_node < l.size ? per_node : l.size;
    for (int way = 0; way < 2; way++) {
        iso_topology *t = make(comm, unit, way);
        iso_assert_all(numbers_are_right(t, l));
        iso_assert_all(groups_are_right(t, l));
        iso_assert_all(weights_add_up(t));
        iso_topology_destroy(&t);
    }
}

// Every number of ranks per node up to more than there are.
static void check_all(void) {
    for (int per_node = 1; per_node <= test_size + 1; per_node++) {
        char text[16];
        snprintf(text, sizeof(text), "%d", per_node);
        setenv("ISO_RANKS_PER_NODE", text, 1);
        check(test_comm, ISO_SCOPE_NODE, per_node);
    }
    check(test_comm, ISO_SCOPE_RANK, 1); // whatever the variable says
}

Test(np1_topology, nodes_of_every_size) { check_all(); }
Test(np2_topology, nodes_of_every_size) { check_all(); }
Test(np3_topology, nodes_of_every_size) { check_all(); }
Test(np4_topology, nodes_of_every_size) { check_all(); }
Test(np5_topology, nodes_of_every_size) { check_all(); }
Test(np6_topology, nodes_of_every_size) { check_all(); }

// 2 + 2 + 1, written out.
Test(np5_topology, a_rank_alone_on_its_node_is_in_every_group) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_topology *t;
    iso_assert_ok(iso_topology_create(test_comm, NULL, &t));
    const int weight[] = {2, 2, 2, 2, 1};
    iso_assert_all(t->groups == 2 && t->smallest == 1 && t->nodes == 3 &&
                   t->weight == weight[test_rank] / 5.0);
    iso_assert_all((t->leaders[0] != NULL) == (test_rank == 0 || test_rank == 2 || test_rank == 4));
    iso_assert_all((t->leaders[1] != NULL) == (test_rank == 1 || test_rank == 3 || test_rank == 4));
    iso_topology_destroy(&t);
}

Test(np3_topology, one_host_is_one_node) {
    unsetenv("ISO_RANKS_PER_NODE");
    check(test_comm, ISO_SCOPE_NODE, 3);
}

Test(np5_topology, a_communicator_smaller_than_the_world) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    MPI_Comm half; // ranks 4 2 0 as 0 1 2, and 3 1 as 0 1
    MPI_Comm_split(MPI_COMM_WORLD, test_rank % 2, -test_rank, &half);
    iso_comm *comm;
    iso_assert_ok(iso_comm_create(half, NULL, &comm));
    MPI_Comm_free(&half);
    layout l = {iso_comm_size(comm), iso_comm_rank(comm), 2, test_rank % 2 ? 1 : 2};
    iso_topology *t;
    iso_assert_ok(iso_topology_create(comm, NULL, &t));
    iso_assert_all(numbers_are_right(t, l) && groups_are_right(t, l) && weights_add_up(t));
    iso_topology_destroy(&t);
    iso_comm_destroy(&comm);
}

Test(np2_topology, references_are_counted) {
    iso_topology *t = make(test_comm, ISO_SCOPE_RANK, true);
    iso_topology *other = iso_topology_retain(t);
    iso_topology_destroy(&t);
    iso_assert_all(t == NULL && other->nodes == 2);
    iso_assert_ok(iso_comm_barrier(other->leaders[0]));
    iso_topology_destroy(&other); // teardown fails if anything is left
    iso_topology_destroy(&other); // NULL is accepted
}

// Exchanges of two topologies may be issued in different orders on different ranks.
Test(np2_topology, each_has_communicators_of_its_own) {
    iso_topology *a = make(test_comm, ISO_SCOPE_NODE, true),
                 *b = make(test_comm, ISO_SCOPE_NODE, true);
    float x = 1, y = 10;
    iso_request *ra, *rb;
    iso_topology *first = test_rank ? b : a, *second = test_rank ? a : b;
    float *px = test_rank ? &y : &x, *py = test_rank ? &x : &y;
    iso_assert_ok(iso_comm_iallreduce(first->node, px, 1, ISO_F32, "first", &ra));
    iso_assert_ok(iso_comm_iallreduce(second->node, py, 1, ISO_F32, "second", &rb));
    iso_assert_ok(iso_request_wait(&ra));
    iso_assert_ok(iso_request_wait(&rb));
    iso_assert_all(x == 2 && y == 20);
    iso_topology_destroy(&a);
    iso_topology_destroy(&b);
}

Test(np2_topology, settings_that_differ_between_ranks_are_refused) {
    setenv("ISO_RANKS_PER_NODE", test_rank ? "1" : "2", 1);
    iso_topology *t = NULL;
    iso_status status = iso_topology_create(test_comm, NULL, &t);
    iso_assert_all(status == ISO_ERR_MISMATCH && t == NULL);
    cr_expect(strstr(iso_last_error()->message, "ISO_RANKS_PER_NODE"));
    setenv("ISO_RANKS_PER_NODE", test_rank ? "two" : "2", 1);
    status = iso_topology_create(test_comm, NULL, &t);
    iso_assert_all(status == ISO_ERR_ARG && t == NULL);
    cr_expect(strstr(iso_last_error()->message, "\"two\""));
}

Test(np1_topology, an_impossible_unit_is_refused) {
    iso_topology *t = NULL;
    iso_topology_config config = {.unit = ISO_SCOPE_WORLD};
    cr_expect(iso_topology_create(test_comm, &config, &t) == ISO_ERR_ARG && t == NULL);
}

// Communicators that are still alive when MPI ends.
Test(np4_topology_life, outlives_mpi) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_comm *comm;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_topology *t = make(comm, ISO_SCOPE_NODE, true);
    iso_comm_destroy(&comm); // the topology holds it
    MPI_Finalize();
    iso_topology_destroy(&t);
    balance_check();
}
