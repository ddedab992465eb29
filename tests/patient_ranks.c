// SPDX-License-Identifier: MIT
// For LD_PRELOAD, in tests: ranks that wait leave the cores to others. Tests have more ranks than a
// machine may have cores, and several run at a time.
//
// Open MPI and the library call sched_yield between two polls. So ranks that wait take turns with
// those that work, and most of the time goes into these calls. Here they sleep instead, once a wait
// has taken some calls.
//
// MPICH 4.0.2 over UCX polls without a pause. Each message would wait for the end of a time slice.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define IDLE_POLLS 20
#define SLEEP_NS   20000
#define PAUSE_NS   200000 // a thread that does something else for so long has ended its wait

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int sched_yield(void) {
    static _Thread_local int64_t last;
    static _Thread_local int calls;
    calls = now_ns() - last < PAUSE_NS ? calls + 1 : 0;
    if (calls < IDLE_POLLS)
        syscall(SYS_sched_yield);
    else
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    last = now_ns();
    return 0;
}

typedef unsigned progress_call(void *worker);

// Open MPI may load UCX for its components alone.
static progress_call *find_progress(void) {
    void *found = dlsym(RTLD_NEXT, "ucp_worker_progress");
    void *library = found ? NULL : dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD);
    if (library) found = dlsym(library, "ucp_worker_progress");
    if (!found) abort();
    return (progress_call *)found;
}

unsigned ucp_worker_progress(void *worker);
unsigned ucp_worker_progress(void *worker) {
    static progress_call *next;
    static _Thread_local int idle;
    if (!next) next = find_progress();
    unsigned done = next(worker);
    idle = done ? 0 : idle + 1;
    if (idle % IDLE_POLLS == IDLE_POLLS - 1) sched_yield();
    return done;
}
