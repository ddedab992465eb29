// SPDX-License-Identifier: MIT
// Which ranks are on one host, and the nodes that follow from it. Ranks give the names of hosts
// that do not exist.
#include "comm/comm_calls.h"
#include "comm/comm_state.h"
#include "comm/traffic.h"
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/topology.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *letters; // of the host of each rank; NULL: the real name
static int splits;

int MPI_Get_processor_name(char *name, int *length) {
    if (!letters) return PMPI_Get_processor_name(name, length);
    *length = snprintf(name, MPI_MAX_PROCESSOR_NAME, "host-%c", letters[test_rank]);
    return MPI_SUCCESS;
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *out) {
    splits++;
    return PMPI_Comm_split(comm, color, key, out);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out) {
    splits++;
    return PMPI_Comm_split_type(comm, type, key, info, out);
}

static int fails_on = -1; // the rank on which no group can be made

int MPI_Group_incl(MPI_Group group, int count, const int ranks[], MPI_Group *out) {
    return test_rank == fails_on ? MPI_ERR_INTERN : PMPI_Group_incl(group, count, ranks, out);
}

static void setup(void) {
    test_mpi_setup();
    unsetenv("ISO_RANKS_PER_NODE");
    unsetenv("ISO_NODE_COLLECTIVE");
    letters = NULL;
    splits = 0;
}

TestSuite(np1_hosts, .init = setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_hosts, .init = setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_hosts, .init = setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np6_hosts, .init = setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- Who is where ---------------------------------------------------------------------------------

static void finds(const char *hosts, const int *expected) {
    int64_t lowest[8];
    bool right = true, together, wanted = true;
    letters = hosts;
    iso_assert_ok(iso__comm_find_hosts(test_comm, lowest));
    iso_assert_ok(iso__comm_on_one_host(test_comm, &together));
    for (int r = 0; r < test_size; r++) {
        right = right && lowest[r] == expected[r];
        wanted = wanted && expected[r] == 0;
    }
    iso_assert_all(right && together == wanted);
}

Test(np1_hosts, the_lowest_rank_of_each_host) { finds(NULL, (int[]){0}); }

Test(np3_hosts, the_lowest_rank_of_each_host) {
    finds(NULL, (int[]){0, 0, 0});
    finds("zaz", (int[]){0, 1, 0});
    finds("cba", (int[]){0, 1, 2});
}

Test(np6_hosts, the_lowest_rank_of_each_host) {
    finds("aaaaaa", (int[]){0, 0, 0, 0, 0, 0});
    finds("bababa", (int[]){0, 1, 0, 1, 0, 1});
    finds("cbaccb", (int[]){0, 1, 2, 0, 0, 1});
    finds("aaaaab", (int[]){0, 0, 0, 0, 0, 5});
}

// ---- Nodes ----------------------------------------------------------------------------------------

static bool has_members(iso_comm *group, const int *expected, int count) {
    MPI_Group few, all;
    int found[8], own[8];
    if (!group || iso_comm_size(group) != count) return false;
    for (int i = 0; i < count; i++) own[i] = i;
    MPI_Comm_group(iso_comm_mpi(group), &few);
    MPI_Comm_group(iso_comm_mpi(test_comm), &all);
    MPI_Group_translate_ranks(few, count, own, all, found);
    MPI_Group_free(&few);
    MPI_Group_free(&all);
    return memcmp(found, expected, (size_t)count * sizeof(int)) == 0;
}

// Host b has ranks 0, 2, 4; c has 1, 5; a has 3. In either way of making groups.
static void makes_three_nodes(bool use_mpi_groups) {
    static const int members[3][3] = {{0, 2, 4}, {1, 5}, {3}}, size[] = {3, 2, 1};
    static const int node_of[] = {0, 1, 0, 2, 0, 1}, local[] = {0, 0, 1, 0, 2, 1};
    static const int group[3][3] = {{0, 1, 3}, {2, 5, 3}, {4, 1, 3}};
    iso_topology_config config = {.unit = ISO_SCOPE_NODE, .use_mpi_groups = use_mpi_groups};
    iso_topology *t;
    letters = "bcbabc";
    iso_assert_ok(iso_topology_create(test_comm, &config, &t));
    int own = node_of[test_rank];
    iso_assert_all(t->nodes == 3 && t->smallest == 1 && t->largest == 3 && t->groups == 3);
    iso_assert_all(t->node_index == own && t->local_rank == local[test_rank] &&
                   t->local_size == size[own] && t->weight == size[own] / 6.0);
    iso_assert_all(has_members(t->node, members[own], size[own]));
    bool right = true;
    for (int k = 0; k < 3; k++) {
        bool member = group[k][own] == test_rank;
        right = right && (member ? has_members(t->leaders[k], group[k], 3) : !t->leaders[k]);
    }
    iso_assert_all(right);
    iso_topology_destroy(&t);
}

// MPI_Comm_split takes as many rounds as there are ranks.
Test(np6_hosts, ranks_in_turn_make_nodes) {
    makes_three_nodes(true);
    iso_assert_all(splits == 0);
    makes_three_nodes(false);
    iso_assert_all(splits > 0);
}

Test(np6_hosts, bytes_between_them_are_counted) {
    bool equal;
    letters = "bababa";
    iso_assert_ok(iso__comm_locate(test_comm));
    iso_assert_all(iso__comm_nodes(test_comm, &equal) == 2 && equal);
    letters = "bcbabc";
    iso_assert_ok(iso__comm_locate(test_comm));
    iso_assert_all(iso__comm_nodes(test_comm, &equal) == 3 && !equal);
    iso_assert_all(splits == 0);
}

// Before anybody waits in MPI_Comm_create_group, all ranks learn of it.
Test(np3_hosts, a_rank_without_a_group_is_told_of) {
    iso_topology *t = NULL;
    letters = "aba";
    fails_on = 2;
    test_comm->timeout_s = 5;
    iso_status status = iso_topology_create(test_comm, NULL, &t);
    iso_assert_all(status == ISO_ERR_MPI && !t);
    iso_assert_all(strstr(iso_last_error()->message, "MPI_Group_incl"));
    fails_on = -1;
    iso_assert_ok(iso_topology_create(test_comm, NULL, &t));
    iso_assert_all(t->nodes == 2);
    iso_topology_destroy(&t);
}

// ISO_RANKS_PER_NODE makes one node of ranks whose memory is not shared.
Test(np2_hosts, no_memory_is_shared_between_them) {
    void *memory = NULL;
    letters = "ab";
    iso_assert_ok(shared_alloc(test_comm, 64, &memory));
    iso_assert_all(!iso__comm_is_shared(test_comm, memory, 64));
    shared_free(test_comm, &memory);
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    iso_assert_all(shared_alloc(test_comm, 64, &memory) == ISO_ERR_UNSUPPORTED);
    cr_expect(strstr(iso_last_error()->message, "on several hosts"));
    letters = "aa";
    iso_assert_ok(shared_alloc(test_comm, 64, &memory));
    iso_assert_all(iso__comm_is_shared(test_comm, memory, 64));
    shared_free(test_comm, &memory);
}
