// SPDX-License-Identifier: MIT
// Launching of kernels, and the execution of their blocks and threads on the executor thread.
//
// The threads of a block run one after the other on one fiber until one of them has to wait for
// others; that one keeps the fiber, and the rest goes on in another. So a kernel without barriers
// is a plain loop, and nothing has to be known about a kernel beforehand. In which order blocks
// run, and threads between two barriers, changes at random.
#include "emulated_fibers.h"
#include "emulated_internal.h"

#include <cuda_runtime.h>
#include <string.h>

#include <unordered_map>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulated {

// ---- Registration ----

struct Kernel {
    emulated_trampoline call;
    size_t args_size;
    const char *signature;
};

struct Registry {
    std::mutex mutex;
    std::unordered_map<const void *, Kernel> kernels;
};

static Registry &registry() {
    static Registry *all = new Registry;
    return *all;
}

static const Kernel *find_kernel(const void *func) {
    Registry &all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto it = all.kernels.find(func);
    return it != all.kernels.end() ? &it->second : nullptr;
}

bool kernel_args_size(const void *func, size_t *size) {
    const Kernel *k = find_kernel(func);
    if (k != nullptr) *size = k->args_size;
    return k != nullptr;
}

// ---- The block that is running ----

enum class Place { unborn, running, ready, barrier, warp, ended };
enum class WarpOp { shuffle, ballot };

struct Thread {
    Place place;
    Fiber *fiber;
    const char *file; // of the barrier
    int line;
    int predicate;
    WarpOp op;
    unsigned mask;
    uint64_t value; // in: what it offers; out: the result
    int source;     // lane
};

struct Block {
    const Kernel *kernel;
    const KernelCall *call;
    std::vector<unsigned char> args; // the call's, with the addresses of the contents
    unsigned count, begun, ended;
    bool backwards;
    std::vector<Thread> threads;
    std::vector<Fiber *> idle;
    Fiber *fiber; // that is running
    int current = -1;
};
static Block block;

[[noreturn]] static void die_in_kernel(const char *what) {
    unsigned barrier = 0, warp = 0;
    for (const Thread &t : block.threads) {
        barrier += t.place == Place::barrier;
        warp += t.place == Place::warp;
    }
    die("%s; kernel at %p, %s; block (%u, %u, %u) of %u threads: %u have ended, %u wait at "
        "__syncthreads, %u in warp operations",
        what, block.call->func, block.kernel->signature, blockIdx.x, blockIdx.y, blockIdx.z,
        block.count, block.ended, barrier, warp);
}

static void set_current(unsigned i) {
    block.current = static_cast<int>(i);
    block.threads[i].place = Place::running;
    threadIdx.x = i % blockDim.x;
    threadIdx.y = i / blockDim.x % blockDim.y;
    threadIdx.z = i / (blockDim.x * blockDim.y);
}

// The body of every fiber: threads that nobody has begun yet.
static void run_threads() {
    for (;;) {
        while (block.begun < block.count) {
            unsigned i = block.begun++;
            if (block.backwards) i = block.count - 1 - i;
            set_current(i);
            block.kernel->call(block.call->func, block.args.data());
            block.threads[static_cast<unsigned>(block.current)].place = Place::ended;
            ++block.ended;
        }
        block.idle.push_back(block.fiber);
        fiber_leave();
    }
}

static void enter(Fiber *fiber) {
    block.fiber = fiber;
    fiber_enter(fiber);
}

static void begin_threads() {
    while (block.begun < block.count) {
        if (block.idle.empty()) block.idle.push_back(fiber_create(run_threads));
        Fiber *fiber = block.idle.back();
        block.idle.pop_back();
        enter(fiber);
    }
}

// The calling thread waits at `place` until the block's loop has made it ready.
static Thread &self() {
    if (block.current < 0) die("a device function is called on the host");
    return block.threads[static_cast<unsigned>(block.current)];
}

static void wait_at(Place place) {
    Thread &t = self();
    t.place = place;
    t.fiber = block.fiber;
    fiber_leave();
}

// ---- Barriers and warp operations ----

static bool open_barrier() {
    const Thread *first = nullptr;
    int count = 0;
    for (const Thread &t : block.threads) {
        if (t.place == Place::ended) continue;
        if (t.place != Place::barrier) return false;
        if (first == nullptr) first = &t;
        if (t.line != first->line || strcmp(t.file, first->file) != 0)
            die_in_kernel("threads of a block wait at different barriers");
        count += t.predicate != 0;
    }
    for (Thread &t : block.threads) {
        if (t.place == Place::ended) continue;
        t.place = Place::ready;
        t.predicate = count;
    }
    return first != nullptr;
}

// Have all lanes of the mask that exist come to the same operation?
static bool warp_complete(const Thread *warp, unsigned lanes, const Thread &t) {
    for (unsigned lane = 0; lane < lanes; ++lane) {
        const Thread &other = warp[lane];
        if (!(t.mask >> lane & 1) || other.place == Place::ended) continue;
        if (other.place != Place::warp || other.mask != t.mask) return false;
        if (other.op != t.op) die_in_kernel("lanes of a warp are in different operations");
    }
    return true;
}

static void exchange(Thread *warp, unsigned lanes, unsigned mask, WarpOp op) {
    uint64_t values[32], ballot = 0;
    memset(values, 0xFF, sizeof(values));
    for (unsigned lane = 0; lane < lanes; ++lane) {
        if (!(mask >> lane & 1) || warp[lane].place == Place::ended) continue;
        values[lane] = warp[lane].value;
        ballot |= static_cast<uint64_t>(warp[lane].value != 0) << lane;
    }
    for (unsigned lane = 0; lane < lanes; ++lane) {
        if (!(mask >> lane & 1) || warp[lane].place == Place::ended) continue;
        warp[lane].value = op == WarpOp::ballot ? ballot : values[warp[lane].source & 31];
        warp[lane].place = Place::ready;
    }
}

static bool open_warps() {
    bool any = false;
    for (unsigned first = 0; first < block.count; first += 32) {
        Thread *warp = &block.threads[first];
        unsigned lanes = block.count - first < 32 ? block.count - first : 32;
        for (unsigned lane = 0; lane < lanes; ++lane) {
            if (warp[lane].place != Place::warp || !warp_complete(warp, lanes, warp[lane]))
                continue;
            exchange(warp, lanes, warp[lane].mask, warp[lane].op);
            any = true;
        }
    }
    return any;
}

static void resume_ready() {
    bool backwards = executor_random() & 1;
    for (unsigned n = 0; n < block.count; ++n) {
        unsigned i = backwards ? block.count - 1 - n : n;
        if (block.threads[i].place != Place::ready) continue;
        set_current(i);
        enter(block.threads[i].fiber);
    }
}

static void run_block() {
    block.begun = block.ended = 0;
    block.backwards = executor_random() & 1;
    begin_threads();
    while (block.ended < block.count) {
        if (!open_warps() && !open_barrier())
            die_in_kernel("the threads of a block wait for each other");
        resume_ready();
    }
    block.current = -1;
}

void run_kernel(const KernelCall &call) {
    block.kernel = find_kernel(call.func);
    block.call = &call;
    block.args = call.args;
    make_real(block.args);
    blockDim = call.block;
    gridDim = call.grid;
    block.count = blockDim.x * blockDim.y * blockDim.z;
    block.threads.assign(block.count, Thread());
    uint64_t total = static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z;
    uint64_t first = executor_random() % total, direction = executor_random() & 1 ? 1 : total - 1;
    for (uint64_t n = 0, at = first; n < total; ++n, at = (at + direction) % total) {
        blockIdx.x = static_cast<unsigned>(at % gridDim.x);
        blockIdx.y = static_cast<unsigned>(at / gridDim.x % gridDim.y);
        blockIdx.z = static_cast<unsigned>(at / gridDim.x / gridDim.y);
        run_block();
    }
}

static cudaError_t check_launch(const void *func, dim3 grid, dim3 threads, size_t shared) {
    if (find_kernel(func) == nullptr) return cudaErrorInvalidDeviceFunction;
    uint64_t count = static_cast<uint64_t>(threads.x) * threads.y * threads.z;
    if (count == 0 || threads.x > 1024 || threads.y > 1024 || threads.z > 64 || count > 1024)
        return cudaErrorInvalidConfiguration;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647 || grid.y > 65535 ||
        grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    return shared > 48 << 10 ? cudaErrorInvalidValue : cudaSuccess;
}

} // namespace emulated

using namespace emulated;

void emulated_register_kernel(const void *kernel, emulated_trampoline call, size_t args_size,
                              const char *signature) {
    Registry &all = registry();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.kernels.emplace(kernel, Kernel{call, args_size, signature});
}

void emulated_barrier(int line, const char *file) { emulated_barrier_count(0, line, file); }

int emulated_barrier_count(int predicate, int line, const char *file) {
    Thread &t = self();
    t.predicate = predicate;
    t.line = line;
    t.file = file;
    wait_at(Place::barrier);
    return t.predicate;
}

int emulated_lane(void) {
    self();
    return block.current % 32;
}

static uint64_t warp_operation(WarpOp op, unsigned mask, uint64_t value, int source) {
    Thread &t = self();
    t.op = op;
    t.mask = mask;
    t.value = value;
    t.source = source;
    if (!(mask >> emulated_lane() & 1))
        die_in_kernel("a lane takes part in a warp operation whose mask excludes it");
    wait_at(Place::warp);
    return t.value;
}

uint64_t emulated_shuffle(unsigned mask, uint64_t value, int source_lane) {
    return warp_operation(WarpOp::shuffle, mask, value, source_lane);
}

unsigned emulated_ballot(unsigned mask, int predicate) {
    return static_cast<unsigned>(warp_operation(WarpOp::ballot, mask, predicate != 0, 0));
}

cudaError_t cudaLaunchKernel(const void *func, dim3 grid, dim3 threads, void **args, size_t shared,
                             cudaStream_t stream) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    cudaError_t error = check_launch(func, grid, threads, shared);
    if (error != cudaSuccess) return result(error);
    if (stream->device != current_device()) return result(cudaErrorInvalidResourceHandle);
    Work work;
    work.kernel.func = func;
    work.kernel.grid = grid;
    work.kernel.block = threads;
    work.kernel.shared = shared;
    const unsigned char *bytes = static_cast<const unsigned char *>(args[0]);
    work.kernel.args.assign(bytes, bytes + find_kernel(func)->args_size);
    return result(submit(stream, std::move(work)));
}

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute, int) {
    EMULATED_ENTER();
    return find_kernel(func) != nullptr ? cudaSuccess : result(cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, const void *, int,
                                                          size_t) {
    EMULATED_ENTER();
    *numBlocks = 4;
    return cudaSuccess;
}
