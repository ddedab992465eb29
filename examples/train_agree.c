// Checks that all ranks were started with the same options: otherwise they would wait for one
// another.
#include "train_error.h"
#include "train_options.h"

#include <mpi.h>
#include <string.h>

size_t train_options_difference(const char *a, const char *b) {
    size_t line = 0;
    for (size_t n = 0; a[n] && a[n] == b[n]; n++)
        if (a[n] == '\n') line = n + 1;
    return line;
}

iso_status train_options_agree(const train_options *values) {
    static char mine[TRAIN_OPTIONS_ROOM], first[TRAIN_OPTIONS_ROOM];
    train_options_text(values, false, mine, sizeof(mine));
    memcpy(first, mine, sizeof(first));
    MPI_Bcast(first, sizeof(first), MPI_CHAR, 0, MPI_COMM_WORLD);
    if (strcmp(mine, first) == 0) return ISO_OK;
    size_t line = train_options_difference(mine, first);
    const char *a = mine + line, *b = first + line;
    return train_error(ISO_ERR_MISMATCH,
                       "started with %.*s where rank 0 has %.*s: give every rank the same options",
                       (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"), b);
}
