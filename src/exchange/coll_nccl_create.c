// SPDX-License-Identifier: MIT
// Creates and destroys an NCCL communicator of a node's ranks, or of all. A thread joins the
// communicator and then watches its operations in flight.
#include "exchange/coll_nccl_impl.h"

#include <config.h>
#include <isotherm/trace.h>
#include <string.h>

#define WATCH_NS 20000000 // it only determines how soon an error is reported

static const iso__cuda_symbol symbols[] = {ISO_NCCL_FUNCTIONS(ISO_CUDA_SYMBOL)};
enum { SYMBOLS = sizeof(symbols) / sizeof(symbols[0]) };

// ---- Which GPUs -------------------------------------------------------------------------------------

// NCCL treats ranks with different NCCL_HOSTID as ranks of different hosts, and lets them share a
// GPU.
static iso_status identify_gpu(iso_device *device, int64_t *out) {
    const char *host = getenv("NCCL_HOSTID");
    uint64_t gpu;
    ISO_TRY(iso__cuda_identity(iso__cuda_of(device), &gpu));
    if (host) gpu = iso__hash(gpu, host, strlen(host));
    *out = (int64_t)(gpu >> 1);
    return ISO_OK;
}

// gpu: [size], zero except for this rank's entry.
static iso_status compare_gpus(iso_comm *comm, int64_t *gpu) {
    int size = iso_comm_size(comm);
    ISO_TRY(iso_comm_allreduce_i64(comm, gpu, (size_t)size, ISO_SUM));
    for (int b = 1; b < size; b++)
        for (int a = 0; a < b; a++)
            ISO_CHECK(gpu[a] != gpu[b], ISO_ERR_UNSUPPORTED,
                      "ranks %d and %d share a GPU, which NCCL does not take: start as "
                      "many ranks on a node as it has GPUs, each with its own",
                      a, b);
    return ISO_OK;
}

static iso_status check_gpus(iso_comm *comm, iso_device *device) {
    int64_t *gpu = NULL;
    size_t bytes = (size_t)iso_comm_size(comm) * sizeof(*gpu);
    iso_status status = iso__alloc_zero(bytes, (void **)&gpu);
    if (status == ISO_OK) status = identify_gpu(device, &gpu[iso_comm_rank(comm)]);
    status = iso_comm_agree(comm, status);
    if (status == ISO_OK) status = compare_gpus(comm, gpu);
    iso__free(gpu);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- The thread that joins, and then watches --------------------------------------------------------

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

// An abort frees what a pending call of the program uses, so wait for that call first. Do not wait
// for ever: a call that does not return is one more reason to abort.
static void let_call_return(iso__nccl *n) {
    for (int k = 0; n->calling && k < 50; k++) wait_ns(n, &n->wake, WATCH_NS);
}

static void watch_until_stopped(iso__nccl *n) {
    pthread_mutex_lock(&n->lock);
    while (!n->stop) {
        if (n->count == 0 || n->error) {
            iso__outside_rest(n->outside);
            pthread_cond_wait(&n->wake, &n->lock);
            continue;
        }
        iso_status status = iso__nccl_look(n);
        if (status < 0) {
            let_call_return(n);
            ncclComm_t comm = iso__nccl_give_up(n, status); // locked: no call begins in between
            pthread_mutex_unlock(&n->lock);
            if (comm) n->call.ncclCommAbort(comm);
            pthread_mutex_lock(&n->lock);
            continue;
        }
        wait_ns(n, &n->wake, WATCH_NS);
    }
    pthread_mutex_unlock(&n->lock);
}

// Joins in blocking mode: in the other mode, NCCL would start a thread for each collective. The
// watching thread may block.
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

// ---- Joining ----------------------------------------------------------------------------------------

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
              "NCCL has not joined the GPUs within %g s (ISO_TIMEOUT)", n->timeout_s);
    ISO_CHECK(mine == JOINED, ISO_ERR_UNSUPPORTED, "NCCL cannot join the GPUs: %s (%.200s)",
              n->call.ncclGetErrorString(n->start), n->call.ncclGetLastError(NULL));
    return ISO_OK;
}

// Collective. Starts the watching thread, which joins the communicator before it watches. Waits for
// the join until the time-out, or until it fails on any rank. If it fails on one rank, NCCL
// may block the others for ever, so the ranks exchange their states while they wait.
static iso_status join_ranks(iso__nccl *n) {
    int64_t since = iso_now(), mine = PENDING, worst = PENDING;
    iso_status status = start_thread(n);
    bool late = false;
    while (worst == PENDING && !late) {
        mine = status < 0 ? FAILED : look_for_start(n);
        double seconds = (double)(iso_now() - since) * 1e-9;
        int64_t say[2] = {mine, n->timeout_s > 0 && seconds > n->timeout_s};
        ISO_TRY(iso_comm_allreduce_i64(n->ranks, say, 2, ISO_MAX));
        worst = say[0];
        late = say[1] != 0;
    }
    if (worst == FAILED && mine == PENDING) mine = JOINED; // another rank reports the error
    if (status == ISO_OK) status = check_joined(n, mine);
    return iso_comm_agree(n->ranks, status);
}

// Ends the thread. Returns false if NCCL has not returned from joining.
static bool end_watch(iso__nccl *n) {
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

// Frees the struct and its lock; if NCCL has not returned from joining, the thread will free them.
// Call it after everything else is freed.
static void leave_record(iso__nccl *n) {
    pthread_mutex_lock(&n->lock);
    bool started = n->started;
    if (!started && n->thread_runs) {
        pthread_detach(n->thread);
        n->abandoned = true;
    }
    bool whole = !n->abandoned;
    pthread_mutex_unlock(&n->lock);
    if (!whole) return;
    if (end_watch(n) && n->comm) n->call.ncclCommAbort(n->comm);
    free_record(n);
}

// ---- Life -------------------------------------------------------------------------------------------

static iso_status make_conditions(iso__nccl *n) {
    pthread_condattr_t clock;
    ISO_CHECK(pthread_condattr_init(&clock) == 0, ISO_ERR_NOMEM, "no memory for a condition");
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->wake, &clock);
    pthread_cond_init(&n->born, &clock);
    pthread_condattr_destroy(&clock);
    return ISO_OK;
}

// Collectives have the highest priority, because later work of the GPU waits for them.
static iso_status make_stream(iso__nccl *n) {
    int least, greatest;
    ISO_TRY(iso__cuda_enter(iso__cuda_of(n->device)));
    ISO_TRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    ISO_TRY_CUDA(cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest));
    for (int i = 0; i < ISO_NCCL_OPERATIONS; i++)
        ISO_TRY_CUDA(cudaEventCreateWithFlags(&n->operation[i].done, cudaEventDisableTiming));
    return ISO_OK;
}

// Does everything that needs no other rank.
static iso_status prepare_rank(iso__nccl *n) {
    ISO_TRY(iso__cuda_load("NCCL", ISO_NCCL_SONAME, symbols, SYMBOLS, &n->call));
    ISO_TRY(make_stream(n));
    if (n->rank > 0) return ISO_OK;
    ncclResult_t result = n->call.ncclGetUniqueId(&n->id);
    ISO_CHECK(result == ncclSuccess, ISO_ERR_UNSUPPORTED, "NCCL cannot begin: %s (%.200s)",
              n->call.ncclGetErrorString(result), n->call.ncclGetLastError(NULL));
    return ISO_OK;
}

// together: all ranks call this, and all operations are complete on all of them.
static void destroy_comm(iso__nccl *n, bool together) {
    if (!n->comm) return;
    if (together)
        n->call.ncclCommDestroy(n->comm);
    else
        n->call.ncclCommAbort(n->comm);
    n->comm = NULL;
}

static void take_down(iso__nccl *n, bool together) {
    bool usable = iso__cuda_enter(iso__cuda_of(n->device)) == ISO_OK;
    if (end_watch(n) && usable) destroy_comm(n, together);
    for (int i = 0; usable && i < ISO_NCCL_OPERATIONS; i++)
        if (n->operation[i].done) cudaEventDestroy(n->operation[i].done);
    if (usable && n->stream) cudaStreamDestroy(n->stream);
    iso_device_destroy(&n->device);
    iso__outside_destroy(&n->outside);
    iso_comm_destroy(&n->ranks);
    leave_record(n);
}

static void log_version(const iso__nccl *n) {
    int version = 0;
    if (n->rank > 0 || n->call.ncclGetVersion(&version) != ncclSuccess) return;
    iso__log(ISO_LOG_INFO, "NCCL %d.%d.%d between %d GPUs", version / 10000, version / 100 % 100,
             version % 100, n->size);
}

iso_status iso__nccl_create(iso_comm *comm, iso_device *device, iso__nccl **out) {
    iso__nccl *n = NULL;
    iso_status status = iso__alloc_zero(sizeof(*n), (void **)&n);
    if (status == ISO_OK && make_conditions(n) < 0) {
        iso__free(n);
        n = NULL;
        status = ISO_ERR_NOMEM;
    }
    if (n) {
        n->ranks = iso_comm_retain(comm);
        n->device = iso_device_retain(device);
        n->rank = iso_comm_rank(comm);
        n->size = iso_comm_size(comm);
        n->timeout_s = iso__comm_timeout(comm);
        n->ordinal = iso__cuda_of(device)->ordinal;
        status = prepare_rank(n);
    }
    ISO_TRY_GOTO(iso_comm_agree(comm, status));
    ISO_TRY_GOTO(check_gpus(comm, device));
    ISO_TRY_GOTO(iso_comm_agree(comm, iso__outside_create(comm, &n->outside)));
    ISO_TRY_GOTO(iso_comm_bcast(comm, &n->id, sizeof(n->id), 0));
    ISO_TRY_GOTO(join_ranks(n));
    log_version(n);
    *out = n;
    return ISO_OK;
fail:
    if (n) take_down(n, false);
    return status;
}

// Whether all operations are complete on all ranks. Ranks that have failed take part in the vote,
// so that the others do not wait for them.
static bool all_are_through(iso__nccl *n) {
    bool finalized = iso__comm_is_finalized(n->ranks);
    iso_status status = iso__nccl_finish(n);
    if (status < 0) iso__log(ISO_LOG_ERROR, "%s", iso_last_error()->message);
    int64_t vote = status == ISO_OK;
    if (finalized || iso_comm_allreduce_i64(n->ranks, &vote, 1, ISO_MIN) < 0) return false;
    return vote != 0;
}

bool iso__nccl_is_built(void) { return true; }

void iso__nccl_destroy(iso__nccl **pointer) {
    iso__nccl *n = *pointer;
    *pointer = NULL;
    if (n) take_down(n, all_are_through(n));
}
