// SPDX-License-Identifier: MIT
// Private to src/comm: ISO_DEBUG=detail compares every collective of all ranks before it starts.
//
// Each rank sends rank 0 of the communicator a line with the call it is about to make, and rank 0
// answers all ranks. So the ranks run in lockstep, and an incorrect program gets an error message
// instead of wrong sums or an endless wait. The lines travel on a communicator of their own.
#ifndef ISO_COMM_DEBUG_H
#define ISO_COMM_DEBUG_H

#include "comm/comm_calls.h"

// For comm.c. iso__debug_arrive announces this rank before the first barrier of a new communicator.
// iso__debug_name_missing returns that barrier's status or, after a time-out, an error that names
// the ranks that did not arrive. iso__debug_open, once the environments are known to agree, and
// iso__debug_close create and free what the comparison needs.
iso_status iso__debug_arrive(iso_comm *comm, MPI_Comm mpi);
iso_status iso__debug_name_missing(iso_comm *comm, iso_status barrier);
iso_status iso__debug_open(iso_comm *comm);
void iso__debug_close(iso_comm *comm);

// Logs, once and on rank 0, the MPI library and the variables that decide how it exchanges.
void iso__debug_environment(void);

#endif
