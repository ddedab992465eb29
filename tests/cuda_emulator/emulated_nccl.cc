// SPDX-License-Identifier: MIT
// Communicators and calls of the emulated NCCL; each collective is a task in the caller's stream.
#include "emulated_nccl.h"
#include "emulator.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <set>
#include <thread>

struct ncclComm {
    uint32_t magic;
    emulated::CommunicatorPtr own;
    bool blocking, finalizing;
    std::atomic<bool> attaching;
    std::thread thread; // that attaches, for a communicator that does not block
    std::vector<std::function<void()>> deferred;
};

namespace emulated {

static const uint32_t comm_magic = 0x4cc10000;

struct Nccl {
    std::mutex mutex;
    std::string message;
    std::set<std::string> waiting; // names of segments that are not unlinked yet
    std::vector<ncclComm_t> comms; // kept for ever, so that late uses are noticed
    size_t live = 0;
};

static Nccl &nccl() {
    static Nccl *n = new Nccl;
    return *n;
}

struct Group {
    int depth = 0;
    bool deferred = false;
    std::vector<std::function<void()>> calls;
};
static thread_local Group group;

void set_message(const char *text) {
    std::lock_guard<std::mutex> lock(nccl().mutex);
    nccl().message = text;
}

static ncclResult_t fail(ncclResult_t result, const char *text) {
    set_message(text);
    return result;
}

static void unlink_waiting() {
    for (const std::string &name : nccl().waiting) unlink_segment(name);
}

// Nothing is to be left in /dev/shm by a process that ends while it waits for the others.
static void note_waiting(const std::string &name, bool waiting) {
    static bool registered = atexit(unlink_waiting) == 0;
    std::lock_guard<std::mutex> lock(nccl().mutex);
    if (registered && waiting)
        nccl().waiting.insert(name);
    else
        nccl().waiting.erase(name);
}

static ncclResult_t attach_noted(CommunicatorPtr c) {
    note_waiting(c->name, true);
    ncclResult_t r = attach(*c);
    note_waiting(c->name, false);
    return r;
}

static ncclResult_t enter_nccl(ncclComm_t comm, const char *function) {
    int error = injected(function);
    if (error != 0) return fail(static_cast<ncclResult_t>(error), "an error that a test asked for");
    if (comm == nullptr) return fail(ncclInvalidArgument, "the communicator is null");
    if (comm->magic != comm_magic) die("%s: the communicator has been destroyed", function);
    return ncclSuccess;
}

#define NCCL_ENTER(comm)                                                                           \
    do {                                                                                           \
        ncclResult_t entered_ = emulated::enter_nccl(comm, __func__);                              \
        if (entered_ != ncclSuccess) return entered_;                                              \
    } while (0)

// ---- Collectives ----

static void submit_collective(const Collective &call, cudaStream_t stream) {
    Work work;
    work.prompt = true;
    work.make = [call](CUstream_st *) -> Run {
        auto c = std::make_shared<Collective>(call);
        c->sequence = c->comm->issued++;
        return [c] { return advance(*c); };
    };
    submit(stream, std::move(work));
}

static ncclResult_t check_buffers(const Collective &c, const char *function) {
    size_t bytes = c.what.count * nccl_size(c.what.type);
    size_t all = bytes * static_cast<size_t>(c.comm->ranks);
    if (bytes == 0) return ncclSuccess;
    bool reads = c.what.kind != broadcast || c.what.root == c.comm->rank;
    if (reads) check_device_range(c.send, c.what.kind == reduce_scatter ? all : bytes, function);
    check_device_range(c.recv, c.what.kind == all_gather ? all : bytes, function);
    return ncclSuccess;
}

static bool can_sum(int type) {
    return type == ncclFloat32 || type == ncclFloat64 || type == ncclFloat16 ||
           type == ncclBfloat16;
}

// A call on a communicator that does not block enters nothing into the stream until its state has
// been asked for and is no longer ncclInProgress.
static ncclResult_t issue(ncclComm_t comm, std::function<void()> call) {
    if (group.depth > 0) {
        group.calls.push_back(call);
        if (comm->blocking) return ncclSuccess;
        group.deferred = true;
        group.calls.back() = [comm, call] { comm->deferred.push_back(call); };
        return ncclSuccess;
    }
    if (comm->blocking) {
        call();
        return ncclSuccess;
    }
    comm->deferred.push_back(call);
    return ncclInProgress;
}

static ncclResult_t start(ncclComm_t comm, Kind kind, const void *send, void *recv, size_t count,
                          ncclDataType_t type, int root, cudaStream_t stream,
                          const char *function) {
    check_stream(stream, function);
    Communicator &own = *comm->own;
    if (comm->attaching || !comm->deferred.empty())
        return fail(ncclInvalidUsage, "the communicator is still in progress");
    if (own.error != ncclSuccess) return static_cast<ncclResult_t>(own.error.load());
    if (state().sticky != cudaSuccess) return fail(ncclUnhandledCudaError, "a task has failed");
    if (stream->device != own.device || nccl_size(type) == 0 || root < 0 || root >= own.ranks)
        return fail(ncclInvalidArgument, "wrong stream, type or root");
    Collective c;
    c.comm = comm->own;
    c.what = Description{kind, type, root, count};
    c.send = static_cast<const char *>(send);
    c.recv = static_cast<char *>(recv);
    check_buffers(c, function);
    return issue(comm, [c, stream] { submit_collective(c, stream); });
}

static void perform_deferred(ncclComm_t comm) {
    std::vector<std::function<void()>> calls;
    calls.swap(comm->deferred);
    for (auto &call : calls) call();
}

static bool has_finished(const Communicator &c) {
    Lock lock(state().mutex);
    return c.finished >= c.issued || c.aborted || state().sticky != cudaSuccess;
}

static void close_comm(ncclComm_t comm) {
    if (comm->thread.joinable()) comm->thread.join();
    comm->own.reset(); // what is still in a stream keeps it
    comm->deferred.clear();
    comm->magic = 0;
    std::lock_guard<std::mutex> lock(nccl().mutex);
    --nccl().live;
}

static ncclComm_t new_comm(int nranks, const ncclUniqueId &id, int rank, bool blocking) {
    ncclComm_t comm = new ncclComm();
    comm->magic = comm_magic;
    comm->blocking = blocking;
    comm->own = std::make_shared<Communicator>();
    comm->own->rank = rank;
    comm->own->ranks = nranks;
    comm->own->device = current_device();
    comm->own->name = std::string("/") + std::string(id.internal, strnlen(id.internal, 100));
    std::lock_guard<std::mutex> lock(nccl().mutex);
    nccl().comms.push_back(comm);
    ++nccl().live;
    return comm;
}

static void attach_later(ncclComm_t comm) {
    comm->attaching = true;
    CommunicatorPtr own = comm->own;
    comm->thread = std::thread([comm, own] {
        own->error = attach_noted(own);
        comm->attaching = false;
    });
}

} // namespace emulated

using namespace emulated;

// ---- Communicators ----

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return static_cast<ncclResult_t>(injected(__func__));
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId) {
    int error = injected(__func__);
    if (error != 0) return static_cast<ncclResult_t>(error);
    unsigned char random[16];
    int file = open("/dev/urandom", O_RDONLY);
    bool ok = file >= 0 && read(file, random, sizeof(random)) == sizeof(random);
    if (file >= 0) close(file);
    if (!ok) return fail(ncclSystemError, "no random numbers");
    memset(uniqueId, 0, sizeof(*uniqueId));
    std::string name = "iso_emulated_nccl_";
    for (unsigned char c : random) {
        name += "0123456789abcdef"[c >> 4];
        name += "0123456789abcdef"[c & 15];
    }
    memcpy(uniqueId->internal, name.data(), name.size());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config) {
    int error = injected(__func__);
    if (error != 0) return fail(static_cast<ncclResult_t>(error), "an error that a test asked for");
    if (settings().gpus == 0) return fail(ncclUnhandledCudaError, "no device");
    if (nranks < 1 || nranks > max_ranks || rank < 0 || rank >= nranks)
        return fail(ncclInvalidArgument, "impossible rank or number of ranks");
    if (config != nullptr && config->magic != 0xcafebeef)
        return fail(ncclInvalidArgument, "the configuration is not initialised");
    bool blocking = config == nullptr || config->blocking != 0;
    ncclComm_t made = new_comm(nranks, commId, rank, blocking);
    if (!blocking) {
        attach_later(made);
        *comm = made;
        return ncclInProgress;
    }
    ncclResult_t r = attach_noted(made->own);
    if (r != ncclSuccess) {
        close_comm(made);
        return r;
    }
    *comm = made;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank) {
    int error = injected(__func__);
    if (error != 0) return fail(static_cast<ncclResult_t>(error), "an error that a test asked for");
    return ncclCommInitRankConfig(comm, nranks, commId, rank, nullptr);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    NCCL_ENTER(comm);
    perform_deferred(comm);
    comm->finalizing = true;
    if (!comm->blocking) return ncclInProgress;
    while (!has_finished(*comm->own)) usleep(100);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    NCCL_ENTER(comm);
    perform_deferred(comm);
    while (comm->attaching || !has_finished(*comm->own)) usleep(100);
    close_comm(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    NCCL_ENTER(comm);
    comm->own->aborted = true;
    close_comm(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
    NCCL_ENTER(comm);
    *asyncError = ncclInProgress;
    if (comm->attaching) return ncclSuccess;
    if (!comm->deferred.empty()) {
        perform_deferred(comm);
        return ncclSuccess;
    }
    if (comm->finalizing && !has_finished(*comm->own)) return ncclSuccess;
    *asyncError = static_cast<ncclResult_t>(comm->own->error.load());
    if (*asyncError == ncclSuccess && state().sticky != cudaSuccess)
        *asyncError = ncclUnhandledCudaError;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    NCCL_ENTER(comm);
    *count = comm->own->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    NCCL_ENTER(comm);
    *device = comm->own->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    NCCL_ENTER(comm);
    *rank = comm->own->rank;
    return ncclSuccess;
}

// ---- Calls ----

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
    NCCL_ENTER(comm);
    if (op != ncclSum || !can_sum(datatype))
        return fail(ncclInvalidArgument, "only sums of floating point are emulated");
    return start(comm, all_reduce, sendbuff, recvbuff, count, datatype, 0, stream, __func__);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
    NCCL_ENTER(comm);
    if (op != ncclSum || !can_sum(datatype))
        return fail(ncclInvalidArgument, "only sums of floating point are emulated");
    return start(comm, reduce_scatter, sendbuff, recvbuff, recvcount, datatype, 0, stream,
                 __func__);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER(comm);
    return start(comm, all_gather, sendbuff, recvbuff, sendcount, datatype, 0, stream, __func__);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    NCCL_ENTER(comm);
    return start(comm, broadcast, sendbuff, recvbuff, count, datatype, root, stream, __func__);
}

ncclResult_t ncclGroupStart(void) {
    ++group.depth;
    return static_cast<ncclResult_t>(injected(__func__));
}

ncclResult_t ncclGroupEnd(void) {
    int error = injected(__func__);
    if (error != 0) return static_cast<ncclResult_t>(error);
    if (group.depth == 0) return fail(ncclInvalidUsage, "no group has been begun");
    if (--group.depth > 0) return ncclSuccess;
    std::vector<std::function<void()>> calls;
    calls.swap(group.calls);
    for (auto &call : calls) call();
    bool deferred = group.deferred;
    group.deferred = false;
    return deferred ? ncclInProgress : ncclSuccess;
}

// ---- Errors ----

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[] = {"no error",       "unhandled CUDA error", "system error",
                                        "internal error", "invalid argument",     "invalid usage",
                                        "remote error",   "in progress"};
    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result";
}

const char *ncclGetLastError(ncclComm_t) {
    static thread_local std::string copy;
    std::lock_guard<std::mutex> lock(nccl().mutex);
    copy = nccl().message;
    return copy.c_str();
}

size_t emulated_live_comms(void) {
    std::lock_guard<std::mutex> lock(nccl().mutex);
    return nccl().live;
}
