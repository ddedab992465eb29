// SPDX-License-Identifier: MIT
// Ends a process whose program makes no progress (ISO_STEP_TIMEOUT). Calls of the library leave a
// mark (iso__alive), which a thread removes periodically. If the thread finds no mark for too long,
// it logs an error, makes the program's thread write its stack into the flight recorder, and ends
// the process. The launcher then ends the other ranks. The thread does not call MPI_Abort,
// because the program may be inside MPI.
#define _GNU_SOURCE
#include "comm/step_limit.h"

#include "base/recording.h"
#include "comm/comm_state.h"

#include <isotherm/trace.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEAST_PERIOD_NS 10000000
#define MOST_PERIOD_NS  500000000
#define STACK_WAIT_NS   1000000000 // for the program's thread to write its stack
#define FAREWELL_NS     300000000  // launchers lose what a process writes right before its end

static struct {
    pthread_mutex_t lock; // of `ends`
    pthread_cond_t wake;
    bool runs, ends;
    pthread_t watcher, program;
    int rank, size;
    char host[64];
    iso__step_limit limit;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};
static char reason[ISO_RECORDER_TEXT];
static atomic_bool stack_written;

// ---- Looking --------------------------------------------------------------------------------------

void iso__step_limit_set(iso__step_limit *limit, double seconds) {
    int64_t period = (int64_t)(seconds * 1e9 / 20);
    period = period < LEAST_PERIOD_NS ? LEAST_PERIOD_NS : period;
    period = period > MOST_PERIOD_NS ? MOST_PERIOD_NS : period;
    *limit = (iso__step_limit){.limit_s = seconds, .period_ns = period, .last = "none"};
}

bool iso__step_limit_look(iso__step_limit *limit, int64_t passed_ns) {
    const char *mark = atomic_exchange_explicit(&iso__alive_at, NULL, memory_order_relaxed);
    int64_t most = 2 * limit->period_ns;
    if (mark) limit->last = mark;
    limit->idle_ns += passed_ns < most ? passed_ns : most;
    if (mark || !atomic_load_explicit(&iso__stepping, memory_order_relaxed)) limit->idle_ns = 0;
    return (double)limit->idle_ns >= limit->limit_s * 1e9;
}

// ---- The end --------------------------------------------------------------------------------------

// Runs in the program's thread.
static void write_stack(int code) {
    (void)code;
    iso_recorder_fail(ISO_ERR_STATE, reason);
    atomic_store(&stack_written, true);
}

static void sleep_ns(int64_t ns) {
    // A variable, as nanosleep is a macro of two arguments in a simulation (tests/scale).
    const struct timespec span = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&span, NULL);
}

// SIGURG: nothing else uses it, and a process that has no handler ignores it.
static void ask_stack(void) {
    struct sigaction action = {.sa_handler = write_stack, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGURG, &action, NULL);
    pthread_kill(state.program, SIGURG);
    for (int64_t start = iso_now(); !stack_written && iso_now() - start < STACK_WAIT_NS;)
        sleep_ns(LEAST_PERIOD_NS);
    if (!stack_written) iso_recorder_fail(ISO_ERR_STATE, reason); // the signal is blocked
}

static _Noreturn void end_process(const iso__step_limit *limit) {
    snprintf(reason, sizeof(reason),
             "rank %d of %d on %s has made no progress for %g s: the last operation that it began "
             "was %s (ISO_STEP_TIMEOUT sets the limit)",
             state.rank, state.size, state.host, limit->limit_s, limit->last);
    iso__log(ISO_LOG_ERROR, "%s", reason);
    iso__record(ISO_RECORDER_WARN, (uint32_t)limit->limit_s, limit->last);
    ask_stack();
    sleep_ns(FAREWELL_NS);
    _exit(EXIT_FAILURE);
}

// ---- The thread -----------------------------------------------------------------------------------

// With the lock held.
static void sleep_period(int64_t ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += until.tv_nsec;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_cond_timedwait(&state.wake, &state.lock, &until);
}

static void *watch_program(void *argument) {
    iso__step_limit *limit = argument;
    pthread_mutex_lock(&state.lock);
    for (int64_t before = iso_now(), now; !state.ends; before = now) {
        sleep_period(limit->period_ns);
        now = iso_now();
        if (!state.ends && iso__step_limit_look(limit, now - before)) end_process(limit);
    }
    pthread_mutex_unlock(&state.lock);
    return NULL;
}

// The new thread blocks all signals: those of the process are for the program.
static int start_thread(void) {
    sigset_t all, before;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&state.wake, &clock);
    pthread_condattr_destroy(&clock);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&state.watcher, NULL, watch_program, &state.limit);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

iso_status iso__step_limit_start(void) {
    double seconds;
    ISO_TRY(iso__env_number(ISO_ENV_STEP_TIMEOUT, 0, &seconds));
    if (seconds == 0 || state.runs) return ISO_OK;
    ISO_TRY(iso__rank_in_job(&state.rank, &state.size));
    (void)gethostname(state.host, sizeof(state.host) - 1);
    iso__step_limit_set(&state.limit, seconds);
    state.program = pthread_self();
    state.ends = false;
    int rc = start_thread();
    ISO_CHECK(rc == 0, ISO_ERR_NOMEM, "could not start the thread of ISO_STEP_TIMEOUT: %s",
              strerror(rc));
    state.runs = true;
    return ISO_OK;
}

void iso__step_limit_stop(void) {
    if (!state.runs) return;
    pthread_mutex_lock(&state.lock);
    state.ends = true;
    pthread_cond_signal(&state.wake);
    pthread_mutex_unlock(&state.lock);
    pthread_join(state.watcher, NULL);
    pthread_cond_destroy(&state.wake);
    state.runs = false;
}
