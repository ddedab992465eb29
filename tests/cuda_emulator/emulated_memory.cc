// SPDX-License-Identifier: MIT
// Memory of the emulated GPU: device memory and page-locked memory.
//
// A device pointer is an address in a range that nobody can access; the contents are elsewhere, at
// a fixed distance, and only what runs on the device is told where. So the host faults whenever it
// touches device memory, also while tasks run.
#include "emulated_internal.h"
#include "emulator.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

namespace emulated {

static const size_t guard = 256;
static const unsigned char guard_byte = 0xA7;

struct Device {
    char *base = nullptr;
    size_t live = 0;
    std::map<char *, size_t> allocations;
};

struct Pinned {
    size_t size;
    bool owned;
};

struct Memory {
    std::mutex mutex;
    char *base = nullptr; // of the device pointers
    char *contents = nullptr;
    std::vector<Device> devices;
    std::map<char *, Pinned> pinned;
    std::atomic<size_t> mallocs{0};
};

// Far from where the system puts mappings, so that a pair of integers in a kernel's argument does
// not look like a device pointer.
static void *const preferred_base = reinterpret_cast<void *>(0x6B4D00000000);

static char *reserve(void *where, size_t size, int protection) {
    void *p = mmap(where, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) die("no address space for devices of %zu bytes in all", size);
    return static_cast<char *>(p);
}

static Memory *map_devices() {
    Memory *m = new Memory;
    size_t each = settings().memory, count = static_cast<size_t>(settings().gpus);
    m->devices.resize(count);
    if (count == 0) return m;
    m->base = reserve(preferred_base, each * count, PROT_NONE);
    m->contents = reserve(nullptr, each * count, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < count; ++i) m->devices[i].base = m->base + i * each;
    return m;
}

static Memory &memory() {
    static Memory *m = map_devices(); // never freed: the executor may outlive main
    return *m;
}

bool is_device(const void *pointer) {
    Memory &m = memory();
    const char *p = static_cast<const char *>(pointer);
    return m.base != nullptr && p >= m.base && p < m.base + settings().memory * m.devices.size();
}

int device_of(const void *pointer) {
    size_t offset = static_cast<size_t>(static_cast<const char *>(pointer) - memory().base);
    return static_cast<int>(offset / settings().memory);
}

// The entry of `map` whose range begins at or before the pointer.
template <class M> static typename M::iterator before(M &map, const void *pointer) {
    auto it = map.upper_bound(const_cast<char *>(static_cast<const char *>(pointer)));
    return it == map.begin() ? map.end() : --it;
}

void *real(void *pointer) {
    if (!is_device(pointer)) return pointer;
    Memory &m = memory();
    return m.contents + (static_cast<char *>(pointer) - m.base);
}

const void *real(const void *pointer) { return real(const_cast<void *>(pointer)); }

static bool is_live(Memory &m, const char *p) {
    Device &d = m.devices[static_cast<size_t>(device_of(p))];
    auto it = before(d.allocations, p);
    return it != d.allocations.end() && p <= it->first + it->second;
}

void make_real(std::vector<unsigned char> &args) {
    Memory &m = memory();
    std::lock_guard<std::mutex> lock(m.mutex);
    for (size_t i = 0; i + sizeof(char *) <= args.size(); i += sizeof(char *)) {
        char *p;
        memcpy(&p, &args[i], sizeof(p));
        if (!is_device(p) || !is_live(m, p)) continue;
        p = static_cast<char *>(real(static_cast<void *>(p)));
        memcpy(&args[i], &p, sizeof(p));
    }
}

bool is_pinned(const void *pointer, size_t size) {
    Memory &m = memory();
    std::lock_guard<std::mutex> lock(m.mutex);
    auto it = before(m.pinned, pointer);
    return it != m.pinned.end() &&
           static_cast<const char *>(pointer) + size <= it->first + it->second.size;
}

void check_device_range(const void *pointer, size_t size, const char *function) {
    if (!is_device(pointer)) die("%s: %p is not a device pointer", function, pointer);
    Memory &m = memory();
    std::lock_guard<std::mutex> lock(m.mutex);
    Device &d = m.devices[static_cast<size_t>(device_of(pointer))];
    auto it = before(d.allocations, pointer);
    const char *end = static_cast<const char *>(pointer) + size;
    if (it == d.allocations.end() || end > it->first + it->second)
        die("%s: %zu bytes at %p do not lie in one live allocation", function, size, pointer);
}

// ---- Device allocations ----

static size_t padded(size_t size) { return guard + (size + guard - 1) / guard * guard + guard; }

// First fit; null if there is no room.
static char *find_room(Device &d, size_t size) {
    char *at = d.base;
    for (auto &a : d.allocations) {
        char *begin = a.first - guard;
        if (static_cast<size_t>(begin - at) >= padded(size)) return at + guard;
        at = begin + padded(a.second);
    }
    size_t left = settings().memory - static_cast<size_t>(at - d.base);
    return left >= padded(size) ? at + guard : nullptr;
}

static void fill(char *device, size_t size) {
    char *p = real(device);
    char *end = p - guard + padded(size);
    memset(p - guard, guard_byte, guard);
    memset(p, 0xFF, size);
    memset(p + size, guard_byte, static_cast<size_t>(end - p) - size);
}

static void check_guards(const char *device, size_t size) {
    const char *p = real(device);
    const char *end = p - guard + padded(size);
    auto whole = [](char c) { return static_cast<unsigned char>(c) == guard_byte; };
    if (!std::all_of(p - guard, p, whole))
        die("something was written before the allocation of %zu bytes at %p", size,
            static_cast<const void *>(device));
    if (!std::all_of(p + size, end, whole))
        die("something was written behind the allocation of %zu bytes at %p", size,
            static_cast<const void *>(device));
}

static char *allocate(int device, size_t size) {
    Memory &m = memory();
    std::lock_guard<std::mutex> lock(m.mutex);
    Device &d = m.devices[static_cast<size_t>(device)];
    if (size > settings().memory) return nullptr;
    char *p = find_room(d, size);
    if (p == nullptr) return nullptr;
    d.allocations[p] = size;
    d.live += size;
    fill(p, size);
    return p;
}

static void release(char *p) {
    Memory &m = memory();
    std::lock_guard<std::mutex> lock(m.mutex);
    Device &d = m.devices[static_cast<size_t>(device_of(p))];
    auto it = d.allocations.find(p);
    if (it == d.allocations.end()) die("cudaFree: %p is not an allocation", static_cast<void *>(p));
    check_guards(p, it->second);
    memset(real(p), 0xFF, it->second);
    d.live -= it->second;
    d.allocations.erase(it);
}

} // namespace emulated

using namespace emulated;

cudaError_t cudaMalloc(void **devPtr, size_t size) {
    EMULATED_ENTER();
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    if (devPtr == nullptr) return result(cudaErrorInvalidValue);
    ++memory().mallocs;
    char *p = size > 0 ? allocate(current_device(), size) : nullptr;
    if (size > 0 && p == nullptr) return result(cudaErrorMemoryAllocation);
    *devPtr = p;
    return cudaSuccess;
}

// As on a GPU, freeing waits for everything that runs on the device.
cudaError_t cudaFree(void *devPtr) {
    cudaError_t error = enter(__func__);
    if (error != cudaSuccess && error != state().sticky) return error;
    if (devPtr == nullptr) return error;
    if (!is_device(devPtr)) die("cudaFree: %p is not a device pointer", devPtr);
    cudaError_t capture = unsafe_in_capture();
    if (capture != cudaSuccess) return result(capture);
    {
        Lock lock(state().mutex);
        wait_for_device(lock, device_of(devPtr));
    }
    release(static_cast<char *>(devPtr));
    return result(state().sticky);
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int) {
    EMULATED_ENTER();
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    Memory &m = memory();
    ++m.mallocs;
    void *p = nullptr;
    size_t whole = (size + 4095) / 4096 * 4096; // pages of its own, as others are registered by pages
    if (size > 0 && posix_memalign(&p, 4096, whole) != 0) return result(cudaErrorMemoryAllocation);
    if (p != nullptr) {
        memset(p, 0xFF, size);
        std::lock_guard<std::mutex> lock(m.mutex);
        m.pinned[static_cast<char *>(p)] = Pinned{size, true};
    }
    *pHost = p;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **ptr, size_t size) { return cudaHostAlloc(ptr, size, 0); }

// Removes the range from the list; its size, or 0 if it is not there.
static size_t forget_pinned(void *ptr, bool owned, const char *function) {
    Memory &m = memory();
    size_t size;
    {
        std::lock_guard<std::mutex> lock(m.mutex);
        auto it = m.pinned.find(static_cast<char *>(ptr));
        if (it == m.pinned.end() || it->second.owned != owned) return 0;
        size = it->second.size;
    }
    check_unused(ptr, size, function);
    std::lock_guard<std::mutex> lock(m.mutex);
    m.pinned.erase(static_cast<char *>(ptr));
    return size;
}

cudaError_t cudaFreeHost(void *ptr) {
    cudaError_t error = enter(__func__);
    if (error != cudaSuccess && error != state().sticky) return error;
    if (ptr == nullptr) return error;
    cudaError_t capture = unsafe_in_capture();
    if (capture != cudaSuccess) return result(capture);
    if (forget_pinned(ptr, true, __func__) == 0) return result(cudaErrorInvalidValue);
    free(ptr);
    return error;
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int) {
    EMULATED_ENTER();
    cudaError_t error = unsafe_in_capture();
    if (error != cudaSuccess) return result(error);
    if (ptr == nullptr || size == 0 || is_device(ptr)) return result(cudaErrorInvalidValue);
    Memory &m = memory();
    ++m.mallocs;
    std::lock_guard<std::mutex> lock(m.mutex);
    char *begin = static_cast<char *>(ptr);
    auto it = m.pinned.lower_bound(begin + size); // the last range that begins before our end
    if (it != m.pinned.begin() && (--it)->first + it->second.size > begin)
        return result(cudaErrorHostMemoryAlreadyRegistered);
    m.pinned[begin] = Pinned{size, false};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr) {
    cudaError_t error = enter(__func__);
    if (error != cudaSuccess && error != state().sticky) return error;
    cudaError_t capture = unsafe_in_capture();
    if (capture != cudaSuccess) return result(capture);
    if (forget_pinned(ptr, false, __func__) == 0) return result(cudaErrorHostMemoryNotRegistered);
    return error;
}

cudaError_t cudaMemGetInfo(size_t *freeBytes, size_t *total) {
    EMULATED_ENTER();
    Memory &m = memory();
    std::lock_guard<std::mutex> lock(m.mutex);
    *total = settings().memory;
    *freeBytes = *total - m.devices[static_cast<size_t>(current_device())].live;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr) {
    EMULATED_ENTER();
    void *p = const_cast<void *>(ptr);
    if (is_device(ptr))
        *attributes = cudaPointerAttributes{cudaMemoryTypeDevice, device_of(ptr), p, nullptr};
    else if (is_pinned(ptr, 1))
        *attributes = cudaPointerAttributes{cudaMemoryTypeHost, current_device(), p, p};
    else
        *attributes = cudaPointerAttributes{cudaMemoryTypeUnregistered, -1, nullptr, p};
    return cudaSuccess;
}

// ---- For tests ----

template <class F> static size_t sum_devices(F of) {
    Memory &m = memory();
    std::lock_guard<std::mutex> lock(m.mutex);
    size_t sum = 0;
    for (Device &d : m.devices) sum += of(d);
    return sum;
}

size_t emulated_live_bytes(void) {
    return sum_devices([](Device &d) { return d.live; });
}

size_t emulated_live_allocations(void) {
    return sum_devices([](Device &d) { return d.allocations.size(); });
}

size_t emulated_live_pinned(void) {
    Memory &m = memory();
    std::lock_guard<std::mutex> lock(m.mutex);
    return m.pinned.size();
}

size_t emulated_mallocs(void) { return memory().mallocs; }
