// SPDX-License-Identifier: MIT
// What ranks call a communicator among themselves: its group, and its number among the
// communicators of this group. All its ranks make them in the same order.
#include "smpi_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_TAG  20000 // above those of pairwise exchange
#define TAGS       50000
#define MOST_COMMS 4096

static model_comm known[MOST_COMMS]; // of this rank
static int count;

static struct {
    const model_group *group;
    int made;
} made[MOST_COMMS];
static int groups;

// ---- Groups, which all ranks share ----------------------------------------------------------------

static int *world_ranks(MPI_Comm comm, int size) {
    MPI_Group all, some;
    int *place = malloc((size_t)size * sizeof(*place)),
        *world = malloc((size_t)size * sizeof(*world));
    for (int r = 0; r < size; r++) place[r] = r;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Comm_group(comm, &some);
    MPI_Group_translate_ranks(some, size, place, all, world);
    MPI_Group_free(&all);
    MPI_Group_free(&some);
    free(place);
    return world;
}

static const model_group *find_group(MPI_Comm comm) {
    int size;
    MPI_Comm_size(comm, &size);
    int *world = world_ranks(comm, size);
    size_t bytes = (size_t)size * sizeof(*world);
    for (model_group *g = *model_groups(); g; g = g->next) {
        if (g->size != size || memcmp(g->world, world, bytes) != 0) continue;
        free(world);
        return g;
    }
    model_group *fresh = malloc(sizeof(*fresh));
    *fresh = (model_group){*model_groups(), size, world};
    return *model_groups() = fresh;
}

static int number_comm(const model_group *group) {
    int i = 0;
    while (i < groups && made[i].group != group) i++;
    if (i == MOST_COMMS) abort();
    if (i == groups) made[groups++].group = group;
    return made[i].made++;
}

// ---- Communicators --------------------------------------------------------------------------------

static void add_comm(MPI_Comm comm) {
    if (count == MOST_COMMS) {
        fprintf(stderr, "more than %d communicators: raise MOST_COMMS\n", MOST_COMMS);
        abort();
    }
    model_comm *c = &known[count++];
    *c = (model_comm){.comm = comm, .group = find_group(comm)};
    c->seq = number_comm(c->group);
    MPI_Comm_rank(comm, &c->rank);
}

static void add_standard(void) {
    add_comm(MPI_COMM_WORLD);
    add_comm(MPI_COMM_SELF);
}

static int add_made(int rc, const MPI_Comm *comm) {
    if (count == 0) add_standard();
    if (rc == MPI_SUCCESS && *comm != MPI_COMM_NULL) add_comm(*comm);
    return rc;
}

model_comm *model_find_comm(MPI_Comm comm) {
    if (count == 0) add_standard();
    for (int i = 0; i < count; i++)
        if (known[i].comm == comm) return &known[i];
    fprintf(stderr, "a communicator was made by a function that is not wrapped\n");
    abort();
}

int model_take_tag(model_comm *comm) { return FIRST_TAG + comm->used++ % TAGS; }

int __real_MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out);
int __wrap_MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) {
    return add_made(__real_MPI_Comm_dup(comm, out), out);
}

int __real_MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *out);
int __wrap_MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *out) {
    return add_made(__real_MPI_Comm_split(comm, color, key, out), out);
}

int __real_MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out);
int __wrap_MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out) {
    return add_made(__real_MPI_Comm_split_type(comm, type, key, info, out), out);
}

int __real_MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *out);
int __wrap_MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *out) {
    return add_made(__real_MPI_Comm_create_group(comm, group, tag, out), out);
}

// The last one takes its place: a schedule keeps what it needs of a communicator.
int __real_MPI_Comm_free(MPI_Comm *comm);
int __wrap_MPI_Comm_free(MPI_Comm *comm) {
    for (int i = 0; i < count; i++)
        if (known[i].comm == *comm) known[i--] = known[--count];
    return __real_MPI_Comm_free(comm);
}
