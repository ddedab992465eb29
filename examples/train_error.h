// Errors of the train program: one sentence from rank 0, and a clean end where the ranks can agree
// on it.
#ifndef EXAMPLES_TRAIN_ERROR_H
#define EXAMPLES_TRAIN_ERROR_H

#include <isotherm/status.h>

// Forwards an error of the library or of this program; ISO_PENDING passes as success.
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        iso_status try_status_ = (expr);                                                           \
        if (try_status_ < 0) return try_status_;                                                   \
    } while (0)

// Records the program's own sentence about an error and returns code.
iso_status train_error(iso_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// The name before the sentences, "train" if not set.
void train_error_program(const char *name);

// The sentence of the last error.
const char *train_error_text(void);

// Collective over MPI_COMM_WORLD: whether every rank is well. If not, rank 0 prints the sentence of
// the lowest rank that is not.
bool train_all_well(iso_status mine);
// For an error of which the other ranks cannot learn, as they may wait in an exchange: prints it,
// once if all ranks come here with the same one within a second, and ends the job.
_Noreturn void train_abort(void);

#endif
