// SPDX-License-Identifier: MIT
// The thread that joins NCCL's communicator and then watches what is under way in it.
#include "exchange/coll_nccl_impl.h"

#include <isotherm/trace.h>

#define WATCH_NS 20000000 // nothing depends on it but how soon an error is told

// ---- The thread -------------------------------------------------------------------------------------

static struct timespec after_ns(int64_t ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t sum = t.tv_nsec + ns;
    return (struct timespec){.tv_sec = t.tv_sec + (time_t)(sum / 1000000000),
                             .tv_nsec = (long)(sum % 1000000000)};
}

static void wait_ns(iso__nccl *n, pthread_cond_t *what, int64_t ns) {
    struct timespec until = after_ns(ns);
    pthread_cond_timedwait(what, &n->lock, &until);
}

// An abort takes away what a call of the program uses. But a call that does not return is one more
// reason for it.
static void let_call_return(iso__nccl *n) {
    for (int k = 0; n->calling && k < 50; k++) wait_ns(n, &n->wake, WATCH_NS);
}

static void watch_until_stopped(iso__nccl *n) {
    pthread_mutex_lock(&n->lock);
    while (!n->stop) {
        if (n->count == 0 || n->error) {
            pthread_cond_wait(&n->wake, &n->lock);
            continue;
        }
        iso_status status = iso__nccl_look(n);
        if (status < 0) {
            let_call_return(n);
            ncclComm_t comm = iso__nccl_give_up(n, status); // no call may begin in between
            pthread_mutex_unlock(&n->lock);
            if (comm) n->call.ncclCommAbort(comm);
            pthread_mutex_lock(&n->lock);
            continue;
        }
        wait_ns(n, &n->wake, WATCH_NS);
    }
    pthread_mutex_unlock(&n->lock);
}

// Blocking: otherwise each collective would start a thread. This one can take the wait.
static ncclResult_t join_comm(iso__nccl *n, ncclComm_t *comm) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (cudaSetDevice(n->ordinal) != cudaSuccess) return ncclUnhandledCudaError;
    return n->call.ncclCommInitRankConfig(comm, n->size, n->id, n->rank, &config);
}

static void free_record(iso__nccl *n) {
    pthread_cond_destroy(&n->born);
    pthread_cond_destroy(&n->wake);
    pthread_mutex_destroy(&n->lock);
    iso__free(n);
}

static void *watch_operations(void *argument) {
    iso__nccl *n = argument;
    ncclComm_t comm = NULL;
    ncclResult_t result = join_comm(n, &comm);
    pthread_mutex_lock(&n->lock);
    n->comm = result == ncclSuccess ? comm : NULL;
    n->start = result;
    n->started = true;
    bool abandoned = n->abandoned;
    pthread_cond_signal(&n->born);
    pthread_mutex_unlock(&n->lock);
    if (abandoned) {
        if (n->comm) n->call.ncclCommAbort(n->comm);
        free_record(n);
    } else if (result == ncclSuccess) {
        watch_until_stopped(n);
    }
    return NULL;
}

// ---- Its life ---------------------------------------------------------------------------------------

enum { JOINED, PENDING, FAILED };

static int64_t look_for_start(iso__nccl *n) {
    pthread_mutex_lock(&n->lock);
    if (!n->started) wait_ns(n, &n->born, WATCH_NS);
    int64_t state = !n->started ? PENDING : n->start == ncclSuccess ? JOINED : FAILED;
    pthread_mutex_unlock(&n->lock);
    return state;
}

static iso_status start_thread(iso__nccl *n) {
    ISO_CHECK(pthread_create(&n->thread, NULL, watch_operations, n) == 0, ISO_ERR_UNSUPPORTED,
              "could not start a thread for NCCL");
    n->thread_runs = true;
    return ISO_OK;
}

static iso_status check_joined(const iso__nccl *n, int64_t mine) {
    ISO_CHECK(mine != PENDING, ISO_ERR_UNSUPPORTED,
              "NCCL has not joined the GPUs of a node within %g s (ISO_TIMEOUT)", n->timeout_s);
    ISO_CHECK(mine == JOINED, ISO_ERR_UNSUPPORTED,
              "NCCL cannot join the GPUs of a node: %s (%.200s)",
              n->call.ncclGetErrorString(n->start), n->call.ncclGetLastError(NULL));
    return ISO_OK;
}

// Where one has failed, NCCL may keep the others for ever. So the ranks ask one another meanwhile.
iso_status iso__nccl_join(iso__nccl *n) {
    int64_t since = iso_now(), mine = PENDING, worst = PENDING;
    iso_status status = start_thread(n);
    bool late = false;
    while (worst == PENDING && !late) {
        mine = status < 0 ? FAILED : look_for_start(n);
        double seconds = (double)(iso_now() - since) * 1e-9;
        int64_t say[2] = {mine, n->timeout_s > 0 && seconds > n->timeout_s};
        ISO_TRY(iso_comm_allreduce_i64(n->node, say, 2, ISO_MAX));
        worst = say[0];
        late = say[1] != 0;
    }
    if (worst == FAILED && mine == PENDING) mine = JOINED; // another rank says what is wrong
    if (status == ISO_OK) status = check_joined(n, mine);
    return iso_comm_agree(n->node, status);
}

bool iso__nccl_unwatch(iso__nccl *n) {
    if (!n->thread_runs) return true;
    pthread_mutex_lock(&n->lock);
    n->stop = true;
    bool started = n->started;
    pthread_cond_signal(&n->wake);
    pthread_mutex_unlock(&n->lock);
    if (started) pthread_join(n->thread, NULL);
    n->thread_runs = !started;
    return started;
}

void iso__nccl_leave(iso__nccl *n) {
    pthread_mutex_lock(&n->lock);
    bool started = n->started;
    if (!started && n->thread_runs) {
        pthread_detach(n->thread);
        n->abandoned = true;
    }
    bool whole = !n->abandoned;
    pthread_mutex_unlock(&n->lock);
    if (!whole) return;
    if (iso__nccl_unwatch(n) && n->comm) n->call.ncclCommAbort(n->comm);
    free_record(n);
}
