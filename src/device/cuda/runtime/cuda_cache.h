// SPDX-License-Identifier: MIT
// Private to the CUDA device: a cache of what a library has prepared for each shape.
#ifndef ISO_CUDA_CACHE_H
#define ISO_CUDA_CACHE_H

#include "base/base.h"

enum { ISO_CUDA_CACHE_HEADS = 64 };

// The first member of a cached struct. key: bytes without padding, owned by the entry.
typedef struct iso__cuda_entry {
    struct iso__cuda_entry *next;
    const void *key;
} iso__cuda_entry;
typedef struct iso__cuda_cache {
    size_t key_bytes;
    iso__cuda_entry *head[ISO_CUDA_CACHE_HEADS];
} iso__cuda_cache;

// Returns NULL if there is no such entry.
iso__cuda_entry *iso__cuda_cache_find(const iso__cuda_cache *cache, const void *key);
void iso__cuda_cache_add(iso__cuda_cache *cache, iso__cuda_entry *entry); // takes it
// Removes any entry and returns it; NULL: none is left.
iso__cuda_entry *iso__cuda_cache_take(iso__cuda_cache *cache);

#endif
