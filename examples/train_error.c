// Tells of an error once, and ends the job on all ranks.
#include "train_error.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_ROOM 512

static char own[TEXT_ROOM]; // empty: the last error is the library's

iso_status train_error(iso_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(own, sizeof(own), format, args);
    va_end(args);
    return code;
}

static const char *text(void) { return own[0] ? own : iso_last_error()->message; }

bool train_all_well(iso_status mine) {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int lowest = mine < 0 ? rank : ranks;
    MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest == ranks) return true;
    char said[TEXT_ROOM] = "";
    if (rank == lowest) snprintf(said, sizeof(said), "%s", text());
    MPI_Bcast(said, sizeof(said), MPI_CHAR, lowest, MPI_COMM_WORLD);
    if (rank == 0 && lowest == 0) fprintf(stderr, "train: %s\n", said);
    if (rank == 0 && lowest > 0) fprintf(stderr, "train: rank %d: %s\n", lowest, said);
    return false;
}

void train_abort(void) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "train: rank %d: %s\n", rank, text());
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    exit(EXIT_FAILURE);
}
