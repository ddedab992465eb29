// SPDX-License-Identifier: MIT
// A hash table of what a library has prepared for each shape.
#include "device/cuda/runtime/cuda_cache.h"

#include <string.h>

static size_t head_of(const iso__cuda_cache *cache, const void *key) {
    return (size_t)(iso__hash(ISO_HASH_START, key, cache->key_bytes) % ISO_CUDA_CACHE_HEADS);
}

iso__cuda_entry *iso__cuda_cache_find(const iso__cuda_cache *cache, const void *key) {
    iso__cuda_entry *entry = cache->head[head_of(cache, key)];
    while (entry && memcmp(entry->key, key, cache->key_bytes) != 0) entry = entry->next;
    return entry;
}

void iso__cuda_cache_add(iso__cuda_cache *cache, iso__cuda_entry *entry) {
    iso__cuda_entry **head = &cache->head[head_of(cache, entry->key)];
    entry->next = *head;
    *head = entry;
}

iso__cuda_entry *iso__cuda_cache_take(iso__cuda_cache *cache) {
    for (int i = 0; i < ISO_CUDA_CACHE_HEADS; i++) {
        iso__cuda_entry *entry = cache->head[i];
        if (!entry) continue;
        cache->head[i] = entry->next;
        return entry;
    }
    return NULL;
}
