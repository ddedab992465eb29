// SPDX-License-Identifier: MIT
// Finds numbers by a key, such as the place of a parameter in a list, in constant time.
#ifndef ISO_INDEX_H
#define ISO_INDEX_H

#include "base/base.h"

// An index of all zeros is empty. Several numbers may have the same key.
typedef struct iso__index {
    struct iso__index_entry *entry;
    size_t room, count; // room: a power of two, or 0
} iso__index;

// number: at least 0.
iso_status iso__index_add(iso__index *index, uint64_t key, int number);
// The next number with this key, in any order; -1: there is none. *at is 0 for the first call, and
// each call changes it.
int iso__index_next(const iso__index *index, uint64_t key, size_t *at);
void iso__index_free(iso__index *index);

// Every pointer has a different key. Different names may share a key, so compare the names.
static inline uint64_t iso__pointer_key(const void *pointer) { return (uintptr_t)pointer; }
uint64_t iso__name_key(const char *name);
// The number of a pointer that was added at most once; -1: it was not.
static inline int iso__index_of(const iso__index *index, const void *pointer) {
    size_t at = 0;
    return iso__index_next(index, iso__pointer_key(pointer), &at);
}

#endif
