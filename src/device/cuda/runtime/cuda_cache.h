// SPDX-License-Identifier: MIT
// Private to the CUDA device: what a library prepared for shapes, kept for when they come again.
#ifndef ISO_CUDA_CACHE_H
#define ISO_CUDA_CACHE_H

#include "base/base.h"

enum { ISO_CUDA_CACHE_HEADS = 64 };

// First member of what is kept. key: bytes without padding, kept by the entry.
typedef struct iso__cuda_entry {
    struct iso__cuda_entry *next;
    const void *key;
} iso__cuda_entry;
typedef struct iso__cuda_cache {
    size_t key_bytes;
    iso__cuda_entry *head[ISO_CUDA_CACHE_HEADS];
} iso__cuda_cache;

// NULL: not there.
iso__cuda_entry *iso__cuda_cache_find(const iso__cuda_cache *cache, const void *key);
void iso__cuda_cache_add(iso__cuda_cache *cache, iso__cuda_entry *entry); // takes it
// Takes out any entry; NULL: none is left.
iso__cuda_entry *iso__cuda_cache_take(iso__cuda_cache *cache);

#endif
