// SPDX-License-Identifier: MIT
// Transports of the host: each gives the same sums as every other.
#include "common/mpi_fixture.h"
#include "common/transport_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>

TestSuite(np1_transport, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_transport, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_transport, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_transport, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static void host_conforms(const char *collective) {
    const iso_comm_hook *const hook[] = {NULL, &iso_hook_bf16, &iso_hook_f16,
                                         &iso_hook_bf16_feedback};
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    for (size_t h = 0; h < sizeof(hook) / sizeof(hook[0]); h++)
        transport_conforms(&(transport_case){"host", ISO_SCOPE_WORLD, hook[h], NULL, false, false});
}

Test(np1_transport, alone_nothing_travels) {
    for (int scope = 0; scope <= ISO_SCOPE_RANK; scope++)
        transport_conforms(&(transport_case){"none", (iso_scope)scope, NULL, NULL, false, false});
}

Test(np2_transport, a_rank_may_keep_to_itself) {
    transport_conforms(&(transport_case){"none", ISO_SCOPE_RANK, NULL, NULL, false, false});
}

Test(np2_transport, sums_by_messages) { host_conforms("mpi"); }
Test(np3_transport, sums_by_messages) { host_conforms("mpi"); }
Test(np4_transport, sums_by_messages) { host_conforms("mpi"); }
Test(np2_transport, sums_in_shared_memory) { host_conforms("shm"); }
Test(np3_transport, sums_in_shared_memory) { host_conforms("shm"); }
Test(np4_transport, sums_in_shared_memory) { host_conforms("shm"); }

static void zero_conforms(const char *collective) {
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    transport_conforms(&(transport_case){"zero", ISO_SCOPE_WORLD, NULL, NULL, true, false});
}

Test(np2_transport, shares_out_by_messages) { zero_conforms("mpi"); }
Test(np3_transport, shares_out_by_messages) { zero_conforms("mpi"); }
Test(np4_transport, shares_out_in_shared_memory) { zero_conforms("shm"); }

static void rows_conform(const char *collective) {
    const iso_comm_hook *const hook[] = {NULL, &iso_hook_bf16};
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    for (size_t h = 0; h < 2; h++)
        transport_conforms(&(transport_case){"rows", ISO_SCOPE_WORLD, hook[h], NULL, false, true});
}

Test(np2_transport, gathers_rows_beside_messages) { rows_conform("mpi"); }
Test(np3_transport, gathers_rows_beside_messages) { rows_conform("mpi"); }
Test(np2_transport, gathers_rows_beside_shared_memory) { rows_conform("shm"); }
Test(np4_transport, gathers_rows_beside_shared_memory) { rows_conform("shm"); }

static void nodes_conform(const char *ranks_per_node, const char *collective) {
    setenv("ISO_RANKS_PER_NODE", ranks_per_node, 1);
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    transport_conforms(&(transport_case){"host", ISO_SCOPE_WORLD, NULL, NULL, false, false});
}

Test(np3_transport, sums_between_nodes_by_messages) { nodes_conform("2", "mpi"); }
Test(np4_transport, sums_between_nodes_by_messages) { nodes_conform("2", "mpi"); }
Test(np3_transport, sums_in_two_levels) { nodes_conform("2", "auto"); }
Test(np4_transport, sums_in_two_levels) { nodes_conform("2", "shm"); }

// ---- Asked again ------------------------------------------------------------------------------------

static void times_out(const char *collective) {
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    transport_keeps_times(&(transport_case){"host", ISO_SCOPE_WORLD, NULL, NULL, false, false},
                          TRANSPORT_LAST, NULL);
}

Test(np2_transport, a_wait_that_times_out_counts) { times_out("mpi"); }
Test(np4_transport, a_wait_for_two_levels_that_times_out_counts) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    times_out("auto");
}
Test(np2_transport, a_wait_for_a_shard_that_times_out_counts) {
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    transport_keeps_times(&(transport_case){"zero", ISO_SCOPE_WORLD, NULL, NULL, true, false},
                          TRANSPORT_LAST, NULL);
}
Test(np3_transport, a_wait_that_times_out_counts) { times_out("shm"); }

Test(np2_transport, a_wait_for_rows_that_times_out_counts) {
    transport_keeps_times(&(transport_case){"rows", ISO_SCOPE_WORLD, NULL, NULL, false, true},
                          TRANSPORT_F32, NULL);
}

static bool fails;

static void fail_once(void) { fails = true; }

static iso_status decompress_twice(const iso_comm_hook_bucket *b, double factor, void *user) {
    if (fails) {
        fails = false;
        return ISO_FAIL(ISO_ERR_STATE, "the hook failed");
    }
    return iso_hook_bf16.decompress(b, factor, user);
}

Test(np2_transport, times_outlive_a_hook_that_fails) {
    iso_comm_hook hook = iso_hook_bf16;
    hook.decompress = decompress_twice;
    transport_keeps_times(&(transport_case){"host", ISO_SCOPE_WORLD, &hook, NULL, false, false},
                          TRANSPORT_F32, fail_once);
}
