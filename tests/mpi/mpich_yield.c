// SPDX-License-Identifier: MIT
// For LD_PRELOAD: ranks that wait in MPICH over UCX let other processes run. MPICH 4.0.2 polls
// without a pause, so on fewer cores than ranks, each message would wait for the end of a time
// slice.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>

#define IDLE_POLLS 20

typedef unsigned progress_call(void *worker);

unsigned ucp_worker_progress(void *worker);
unsigned ucp_worker_progress(void *worker) {
    static progress_call *next;
    static _Thread_local int idle;
    if (!next) next = (progress_call *)dlsym(RTLD_NEXT, "ucp_worker_progress");
    unsigned done = next(worker);
    idle = done ? 0 : idle + 1;
    if (idle < IDLE_POLLS) return done;
    idle = 0;
    sched_yield();
    return done;
}
