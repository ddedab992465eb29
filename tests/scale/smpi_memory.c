// SPDX-License-Identifier: MIT
// The costs of a simulated run, and memory that all ranks share because its values do not matter.
//
// The library's long arrays (iso__alloc and its relatives, wrapped by the linker) are mappings of
// one file: addresses of their own, the same pages. So a rank costs addresses, not memory.
#include "smpi_model.h"

#include <smpi/smpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BLOCK ((size_t)64 << 20) // of pages that are mapped again and again
#define ROOM  ((size_t)1 << 36)  // addresses of a rank
#define ALIGN ((size_t)4096)

// ---- Costs ----------------------------------------------------------------------------------------

static double read_number(const char *name) {
    const char *text = getenv(name);
    return text ? atof(text) : 0;
}

const model_cost *model_costs(void) {
    static model_cost cost;
    static bool known;
    if (!known)
        cost = (model_cost){.byte_ns = read_number("ISO_TEST_SIM_BYTE_NS"),
                            .sum_ns = read_number("ISO_TEST_SIM_SUM_NS"),
                            .wake_ns = read_number("ISO_TEST_SIM_WAKE_NS")};
    known = true;
    return &cost;
}

int __real_smpi_nanosleep(const struct timespec *span, struct timespec *rest);
void model_spend(double ns) {
    if (ns < 1) return;
    struct timespec t = {.tv_sec = (time_t)(ns / 1e9), .tv_nsec = (long)ns % 1000000000};
    __real_smpi_nanosleep(&t, NULL);
}

// ---- Memory ---------------------------------------------------------------------------------------

static char *room, *next;
static size_t least;
static int file = -1;

static size_t least_bytes(void) {
    if (least > 0) return least;
    double wanted = read_number("ISO_TEST_SIM_SHARED");
    least = wanted > 0 ? (size_t)wanted : SIZE_MAX;
    return least;
}

bool model_is_modelled(const void *memory) {
    const char *at = memory;
    return room && at >= room && at < room + ROOM;
}

// All ranks are one process: the first one leaves the number of the file to the others.
static int open_file(void) {
    const char *known = getenv("ISO_TEST_SIM_FILE");
    char text[16];
    if (known) return atoi(known);
    int made = memfd_create("isotherm", 0);
    if (made < 0 || ftruncate(made, (off_t)BLOCK) != 0) abort();
    snprintf(text, sizeof(text), "%d", made);
    setenv("ISO_TEST_SIM_FILE", text, 1);
    return made;
}

static void *map_blocks(size_t bytes) {
    if (!room) {
        file = open_file();
        room = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (room == MAP_FAILED) abort();
        next = room;
    }
    char *start = next;
    for (size_t done = 0; done < bytes; done += BLOCK) {
        size_t part = bytes - done < BLOCK ? bytes - done : BLOCK;
        if (mmap(start + done, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
            MAP_FAILED)
            abort();
    }
    // The first page is the rank's own: the library keeps a mark in the first element of a mean.
    if (mmap(start, ALIGN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0) == MAP_FAILED)
        abort();
    next += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (next > room + ROOM) abort();
    return start;
}

int __real_iso__alloc(size_t bytes, void **out);
int __wrap_iso__alloc(size_t bytes, void **out) {
    if (bytes < least_bytes()) return __real_iso__alloc(bytes, out);
    *out = map_blocks(bytes);
    return 0;
}

int __real_iso__alloc_zero(size_t bytes, void **out);
int __wrap_iso__alloc_zero(size_t bytes, void **out) {
    if (bytes < least_bytes()) return __real_iso__alloc_zero(bytes, out);
    *out = map_blocks(bytes);
    return 0;
}

void __real_iso__free(void *memory);
void __wrap_iso__free(void *memory) {
    if (!model_is_modelled(memory)) __real_iso__free(memory);
}

int __real_iso__realloc(void **memory, size_t old, size_t bytes);
int __wrap_iso__realloc(void **memory, size_t old, size_t bytes) {
    void *fresh;
    if (bytes < least_bytes() && !model_is_modelled(*memory))
        return __real_iso__realloc(memory, old, bytes);
    int status = __wrap_iso__alloc(bytes, &fresh);
    if (status < 0) return status;
    if (*memory) memcpy(fresh, *memory, old < bytes ? old : bytes);
    __wrap_iso__free(*memory);
    *memory = fresh;
    return 0;
}
