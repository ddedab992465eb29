// SPDX-License-Identifier: MIT
// Streams and the executor thread of the emulated GPU: one thread runs the tasks of all
// streams, in an order chosen to bring missing synchronisation to light.
#include "emulated_internal.h"
#include "emulator.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace emulated {

using std::chrono::microseconds;

static const uint32_t stream_magic = 0x57ea3000;
// What is not finished now is tried again after this.
static const microseconds poll_interval(50);
// In the late order somebody outside of CUDA may wait for this long for a collective.
static const microseconds prompt_interval(1000);

State &state() {
    static State *s = new State; // never freed: the executor may outlive main
    return *s;
}

static thread_local bool executor_here = false;
bool on_executor() { return executor_here; }

unsigned executor_random() {
    static uint32_t x = settings().seed * 2654435761u | 1u;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return x >> 4;
}

// ---- The executor ----

// A copy of the head's state that decides whether a stream may go on now.
struct Scan {
    Time now, wake = Time::max();
    bool again = false; // something that was looked at earlier may run now
    std::vector<CUstream_st *> ready;
};

static bool has_prompt_task(CUstream_st *s, Scan &scan) {
    for (const Task &t : s->queue) {
        if (!t.prompt) continue;
        if (t.since + prompt_interval <= scan.now) {
            s->demanded = std::max(s->demanded, t.number);
            return true;
        }
        scan.wake = std::min(scan.wake, t.since + prompt_interval);
        break;
    }
    return false;
}

static bool is_demanded(CUstream_st *s, Scan &scan) {
    return settings().order != Order::late || state().sticky != cudaSuccess ||
           s->demanded >= s->queue.front().number || has_prompt_task(s, scan);
}

static bool may_run(CUstream_st *s, Scan &scan) {
    if (s->queue.empty() || !is_demanded(s, scan)) return false;
    const RecordingPtr &wait = s->queue.front().wait;
    if (wait && !wait->done && state().sticky == cudaSuccess) {
        if (wait->stream->demanded < wait->number) {
            wait->stream->demanded = wait->number;
            scan.again = true;
        }
        return false;
    }
    if (s->not_before <= scan.now) return true;
    scan.wake = std::min(scan.wake, s->not_before);
    return false;
}

static Scan scan_streams() {
    Scan scan;
    scan.now = Clock::now();
    for (CUstream_st *s : state().streams)
        if (may_run(s, scan)) scan.ready.push_back(s);
    return scan;
}

static Outcome run_task(Lock &lock, Task &task) {
    if (state().sticky != cudaSuccess) return Outcome::done;
    if (task.failure != cudaSuccess) {
        state().sticky = task.failure;
        return Outcome::done;
    }
    if (!task.run) return Outcome::done;
    lock.unlock();
    Outcome outcome = task.run();
    lock.lock();
    return outcome;
}

static void finish_task(CUstream_st *s) {
    Task &task = s->queue.front();
    if (task.record) {
        task.record->done = true;
        task.record->time = Clock::now();
    }
    s->completed = task.number;
    s->delayed = false;
    s->queue.pop_front();
    state().done.notify_all();
}

static void step(Lock &lock, CUstream_st *s) {
    if (settings().order == Order::random && !s->delayed && executor_random() % 8 == 0) {
        s->delayed = true;
        s->not_before = Clock::now() + microseconds(50 + executor_random() % 250);
        return;
    }
    if (run_task(lock, s->queue.front()) == Outcome::later && state().sticky == cudaSuccess)
        s->not_before = Clock::now() + poll_interval;
    else
        finish_task(s);
}

static void execute() {
    executor_here = true;
    Lock lock(state().mutex);
    for (;;) {
        Scan scan = scan_streams();
        if (!scan.ready.empty()) {
            step(lock, scan.ready[executor_random() % scan.ready.size()]);
        } else if (!scan.again) {
            if (scan.wake == Time::max())
                state().work.wait(lock);
            else
                state().work.wait_until(lock, scan.wake);
        }
    }
}

static void start_executor() {
    static pid_t owner = 0;
    State &st = state();
    if (st.started && owner != getpid()) die("used before and after a fork");
    if (st.started) return;
    st.started = true;
    owner = getpid();
    sigset_t all, old; // signals are for the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    std::thread(execute).detach();
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

// ---- Tasks ----

Run make_run(const Work &work, CUstream_st *stream) {
    if (work.kernel.func == nullptr) return work.make(stream);
    KernelCall call = work.kernel;
    return [call] {
        run_kernel(call);
        return Outcome::done;
    };
}

void enqueue(Lock &, CUstream_st *stream, Task &&task) {
    State &st = state();
    start_executor();
    task.number = ++stream->submitted;
    task.since = Clock::now();
    if (task.run) {
        ++st.launches;
        if (!st.task_failures.empty()) {
            task.failure = st.task_failures.front();
            st.task_failures.pop_front();
        }
    }
    stream->queue.push_back(std::move(task));
    st.work.notify_one();
}

cudaError_t submit(cudaStream_t stream, Work &&work) {
    Lock lock(state().mutex);
    if (stream->capture) return capture_work(stream, std::move(work));
    Task task;
    task.run = make_run(work, stream);
    task.prompt = work.prompt;
    if (work.host != nullptr) task.host.emplace_back(work.host, work.host_size);
    if (work.host2 != nullptr) task.host.emplace_back(work.host2, work.host_size);
    enqueue(lock, stream, std::move(task));
    return cudaSuccess;
}

void demand(CUstream_st *stream, uint64_t number) {
    if (stream->demanded >= number) return;
    stream->demanded = number;
    state().work.notify_one();
}

void wait_for(Lock &lock, CUstream_st *stream, uint64_t number) {
    demand(stream, number);
    state().done.wait(lock, [=] { return stream->completed >= number; });
}

void wait_for_device(Lock &lock, int device) {
    std::vector<std::pair<CUstream_st *, uint64_t>> all;
    for (CUstream_st *s : state().streams)
        if (s->device == device) all.emplace_back(s, s->submitted);
    for (auto &s : all) demand(s.first, s.second);
    for (auto &s : all) wait_for(lock, s.first, s.second);
}

void check_unused(const void *pinned, size_t size, const char *function) {
    Lock lock(state().mutex);
    if (state().sticky != cudaSuccess) return;
    const char *begin = static_cast<const char *>(pinned), *end = begin + size;
    for (CUstream_st *s : state().streams)
        for (const Task &t : s->queue)
            for (auto &h : t.host) {
                const char *from = static_cast<const char *>(h.first);
                if (from < end && from + h.second > begin)
                    die("%s: a copy that is not finished uses the memory at %p", function, pinned);
            }
}

// ---- Handles ----

void check_stream(cudaStream_t stream, const char *function) {
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        die("%s: a default stream is used", function);
    if (stream->magic != stream_magic) die("%s: the stream has been destroyed", function);
}

static CUstream_st *new_stream(int device) {
    CUstream_st *s = new CUstream_st; // kept for ever, so that late uses are noticed
    s->magic = stream_magic;
    s->device = device;
    state().streams.push_back(s);
    return s;
}

CUstream_st *internal_stream(Lock &, int device) {
    CUstream_st *&s = state().internal_streams[device];
    if (s == nullptr) s = new_stream(device);
    return s;
}

} // namespace emulated

using namespace emulated;

// ---- Streams ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int) {
    EMULATED_ENTER();
    if (flags != cudaStreamNonBlocking)
        die("a stream that synchronises with the default stream is created");
    Lock lock(state().mutex);
    *pStream = new_stream(current_device());
    ++state().live_streams;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags) {
    EMULATED_ENTER();
    return cudaStreamCreateWithPriority(pStream, flags, 0);
}

// Returns at once; what is in the stream still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaError_t error = enter(__func__);
    if (error != cudaSuccess && error != state().sticky) return error;
    check_stream(stream, __func__);
    Lock lock(state().mutex);
    demand(stream, stream->submitted);
    stream->magic = 0;
    --state().live_streams;
    return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    Lock lock(state().mutex);
    if (stream->capture) return result(capture_forbids(stream));
    wait_for(lock, stream, stream->submitted);
    return result(state().sticky);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    Lock lock(state().mutex);
    if (stream->capture) return result(capture_forbids(stream));
    demand(stream, stream->submitted);
    return result(stream->completed < stream->submitted ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void) {
    EMULATED_ENTER();
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    Lock lock(state().mutex);
    ++state().device_syncs;
    wait_for_device(lock, current_device());
    return result(state().sticky);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    Work work;
    work.type = cudaGraphNodeTypeHost;
    work.prompt = true;
    work.make = [=](CUstream_st *) -> Run {
        return [=] {
            fn(userData);
            return Outcome::done;
        };
    };
    return result(submit(stream, std::move(work)));
}

// ---- For tests ----

void emulated_fail_task(int error) {
    Lock lock(state().mutex);
    state().task_failures.push_back(static_cast<cudaError_t>(error));
}

template <class F> static size_t read_count(F of) {
    Lock lock(state().mutex);
    return of(state());
}

size_t emulated_live_streams(void) {
    return read_count([](State &s) { return s.live_streams; });
}
size_t emulated_live_events(void) {
    return read_count([](State &s) { return s.live_events; });
}
size_t emulated_live_graphs(void) {
    return read_count([](State &s) { return s.live_graphs; });
}
size_t emulated_device_syncs(void) {
    return read_count([](State &s) { return s.device_syncs; });
}
size_t emulated_launches(void) {
    return read_count([](State &s) { return s.launches; });
}
