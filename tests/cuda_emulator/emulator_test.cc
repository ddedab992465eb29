// SPDX-License-Identifier: MIT
// The emulated GPU's own test, without a framework: streams, events, memory, faults. Prints what
// failed; the exit status is then not zero.
#include "emulator_test.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

static int failures = 0;

// ---- Processes ----

static int in_child(test_body body, std::string *text) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        alarm(60);
        body();
        exit(0);
    }
    close(ends[1]);
    char buffer[512];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
        text->append(buffer, static_cast<size_t>(n));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

static void fail(const char *name, const std::string &text, int status) {
    ++failures;
    printf("FAILED: %s (%s, seed %s), status %d\n%s", name, getenv("ISO_EMULATED_ORDER"),
           getenv("ISO_EMULATED_SEED"), status, text.c_str());
}

void run_test(const char *name, test_body body, const char *order) {
    std::string text;
    setenv("ISO_EMULATED_ORDER", order, 1);
    int status = in_child(body, &text);
    if (status != 0) fail(name, text, status);
}

void run_everywhere(const char *name, test_body body) {
    run_test(name, body, "eager");
    run_test(name, body, "late");
    for (const char *seed : {"2", "3", "1"}) {
        setenv("ISO_EMULATED_SEED", seed, 1);
        run_test(name, body, "random");
    }
}

void expect_death(const char *name, test_body body, int signal, const char *message) {
    std::string text;
    setenv("ISO_EMULATED_ORDER", "random", 1);
    int status = in_child(body, &text);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signal ||
        text.find(message) == std::string::npos)
        fail(name, text + "(was expected to die)\n", status);
}

// ---- Devices and memory ----

static void devices(void) {
    int count, value;
    cudaDeviceProp properties;
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 2);
    OK(cudaGetDeviceProperties(&properties, 1));
    CHECK(strcmp(properties.name, "emulated GPU (CPU)") == 0);
    CHECK(properties.multiProcessorCount == 2 && properties.major == 9);
    CHECK(properties.totalGlobalMem == size_t(1) << 30);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
    CHECK(value == 32);
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(strcmp(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice") == 0);
}

static void no_devices(void) {
    setenv("ISO_EMULATED_GPUS", "0", 1);
    int count = 5;
    void *p;
    CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0);
    CHECK(cudaMalloc(&p, 10) == cudaErrorNoDevice);
}

static void allocations(void) {
    setenv("ISO_EMULATED_MEMORY_MB", "8", 1);
    char *a = device_array<char>(3 << 20), *b = device_array<char>(3 << 20);
    void *c = nullptr;
    CHECK(cudaMalloc(&c, 3 << 20) == cudaErrorMemoryAllocation && c == nullptr);
    CHECK(emulated_live_bytes() == 6 << 20 && emulated_live_allocations() == 2);
    OK(cudaFree(a));
    OK(cudaMalloc(&c, 3 << 20));
    CHECK(c == a); // the room is used again
    CHECK(static_cast<unsigned char>(read_one(a + 12345)) == 0xFF);
    OK(cudaSetDevice(1)); // whose memory is its own
    char *d = device_array<char>(6 << 20);
    size_t free_bytes, total;
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(total == 8 << 20 && free_bytes == 2 << 20);
    OK(cudaFree(b));
    OK(cudaFree(c));
    OK(cudaFree(d));
    CHECK(emulated_live_bytes() == 0);
}

static void host_reads_device(void) {
    int *p = device_array<int>(1);
    cudaStream_t s = make_stream();
    OK(launch(set_kernel, 1, 1, SetArgs{p, 1}, s));
    OK(cudaStreamSynchronize(s));
    usleep(20000); // until the executor has nothing to do
    fprintf(stderr, "now %d\n", *reinterpret_cast<volatile int *>(p));
}

static void copy_from_pageable(void) {
    static int host[4];
    OK(cudaMemcpyAsync(device_array<int>(4), host, 16, cudaMemcpyHostToDevice, make_stream()));
}

static void copy_after_unregister(void) {
    static int host[4];
    cudaStream_t s = make_stream();
    int *device = device_array<int>(4);
    OK(cudaHostRegister(host, sizeof(host), cudaHostRegisterDefault));
    CHECK(cudaHostRegister(host + 1, 4, 0) == cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaMemcpyAsync(device, host, 16, cudaMemcpyHostToDevice, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaHostUnregister(host));
    CHECK(cudaHostUnregister(host) == cudaErrorHostMemoryNotRegistered);
    OK(cudaMemcpyAsync(device, host, 16, cudaMemcpyHostToDevice, s));
}

static void free_under_a_copy(void) {
    setenv("ISO_EMULATED_ORDER", "late", 1);
    int *host = pinned_array<int>(4);
    OK(cudaMemcpyAsync(device_array<int>(4), host, 16, cudaMemcpyHostToDevice, make_stream()));
    cudaFreeHost(host);
}

static void copy_out_of_bounds(void) {
    int *p = device_array<int>(4);
    OK(cudaMemsetAsync(p + 1, 0, 16, make_stream()));
}

static void write_behind(void) {
    int *p = device_array<int>(4);
    OK(launch(set_kernel, 1, 1, SetArgs{p + 4, 1}, make_stream()));
    cudaFree(p);
}

static void default_stream(void) {
    int *p = device_array<int>(4);
    cudaMemsetAsync(p, 0, 4, nullptr);
}

static void destroyed_stream(void) {
    cudaStream_t s = make_stream();
    OK(cudaStreamDestroy(s));
    CHECK(emulated_live_streams() == 0);
    cudaStreamSynchronize(s);
}

// ---- Order ----

static void in_order(void) {
    int *x = device_array<int>(1), *host = pinned_array<int>(1);
    cudaStream_t s = make_stream();
    int expected = 1;
    OK(launch(set_kernel, 1, 1, SetArgs{x, 1}, s));
    for (int i = 0; i < 50; ++i) {
        OK(launch(scale_kernel, 1, 1, ScaleArgs{x, 3, i}, s));
        expected = (expected * 3 + i) % 1000003;
    }
    OK(cudaMemcpyAsync(host, x, sizeof(int), cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    CHECK(*host == expected);
}

// How often of 40 times does a stream see what another one has written?
static int seen(bool with_event) {
    int *x = device_array<int>(1), *host = pinned_array<int>(1), right = 0;
    cudaStream_t producer = make_stream(), consumer = make_stream();
    cudaEvent_t event = make_event();
    for (int i = 0; i < 40; ++i) {
        OK(launch(set_kernel, 1, 1, SetArgs{x, i}, producer));
        OK(cudaEventRecord(event, producer));
        if (with_event) OK(cudaStreamWaitEvent(consumer, event, 0));
        OK(cudaMemcpyAsync(host, x, sizeof(int), cudaMemcpyDeviceToHost, consumer));
        OK(cudaStreamSynchronize(consumer));
        right += *host == i;
        OK(cudaStreamSynchronize(producer));
    }
    return right;
}

static void event_orders(void) { CHECK(seen(true) == 40); }
static void missing_event_shows(void) { CHECK(seen(false) < 40); }
static void missing_event_shows_late(void) { CHECK(seen(false) == 0); }

static void late_runs_on_demand(void) {
    int *x = device_array<int>(1), *host = pinned_array<int>(1);
    cudaStream_t s = make_stream();
    *host = 7;
    OK(launch(set_kernel, 1, 1, SetArgs{x, 1}, s));
    OK(cudaMemcpyAsync(host, x, sizeof(int), cudaMemcpyDeviceToHost, s));
    usleep(20000);
    CHECK(*host == 7);
    while (cudaStreamQuery(s) == cudaErrorNotReady) usleep(100);
    CHECK(*host == 1);
}

static void event_semantics(void) {
    int *x = device_array<int>(1), *host = pinned_array<int>(1);
    cudaStream_t a = make_stream(), b = make_stream();
    cudaEvent_t event = make_event();
    OK(cudaEventQuery(event)); // never recorded: nothing to wait for
    OK(cudaEventSynchronize(event));
    OK(cudaStreamWaitEvent(a, event, 0));
    OK(launch(set_kernel, 1, 1, SetArgs{x, 5}, a));
    OK(cudaEventRecord(event, a));
    OK(cudaStreamWaitEvent(b, event, 0));
    // A later record of the same event in b itself must not change what b waits for.
    OK(cudaMemcpyAsync(host, x, sizeof(int), cudaMemcpyDeviceToHost, b));
    OK(cudaEventRecord(event, b));
    OK(cudaEventSynchronize(event));
    CHECK(*host == 5);
    OK(cudaEventQuery(event));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, event, event) == cudaErrorInvalidResourceHandle);
}

static void elapsed_time(void) {
    cudaEvent_t begin, end;
    cudaStream_t s = make_stream();
    float ms = -1;
    OK(cudaEventCreateWithFlags(&begin, cudaEventDefault));
    OK(cudaEventCreateWithFlags(&end, cudaEventDefault));
    OK(cudaEventRecord(begin, s));
    OK(cudaLaunchHostFunc(
        s, [](void *us) { usleep(*static_cast<unsigned *>(us)); }, new unsigned(3000)));
    OK(cudaEventRecord(end, s));
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms >= 3 && ms < 2000);
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    CHECK(emulated_live_events() == 0);
}

// A synchronous copy waits for no other stream, as on a GPU where streams are non-blocking.
static void copies_do_not_synchronise(void) {
    int *x = device_array<int>(1);
    cudaStream_t s = make_stream();
    OK(launch(set_kernel, 1, 1, SetArgs{x, 9}, s));
    CHECK(read_one(x) == -1);
    OK(cudaStreamSynchronize(s));
    CHECK(read_one(x) == 9);
}

static void devices_of_streams(void) {
    cudaStream_t s = make_stream();
    cudaEvent_t event = make_event();
    OK(cudaSetDevice(1));
    int *x = device_array<int>(1);
    CHECK(launch(set_kernel, 1, 1, SetArgs{x, 1}, s) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(event, make_stream()) == cudaErrorInvalidResourceHandle);
}

// ---- Faults ----

static void injected_errors(void) {
    void *p = nullptr;
    emulated_fail_next("cudaMalloc", cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&p, 16) == cudaErrorMemoryAllocation && p == nullptr);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 16));
    OK(cudaFree(p));
}

static void failing_task(void) {
    int *x = device_array<int>(1);
    cudaStream_t s = make_stream(), other = make_stream();
    OK(launch(set_kernel, 1, 1, SetArgs{x, 1}, s));
    OK(cudaStreamSynchronize(s));
    emulated_fail_task(cudaErrorIllegalAddress);
    OK(launch(set_kernel, 1, 1, SetArgs{x, 2}, s)); // asynchronous: the launch succeeds
    CHECK(cudaStreamSynchronize(s) == cudaErrorIllegalAddress);
    CHECK(cudaStreamSynchronize(other) == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress); // it stays
    CHECK(cudaStreamDestroy(s) == cudaErrorIllegalAddress);
    CHECK(cudaFree(x) == cudaErrorIllegalAddress);
    CHECK(emulated_live_bytes() == 0 && emulated_live_streams() == 1);
}

static void held_copies(void) {
    int *x = device_array<int>(1), *out = nullptr;
    cudaStream_t s = make_stream(), other = make_stream();
    OK(cudaMallocHost(reinterpret_cast<void **>(&out), sizeof(int)));
    *out = 0;
    OK(launch(set_kernel, 1, 1, SetArgs{x, 5}, s));
    OK(cudaStreamSynchronize(s));
    emulated_hold_copies_out(1);
    OK(cudaMemcpyAsync(out, x, sizeof(int), cudaMemcpyDeviceToHost, s));
    OK(launch(set_kernel, 1, 1, SetArgs{x, 6}, other));
    OK(cudaStreamSynchronize(other)); // others go on
    usleep(20000);
    CHECK(cudaStreamQuery(s) == cudaErrorNotReady && *out == 0);
    emulated_hold_copies_out(0);
    OK(cudaStreamSynchronize(s));
    CHECK(*out == 6);
    OK(cudaFreeHost(out));
}

void runtime_tests(void) {
    run_everywhere("devices", devices);
    run_test("no devices", no_devices, "random");
    run_everywhere("allocations", allocations);
    expect_death("host reads device memory", host_reads_device, SIGSEGV, "");
    expect_death("pageable copy", copy_from_pageable, SIGABRT, "not page-locked");
    expect_death("unregistered", copy_after_unregister, SIGABRT, "not page-locked");
    expect_death("free under a copy", free_under_a_copy, SIGABRT, "not finished");
    expect_death("copy out of bounds", copy_out_of_bounds, SIGABRT, "one live allocation");
    expect_death("write behind", write_behind, SIGABRT, "written behind");
    expect_death("default stream", default_stream, SIGABRT, "default stream");
    expect_death("destroyed stream", destroyed_stream, SIGABRT, "destroyed");
    run_everywhere("in order", in_order);
    run_everywhere("an event orders streams", event_orders);
    run_test("a missing event shows", missing_event_shows, "random");
    run_test("a missing event shows (late)", missing_event_shows_late, "late");
    run_test("late runs on demand", late_runs_on_demand, "late");
    run_everywhere("event semantics", event_semantics);
    run_everywhere("elapsed time", elapsed_time);
    run_test("copies do not synchronise", copies_do_not_synchronise, "late");
    run_everywhere("devices of streams", devices_of_streams);
    run_everywhere("injected errors", injected_errors);
    run_everywhere("failing task", failing_task);
    run_everywhere("held copies", held_copies);
}

int main(void) {
    setenv("ISO_EMULATED_SEED", "1", 1);
    unsetenv("ISO_EMULATED_GPUS");
    unsetenv("ISO_EMULATED_MEMORY_MB");
    runtime_tests();
    kernel_tests();
    graph_tests();
    blas_tests();
    lt_tests();
    dnn_tests();
    last_tests();
    nccl_tests();
    printf("emulated GPU: %s\n", failures == 0 ? "all tests passed" : "tests FAILED");
    return failures != 0;
}
