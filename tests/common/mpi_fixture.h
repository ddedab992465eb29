// SPDX-License-Identifier: MIT
// For tests that run on several ranks: MPI set-up and take-down, and verdicts that all ranks share.
#ifndef ISO_TEST_MPI_FIXTURE_H
#define ISO_TEST_MPI_FIXTURE_H

#include <isotherm/comm.h>

// The communicator of all ranks, between setup and teardown.
extern iso_comm *test_comm;
extern int test_rank, test_size;

// Suite fixtures. Setup: MPI_Init_thread(MULTIPLE) and test_comm. Teardown: destroys it, finalizes,
// and fails the test if the library still holds memory.
void test_mpi_setup(void);
void test_mpi_teardown(void);
// The same without test_comm and without finalizing, for tests of exactly that.
void test_mpi_setup_bare(void);

// Collective. Returns true if `mine` is true on every rank, so that all ranks fail together. Each
// rank on which it is false prints `what`.
bool test_all(bool mine, const char *what);
#define iso_assert_all(cond) cr_assert(test_all((cond), #cond), "on some rank, not: %s", #cond)
// A call that must succeed on every rank.
#define iso_assert_ok(call)                                                                        \
    do {                                                                                           \
        iso_status ok_status_ = (call);                                                            \
        if (ok_status_ < 0) iso_error_print(stderr);                                               \
        cr_assert(test_all(ok_status_ >= 0, #call), "on some rank failed: %s", #call);             \
    } while (0)
// For tests of time-outs: the limit in seconds, and the sleep in microseconds of a rank that
// exceeds it.
#define IMPATIENT 1.0
#define SLOW      2500000
// Collective. A communicator of all ranks with this time limit, which does not apply to its own
// creation: on a busy machine that takes longer.
iso_comm *test_comm_with_limit(double seconds);
// Skips the test on every rank. Use it before anything is created. Finalizes MPI: otherwise the
// launcher stops ranks that have not reported the skip yet.
#define test_mpi_skip(...) (test_mpi_teardown(), cr_skip_test(__VA_ARGS__))

#endif
