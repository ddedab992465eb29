// SPDX-License-Identifier: MIT
// Handles --help, --version and unknown arguments of programs.
#ifndef EXAMPLES_USAGE_H
#define EXAMPLES_USAGE_H

#include <stdbool.h>

// Collective over MPI_COMM_WORLD, right after MPI_Init_thread. With --help rank 0 prints text, with
// --version the version; it names any other option, and any argument after the first `most`, in an
// error message. All of these end the program on every rank.
void usage_check(int argc, char **argv, int most, const char *program, const char *text);

// Local, without MPI. Flushes standard output. Returns NULL if all output was written, else the
// reason for the failure. Call it before the program ends.
const char *usage_output_problem(void);

// Local, without MPI. Whether an argument asks for help: --help or -h.
bool usage_is_help(const char *argument);

#endif
