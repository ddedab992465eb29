// SPDX-License-Identifier: MIT
// Collectives between the GPUs of a node, or of all: issued by the program, complete on the GPU.
#include "exchange/coll_nccl_impl.h"

#include <isotherm/trace.h>
#include <sched.h>
#include <stdatomic.h>

// ---- Errors -----------------------------------------------------------------------------------------

iso_status iso__nccl_check(iso__nccl *n) {
    iso_status error = (iso_status)atomic_load_explicit(&n->error, memory_order_acquire);
    ISO_CHECK(error == ISO_OK, error, "%s", n->message);
    return ISO_OK;
}

// Stores the error first: the abort makes pending operations look complete.
ncclComm_t iso__nccl_give_up(iso__nccl *n, iso_status status) {
    ncclComm_t comm = n->comm;
    n->comm = NULL;
    if (n->error == ISO_OK) {
        snprintf(n->message, sizeof(n->message), "%.390s", iso_last_error()->message);
        atomic_store_explicit(&n->error, (int)status, memory_order_release);
    }
    return comm;
}

// Aborts with this thread's error record.
static void abort_comm(iso__nccl *n, iso_status status) {
    pthread_mutex_lock(&n->lock);
    ncclComm_t comm = iso__nccl_give_up(n, status);
    pthread_mutex_unlock(&n->lock);
    if (comm) n->call.ncclCommAbort(comm);
}

static iso_status nccl_error(const iso__nccl *n, ncclResult_t result, const char *what,
                             const char *label) {
    return ISO_FAIL(ISO_ERR_DEVICE, "NCCL reports on rank %d of %d, in %s of \"%s\": %s (%.200s)",
                    n->rank, n->size, what, label, n->call.ncclGetErrorString(result),
                    n->call.ncclGetLastError(NULL));
}

// ---- What is under way, with the lock held ----------------------------------------------------------

static iso__nccl_operation *oldest_of(iso__nccl *n) { return &n->operation[n->oldest]; }

// Removes complete operations. Operations that an abort released look complete, too.
static iso_status retire_complete(iso__nccl *n) {
    while (n->count > 0 && oldest_of(n)->entered) {
        cudaError_t error = cudaEventQuery(oldest_of(n)->done);
        if (error == cudaErrorNotReady) return ISO_OK;
        ISO_TRY_CUDA(error);
        n->oldest = (n->oldest + 1) % ISO_NCCL_OPERATIONS;
        n->count--;
        n->progress_ns = iso_now();
    }
    return ISO_OK;
}

static void name_oldest(iso__nccl *n, char *text, size_t room) {
    snprintf(text, room, "%s of \"%.60s\" between %d GPUs", oldest_of(n)->what, oldest_of(n)->label,
             n->size);
}

// ISO_ERR_TIMEOUT if the oldest operation has been pending for too long, counted from its issue or
// from the completion of the previous one. Warns before that, if it is long.
static iso_status check_time(iso__nccl *n) {
    char what[128], missing[200];
    const iso__nccl_operation *op = oldest_of(n);
    if (n->count == 0) return ISO_OK;
    int64_t since = op->issued_ns > n->progress_ns ? op->issued_ns : n->progress_ns;
    name_oldest(n, what, sizeof(what));
    iso__outside_wait(n->outside, what, n->count, since);
    ISO_CHECK(n->timeout_s <= 0 || (double)(iso_now() - since) * 1e-9 < n->timeout_s,
              ISO_ERR_TIMEOUT, "rank %d of %d waited %g s for %s: %s (ISO_TIMEOUT sets the limit)",
              n->rank, n->size, n->timeout_s, what,
              iso__outside_verdict(n->outside, n->count, missing, sizeof(missing)));
    return ISO_OK;
}

static iso_status check_comm(iso__nccl *n) {
    ncclResult_t result = ncclSuccess;
    if (n->count == 0 || !n->comm) return ISO_OK;
    ncclResult_t asked = n->call.ncclCommGetAsyncError(n->comm, &result);
    if (asked != ncclSuccess) result = asked;
    if (result != ncclSuccess && result != ncclInProgress)
        return nccl_error(n, result, oldest_of(n)->what, oldest_of(n)->label);
    return ISO_OK;
}

iso_status iso__nccl_look(iso__nccl *n) {
    ISO_TRY(retire_complete(n));
    ISO_TRY(check_comm(n));
    return check_time(n);
}

// ---- Waiting ----------------------------------------------------------------------------------------

// Waits until at most `most` operations are in flight. If none completes in time, the watching
// thread aborts the communicator, which ends this wait with an error.
static iso_status wait_for_room(iso__nccl *n, int most) {
    for (;;) {
        pthread_mutex_lock(&n->lock);
        iso_status status = retire_complete(n);
        int count = n->count;
        pthread_mutex_unlock(&n->lock);
        if (status < 0) abort_comm(n, status);
        ISO_TRY(iso__nccl_check(n));
        if (count <= most) return ISO_OK;
        iso_comm_poll(n->ranks); // the rank that is waited for may wait for ours
        sched_yield();
    }
}

iso_status iso__nccl_finish(iso__nccl *n) {
    ISO_TRY(iso__cuda_enter(iso__cuda_of(n->device)));
    return wait_for_room(n, 0);
}

// ---- Issuing ----------------------------------------------------------------------------------------

static iso_status type_of(iso_dtype dtype, ncclDataType_t *out) {
    switch (dtype) {
    case ISO_F32: *out = ncclFloat32; return ISO_OK;
    case ISO_F64: *out = ncclFloat64; return ISO_OK;
    case ISO_BF16: *out = ncclBfloat16; return ISO_OK;
    case ISO_F16: *out = ncclFloat16; return ISO_OK;
    default: break;
    }
    return ISO_FAIL(ISO_ERR_UNSUPPORTED,
                    "elements of type %s cannot be summed by NCCL here: use f32, f64, bf16 or f16",
                    iso_dtype_name(dtype));
}

// A call of NCCL that is being made.
typedef struct call {
    iso__nccl_operation *op;
    ncclComm_t comm;
    iso__device_event *event;
} call;

// The operation counts as in flight before NCCL is called, so that the watching thread notices if
// that call gets stuck.
static iso_status begin_call(iso__nccl *n, const char *what, const char *label, call *c) {
    ISO_TRY(iso__cuda_enter(iso__cuda_of(n->device)));
    ISO_TRY(wait_for_room(n, ISO_NCCL_OPERATIONS - 1));
    ISO_TRY_CUDA(cudaStreamWaitEvent(n->stream, c->event->cuda, 0));
    pthread_mutex_lock(&n->lock);
    c->comm = n->comm;
    if (c->comm) {
        c->op = &n->operation[(n->oldest + n->count) % ISO_NCCL_OPERATIONS];
        *c->op = (iso__nccl_operation){what, label, iso_now(), c->op->done, false};
        n->calling = true;
        iso__outside_count(n->outside);
        if (n->count++ == 0) pthread_cond_signal(&n->wake);
    }
    pthread_mutex_unlock(&n->lock);
    return c->comm ? ISO_OK : iso__nccl_check(n);
}

static void clear_calling(iso__nccl *n) {
    pthread_mutex_lock(&n->lock);
    n->calling = false;
    pthread_mutex_unlock(&n->lock);
}

static iso_status record_events(iso__nccl *n, const call *c) {
    ISO_TRY_CUDA(cudaEventRecord(c->event->cuda, n->stream));
    ISO_TRY_CUDA(cudaEventRecord(c->op->done, n->stream));
    pthread_mutex_lock(&n->lock);
    c->op->entered = true;
    pthread_mutex_unlock(&n->lock);
    return ISO_OK;
}

static iso_status end_call(iso__nccl *n, ncclResult_t result, const call *c) {
    clear_calling(n);
    iso_status status = result == ncclSuccess ? record_events(n, c)
                                              : nccl_error(n, result, c->op->what, c->op->label);
    if (status < 0) abort_comm(n, status);
    return iso__nccl_check(n); // returns the first of two errors
}

iso_status iso__nccl_all_reduce(iso__nccl *n, void *data, size_t count, iso_dtype dtype,
                                const char *label, iso__device_event *event) {
    ncclDataType_t type = ncclFloat32;
    call c = {.event = event};
    ISO_TRY(type_of(dtype, &type));
    ISO_TRY(begin_call(n, "the all-reduce", label, &c));
    return end_call(n, n->call.ncclAllReduce(data, data, count, type, ncclSum, c.comm, n->stream),
                    &c);
}

static void *shard_of(const iso__nccl *n, void *data, size_t count, iso_dtype dtype) {
    return (char *)data + (size_t)n->rank * count * iso_dtype_size(dtype);
}

iso_status iso__nccl_reduce_scatter(iso__nccl *n, void *data, size_t count, iso_dtype dtype,
                                    const char *label, iso__device_event *event) {
    ncclDataType_t type = ncclFloat32;
    call c = {.event = event};
    ISO_TRY(type_of(dtype, &type));
    ISO_TRY(begin_call(n, "the reduce-scatter", label, &c));
    return end_call(n,
                    n->call.ncclReduceScatter(data, shard_of(n, data, count, dtype), count, type,
                                              ncclSum, c.comm, n->stream),
                    &c);
}

iso_status iso__nccl_all_gather(iso__nccl *n, void *data, size_t count, iso_dtype dtype,
                                const char *label, iso__device_event *event) {
    ncclDataType_t type = ncclFloat32;
    call c = {.event = event};
    ISO_TRY(type_of(dtype, &type));
    ISO_TRY(begin_call(n, "the all-gather", label, &c));
    return end_call(n,
                    n->call.ncclAllGather(shard_of(n, data, count, dtype), data, count, type,
                                          c.comm, n->stream),
                    &c);
}
