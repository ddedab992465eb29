// SPDX-License-Identifier: MIT
// POSIX shared memory, named by a number until all ranks have mapped it.
#include "comm/segment.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <isotherm/trace.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void name_of(int64_t id, char name[32]) {
    snprintf(name, 32, "/isotherm.%016llx", (unsigned long long)id);
}

static void *map_file(int file, size_t bytes, void *at) {
    int flags = MAP_SHARED | (at ? MAP_FIXED : 0);
    void *mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

void *iso__segment_map(int64_t id, size_t bytes, void *at) {
    char name[32];
    name_of(id, name);
    int file = shm_open(name, O_RDWR, 0);
    return file < 0 ? NULL : map_file(file, bytes, at);
}

void iso__segment_unlink(int64_t id) {
    char name[32];
    name_of(id, name);
    if (id) shm_unlink(name);
}

static int create_file(int64_t *id) {
    char name[32];
    int file = -1;
    for (int try = 0; file < 0 && try < 100; try++) {
        int64_t seed[3] = {getpid(), iso_now(), try};
        *id = (int64_t)(iso__hash(ISO_HASH_START, seed, sizeof(seed)) >> 1); // sums are exact
        name_of(*id, name);
        file = shm_open(name, O_CREAT | O_EXCL | O_RDWR, S_IRUSR | S_IWUSR);
        if (file < 0 && errno != EEXIST) break;
    }
    return file;
}

void *iso__segment_create(size_t bytes, int64_t *id) {
    int file = create_file(id);
    if (file < 0) return NULL;
    // Allocate the pages now: if memory runs out later, the process gets SIGBUS.
    void *memory = NULL;
    if (posix_fallocate(file, 0, (off_t)bytes) == 0)
        memory = map_file(file, bytes, NULL);
    else
        close(file);
    if (!memory) iso__segment_unlink(*id);
    return memory;
}
