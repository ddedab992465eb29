// SPDX-License-Identifier: MIT
// How programs end on an error inside a step: error_probe same|different|one. All ranks fail with
// the same sentence, each with its own, or the last one alone while the others wait for it.
#include "examples/train/train_error.h"

#include <mpi.h>
#include <string.h>

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *how = argc > 1 ? argv[1] : "";
    if (strcmp(how, "one") == 0 && rank < ranks - 1) MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(how, "different") == 0)
        train_error(ISO_ERR_STATE, "rank %d of %d waited in vain", rank, ranks);
    else
        train_error(ISO_ERR_STATE, "the loss is NaN or infinite");
    train_abort();
}
