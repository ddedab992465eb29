// SPDX-License-Identifier: MIT
// Host memory that a device copies from and to while the host continues.
#include "device/device_impl.h"

#include <unistd.h>

// Whole pages: no page may be pinned twice.
static size_t whole_pages(size_t bytes, size_t page) { return (bytes / page + 1) * page; }

// The block that was allocated stands right before the pages.
static void **block_of(void *memory) { return (void **)memory - 1; }

iso_status iso__pinned_alloc(iso_device *device, size_t bytes, void **out) {
    const iso__remote_ops *remote = device->ops->remote;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *block;
    if (!remote) return iso__alloc(bytes, out);
    ISO_TRY(iso__alloc(whole_pages(bytes, page) + page, &block));
    uintptr_t first = ((uintptr_t)block + page) / page * page; // at least an alignment behind block
    void *memory = (char *)block + (first - (uintptr_t)block);
    *block_of(memory) = block;
    iso_status status = remote->pin(device, memory, whole_pages(bytes, page));
    if (status < 0) iso__free(block);
    ISO_TRY(status);
    *out = memory;
    return ISO_OK;
}

void iso__pinned_free(iso_device *device, void *memory) {
    const iso__remote_ops *remote = device->ops->remote;
    if (memory && remote) {
        remote->unpin(device, memory);
        memory = *block_of(memory);
    }
    iso__free(memory);
}

// ---- Memory of others -------------------------------------------------------------------------------

// The pages that hold it.
static void *first_page(void *memory, size_t page) {
    return (char *)memory - (uintptr_t)memory % page;
}

iso_status iso__pin_pages(iso_device *device, void *memory, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)memory % page;
    size_t whole = (before + bytes + page - 1) / page * page;
    ISO_TRY(device->ops->remote->pin(device, first_page(memory, page), whole));
    return ISO_OK;
}

void iso__unpin_pages(iso_device *device, void *memory) {
    device->ops->remote->unpin(device, first_page(memory, (size_t)sysconf(_SC_PAGESIZE)));
}
