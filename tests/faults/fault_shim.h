// SPDX-License-Identifier: MIT
// What the files of the fault shim share.
#ifndef TESTS_FAULT_SHIM_H
#define TESTS_FAULT_SHIM_H

#include <stdbool.h>
#include <stdio.h>

enum {
    FAULT_ALLOC,
    FAULT_MPI,
    FAULT_POLL, // MPI_Test and the like, which a program calls again and again
    FAULT_OPEN,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_TEXT, // into the buffer of a stream
    FAULT_RENAME,
    FAULT_SYNC,
    FAULT_MAP,
    FAULT_THREAD,
    FAULT_KINDS
};

// Counts a call by its return address. True: it is to fail; errno is set.
bool fault_due(int kind, const void *caller, const char *function);
bool fault_in_program(const void *caller);
// What an MPI function that fails returns, if its communicator's error handler returns.
int fault_mpi_error(const void *caller);

#define FAULT_DUE(kind, name) fault_due(kind, __builtin_return_address(0), name)

#endif
