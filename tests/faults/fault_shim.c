// SPDX-License-Identifier: MIT
// To be preloaded (LD_PRELOAD) into a program that is linked with libisotherm: makes one call fail.
// Only calls made from the program's own code and the library's count, which the return address
// tells; what MPI, oneDNN and the C library do for themselves goes on. A call that fails does
// nothing.
//   FAULT=KIND:N[+][:RANK]  the N-th call of a kind fails on a rank (0); with +, all later ones too
//   FAULT_COUNT=PREFIX      at the end, PREFIX.RANK gets the number of calls of each kind
//   FAULT_HIT=FILE          gets the name of the function that failed, and the stack
// KIND may begin with new-: then only calls count whose stack is a new one.
// How often a program polls is not repeatable. So the first, tenth, hundredth, ... poll of each
// place in the code count.
#include "fault_shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AREAS = 16, PLACES = 256, STACK = 40, STACKS = 1 << 14 };

static const char *const kind_names[FAULT_KINDS] = {
    [FAULT_ALLOC] = "alloc", [FAULT_MPI] = "mpi",       [FAULT_POLL] = "poll",
    [FAULT_OPEN] = "open",   [FAULT_READ] = "read",     [FAULT_WRITE] = "write",
    [FAULT_TEXT] = "text",   [FAULT_RENAME] = "rename", [FAULT_SYNC] = "sync",
    [FAULT_MAP] = "map",     [FAULT_THREAD] = "thread",
};
static const int codes[FAULT_KINDS] = {
    [FAULT_ALLOC] = ENOMEM, [FAULT_OPEN] = EMFILE, [FAULT_READ] = EIO,
    [FAULT_WRITE] = ENOSPC, [FAULT_TEXT] = ENOSPC, [FAULT_RENAME] = EIO,
    [FAULT_SYNC] = EIO,     [FAULT_MAP] = ENOMEM,  [FAULT_THREAD] = EAGAIN,
};

// Where the code of the program (area 0) and of the library is.
static struct area { const char *begin, *end; } areas[AREAS];
static int area_count;

static struct plan {
    int kind;   // -1: nothing fails
    bool fresh; // of calls with new stacks
    long number;
    bool on; // and all later ones
} plan = {.kind = -1};
static atomic_long counts[2][FAULT_KINDS]; // of all calls; of those with new stacks

// ---- Whose call -----------------------------------------------------------------------------------

static int add_area(struct dl_phdr_info *info, size_t size, void *user) {
    bool program = area_count == 0; // it is the first one
    (void)size, (void)user;
    if (!program && !strstr(info->dlpi_name, "libisotherm")) return 0;
    for (int i = 0; i < info->dlpi_phnum && area_count < AREAS; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses as numbers
        const char *begin = (const char *)(info->dlpi_addr + part->p_vaddr);
        areas[area_count++] = (struct area){begin, begin + part->p_memsz};
    }
    return 0;
}

static int find_area(const char *caller) {
    for (int i = 0; i < area_count; i++)
        if (caller >= areas[i].begin && caller < areas[i].end) return i;
    return -1;
}

bool fault_in_program(const void *caller) { return find_area(caller) == 0; }

// ---- The plan -------------------------------------------------------------------------------------

static const char *rank_text(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!rank) rank = getenv("PMI_RANK");
    return rank ? rank : "0";
}

static void read_plan(void) {
    char *text = getenv("FAULT"), *end;
    if (!text) return;
    bool fresh = strncmp(text, "new-", 4) == 0;
    if (fresh) text += 4;
    size_t length = strcspn(text, ":");
    long number = text[length] ? strtol(text + length + 1, &end, 10) : 0;
    bool on = number > 0 && *end == '+';
    if (on) end++;
    for (int k = 0; k < FAULT_KINDS && number > 0; k++)
        if (strlen(kind_names[k]) == length && strncmp(text, kind_names[k], length) == 0 &&
            strcmp(*end ? end + 1 : "0", rank_text()) == 0)
            plan = (struct plan){.kind = k, .fresh = fresh, .number = number, .on = on};
}

static __attribute__((constructor)) void begin_counting(void) {
    void *warm[1];
    backtrace(warm, 1); // it allocates when it is first called
    read_plan();
    dl_iterate_phdr(add_area, NULL);
}

static __attribute__((destructor)) void write_counts(void) {
    char name[1024], text[1024];
    const char *prefix = getenv("FAULT_COUNT");
    int used = 0;
    if (!prefix) return;
    snprintf(name, sizeof(name), "%s.%s", prefix, rank_text());
    for (int k = 0; k < FAULT_KINDS; k++)
        used += snprintf(text + used, sizeof(text) - (size_t)used, "%s %ld\nnew-%s %ld\n",
                         kind_names[k], counts[0][k], kind_names[k], counts[1][k]);
    area_count = 0;
    FILE *to = fopen(name, "w");
    if (!to) return;
    fputs(text, to);
    fclose(to);
}

static void write_hit(const char *function) {
    static atomic_bool done;
    void *stack[STACK];
    const char *name = getenv("FAULT_HIT");
    if (!name || atomic_exchange(&done, true)) return;
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    int file = real(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0) return;
    dprintf(file, "%s\n", function);
    backtrace_symbols_fd(stack, backtrace(stack, STACK), file);
    close(file);
}

// ---- The verdict ----------------------------------------------------------------------------------

// Whether this poll counts: the first, tenth, ... of its place.
static bool is_round(const void *caller) {
    static struct place {
        _Atomic(const void *) at;
        atomic_long calls;
    } places[PLACES];
    for (int i = 0; i < PLACES; i++) {
        const void *free_place = NULL;
        if (!atomic_compare_exchange_strong(&places[i].at, &free_place, caller) &&
            free_place != caller)
            continue;
        long calls = ++places[i].calls;
        while (calls % 10 == 0) calls /= 10;
        return calls == 1;
    }
    return false;
}

// Whether no call before had this stack, as far as it is code of the program and the library.
static bool is_new(int kind) {
    static _Atomic uint64_t seen[STACKS];
    void *stack[STACK];
    int depth = backtrace(stack, STACK);
    uint64_t sum = 1469598103934665603u + (uint64_t)kind;
    for (int i = 0; i < depth; i++)
        if (find_area(stack[i]) >= 0) sum = (sum ^ (uint64_t)(uintptr_t)stack[i]) * 1099511628211u;
    for (uint64_t i = sum >> 32, tries = 0; tries < STACKS; i++, tries++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&seen[i % STACKS], &none, sum)) return true;
        if (none == sum) return false;
    }
    return false;
}

bool fault_due(int kind, const void *caller, const char *function) {
    if (find_area(caller) < 0 || (kind == FAULT_POLL && !is_round(caller))) return false;
    long number = ++counts[0][kind];
    bool fresh = is_new(kind);
    if (fresh) counts[1][kind]++;
    if (kind != plan.kind) return false;
    if (plan.fresh) number = fresh ? counts[1][kind] : 0;
    if (plan.on ? number < plan.number : number != plan.number) return false;
    write_hit(function);
    errno = codes[kind];
    return true;
}

// A program that asks MPI to end the job at errors, as is the default, does not see them. The
// library has communicators of its own, on which errors are returned.
int fault_mpi_error(const void *caller) {
    if (fault_in_program(caller)) MPI_Comm_call_errhandler(MPI_COMM_WORLD, MPI_ERR_INTERN);
    return MPI_ERR_INTERN;
}
