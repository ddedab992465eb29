// SPDX-License-Identifier: MIT
// A thread that ends the program if a wait in MPI takes too long, or on a signal.
#include "watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *name = "program";
static sigset_t stops;              // the signals that end the program
static const char *_Atomic awaited; // where it waits now; NULL: nowhere
static _Atomic int64_t since;       // when that wait began, in ms
static _Atomic int64_t counted;     // ms of that wait in which this process was not stopped
static void (*_Atomic on_second)(void);
static bool (*_Atomic on_stop)(int);
static void (*_Atomic on_signal)(int);
static void (*_Atomic on_end)(void);
static void (*_Atomic on_exit_now)(void);
static bool launched;            // by a launcher; MPI_Init may set its variables without one
static _Atomic bool by_launcher; // the last signal

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// A value that cannot be read counts as 300 here; the library reports the error.
double watch_timeout(void) {
    const char *text = getenv("ISO_TIMEOUT");
    char *end;
    if (!text || !*text) return 300;
    double value = strtod(text, &end);
    return !*end && value >= 0 && value <= 1e9 ? value : 300;
}

void watch_limit(const char *what) {
    since = now_ms();
    counted = 0;
    awaited = what;
}

void watch_every_second(void (*call)(void)) { on_second = call; }
void watch_stop(bool (*call)(int)) { on_stop = call; }
void watch_farewell(void (*call)(int)) { on_signal = call; }
void watch_at_end(void (*call)(void)) { on_end = call; }
void watch_at_exit(void (*call)(void)) { on_exit_now = call; }

void watch_clean(void) {
    void (*call)(void) = atomic_exchange(&on_end, NULL);
    if (call) call();
}

static _Noreturn void end_process(int code) {
    void (*call)(void) = on_exit_now;
    if (call) call();
    _exit(code);
}

// As the launcher numbers ranks: MPI cannot be asked here. NULL without a launcher.
static const char *launched_rank(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (int i = 0; i < 3; i++)
        if (getenv(variables[i])) return getenv(variables[i]);
    return NULL;
}
static const char *rank_text(void) { return launched_rank() ? launched_rank() : "0"; }

bool watch_by_launcher(void) { return by_launcher; }

// MPI also takes some time when all ranks are there, so a limit below a second counts as a second.
static void check_limit(int64_t passed) {
    const char *what = awaited;
    double limit = watch_timeout(), least = 1000 * (limit < 1 ? 1 : limit);
    counted += passed < 1500 ? passed : 1500;
    if (!what || limit == 0 || (double)counted < least || (double)(now_ms() - since) < least)
        return;
    fprintf(stderr,
            "%s: rank %s waited %g s in %s: another rank is stuck, gone or slower than that "
            "(ISO_TIMEOUT sets the limit)\n",
            name, rank_text(), limit, what);
    watch_clean();
    end_process(EXIT_FAILURE); // MPI_Abort must not meet what MPI is doing
}

static void leave_by_signal(int code) {
    bool (*stop)(int) = on_stop;
    if (stop && stop(code)) return;
    void (*farewell)(int) = on_signal;
    if (farewell) farewell(code);
    watch_clean();
    // A launcher loses what a process writes right before its end.
    if (farewell) nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    end_process(128 + code);
}

static void *watch_signals(void *argument) {
    (void)argument;
    for (int64_t before = now_ms(), now;; before = now) {
        const struct timespec second = {.tv_sec = 1};
        siginfo_t info = {.si_pid = 0};
        int code = sigtimedwait(&stops, &info, &second);
        void (*call)(void) = on_second;
        by_launcher = code > 0 && info.si_pid == getppid() && launched;
        if (code > 0) leave_by_signal(code);
        now = now_ms();
        check_limit(now - before);
        if (call) call();
    }
    return NULL;
}

// Signals that the shell made the program ignore, as in the background, stay ignored.
static void choose_signals(void) {
    static const int codes[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    sigemptyset(&stops);
    for (int i = 0; i < 4; i++) {
        struct sigaction action;
        if (sigaction(codes[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&stops, codes[i]);
    }
}

void watch_start(const char *program) {
    pthread_t thread;
    name = program;
    launched = launched_rank() != NULL;
    choose_signals();
    pthread_sigmask(SIG_BLOCK, &stops, NULL);
    if (pthread_create(&thread, NULL, watch_signals, NULL) == 0)
        pthread_detach(thread);
    else // without it, signals end the program at once, and waits inside MPI have no limit
        pthread_sigmask(SIG_UNBLOCK, &stops, NULL);
}
