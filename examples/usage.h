// What the small programs answer to --help, and to arguments that they do not have.
#ifndef EXAMPLES_USAGE_H
#define EXAMPLES_USAGE_H

// Collective over MPI_COMM_WORLD, right after MPI_Init_thread. With --help rank 0 prints text; with
// another option, or more than `most` arguments, it says which one there is not. Both end the
// program on every rank.
void usage_check(int argc, char **argv, int most, const char *program, const char *text);

#endif
