// Checks that all ranks were started with the same options: otherwise they would wait for one
// another.
#include "train_error.h"
#include "train_options.h"

#include <mpi.h>
#include <string.h>

enum { ROOM = 16384 };

iso_status train_options_agree(const train_options *values) {
    static char mine[ROOM], first[ROOM];
    train_options_text(values, mine, sizeof(mine));
    memcpy(first, mine, sizeof(first));
    MPI_Bcast(first, sizeof(first), MPI_CHAR, 0, MPI_COMM_WORLD);
    if (strcmp(mine, first) == 0) return ISO_OK;
    const char *a = mine, *b = first;
    size_t n = 0, line = 0; // of the first difference, and where its line begins
    for (; a[n] == b[n]; n++)
        if (a[n] == '\n') line = n + 1;
    return train_error(ISO_ERR_MISMATCH,
                       "started with %.*s where rank 0 has %.*s: give every rank the same options",
                       (int)strcspn(a + line, "\n"), a + line, (int)strcspn(b + line, "\n"),
                       b + line);
}
