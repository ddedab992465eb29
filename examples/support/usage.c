// SPDX-License-Identifier: MIT
// Handles --help and --version, and refuses arguments that a small program does not have.
#include "usage.h"

#include "watch.h"

#include <errno.h>
#include <isotherm/version.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool usage_is_help(const char *argument) {
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

// Whoever flushed before has lost the reason of an earlier failure. Writing more tells it, if it
// still holds.
const char *usage_output_problem(void) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return NULL;
    if (errno || write(STDOUT_FILENO, "\n", 1) < 0) return strerror(errno);
    return "an earlier write failed";
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
    const char *problem = usage_output_problem();
    if (problem) fprintf(stderr, "%s: cannot write to standard output: %s\n", program, problem);
    watch_limit("MPI_Finalize");
    MPI_Finalize();
    watch_limit(NULL);
    exit((help || version) && !problem ? EXIT_SUCCESS : EXIT_FAILURE);
}
