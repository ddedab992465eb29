// SPDX-License-Identifier: MIT
// Aligned allocation with a balance counter, by which tests prove that nothing leaks.
#include "base/base.h"

#include <stdatomic.h>
#include <string.h>

#define ALIGNMENT 64

// Stands before each block; a whole alignment unit keeps the block aligned.
typedef struct header {
    size_t bytes;
} header;

static _Atomic long long live_blocks, live_bytes, total_allocations;

iso_status iso__alloc(size_t bytes, void **out) {
    char *block = NULL;
    if (bytes < SIZE_MAX - 2 * ALIGNMENT) {
        size_t whole = ALIGNMENT + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        block = aligned_alloc(ALIGNMENT, whole);
    }
    ISO_CHECK(block, ISO_ERR_NOMEM, "out of memory: could not allocate %zu bytes", bytes);
    ((header *)(void *)block)->bytes = bytes;
    live_blocks++;
    live_bytes += (long long)bytes;
    total_allocations++;
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
    live_blocks--;
    live_bytes -= (long long)((header *)(void *)block)->bytes;
    free(block);
}

void iso_memory_balance(long long *blocks, long long *bytes, long long *allocations) {
    if (blocks) *blocks = live_blocks;
    if (bytes) *bytes = live_bytes;
    if (allocations) *allocations = total_allocations;
}
