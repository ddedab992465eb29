// SPDX-License-Identifier: MIT
// NCCL's communicator of a node: whether there can be one, and its life.
#include "exchange/coll_nccl_impl.h"

#include <config.h>
#include <string.h>

static const iso__cuda_symbol symbols[] = {ISO_NCCL_FUNCTIONS(ISO_CUDA_SYMBOL)};
enum { SYMBOLS = sizeof(symbols) / sizeof(symbols[0]) };

// ---- Which GPUs -------------------------------------------------------------------------------------

// NCCL takes ranks with different NCCL_HOSTID for ranks of different hosts, and lets them share
// one.
static iso_status identify_gpu(iso_device *device, int64_t *out) {
    const char *host = getenv("NCCL_HOSTID");
    uint64_t gpu;
    ISO_TRY(iso__cuda_identity(iso__cuda_of(device), &gpu));
    if (host) gpu = iso__hash(gpu, host, strlen(host));
    *out = (int64_t)(gpu >> 1);
    return ISO_OK;
}

// gpu: [size], zero but for this rank's.
static iso_status compare_gpus(iso_comm *node, int64_t *gpu) {
    int size = iso_comm_size(node);
    ISO_TRY(iso_comm_allreduce_i64(node, gpu, (size_t)size, ISO_SUM));
    for (int b = 1; b < size; b++)
        for (int a = 0; a < b; a++)
            ISO_CHECK(gpu[a] != gpu[b], ISO_ERR_UNSUPPORTED,
                      "ranks %d and %d of a node share a GPU, which NCCL does not take: start as "
                      "many ranks on a node as it has GPUs, each with its own",
                      a, b);
    return ISO_OK;
}

static iso_status check_gpus(iso_comm *node, iso_device *device) {
    int64_t *gpu = NULL;
    size_t bytes = (size_t)iso_comm_size(node) * sizeof(*gpu);
    iso_status status = iso__alloc_zero(bytes, (void **)&gpu);
    if (status == ISO_OK) status = identify_gpu(device, &gpu[iso_comm_rank(node)]);
    status = iso_comm_agree(node, status);
    if (status == ISO_OK) status = compare_gpus(node, gpu);
    iso__free(gpu);
    ISO_TRY(status);
    return ISO_OK;
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

// What a GPU does next waits for what travels: it goes before what only fills the GPU.
static iso_status make_stream(iso__nccl *n) {
    int least, greatest;
    ISO_TRY(iso__cuda_enter(iso__cuda_of(n->device)));
    ISO_TRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    ISO_TRY_CUDA(cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest));
    for (int i = 0; i < ISO_NCCL_OPERATIONS; i++)
        ISO_TRY_CUDA(cudaEventCreateWithFlags(&n->operation[i].done, cudaEventDisableTiming));
    return ISO_OK;
}

// This rank's part, up to where the others are needed.
static iso_status prepare_rank(iso__nccl *n) {
    ISO_TRY(iso__cuda_load("NCCL", ISO_NCCL_SONAME, symbols, SYMBOLS, &n->call));
    ISO_TRY(make_stream(n));
    if (n->rank > 0) return ISO_OK;
    ncclResult_t result = n->call.ncclGetUniqueId(&n->id);
    ISO_CHECK(result == ncclSuccess, ISO_ERR_UNSUPPORTED, "NCCL cannot begin: %s (%.200s)",
              n->call.ncclGetErrorString(result), n->call.ncclGetLastError(NULL));
    return ISO_OK;
}

// together: all ranks do, and all of them are through with it.
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
    if (iso__nccl_unwatch(n) && usable) destroy_comm(n, together);
    for (int i = 0; usable && i < ISO_NCCL_OPERATIONS; i++)
        if (n->operation[i].done) cudaEventDestroy(n->operation[i].done);
    if (usable && n->stream) cudaStreamDestroy(n->stream);
    iso_device_destroy(&n->device);
    iso_comm_destroy(&n->node);
    iso__nccl_leave(n);
}

static void log_version(const iso__nccl *n) {
    int version = 0;
    if (n->rank > 0 || n->call.ncclGetVersion(&version) != ncclSuccess) return;
    iso__log(ISO_LOG_INFO, "node collective: NCCL %d.%d.%d between %d GPUs", version / 10000,
             version / 100 % 100, version % 100, n->size);
}

iso_status iso__nccl_create(iso_comm *node, iso_device *device, iso__nccl **out) {
    iso__nccl *n = NULL;
    iso_status status = iso__alloc_zero(sizeof(*n), (void **)&n);
    if (status == ISO_OK && make_conditions(n) < 0) {
        iso__free(n);
        n = NULL;
        status = ISO_ERR_NOMEM;
    }
    if (n) {
        n->node = iso_comm_retain(node);
        n->device = iso_device_retain(device);
        n->rank = iso_comm_rank(node);
        n->size = iso_comm_size(node);
        n->timeout_s = iso__comm_timeout(node);
        n->ordinal = iso__cuda_of(device)->ordinal;
        status = prepare_rank(n);
    }
    ISO_TRY_GOTO(iso_comm_agree(node, status));
    ISO_TRY_GOTO(check_gpus(node, device));
    ISO_TRY_GOTO(iso_comm_bcast(node, &n->id, sizeof(n->id), 0));
    ISO_TRY_GOTO(iso__nccl_join(n));
    log_version(n);
    *out = n;
    return ISO_OK;
fail:
    if (n) take_down(n, false);
    return status;
}

// Ranks that have failed take part, so that the others need not wait for them.
static bool all_are_through(iso__nccl *n) {
    bool finalized = iso__comm_is_finalized(n->node);
    iso_status status = iso__nccl_finish(n);
    if (status < 0) iso__log(ISO_LOG_ERROR, "%s", iso_last_error()->message);
    int64_t vote = status == ISO_OK;
    if (finalized || iso_comm_allreduce_i64(n->node, &vote, 1, ISO_MIN) < 0) return false;
    return vote != 0;
}

void iso__nccl_destroy(iso__nccl **pointer) {
    iso__nccl *n = *pointer;
    *pointer = NULL;
    if (n) take_down(n, all_are_through(n));
}
