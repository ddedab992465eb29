// SPDX-License-Identifier: MIT
// Checks that processes which were started together share MPI_COMM_WORLD.
#include "comm/comm_state.h"

#include <stdlib.h>
#include <string.h>

// "Open MPI v4.1.4": the first words of the library's version string.
static const char *mpi_name(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = 0;
    for (char *c = text; *c; c++) *c = *c == '\t' ? ' ' : *c;
    return text;
}

iso_status iso__rank_in_job(int *rank, int *size) {
    ISO_TRY_MPI(MPI_Comm_rank(MPI_COMM_WORLD, rank));
    ISO_TRY_MPI(MPI_Comm_size(MPI_COMM_WORLD, size));
    return ISO_OK;
}

// If the mpirun of another MPI started the processes, each one is alone and would train by itself.
iso_status iso__check_launcher(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    int size;
    ISO_TRY_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
    for (int i = 0; i < 2; i++) {
        const char *started = getenv(variables[i]);
        ISO_CHECK(size > 1 || !started || atoi(started) <= 1, ISO_ERR_STATE,
                  "mpirun started %s processes (%s), but this one is alone in its MPI, %s: use the "
                  "mpirun of that MPI, or unset %s for a process that is meant to be alone",
                  started, variables[i], mpi_name(), variables[i]);
    }
    return ISO_OK;
}
