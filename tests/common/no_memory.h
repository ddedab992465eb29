// SPDX-License-Identifier: MIT
// For tests of a rank that runs out of memory. Include it in one file of a program: it replaces
// libc's aligned_alloc, from which the library has all its memory but pages.
#ifndef ISO_TEST_NO_MEMORY_H
#define ISO_TEST_NO_MEMORY_H

#include "common/mpi_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdlib.h>

static int memory_left = -1; // so many allocations succeed before one fails; -1: all do

void *aligned_alloc(size_t alignment, size_t bytes) {
    void *memory = NULL;
    if (memory_left >= 0 && memory_left-- == 0) return NULL;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

// ISO_TRY of a call whose allocations all succeed, and are not counted.
#define TRY_WITH_MEMORY(call)                                                                      \
    do {                                                                                           \
        int left_ = memory_left;                                                                   \
        memory_left = -1;                                                                          \
        ISO_TRY(call);                                                                             \
        memory_left = left_;                                                                       \
    } while (0)

// Collective. Repeats the call until rank 1 has run out of memory at each of its allocations; on
// more than two ranks, which take long on two cores, at each fifth. Each time every rank must get
// the error, and in the end success.
static void try_each_allocation(const char *what, iso_status (*call)(void)) {
    int reached = 1, calls = 0;
    for (; reached && calls<4000; calls += test_size> 2 ? 5 : 1) {
        memory_left = test_rank == 1 ? calls : -1;
        iso_status status = call();
        reached = memory_left < 0;
        memory_left = -1;
        int ends[2] = {status, -status};
        MPI_Allreduce(MPI_IN_PLACE, ends, 2, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        MPI_Bcast(&reached, 1, MPI_INT, 1, MPI_COMM_WORLD);
        cr_assert(ends[0] == -ends[1], "allocation %d of %s: status %d to %d", calls, what, ends[0],
                  -ends[1]);
        iso_assert_all(status == ISO_OK || (reached && status == ISO_ERR_NOMEM));
    }
    iso_assert_all(!reached && calls > 1);
}

#endif
