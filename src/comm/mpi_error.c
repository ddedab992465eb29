// SPDX-License-Identifier: MIT
// Error records with the messages of the MPI library.
#include "comm/mpi_error.h"

iso_status iso__mpi_error(int rc, const char *call, const char *function, const char *file,
                          int line) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(rc, text, &length);
    return iso__error(ISO_ERR_MPI, function, file, line, "MPI said \"%.*s\" in %.80s", length, text,
                      call);
}
