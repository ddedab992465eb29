// Prints one line per node, in order: its index and the number of ranks that share it.
#include <isotherm/comm.h>
#include <stdio.h>

static iso_status print_nodes(iso_comm *comm) {
    iso_comm *node;
    int count, index;
    iso_status status = iso_comm_node(comm, &node);
    if (status == ISO_OK) status = iso_comm_node_layout(comm, &count, &index);
    for (int i = 0; status == ISO_OK && i < count; i++) {
        int64_t ranks = i == index ? iso_comm_size(node) : 0;
        status = iso_comm_allreduce_i64(comm, &ranks, 1, ISO_MAX);
        if (status == ISO_OK && iso_comm_rank(comm) == 0)
            printf("node %d of %d: %d ranks\n", i, count, (int)ranks);
    }
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
