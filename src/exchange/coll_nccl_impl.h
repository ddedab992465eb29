// SPDX-License-Identifier: MIT
// Private to coll_nccl*.c: a communicator of NCCL, its functions, and its operations in flight.
#ifndef ISO_COLL_NCCL_IMPL_H
#define ISO_COLL_NCCL_IMPL_H

#include "comm/comm_calls.h"
#include "device/cuda/runtime/cuda_impl.h"
#include "device/cuda/runtime/cuda_library.h"
#include "exchange/coll_nccl.h"

#include <nccl.h>
#include <pthread.h>

#define ISO_NCCL_FUNCTIONS(X)                                                                      \
    X(ncclAllGather)                                                                               \
    X(ncclAllReduce)                                                                               \
    X(ncclCommAbort)                                                                               \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetLastError)                                                                            \
    X(ncclGetUniqueId)                                                                             \
    X(ncclGetVersion)                                                                              \
    X(ncclReduceScatter)
typedef struct iso__nccl_functions {
    ISO_NCCL_FUNCTIONS(ISO_CUDA_FIELD)
} iso__nccl_functions;

// A collective that is not known to be complete.
typedef struct iso__nccl_operation {
    const char *what, *label;
    int64_t issued_ns;
    cudaEvent_t done;
    bool entered; // `done` is recorded
} iso__nccl_operation;

// The maximum number of operations in flight; issuing one more waits for the oldest.
enum { ISO_NCCL_OPERATIONS = 256 };

struct iso__nccl {
    iso_comm *ranks;
    iso__outside *outside; // counts the operations; used with the lock held
    iso_device *device;
    int rank, size, ordinal; // rank and size of `ranks`; ordinal of the GPU
    double timeout_s;        // 0: none
    iso__nccl_functions call;
    cudaStream_t stream;
    ncclUniqueId id;

    // The lock guards everything below; `error` is also read without it.
    pthread_mutex_t lock;
    pthread_cond_t wake; // for the watching thread: an operation is in flight, or stop
    pthread_cond_t born; // the communicator was created, or that failed
    pthread_t thread;
    bool thread_runs, stop, started;
    bool abandoned;                                     // the thread owns this struct
    ncclResult_t start;                                 // the result of creating comm
    ncclComm_t comm;                                    // NULL: not created yet, or aborted
    bool calling;                                       // the program is inside a call of NCCL
    iso__nccl_operation operation[ISO_NCCL_OPERATIONS]; // a ring
    int oldest, count;
    int64_t progress_ns; // the last time at which an operation was found complete
    // The first error. Its message is written before it.
    _Atomic int error;
    char message[400];
};

// With the lock held: the error of the operations in flight, if there is one.
iso_status iso__nccl_look(iso__nccl *nccl);
// With the lock held: stores the error, and removes the communicator, so that no later call uses
// it. Returns the communicator, which the caller aborts after releasing the lock, or NULL.
ncclComm_t iso__nccl_give_up(iso__nccl *nccl, iso_status status);

#endif
