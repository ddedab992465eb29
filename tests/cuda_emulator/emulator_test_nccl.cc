// SPDX-License-Identifier: MIT
// The emulated GPU's own test: collectives between three processes.
#include "emulator_test.h"

#include <dirent.h>
#include <nccl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "emulated_types.h"

#define NCCL_OK(call) CHECK((call) == ncclSuccess)

enum { ranks = 3 };
typedef void (*rank_body)(int rank, ncclUniqueId id);

// The shared memory has its name from the id.
static bool segment_exists(const ncclUniqueId &id) {
    DIR *folder = opendir("/dev/shm");
    bool found = false;
    for (struct dirent *e; folder != nullptr && (e = readdir(folder)) != nullptr;)
        found = found || strcmp(e->d_name, id.internal) == 0;
    if (folder != nullptr) closedir(folder);
    return found;
}

static void run_ranks(rank_body body) {
    ncclUniqueId id;
    pid_t children[ranks];
    setenv("ISO_EMULATED_GPUS", "3", 1);
    NCCL_OK(ncclGetUniqueId(&id));
    for (int r = 0; r < ranks; ++r) {
        children[r] = fork();
        if (children[r] != 0) continue;
        alarm(40);
        body(r, id);
        exit(0);
    }
    int bad = 0;
    for (pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        bad += status != 0;
    }
    CHECK(bad == 0);
    CHECK(!segment_exists(id));
}

static ncclComm_t join(int rank, ncclUniqueId id) {
    ncclComm_t comm;
    OK(cudaSetDevice(rank));
    NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank));
    return comm;
}

// ---- Results ----

template <class T> static void put(T *x, size_t i, double value) {
    emulated::store(&x[i], static_cast<decltype(emulated::load(T()))>(value));
}
template <class T> static double get(const T *x, size_t i) {
    return static_cast<double>(emulated::load(x[i]));
}

static double part_of(int rank, size_t i) { return static_cast<double>((i + 1) % 5) + 8 * rank; }

// All operations on `count` elements; every buffer lies in pinned memory and is copied in and out
// in the collective's stream.
template <class T>
static void check_type(ncclComm_t comm, int rank, ncclDataType_t type, size_t count) {
    cudaStream_t s = make_stream();
    T *host = pinned_array<T>(ranks * count), *x = device_array<T>(ranks * count);
    T *y = device_array<T>(ranks * count);
    size_t bytes = count * sizeof(T);
    for (size_t i = 0; i < ranks * count; ++i) put(host, i, part_of(rank, i));
    OK(cudaMemcpyAsync(x, host, ranks * bytes, cudaMemcpyHostToDevice, s));

    NCCL_OK(ncclAllReduce(x, y, count, type, ncclSum, comm, s));
    OK(cudaMemcpyAsync(host, y, bytes, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    for (size_t i = 0; i < count; ++i) CHECK(get(host, i) == 3 * part_of(0, i) + 24);

    NCCL_OK(ncclReduceScatter(x, y, count, type, ncclSum, comm, s));
    OK(cudaMemcpyAsync(host, y, bytes, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    size_t mine = static_cast<size_t>(rank) * count;
    for (size_t i = 0; i < count; ++i) CHECK(get(host, i) == 3 * part_of(0, mine + i) + 24);

    NCCL_OK(ncclAllGather(x, y, count, type, comm, s));
    OK(cudaMemcpyAsync(host, y, ranks * bytes, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    for (int r = 0; r < ranks; ++r)
        for (size_t i = 0; i < count; ++i)
            CHECK(get(host, static_cast<size_t>(r) * count + i) == part_of(r, i));

    NCCL_OK(ncclBroadcast(x, x, count, type, 1, comm, s));
    OK(cudaMemcpyAsync(host, x, bytes, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    for (size_t i = 0; i < count; ++i) CHECK(get(host, i) == part_of(1, i));
    OK(cudaFree(x));
    OK(cudaFree(y));
}

static void all_types(int rank, ncclUniqueId id) {
    ncclComm_t comm = join(rank, id);
    check_type<float>(comm, rank, ncclFloat32, 1000);
    check_type<float>(comm, rank, ncclFloat32, 700001); // several rounds
    check_type<double>(comm, rank, ncclFloat64, 37);
    check_type<emulated::bf16>(comm, rank, ncclBfloat16, 37);
    check_type<emulated::f16>(comm, rank, ncclFloat16, 37);
    NCCL_OK(ncclCommFinalize(comm));
    NCCL_OK(ncclCommDestroy(comm));
    CHECK(emulated_live_comms() == 0 && emulated_live_bytes() == 0);
}

// Many collectives in flight, some in a group, in place, with a rank that is slow.
static void in_flight(int rank, ncclUniqueId id) {
    ncclComm_t comm = join(rank, id);
    cudaStream_t s = make_stream();
    int *x = device_array<int>(1);
    float *y = device_array<float>(20), *host = pinned_array<float>(20);
    for (int i = 0; i < 20; ++i) host[i] = static_cast<float>(rank + i);
    OK(cudaMemcpyAsync(y, host, 20 * sizeof(float), cudaMemcpyHostToDevice, s));
    NCCL_OK(ncclGroupStart());
    for (int i = 0; i < 10; ++i)
        NCCL_OK(ncclAllReduce(y + i, y + i, 1, ncclFloat32, ncclSum, comm, s));
    CHECK(emulated_launches() == 1); // nothing of it is in the stream before the group's end
    NCCL_OK(ncclGroupEnd());
    for (int i = 10; i < 20; ++i) {
        if (rank == i % ranks) usleep(3000);
        NCCL_OK(ncclAllReduce(y + i, y + i, 1, ncclFloat32, ncclSum, comm, s));
    }
    // A waiting collective holds up no other stream.
    cudaStream_t other = make_stream();
    OK(launch(set_kernel, 1, 1, SetArgs{x, 1}, other));
    OK(cudaStreamSynchronize(other));
    OK(cudaMemcpyAsync(host, y, 20 * sizeof(float), cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    for (int i = 0; i < 20; ++i) CHECK(host[i] == static_cast<float>(3 + 3 * i));
    NCCL_OK(ncclCommDestroy(comm));
}

static void in_a_graph(int rank, ncclUniqueId id) {
    ncclComm_t comm = join(rank, id);
    cudaStream_t s = make_stream();
    float *x = device_array<float>(1), *host = pinned_array<float>(1);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    *host = 1;
    OK(cudaMemcpyAsync(x, host, sizeof(float), cudaMemcpyHostToDevice, s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    NCCL_OK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, s));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(exec, s));
    OK(cudaMemcpyAsync(host, x, sizeof(float), cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    CHECK(*host == 27);
    NCCL_OK(ncclCommDestroy(comm));
}

// ---- Communicators that do not block ----

static ncclResult_t wait_for_comm(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        NCCL_OK(ncclCommGetAsyncError(comm, &state));
        usleep(100);
    }
    return state;
}

static void not_blocking(int rank, ncclUniqueId id) {
    ncclComm_t comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    cudaStream_t s;
    config.blocking = 0;
    OK(cudaSetDevice(rank));
    s = make_stream();
    float *x = device_array<float>(1), *host = pinned_array<float>(1);
    *host = 2;
    OK(cudaMemcpyAsync(x, host, sizeof(float), cudaMemcpyHostToDevice, s));
    CHECK(ncclCommInitRankConfig(&comm, ranks, id, rank, &config) == ncclInProgress);
    NCCL_OK(wait_for_comm(comm));
    CHECK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, s) == ncclInProgress);
    CHECK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, s) == ncclInvalidUsage);
    NCCL_OK(wait_for_comm(comm));
    OK(cudaMemcpyAsync(host, x, sizeof(float), cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    CHECK(*host == 6);
    CHECK(ncclCommFinalize(comm) == ncclInProgress);
    NCCL_OK(wait_for_comm(comm));
    NCCL_OK(ncclCommDestroy(comm));
}

// ---- Faults ----

static bool finishes(cudaStream_t s, int milliseconds) {
    for (int i = 0; i < milliseconds; ++i, usleep(1000))
        if (cudaStreamQuery(s) == cudaSuccess) return true;
    return false;
}

// A rank that does not come keeps the others waiting, until they abort.
static void missing_rank(int rank, ncclUniqueId id) {
    ncclComm_t comm = join(rank, id);
    cudaStream_t s = make_stream();
    float *x = device_array<float>(4);
    if (rank != 2) {
        NCCL_OK(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, s));
        NCCL_OK(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, s));
        CHECK(!finishes(s, 100));
    }
    NCCL_OK(ncclCommAbort(comm));
    CHECK(finishes(s, 5000));
    OK(cudaFree(x));
}

static void different_counts(int rank, ncclUniqueId id) {
    ncclComm_t comm = join(rank, id);
    ncclResult_t error = ncclSuccess;
    cudaStream_t s = make_stream();
    float *x = device_array<float>(4);
    NCCL_OK(ncclAllReduce(x, x, rank == 1 ? 3 : 4, ncclFloat32, ncclSum, comm, s));
    OK(cudaStreamSynchronize(s));
    NCCL_OK(ncclCommGetAsyncError(comm, &error));
    CHECK(error == ncclInvalidUsage);
    CHECK(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, s) == ncclInvalidUsage);
    NCCL_OK(ncclCommAbort(comm));
}

static ncclUniqueId second_id;

// Two communicators in another order on rank 0 than on the others.
static void conflicting_order(int rank, ncclUniqueId id) {
    ncclComm_t a = join(rank, id), b = join(rank, second_id);
    cudaStream_t s = make_stream(), t = make_stream();
    float *x = device_array<float>(2);
    NCCL_OK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, rank == 0 ? a : b, s));
    cudaEvent_t event = make_event();
    OK(cudaEventRecord(event, s));
    OK(cudaStreamWaitEvent(t, event, 0));
    NCCL_OK(ncclAllReduce(x + 1, x + 1, 1, ncclFloat32, ncclSum, rank == 0 ? b : a, t));
    CHECK(!finishes(t, 200));
    NCCL_OK(ncclCommAbort(a));
    NCCL_OK(ncclCommAbort(b));
    CHECK(finishes(t, 5000));
}

// The same in streams that do not depend on each other: a device has room for one collective.
static void conflicting_streams(int rank, ncclUniqueId id) {
    ncclComm_t a = join(rank, id), b = join(rank, second_id);
    ncclComm_t first = rank == 0 ? a : b, second = rank == 0 ? b : a;
    cudaStream_t s = make_stream(), t = make_stream();
    float *x = device_array<float>(2);
    NCCL_OK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, first, s));
    usleep(50000); // until it has begun
    NCCL_OK(ncclAllReduce(x + 1, x + 1, 1, ncclFloat32, ncclSum, second, t));
    CHECK(!finishes(t, 200));
    NCCL_OK(ncclCommAbort(first));
    NCCL_OK(ncclCommAbort(second));
    CHECK(finishes(t, 5000));
}

static void nobody_else(int rank, ncclUniqueId id) {
    ncclComm_t comm;
    if (rank == 1) return;
    setenv("ISO_EMULATED_NCCL_S", "1", 1);
    OK(cudaSetDevice(rank));
    CHECK(ncclCommInitRank(&comm, ranks, id, rank) == ncclSystemError);
}

static void one_gpu_twice(int rank, ncclUniqueId id) {
    ncclComm_t comm;
    OK(cudaSetDevice(rank / 2));
    CHECK(ncclCommInitRank(&comm, ranks, id, rank) == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(nullptr), "same GPU") != nullptr);
}

static void one_gpu_on_several_hosts(int rank, ncclUniqueId id) {
    ncclComm_t comm;
    const char *const hosts[ranks] = {"one", "two", "three"};
    setenv("NCCL_HOSTID", hosts[rank], 1);
    NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank)); // all with device 0
    NCCL_OK(ncclCommDestroy(comm));
}

static void wrong_buffers(void) {
    ncclUniqueId id;
    ncclComm_t comm;
    float *x = device_array<float>(1);
    NCCL_OK(ncclGetUniqueId(&id));
    NCCL_OK(ncclCommInitRank(&comm, 1, id, 0));
    emulated_fail_next("ncclAllReduce", ncclRemoteError);
    cudaStream_t s = make_stream();
    CHECK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, s) == ncclRemoteError);
    NCCL_OK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, s));
    OK(cudaStreamSynchronize(s));
    ncclAllReduce(x, x, 2, ncclFloat32, ncclSum, comm, s);
}

#define RANKS(body) [] { run_ranks(body); }

void nccl_tests(void) {
    run_everywhere("all types", RANKS(all_types));
    run_everywhere("collectives in flight", RANKS(in_flight));
    run_everywhere("a collective in a graph", RANKS(in_a_graph));
    run_everywhere("not blocking", RANKS(not_blocking));
    run_everywhere("a missing rank", RANKS(missing_rank));
    run_everywhere("different counts", RANKS(different_counts));
    run_everywhere("conflicting order", [] {
        NCCL_OK(ncclGetUniqueId(&second_id));
        run_ranks(conflicting_order);
    });
    run_everywhere("conflicting order in two streams", [] {
        NCCL_OK(ncclGetUniqueId(&second_id));
        run_ranks(conflicting_streams);
    });
    run_test("nobody else", RANKS(nobody_else), "random");
    run_test("one GPU twice", RANKS(one_gpu_twice), "random");
    run_test("one GPU on several hosts", RANKS(one_gpu_on_several_hosts), "random");
    expect_death("wrong buffers", wrong_buffers, SIGABRT, "one live allocation");
}
