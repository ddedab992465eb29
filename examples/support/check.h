// SPDX-License-Identifier: MIT
// Checks what an example gets, and ends it after an error.
#ifndef EXAMPLES_CHECK_H
#define EXAMPLES_CHECK_H

#include <isotherm/comm.h>
#include <isotherm/data.h>

// Local. For errors that one process may have alone: prints the message and ends the job. Returns
// status if it is no error.
iso_status check(iso_status status);

// Collective over comm. For errors that all processes may have, such as a missing file: rank 0
// prints the message, and all processes end.
void check_together(iso_comm *comm, iso_status status);

// Local. Returns ISO_ERR_SHAPE, with a message, if the test images have another size than the
// training images.
iso_status check_size(const iso_dataset *images, const iso_dataset_info *training);

// Collective. Waits for all processes. If one does not come, the wait names it (ISO_STALL_WARN,
// ISO_TIMEOUT); a wait in MPI_Finalize could not. Then destroys comm and calls MPI_Finalize, for
// which watch.h sets a time limit.
void finalize(iso_comm **comm);

#endif
