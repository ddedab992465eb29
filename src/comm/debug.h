// SPDX-License-Identifier: MIT
// Private to src/comm: ISO_DEBUG=detail compares every collective of all ranks before it starts.
//
// Each rank tells rank 0 of the communicator, in one line, what it is about to call; rank 0 answers
// everybody. So ranks run in step, and a program that is wrong gets a sentence instead of wrong
// sums or a wait without end. The lines travel on a communicator of their own.
#ifndef ISO_COMM_DEBUG_H
#define ISO_COMM_DEBUG_H

#include "comm/comm_calls.h"

// Of comm.c. Before the barrier over mpi with which a communicator begins, each rank says that it
// comes; after it, name_missing gives the barrier's status or, where it timed out, the ranks that
// did not come. open() and close(): what the above needs, once the environments are known to agree.
iso_status iso__debug_arrive(iso_comm *comm, MPI_Comm mpi);
iso_status iso__debug_name_missing(iso_comm *comm, iso_status barrier);
iso_status iso__debug_open(iso_comm *comm);
void iso__debug_close(iso_comm *comm);

// Logs, once and on rank 0, the MPI and the variables that decide how it exchanges.
void iso__debug_environment(void);

#endif
