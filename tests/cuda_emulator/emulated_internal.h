// SPDX-License-Identifier: MIT
// What the files of the emulated GPU share.
#ifndef EMULATED_INTERNAL_H
#define EMULATED_INTERNAL_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace emulated {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

// ---- Settings and failures (emulated_runtime.cc) ----

enum class Order { random, late, eager };

struct Settings {
    int gpus;
    size_t memory; // bytes of each device
    unsigned seed;
    Order order;
    int nccl_seconds;
};
const Settings &settings();

// A mistake that a GPU would answer with undefined behaviour ends the program with a message.
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

// An error that a test has asked for in `function`, or 0.
int injected(const char *function);
// What every CUDA call begins with: an injected error, no device, or an earlier fault.
cudaError_t enter(const char *function);
// Remembers an error for cudaGetLastError and gives it back.
cudaError_t result(cudaError_t error);
int current_device();
bool on_executor(); // is this the executor thread?

// ---- Memory (emulated_memory.cc) ----

// Device pointers point to memory that nobody may touch. Where their contents truly are; a pointer
// to host memory stays what it is.
void *real(void *pointer);
const void *real(const void *pointer);
template <class T> T *real(T *pointer) {
    return static_cast<T *>(real(const_cast<void *>(static_cast<const void *>(pointer))));
}
// Does this to every pointer to a live allocation in the bytes of a kernel's argument.
void make_real(std::vector<unsigned char> &args);
bool is_device(const void *pointer);
int device_of(const void *pointer);
bool is_pinned(const void *pointer, size_t size);
// Ends the program unless the range lies in one live allocation.
void check_device_range(const void *pointer, size_t size, const char *function);

// ---- Streams (emulated_streams.cc) ----

enum class Outcome { done, later };
// A task's work; it is called again a little later until it is done.
using Run = std::function<Outcome()>;

struct Recording { // of an event into a stream
    CUstream_st *stream = nullptr;
    uint64_t number = 0; // of the task in the stream
    bool done = false;
    Time time;
};
using RecordingPtr = std::shared_ptr<Recording>;

struct KernelCall {
    const void *func = nullptr; // null: a kernel of cuBLAS or NCCL, which nobody can change
    dim3 grid, block;
    size_t shared = 0;
    std::vector<unsigned char> args;
};

// Something to be done in a stream or to become a graph's node.
struct Work {
    cudaGraphNodeType type = cudaGraphNodeTypeKernel;
    KernelCall kernel; // used if it has a func
    // Otherwise: called, with the lock, when a stream is about to get the work.
    std::function<Run(CUstream_st *)> make;
    const void *host = nullptr, *host2 = nullptr;
    size_t host_size = 0; // pinned memory that the work uses
    bool prompt = false;  // somebody outside of CUDA may be waiting for it
    int device = -1;      // of a node: the only one that may run it; -1: any
};
Run make_run(const Work &work, CUstream_st *stream);

struct Task {
    uint64_t number = 0;
    Run run;             // empty: nothing but the wait or the record
    RecordingPtr wait;   // to be done before the task may run
    RecordingPtr record; // done when the task has run
    std::vector<std::pair<const void *, size_t>> host;
    cudaError_t failure = cudaSuccess;
    bool prompt = false;
    Time since;
};

struct Capture;
using CapturePtr = std::shared_ptr<Capture>;

struct State {
    std::mutex mutex;
    std::condition_variable work, done;
    bool started = false;
    std::atomic<cudaError_t> sticky{cudaSuccess}; // a fault; nothing runs after it
    std::vector<CUstream_st *> streams;           // also destroyed ones, which may still have tasks
    std::vector<CUevent_st *> events;             // also destroyed ones
    std::map<int, CUstream_st *> internal_streams;
    std::vector<CapturePtr> captures;
    std::deque<cudaError_t> task_failures;
    size_t live_streams = 0, live_events = 0, live_graphs = 0, device_syncs = 0, launches = 0;
};
State &state();
using Lock = std::unique_lock<std::mutex>;

// Ends the program for the default streams and for handles that are not alive.
void check_stream(cudaStream_t stream, const char *function);
void check_event(cudaEvent_t event, const char *function);

// Gives the work to the stream, or to the graph that the stream is captured into.
cudaError_t submit(cudaStream_t stream, Work &&work);
void enqueue(Lock &lock, CUstream_st *stream, Task &&task);
void demand(CUstream_st *stream, uint64_t number);
void wait_for(Lock &lock, CUstream_st *stream, uint64_t number);
void wait_for_device(Lock &lock, int device);
// The stream in which cudaMemcpy and cudaMemset run; it waits for no other stream.
CUstream_st *internal_stream(Lock &lock, int device);
// Ends the program if a task that has not run yet uses the pinned memory.
void check_unused(const void *pinned, size_t size, const char *function);
unsigned executor_random(); // for the executor thread only

// ---- Kernels (emulated_kernels.cc) ----

bool kernel_args_size(const void *func, size_t *size); // false: not registered
void run_kernel(const KernelCall &call);

// ---- Capture (emulated_graphs.cc); all but the last need the state's lock ----

struct CaptureEvent { // what an event recorded during a capture stands for
    CapturePtr capture;
    std::vector<size_t> nodes;
};
cudaError_t capture_work(CUstream_st *stream, Work &&work);
cudaError_t capture_record(CUstream_st *stream, CUevent_st *event);
cudaError_t capture_wait(CUstream_st *stream, CUevent_st *event);
cudaError_t capture_forbids(CUstream_st *stream); // a call on this stream that cannot be captured
cudaError_t capture_forbids_event(CUevent_st *event);
// A call that is unsafe while a capture of this thread, or a global one, is going on.
cudaError_t unsafe_in_capture();

} // namespace emulated

struct CUstream_st {
    uint32_t magic = 0;
    int device = 0;
    std::deque<emulated::Task> queue;
    uint64_t submitted = 0, completed = 0, demanded = 0;
    emulated::Time not_before;
    bool delayed = false; // the head has had its delay
    emulated::CapturePtr capture;
};

struct CUevent_st {
    uint32_t magic = 0;
    int device = 0;
    unsigned flags = 0;
    emulated::RecordingPtr last;
    emulated::CaptureEvent captured;
};

#define EMULATED_ENTER()                                                                           \
    do {                                                                                           \
        cudaError_t entered_ = emulated::enter(__func__);                                          \
        if (entered_ != cudaSuccess) return entered_;                                              \
    } while (0)

#endif
