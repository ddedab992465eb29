// SPDX-License-Identifier: MIT
// Ends an example after an error, and MPI at the end of the program.
#include "check.h"

#include "watch.h"

#include <isotherm/status.h>
#include <mpi.h>
#include <stdlib.h>

iso_status check(iso_status status) {
    if (status >= 0) return status;
    iso_error_print(stderr);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    return status;
}

static void end_mpi(void) {
    watch_limit("MPI_Finalize");
    MPI_Finalize();
    watch_limit(NULL);
}

void finalize(iso_comm **comm) {
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    check(iso_comm_await(*comm, &request, "the end of the program"));
    iso_comm_destroy(comm);
    end_mpi();
}

void check_together(iso_comm *comm, iso_status status) {
    status = iso_comm_agree(comm, status);
    if (status == ISO_OK) return;
    if (status == ISO_ERR_TIMEOUT) check(status); // the other processes do not answer
    if (iso_comm_rank(comm) == 0) iso_error_print(stderr);
    end_mpi();
    exit(EXIT_FAILURE);
}

iso_status check_size(const iso_dataset *images, const iso_dataset_info *training) {
    iso_dataset_info test;
    iso_dataset_get_info(images, &test);
    if (test.channels == training->channels && test.height == training->height &&
        test.width == training->width)
        return ISO_OK;
    return iso_error_set(ISO_ERR_SHAPE,
                         "the test images have another size than the training images");
}
