// SPDX-License-Identifier: MIT
// Private to src/comm: errors of MPI.
#ifndef ISO_MPI_ERROR_H
#define ISO_MPI_ERROR_H

#include "base/base.h"

#include <mpi.h>

// Writes the record of a failed MPI call, with the MPI library's message.
iso_status iso__mpi_error(int rc, const char *call, const char *function, const char *file,
                          int line);
#define ISO_TRY_MPI(call)                                                                          \
    do {                                                                                           \
        int mpi_rc_ = (call);                                                                      \
        if (mpi_rc_ != MPI_SUCCESS)                                                                \
            return iso__mpi_error(mpi_rc_, #call, __func__, __FILE__, __LINE__);                   \
    } while (0)
// The same for the return code rc of the call `name`.
#define ISO_TRY_MPI_CODE(rc, name)                                                                 \
    do {                                                                                           \
        if ((rc) != MPI_SUCCESS)                                                                   \
            return iso__mpi_error((rc), (name), __func__, __FILE__, __LINE__);                     \
    } while (0)

#endif
