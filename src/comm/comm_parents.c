// SPDX-License-Identifier: MIT
// The communicators that the program has created and not yet destroyed. If one of them has all
// ranks of a new communicator, the new one is made from it: see iso__comm_find_parent.
#include "comm/comm_state.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static iso_comm *oldest;
static int64_t created; // communicators to which this process has given a number

int64_t iso__comm_number(int rank_in_job) {
    pthread_mutex_lock(&lock);
    int64_t number = (int64_t)rank_in_job << 32 | ++created;
    pthread_mutex_unlock(&lock);
    return number;
}

void iso__comm_keep(iso_comm *comm) {
    pthread_mutex_lock(&lock);
    iso_comm **at = &oldest;
    while (*at) at = &(*at)->younger;
    *at = comm;
    pthread_mutex_unlock(&lock);
}

void iso__comm_forget(iso_comm *comm) {
    pthread_mutex_lock(&lock);
    iso_comm **at = &oldest;
    while (*at && *at != comm) at = &(*at)->younger;
    if (*at) *at = comm->younger;
    pthread_mutex_unlock(&lock);
}

// all: the ranks from 0 on; seen: memory for as many.
static bool has_ranks(MPI_Comm parent, MPI_Group group, int count, const int *all, int *seen) {
    MPI_Group own;
    if (MPI_Comm_group(parent, &own) != MPI_SUCCESS) return false;
    bool every = MPI_Group_translate_ranks(group, count, all, own, seen) == MPI_SUCCESS;
    for (int i = 0; every && i < count; i++) every = seen[i] != MPI_UNDEFINED;
    MPI_Group_free(&own);
    return every;
}

static iso_comm *find_oldest(MPI_Group group, int count, int *all, int *seen) {
    for (int i = 0; i < count; i++) all[i] = i;
    pthread_mutex_lock(&lock);
    iso_comm *found = oldest;
    while (found && (found->lost || !has_ranks(found->mpi, group, count, all, seen)))
        found = found->younger;
    pthread_mutex_unlock(&lock);
    return found;
}

iso_comm *iso__comm_find_parent(MPI_Comm mpi, int size) {
    void *memory = NULL;
    MPI_Group group;
    if (MPI_Comm_group(mpi, &group) != MPI_SUCCESS) return NULL;
    iso_comm *found = NULL;
    if (iso__alloc(2 * (size_t)size * sizeof(int), &memory) == ISO_OK)
        found = find_oldest(group, size, memory, (int *)memory + size);
    iso__free(memory);
    MPI_Group_free(&group);
    return found;
}
