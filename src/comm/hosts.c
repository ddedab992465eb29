// SPDX-License-Identifier: MIT
// Determines which ranks are on the same host. MPI_Comm_split_type would say so too, but Open MPI
// agrees on its communicator in rounds whose number grows with the ranks.
#include "comm/comm_calls.h"
#include "comm/comm_state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct member {
    int64_t host;
    int rank;
} member;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t boot; // a hash of the kernel's number

// Called once: if the file could not be opened later, the process would seem to change its host.
static void read_boot(void) {
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file && !fgets(text, sizeof(text), file)) text[0] = '\0';
    if (file) fclose(file);
    boot = iso__hash(ISO_HASH_START, text, strlen(text));
}

// A number for this host, not negative: a hash of its name and of the kernel's boot id, which
// distinguishes hosts with equal names. Containers with equal names on one host count as one host.
// They share memory only if they can map it.
static int64_t identify_host(void) {
    char name[MPI_MAX_PROCESSOR_NAME] = "";
    int length = 0;
    MPI_Get_processor_name(name, &length);
    pthread_once(&once, read_boot);
    return (int64_t)(iso__hash(boot, name, strlen(name)) >> 1);
}

static int compare_members(const void *left, const void *right) {
    const member *a = left, *b = right;
    if (a->host != b->host) return a->host < b->host ? -1 : 1;
    return a->rank - b->rank;
}

// host[r]: the number of rank r's host, replaced by the lowest rank there.
static void find_lowest(int64_t *host, int size, member *sorted) {
    for (int r = 0; r < size; r++) sorted[r] = (member){host[r], r};
    qsort(sorted, (size_t)size, sizeof(*sorted), compare_members);
    for (int i = 0, first = 0; i < size; i++) {
        if (sorted[i].host != sorted[first].host) first = i;
        host[sorted[i].rank] = sorted[first].rank;
    }
}

iso_status iso__comm_find_hosts(iso_comm *comm, int64_t *lowest) {
    void *sorted;
    size_t size = (size_t)comm->size;
    ISO_TRY(iso__comm_alloc_zero(comm, size * sizeof(member), &sorted));
    memset(lowest, 0, size * sizeof(*lowest));
    lowest[comm->rank] = identify_host();
    iso_status status = iso_comm_allreduce_i64(comm, lowest, size, ISO_SUM);
    if (status == ISO_OK) find_lowest(lowest, comm->size, sorted);
    iso__free(sorted);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__comm_on_one_host(iso_comm *comm, bool *out) {
    int64_t host = identify_host(), ends[2] = {host, -host};
    ISO_TRY(iso_comm_allreduce_i64(comm, ends, 2, ISO_MIN));
    *out = ends[0] == -ends[1];
    return ISO_OK;
}
