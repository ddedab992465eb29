// SPDX-License-Identifier: MIT
// Aligned allocation, and pages that can be given back, with a balance counter, by which tests
// prove that nothing leaks.
#include "base/base.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64

// Stands before each block; a whole alignment unit keeps the block aligned.
typedef struct header {
    size_t bytes;
} header;

static _Atomic long long live_blocks, live_bytes, total_allocations;

static void count_block(size_t bytes) {
    live_blocks++;
    live_bytes += (long long)bytes;
    total_allocations++;
}

static void uncount_block(size_t bytes) {
    live_blocks--;
    live_bytes -= (long long)bytes;
}

iso_status iso__alloc(size_t bytes, void **out) {
    char *block = NULL;
    if (bytes < SIZE_MAX - 2 * ALIGNMENT) {
        size_t whole = ALIGNMENT + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        block = aligned_alloc(ALIGNMENT, whole);
    }
    ISO_CHECK(block, ISO_ERR_NOMEM, "out of memory: could not allocate %zu bytes", bytes);
    ((header *)(void *)block)->bytes = bytes;
    count_block(bytes);
    *out = block + ALIGNMENT;
    return ISO_OK;
}

iso_status iso__alloc_zero(size_t bytes, void **out) {
    ISO_TRY(iso__alloc(bytes, out));
    memset(*out, 0, bytes);
    return ISO_OK;
}

iso_status iso__realloc(void **pointer, size_t old, size_t bytes) {
    void *fresh;
    ISO_TRY(iso__alloc(bytes, &fresh));
    if (*pointer) memcpy(fresh, *pointer, old < bytes ? old : bytes);
    iso__free(*pointer);
    *pointer = fresh;
    return ISO_OK;
}

iso_status iso__grow(void **array, int count, int *room, size_t size) {
    if (room ? count < *room : count > 0 && (count & (count - 1)) != 0) return ISO_OK;
    int larger = !room ? (count > 0 ? 2 * count : 1) : *room > 0 ? 2 * *room : 32;
    ISO_TRY(iso__realloc(array, (size_t)count * size, (size_t)larger * size));
    if (room) *room = larger;
    return ISO_OK;
}

iso_status iso__strdup(const char *text, char **out) {
    size_t bytes = strlen(text) + 1;
    void *copy;
    ISO_TRY(iso__alloc(bytes, &copy));
    memcpy(copy, text, bytes);
    *out = copy;
    return ISO_OK;
}

void iso__free(void *pointer) {
    if (!pointer) return;
    char *block = (char *)pointer - ALIGNMENT;
    uncount_block(((header *)(void *)block)->bytes);
    free(block);
}

// ---- Pages ------------------------------------------------------------------------------------------

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

iso_status iso__pages_alloc(size_t bytes, void **out) {
    size_t whole = iso__round_up(bytes > 0 ? bytes : 1, page_bytes());
    void *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ISO_CHECK(memory != MAP_FAILED, ISO_ERR_NOMEM, "out of memory: could not map %zu bytes", bytes);
    // A system without huge pages refuses, and needs no advice.
    (void)madvise(memory, whole, MADV_NOHUGEPAGE);
    count_block(bytes);
    *out = memory;
    return ISO_OK;
}

void iso__pages_free(void *memory, size_t bytes) {
    if (!memory) return;
    munmap(memory, iso__round_up(bytes > 0 ? bytes : 1, page_bytes()));
    uncount_block(bytes);
}

void iso__pages_clear(void *from, size_t bytes) {
    size_t page = page_bytes(), head = (page - (uintptr_t)from % page) % page;
    char *at = from;
    size_t whole = bytes > head ? (bytes - head) / page * page : 0;
    if (whole == 0 || madvise(at + head, whole, MADV_DONTNEED) != 0) {
        memset(at, 0, bytes); // e.g. locked pages, which the system keeps
        return;
    }
    memset(at, 0, head);
    memset(at + head + whole, 0, bytes - head - whole);
}

enum { PAGES_AT_ONCE = 1024 };

size_t iso__pages_resident(const void *from, size_t bytes) {
    unsigned char there[PAGES_AT_ONCE];
    size_t page = page_bytes(), first = (uintptr_t)from % page, resident = 0;
    char *at = (char *)(uintptr_t)from - first;
    size_t pages = bytes > 0 ? (first + bytes + page - 1) / page : 0;
    while (pages > 0) {
        size_t some = pages < PAGES_AT_ONCE ? pages : PAGES_AT_ONCE;
        if (mincore(at, some * page, there) != 0) return resident;
        for (size_t k = 0; k < some; k++) resident += (there[k] & 1) * page;
        at += some * page;
        pages -= some;
    }
    return resident;
}

void iso_memory_balance(long long *blocks, long long *bytes, long long *allocations) {
    if (blocks) *blocks = live_blocks;
    if (bytes) *bytes = live_bytes;
    if (allocations) *allocations = total_allocations;
}
