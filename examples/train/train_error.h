// SPDX-License-Identifier: MIT
// Errors of the train program: one sentence from rank 0, and a clean end where the ranks can agree
// on it.
#ifndef EXAMPLES_TRAIN_ERROR_H
#define EXAMPLES_TRAIN_ERROR_H

#include "support/try.h"

#include <stddef.h>

// Records the program's own sentence about an error and returns code.
iso_status train_error(iso_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Takes over the library's sentence where status is an error; returns status.
iso_status train_error_of_library(iso_status status);

// The name before the sentences, "train" if not set.
void train_error_program(const char *name);
const char *train_error_name(void);

// The sentence of the last error.
const char *train_error_text(void);

// The sentence that train_all_well last printed, on every rank.
const char *train_error_told(void);

// Collective over MPI_COMM_WORLD: whether every rank is well. If not, rank 0 prints the sentence of
// the lowest rank that is not. Ends the job, as train_abort does, where the other ranks do not come
// within ISO_TIMEOUT, or where `mine` says that this rank has given up waiting for them.
bool train_all_well(iso_status mine);
// Collective over MPI_COMM_WORLD: root's data for everybody. Ends the job likewise, and names
// `what`; MPI may write to data until then: no variable of a function.
void train_bcast(void *data, size_t bytes, int root, const char *what);
// For an error of which the other ranks cannot learn, as they may wait in an exchange: prints it,
// once if all ranks come here with the same one within a second, and ends the job.
_Noreturn void train_abort(void);

#endif
