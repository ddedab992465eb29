// SPDX-License-Identifier: MIT
// What a simulated run costs besides messages, and memory that holds no values.
#ifndef SMPI_MODEL_H
#define SMPI_MODEL_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

// Read from the environment; 0 unless set.
typedef struct model_cost {
    double byte_ns; // ISO_TEST_SIM_BYTE_NS: of a computing rank, for each byte sent or received
    double sum_ns;  // ISO_TEST_SIM_SUM_NS: for each byte of a sum
    double
        wake_ns; // ISO_TEST_SIM_WAKE_NS: from a message's arrival until a waiting rank has seen it
} model_cost;
const model_cost *model_costs(void);
// Lets simulated time pass for this rank.
void model_spend(double ns);

// Memory from this many bytes on (ISO_TEST_SIM_SHARED, default: none) has the same pages in all
// ranks. Its contents mean nothing.
bool model_is_modelled(const void *memory);

// ---- Communicators, and the network between their ranks -------------------------------------------

// Communicators of the same ranks in the same order. Shared by all ranks.
typedef struct model_group {
    struct model_group *next;
    int size, *world; // the ranks in MPI_COMM_WORLD
} model_group;
model_group **model_groups(void);

typedef struct model_comm {
    MPI_Comm comm;
    const model_group *group;
    int seq;  // among those of the group
    int rank; // this one's
    int used; // tags of collectives
} model_comm;
model_comm *model_find_comm(MPI_Comm comm);
// The tag of a new collective: its number on its communicator.
int model_take_tag(model_comm *comm);

// Begin at once; *left counts those that are not complete. The memory may be used again at once
// (model_send), or when it has been received. Messages between the same ranks with the same tag
// keep their order.
void model_send(const void *at, int bytes, int to, int tag, const model_comm *comm, int *left);
void model_receive(void *at, int bytes, int from, int tag, const model_comm *comm, int *left);
// Bytes of the messages of this rank that have become complete since it looked last.
double model_look(void);
// Waits until all messages of a round have become complete since model_look.
void model_wait(void);

// Calls back at this time, between the turns of the ranks (smpi_alarm.cpp).
void model_set_alarm(double time, void (*call)(void));

#endif
