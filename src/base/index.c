// SPDX-License-Identifier: MIT
// A hash table of numbers, with linear probing.
#include "base/index.h"

#include <string.h>

typedef struct iso__index_entry {
    uint64_t key;
    int above; // the number plus 1; 0: the entry is free
} entry;

enum { LEAST_ROOM = 32 };

// Pointers differ in their middle bits (Fibonacci hashing).
static size_t first_place(const iso__index *index, uint64_t key) {
    return (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (index->room - 1);
}

uint64_t iso__name_key(const char *name) { return iso__hash(ISO_HASH_START, name, strlen(name)); }

static void put_entry(iso__index *index, entry e) {
    size_t place = first_place(index, e.key);
    while (index->entry[place].above > 0) place = (place + 1) & (index->room - 1);
    index->entry[place] = e;
}

static iso_status make_room(iso__index *index) {
    iso__index larger = {.room = index->room > 0 ? 2 * index->room : LEAST_ROOM};
    ISO_TRY(iso__alloc_zero(larger.room * sizeof(entry), (void **)&larger.entry));
    for (size_t i = 0; i < index->room; i++)
        if (index->entry[i].above > 0) put_entry(&larger, index->entry[i]);
    larger.count = index->count;
    iso__free(index->entry);
    *index = larger;
    return ISO_OK;
}

iso_status iso__index_add(iso__index *index, uint64_t key, int number) {
    if (2 * (index->count + 1) > index->room) ISO_TRY(make_room(index));
    put_entry(index, (entry){key, number + 1});
    index->count++;
    return ISO_OK;
}

int iso__index_next(const iso__index *index, uint64_t key, size_t *at) {
    while (*at < index->room) {
        const entry *e = &index->entry[(first_place(index, key) + (*at)++) & (index->room - 1)];
        if (e->above == 0) break;
        if (e->key == key) return e->above - 1;
    }
    *at = index->room;
    return -1;
}

void iso__index_free(iso__index *index) {
    iso__free(index->entry);
    *index = (iso__index){0};
}
