// SPDX-License-Identifier: MIT
// Prints one line per node, in order: its index and the number of ranks that share it.
#include <isotherm/topology.h>
#include <stdio.h>

static iso_status print_nodes(iso_comm *comm) {
    iso_topology *t;
    iso_status status = iso_topology_create(comm, NULL, &t);
    if (status < 0) return status;
    for (int i = 0; status == ISO_OK && i < t->nodes; i++) {
        int64_t ranks = i == t->node_index ? t->local_size : 0;
        status = iso_comm_allreduce_i64(comm, &ranks, 1, ISO_MAX);
        if (status == ISO_OK && iso_comm_rank(comm) == 0)
            printf("node %d of %d: %d ranks\n", i, t->nodes, (int)ranks);
    }
    iso_topology_destroy(&t);
    return status;
}

int main(int argc, char **argv) {
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    iso_comm *comm;
    if (iso_comm_create(MPI_COMM_WORLD, NULL, &comm) < 0 || print_nodes(comm) < 0) {
        iso_error_print(stderr);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
