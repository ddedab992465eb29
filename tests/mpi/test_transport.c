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
        transport_conforms(&(transport_case){"host", ISO_SCOPE_WORLD, hook[h], NULL});
}

Test(np1_transport, alone_nothing_travels) {
    for (int scope = 0; scope <= ISO_SCOPE_RANK; scope++)
        transport_conforms(&(transport_case){"none", (iso_scope)scope, NULL, NULL});
}

Test(np2_transport, a_rank_may_keep_to_itself) {
    transport_conforms(&(transport_case){"none", ISO_SCOPE_RANK, NULL, NULL});
}

Test(np2_transport, sums_by_messages) { host_conforms("mpi"); }
Test(np3_transport, sums_by_messages) { host_conforms("mpi"); }
Test(np2_transport, sums_in_shared_memory) { host_conforms("shm"); }
Test(np4_transport, sums_in_shared_memory) { host_conforms("shm"); }

Test(np4_transport, sums_between_nodes) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    transport_conforms(&(transport_case){"host", ISO_SCOPE_WORLD, NULL, NULL});
}
