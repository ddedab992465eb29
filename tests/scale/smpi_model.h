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
// What to send or receive in the place of this memory: SMPI does not copy memory of its
// SMPI_SHARED_MALLOC.
void *model_payload(void *memory, size_t bytes);

// The tag of a new collective: its number on its communicator.
int model_take_tag(MPI_Comm comm);
// Messages that leave one after the other. Whether one that is sent now has to be queued:
bool model_queue_takes(void);
// *left counts those that have not left.
void model_queue_add(void *at, int bytes, int peer, int tag, MPI_Comm comm, int *left);
MPI_Request *model_queue_first(void); // the request of the one that is leaving; NULL: none is
void model_queue_drop(void);          // it has been found complete: the next one leaves
void model_queue_advance(bool computing);
// Lets the time pass until a waiting rank has seen a message that has arrived; others leave.
void model_queue_wake(void);

#endif
