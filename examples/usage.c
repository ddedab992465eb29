// Answers --help and --version, refuses arguments that a program does not have, and finds what was
// meant.
#include "usage.h"

#include "watch.h"

#include <isotherm/version.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_ROOM = 64 }; // for the longest name of an option

bool usage_is_help(const char *argument) {
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

// How many letters must be added, removed or changed to make b of a.
static int count_changes(const char *a, int length, const char *b) {
    int row[NAME_ROOM], size = (int)strlen(b);
    for (int k = 0; k <= size; k++) row[k] = k;
    for (int i = 0; i < length; i++) {
        int corner = row[0]; // of the row above
        row[0] = i + 1;
        for (int k = 0; k < size; k++) {
            int least = corner + (a[i] != b[k]);
            corner = row[k + 1];
            if (corner + 1 < least) least = corner + 1;
            row[k + 1] = row[k] + 1 < least ? row[k] + 1 : least;
        }
    }
    return row[size];
}

const char *usage_nearest(const char *option, int length, const char *const *names, int count) {
    const char *nearest = NULL;
    int least = 2 + (length - 2) / 4;
    for (int i = 0; i < count; i++) {
        if (strlen(names[i]) >= NAME_ROOM || names[i][2] != option[2]) continue;
        int changes = count_changes(option, length, names[i]);
        if (changes >= least) continue;
        least = changes;
        nearest = names[i];
    }
    return nearest;
}

void usage_check(int argc, char **argv, int most, const char *program, const char *text) {
    const char *wrong = argc > most + 1 ? argv[most + 1] : NULL;
    int rank, help = 0, version = 0;
    for (int i = argc - 1; i > 0; i--) {
        if (usage_is_help(argv[i]))
            help = 1;
        else if (strcmp(argv[i], "--version") == 0)
            version = 1;
        else if (argv[i][0] == '-')
            wrong = argv[i];
    }
    if (!help && !version && !wrong) return;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && help) fputs(text, stdout);
    if (rank == 0 && version && !help) puts("isotherm " ISO_VERSION);
    if (rank == 0 && !help && !version)
        fprintf(stderr, "%s: %s %s: see --help\n", program,
                wrong[0] == '-' ? "unknown option" : "unexpected argument", wrong);
    fflush(stdout);
    watch_limit("MPI_Finalize");
    MPI_Finalize();
    watch_limit(NULL);
    exit(help || version ? EXIT_SUCCESS : EXIT_FAILURE);
}
