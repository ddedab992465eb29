// SPDX-License-Identifier: MIT
// Devices, errors and copies of the emulated CUDA runtime.
#include "emulated_internal.h"
#include "emulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string>

namespace emulated {

// ---- Settings and failures ----

static long number(const char *name, long fallback) {
    const char *text = getenv(name);
    return text != nullptr && *text != '\0' ? strtol(text, nullptr, 10) : fallback;
}

static Order read_order() {
    const char *text = getenv("ISO_EMULATED_ORDER");
    std::string order = text != nullptr && *text != '\0' ? text : "random";
    if (order == "late") return Order::late;
    if (order == "eager") return Order::eager;
    if (order != "random") die("ISO_EMULATED_ORDER is %s, not random, late or eager", text);
    return Order::random;
}

static Settings read_settings() {
    Settings s;
    s.gpus = static_cast<int>(number("ISO_EMULATED_GPUS", 2));
    s.memory = static_cast<size_t>(number("ISO_EMULATED_MEMORY_MB", 1024)) << 20;
    s.seed = static_cast<unsigned>(number("ISO_EMULATED_SEED", 1));
    s.order = read_order();
    s.nccl_seconds = static_cast<int>(number("ISO_EMULATED_NCCL_S", 60));
    return s;
}

const Settings &settings() {
    static const Settings s = read_settings();
    return s;
}

void die(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("emulated GPU: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

struct Injections {
    std::mutex mutex;
    std::atomic<int> armed{0};
    std::map<std::string, std::deque<int>> errors;
};

static Injections &injections() {
    static Injections *all = new Injections;
    return *all;
}

// "cublasSgemm_v2" and "cublasSgemm" are one function to whoever uses it.
static std::string plain_name(std::string name) {
    size_t n = name.size();
    return n > 3 && name.compare(n - 3, 3, "_v2") == 0 ? name.substr(0, n - 3) : name;
}

int injected(const char *function) {
    Injections &all = injections();
    if (all.armed == 0) return 0;
    std::lock_guard<std::mutex> lock(all.mutex);
    auto it = all.errors.find(plain_name(function));
    if (it == all.errors.end() || it->second.empty()) return 0;
    int error = it->second.front();
    it->second.pop_front();
    --all.armed;
    return error;
}

struct Thread {
    int device = 0;
    cudaError_t last = cudaSuccess;
};
static thread_local Thread thread;

int current_device() { return thread.device; }

cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess) thread.last = error;
    return error;
}

cudaError_t enter(const char *function) {
    int error = injected(function);
    if (error != 0) return result(static_cast<cudaError_t>(error));
    if (settings().gpus == 0) return result(cudaErrorNoDevice);
    if (on_executor()) return result(cudaErrorNotPermitted); // from a cudaLaunchHostFunc
    return result(state().sticky);
}

// ---- Copies ----

static void check_end(const void *pointer, size_t size, bool device, const char *function) {
    if (is_device(pointer) != device)
        die("%s: %p is %s memory, which the kind of the copy denies", function, pointer,
            device ? "host" : "device");
    if (device) check_device_range(pointer, size, function);
}

static bool to_device(const void *p, cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return is_device(p);
    return kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
}

static bool from_device(const void *p, cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return is_device(p);
    return kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
}

static Work copy_work(void *dst, const void *src, size_t count) {
    Work work;
    work.type = cudaGraphNodeTypeMemcpy;
    work.make = [=](CUstream_st *) -> Run {
        return [=] {
            memmove(real(dst), real(src), count);
            return Outcome::done;
        };
    };
    work.host_size = count;
    if (!is_device(dst)) work.host = dst;
    if (!is_device(src)) work.host2 = src;
    return work;
}

static std::atomic<bool> copies_out_held{false};

static Work holdable(Work &&copy) {
    auto make = copy.make;
    copy.make = [make](CUstream_st *stream) -> Run {
        Run run = make(stream);
        return [run] { return copies_out_held ? Outcome::later : run(); };
    };
    return copy;
}

static Work set_work(void *dst, int value, size_t count) {
    Work work;
    work.type = cudaGraphNodeTypeMemset;
    work.make = [=](CUstream_st *) -> Run {
        return [=] {
            memset(real(dst), value, count);
            return Outcome::done;
        };
    };
    return work;
}

static void check_pinned(const void *p, size_t count, const char *function) {
    if (!is_device(p) && !is_pinned(p, count))
        die("%s: the %zu bytes of host memory at %p are not page-locked", function, count, p);
}

// Gives work to the internal stream of a device; waits for it if asked to.
static cudaError_t run_internal(int device, Work &&work, bool wait) {
    CUstream_st *stream;
    {
        Lock lock(state().mutex);
        stream = internal_stream(lock, device);
    }
    cudaError_t error = submit(stream, std::move(work));
    if (error != cudaSuccess || !wait) return error;
    Lock lock(state().mutex);
    wait_for(lock, stream, stream->submitted);
    return state().sticky;
}

static Work staged_copy(void *dst, const void *src, size_t count) {
    auto bytes = std::make_shared<std::vector<char>>(static_cast<const char *>(src),
                                                     static_cast<const char *>(src) + count);
    Work work = copy_work(dst, bytes->data(), count);
    auto make = work.make;
    work.host2 = nullptr;
    work.make = [make, bytes](CUstream_st *stream) -> Run {
        Run run = make(stream);
        return [run, bytes] { return run(); };
    };
    return work;
}

static int device_of_copy(const void *dst, const void *src) {
    if (is_device(dst)) return device_of(dst);
    return is_device(src) ? device_of(src) : current_device();
}

} // namespace emulated

using namespace emulated;

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    if (count == 0) return cudaSuccess;
    check_end(dst, count, to_device(dst, kind), __func__);
    check_end(src, count, from_device(src, kind), __func__);
    check_pinned(dst, count, __func__);
    check_pinned(src, count, __func__);
    Work work = copy_work(dst, src, count);
    bool out = is_device(src) && !is_device(dst);
    return result(submit(stream, out ? holdable(std::move(work)) : std::move(work)));
}

// As documented for the true one, it returns when pageable host memory has been read, not when it
// has arrived, and does not wait for a copy within the device: other streams may come before.
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind) {
    EMULATED_ENTER();
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    if (count == 0) return cudaSuccess;
    bool to = to_device(dst, kind), from = from_device(src, kind);
    check_end(dst, count, to, __func__);
    check_end(src, count, from, __func__);
    bool staged = to && !from && !is_pinned(src, count);
    Work work = staged ? staged_copy(dst, src, count) : copy_work(dst, src, count);
    bool wait = !staged && !(to && from);
    return result(run_internal(device_of_copy(dst, src), std::move(work), wait));
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream) {
    EMULATED_ENTER();
    check_stream(stream, __func__);
    if (count == 0) return cudaSuccess;
    check_device_range(devPtr, count, __func__);
    return result(submit(stream, set_work(devPtr, value, count)));
}

// Asynchronous to the host, as the true one.
cudaError_t cudaMemset(void *devPtr, int value, size_t count) {
    EMULATED_ENTER();
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    if (count == 0) return cudaSuccess;
    check_device_range(devPtr, count, __func__);
    return result(run_internal(device_of(devPtr), set_work(devPtr, value, count), false));
}

void emulated_fail_next(const char *function, int error) {
    Injections &all = injections();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.errors[plain_name(function)].push_back(error);
    ++all.armed;
}

void emulated_hold_copies_out(int hold) { copies_out_held = hold != 0; }

// ---- Devices ----

cudaError_t cudaGetDeviceCount(int *count) {
    int error = injected(__func__);
    if (error != 0) return result(static_cast<cudaError_t>(error));
    *count = settings().gpus;
    return *count > 0 ? cudaSuccess : result(cudaErrorNoDevice);
}

static bool is_device_number(int device) { return device >= 0 && device < settings().gpus; }

cudaError_t cudaSetDevice(int device) {
    EMULATED_ENTER();
    if (!is_device_number(device)) return result(cudaErrorInvalidDevice);
    thread.device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    EMULATED_ENTER();
    *device = thread.device;
    return cudaSuccess;
}

static void fill_limits(struct cudaDeviceProp *p) {
    const int block[3] = {1024, 1024, 64}, grid[3] = {2147483647, 65535, 65535};
    memcpy(p->maxThreadsDim, block, sizeof(block));
    memcpy(p->maxGridSize, grid, sizeof(grid));
    p->sharedMemPerBlock = p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = 48 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->totalConstMem = 65536;
    p->textureAlignment = 512;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    EMULATED_ENTER();
    if (!is_device_number(device)) return result(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof(*prop));
    snprintf(prop->name, sizeof(prop->name), "emulated GPU (CPU)");
    memcpy(prop->uuid.bytes, "emulated GPU", 12);
    prop->uuid.bytes[15] = static_cast<char>(device);
    fill_limits(prop);
    prop->totalGlobalMem = settings().memory;
    prop->major = 9;
    prop->multiProcessorCount = 2;
    prop->canMapHostMemory = prop->unifiedAddressing = prop->hostRegisterSupported = 1;
    prop->canUseHostPointerForRegisteredMem = 1;
    prop->concurrentKernels = prop->streamPrioritiesSupported = 1;
    prop->asyncEngineCount = 2;
    prop->l2CacheSize = 1 << 20;
    prop->memoryBusWidth = 64;
    prop->pciBusID = device + 1;
    return cudaSuccess;
}

static int attribute(const struct cudaDeviceProp &p, enum cudaDeviceAttr attr) {
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock: return p.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX: return p.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimY: return p.maxThreadsDim[1];
    case cudaDevAttrMaxBlockDimZ: return p.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX: return p.maxGridSize[0];
    case cudaDevAttrMaxGridDimY: return p.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ: return p.maxGridSize[2];
    case cudaDevAttrMaxSharedMemoryPerBlock: return static_cast<int>(p.sharedMemPerBlock);
    case cudaDevAttrWarpSize: return p.warpSize;
    case cudaDevAttrMaxRegistersPerBlock: return p.regsPerBlock;
    case cudaDevAttrMultiProcessorCount: return p.multiProcessorCount;
    case cudaDevAttrCanMapHostMemory: return p.canMapHostMemory;
    case cudaDevAttrConcurrentKernels: return p.concurrentKernels;
    case cudaDevAttrPciBusId: return p.pciBusID;
    case cudaDevAttrPciDeviceId: return p.pciDeviceID;
    case cudaDevAttrPciDomainId: return p.pciDomainID;
    case cudaDevAttrL2CacheSize: return p.l2CacheSize;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrAsyncEngineCount: return p.asyncEngineCount;
    case cudaDevAttrUnifiedAddressing: return p.unifiedAddressing;
    case cudaDevAttrComputeCapabilityMajor: return p.major;
    case cudaDevAttrComputeCapabilityMinor: return p.minor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        return static_cast<int>(p.sharedMemPerMultiprocessor);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return static_cast<int>(p.sharedMemPerBlockOptin);
    case cudaDevAttrHostRegisterSupported: return p.hostRegisterSupported;
    default: return 0; // features that the emulator has not
    }
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
    EMULATED_ENTER();
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, device);
    if (error == cudaSuccess) *value = attribute(properties, attr);
    return error;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    EMULATED_ENTER();
    *leastPriority = 0;
    *greatestPriority = -5;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *driverVersion) {
    *driverVersion = CUDART_VERSION;
    return result(static_cast<cudaError_t>(injected(__func__)));
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion) {
    *runtimeVersion = CUDART_VERSION;
    return result(static_cast<cudaError_t>(injected(__func__)));
}

// ---- Errors ----

cudaError_t cudaGetLastError(void) {
    cudaError_t error = cudaPeekAtLastError();
    thread.last = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    cudaError_t sticky = state().sticky;
    return sticky != cudaSuccess ? sticky : thread.last;
}
