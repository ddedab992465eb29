// Tells of an error once, and ends the job on all ranks.
#include "train_error.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_ROOM 1024

static char own[TEXT_ROOM]; // empty: the last error is the library's
static const char *program = "train";

void train_error_program(const char *name) { program = name; }

iso_status train_error(iso_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(own, sizeof(own), format, args);
    va_end(args);
    return code;
}

const char *train_error_text(void) { return own[0] ? own : iso_last_error()->message; }

bool train_all_well(iso_status mine) {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int lowest = mine < 0 ? rank : ranks;
    MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest == ranks) return true;
    char said[TEXT_ROOM] = "";
    if (rank == lowest) snprintf(said, sizeof(said), "%s", train_error_text());
    MPI_Bcast(said, sizeof(said), MPI_CHAR, lowest, MPI_COMM_WORLD);
    if (rank == 0 && lowest == 0) fprintf(stderr, "%s: %s\n", program, said);
    if (rank == 0 && lowest > 0) fprintf(stderr, "%s: rank %d: %s\n", program, lowest, said);
    own[0] = 0; // the next error may be the library's
    return false;
}

void train_abort(void) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "%s: rank %d: %s\n", program, rank, train_error_text());
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    exit(EXIT_FAILURE);
}
