// SPDX-License-Identifier: MIT
// Errors of the train program: one message from rank 0, and an orderly end if the ranks can agree
// on it.
#ifndef EXAMPLES_TRAIN_ERROR_H
#define EXAMPLES_TRAIN_ERROR_H

#include "support/try.h"

#include <isotherm/comm.h>
#include <stddef.h>

// Stores the program's own error message and returns code.
iso_status train_error(iso_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Stores the library's message if status is an error. Returns status.
iso_status train_error_of_library(iso_status status);

// Sets the name that precedes messages ("train" if not set).
void train_error_program(const char *name);
const char *train_error_name(void);

// The message of the last error.
const char *train_error_text(void);

// The message that train_all_well last printed, on every rank.
const char *train_error_told(void);

// Local. Flushes standard output. ISO_ERR_IO if something that was printed could not be written.
iso_status train_error_of_output(void);

// Collective over MPI_COMM_WORLD. Whether all ranks pass a status that is no error. If not, rank 0
// prints the message of the lowest failing rank. Ends the job, as train_abort does, if the other
// ranks do not arrive within ISO_TIMEOUT, or if `mine` is ISO_ERR_TIMEOUT, ISO_ERR_MPI or
// ISO_ERR_NOMEM.
bool train_all_well(iso_status mine);
// The same for the status of train_error_of_output, at the end of a program that went well. Call it
// while the communicator of train_error_comm lives: in MPI_Finalize nobody can say who keeps the
// others waiting. A launcher also ends the other ranks when the first one has left.
bool train_all_end(void);
// Collective over MPI_COMM_WORLD. Gives all ranks root's data. Ends the job likewise; the message
// names `what`. MPI may write to data until then, so data must not be a local variable.
void train_bcast(void *data, size_t bytes, int root, const char *what);
// Collective. Sets the communicator of all ranks, through which these calls name the ranks that
// keep the others waiting; NULL: none, or no longer.
void train_error_comm(iso_comm *comm);
// For an error that the other ranks cannot learn of, because they may wait in an exchange. Prints
// it and ends the job. If all ranks call it with the same message within a second, prints it once.
_Noreturn void train_abort(void);

#endif
