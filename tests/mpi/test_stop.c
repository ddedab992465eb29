// SPDX-License-Identifier: MIT
// Ranks stop after the same step, whoever asks and whenever.
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/stop.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

TestSuite(np1_stop, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_stop, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_stop, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static int sums; // that this rank has started

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    sums++;
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

static _Thread_local int64_t shown; // ns, by the monotonic clock of this thread; 0: as it is

int clock_gettime(clockid_t id, struct timespec *out) {
    if (id != CLOCK_MONOTONIC || shown == 0) return (int)syscall(SYS_clock_gettime, id, out);
    *out = (struct timespec){.tv_sec = shown / 1000000000, .tv_nsec = shown % 1000000000};
    return 0;
}

static iso_stop *asked;
static void handle_signal(int code) {
    (void)code;
    iso_stop_request(asked);
}

// The same on all ranks?
static bool is_same(int64_t number) {
    int64_t ends[2] = {number, -number};
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, ends, 2, ISO_MAX));
    return ends[0] == -ends[1];
}

// Ranks take different times for their steps, and exchange something else in between.
static int64_t run_until_stopped(iso_stop *stop, int asks, int64_t when) {
    bool stops = false;
    int64_t step = 0;
    while (!stops && step < 100000) {
        step++;
        usleep((useconds_t)(step * (test_rank + 1) % 3 * 200));
        if (test_rank == asks && step == when) raise(SIGUSR1);
        if (step % 7 == 0) {
            double one = 1;
            iso_assert_ok(iso_comm_allreduce_f64(test_comm, &one, 1, ISO_SUM));
            iso_assert_all(one == test_size);
        }
        cr_assert(iso_stop_check(stop, &stops) == ISO_OK);
    }
    return stops ? step : -1;
}

static void stop_together(void) {
    signal(SIGUSR1, handle_signal);
    for (int asks = 0; asks < test_size; asks++)
        for (int64_t when = 1; when <= 301; when += 100) {
            bool stops = false;
            iso_assert_ok(iso_stop_create(test_comm, &asked));
            int64_t step = run_until_stopped(asked, asks, when);
            iso_assert_all(step >= when);
            iso_assert_all(is_same(step));
            iso_assert_ok(iso_stop_check(asked, &stops)); // and it stays so
            iso_assert_all(stops);
            iso_stop_destroy(&asked);
            iso_assert_all(asked == NULL);
        }
}

Test(np1_stop, one_request_stops_all_after_the_same_step) { stop_together(); }
Test(np2_stop, one_request_stops_all_after_the_same_step) { stop_together(); }
Test(np3_stop, one_request_stops_all_after_the_same_step) { stop_together(); }

Test(np1_stop, stops_at_once) {
    bool stops = true;
    iso_assert_ok(iso_stop_create(test_comm, &asked));
    iso_assert_ok(iso_stop_check(asked, &stops));
    iso_assert_all(!stops);
    iso_stop_request(asked);
    iso_assert_ok(iso_stop_check(asked, &stops));
    iso_assert_all(stops);
    iso_stop_destroy(&asked);
}

// The last exchange is still under way when it is destroyed.
static void nobody_asks(void) {
    enum { CALLS = 5000 };
    bool stops = false, any = false;
    iso_assert_ok(iso_stop_create(test_comm, &asked));
    iso_assert_ok(iso_comm_barrier(test_comm));
    sums = 0;
    for (int i = 0; i < CALLS; i++) {
        cr_assert(iso_stop_check(asked, &stops) == ISO_OK);
        any = any || stops;
    }
    int started = sums;
    iso_assert_all(!any);
    iso_assert_all(is_same(started));
    iso_assert_all(started >= 1 && started < CALLS / 4);
    iso_stop_destroy(&asked);
}

Test(np2_stop, calls_seldom_exchange_anything) { nobody_asks(); }
Test(np3_stop, calls_seldom_exchange_anything) { nobody_asks(); }

// ---- By a clock of the test's own ---------------------------------------------------------------

// Calls from one exchange to the next: the longest, and the latest that is complete.
typedef struct gaps {
    int longest, latest;
} gaps;

static gaps count_gaps(int64_t step_ns, int steps) {
    gaps out = {0};
    bool stops = false;
    for (int step = 0, last = -1; step < steps; step++) {
        int before = sums;
        shown += step_ns;
        cr_assert(iso_stop_check(asked, &stops) == ISO_OK && !stops);
        if (sums == before) continue;
        if (last >= 0) out.latest = step - last;
        if (out.latest > out.longest) out.longest = out.latest;
        last = step;
    }
    return out;
}

// 0.2 s of the mean of the ranks, from the start and after an exchange at once in any step.
static void gaps_last(int64_t step_ns) {
    bool stops = true;
    int64_t own = step_ns * (2 * test_rank + 1) / test_size; // their mean is step_ns
    int goal = step_ns < 200000000 ? (int)(200000000 / step_ns) : 1, steps = 6 * goal + 60;
    shown = 1000000000;
    iso_assert_ok(iso_stop_create(test_comm, &asked));
    for (int early = 0; early < 3; early++) {
        gaps found = count_gaps(own, steps + early * goal / 2);
        iso_assert_all(found.longest == goal && found.latest == goal);
        iso_assert_ok(iso_stop_check_now(asked, &stops));
        iso_assert_all(!stops);
    }
    gaps found = count_gaps(own, steps);
    iso_assert_all(found.longest == goal);
    if (test_rank == test_size - 1) iso_stop_request(asked);
    int more = 0;
    for (; !stops; more++) {
        shown += own;
        cr_assert(iso_stop_check(asked, &stops) == ISO_OK && more < steps);
    }
    iso_assert_all(more <= 2 * goal);
    iso_stop_destroy(&asked);
    shown = 0;
}

static void gaps_last_always(void) {
    gaps_last(100000);
    gaps_last(1000000);
    gaps_last(50000000);
    gaps_last(3000000000);
}

Test(np2_stop, exchanges_are_a_fifth_of_a_second_apart) { gaps_last_always(); }
Test(np3_stop, exchanges_are_a_fifth_of_a_second_apart) { gaps_last_always(); }

// ---- At once --------------------------------------------------------------------------------------

// calls: of the other function before it, whose exchange may be under way.
static void stop_now(int calls) {
    bool stops = true;
    iso_assert_ok(iso_stop_create(test_comm, &asked));
    for (int i = 0; i < calls; i++) iso_assert_ok(iso_stop_check(asked, &stops));
    iso_assert_ok(iso_stop_check_now(asked, &stops));
    iso_assert_all(!stops);
    for (int i = 0; i < calls; i++) iso_assert_ok(iso_stop_check(asked, &stops));
    if (test_rank == test_size - 1) iso_stop_request(asked);
    iso_assert_ok(iso_stop_check_now(asked, &stops));
    iso_assert_all(stops);
    iso_assert_ok(iso_stop_check(asked, &stops));
    iso_assert_all(stops);
    iso_stop_destroy(&asked);
}

static void stop_now_always(void) {
    for (int calls = 0; calls < 9; calls++) stop_now(calls);
}

Test(np1_stop, all_learn_of_it_at_once) { stop_now_always(); }
Test(np2_stop, all_learn_of_it_at_once) { stop_now_always(); }
Test(np3_stop, all_learn_of_it_at_once) { stop_now_always(); }
