// SPDX-License-Identifier: MIT
// Messages of simulated collectives: their tags, and a queue.
#include "smpi_model.h"

#include <simgrid/engine.h>
#include <stdio.h>
#include <stdlib.h>

// ---- Tags: the number of the collective on its communicator ---------------------------------------

#define FIRST_TAG  10000
#define TAGS       50000
#define MOST_COMMS 4096

static struct {
    MPI_Comm comm;
    int used;
} counter[MOST_COMMS];
static int counters;

int model_take_tag(MPI_Comm comm) {
    int i = 0;
    while (i < counters && counter[i].comm != comm) i++;
    if (i == MOST_COMMS) {
        fprintf(stderr, "more than %d communicators have collectives: raise MOST_COMMS\n",
                MOST_COMMS);
        abort();
    }
    if (i == counters) counter[counters++].comm = comm;
    return FIRST_TAG + counter[i].used++ % TAGS;
}

int __real_MPI_Comm_free(MPI_Comm *comm);
int __wrap_MPI_Comm_free(MPI_Comm *comm) {
    for (int i = 0; i < counters; i++)
        if (counter[i].comm == *comm) counter[i--] = counter[--counters];
    return __real_MPI_Comm_free(comm);
}

// ---- The queue ------------------------------------------------------------------------------------
//
// SMPI's messages share the link, so that all-reduces which begin together would stay in step: all
// use a link, and then none. So those that a waiting rank sends leave one after the other, as
// through TCP. A computing rank looks too seldom: its messages share the link.

enum { ROOM = 4096 };
static struct message {
    void *at;
    int bytes, peer, tag;
    MPI_Comm comm;
    int *left; // counts down when it has left
} queue[ROOM];
static unsigned first, end; // modulo ROOM
static MPI_Request leaving = MPI_REQUEST_NULL;
static double seen = -1; // when a waiting rank saw a message last

int __real_MPI_Test(MPI_Request *request, int *done, MPI_Status *status);

static void send_first(void) {
    if (first == end || leaving != MPI_REQUEST_NULL) return;
    const struct message *m = &queue[first % ROOM];
    MPI_Isend(model_payload(m->at, (size_t)m->bytes), m->bytes, MPI_BYTE, m->peer, m->tag, m->comm,
              &leaving);
}

bool model_queue_takes(void) { return first != end || simgrid_get_clock() - seen < 1e-6; }

void model_queue_add(void *at, int bytes, int peer, int tag, MPI_Comm comm, int *left) {
    if (end - first == ROOM) abort();
    queue[end++ % ROOM] = (struct message){at, bytes, peer, tag, comm, left};
    ++*left;
    send_first();
}

MPI_Request *model_queue_first(void) { return leaving == MPI_REQUEST_NULL ? NULL : &leaving; }

void model_queue_drop(void) {
    leaving = MPI_REQUEST_NULL;
    --*queue[first++ % ROOM].left;
    seen = simgrid_get_clock();
    send_first();
}

void model_queue_advance(bool computing) {
    for (int done = 1; done && leaving != MPI_REQUEST_NULL;) {
        int bytes = queue[first % ROOM].bytes;
        __real_MPI_Test(&leaving, &done, MPI_STATUS_IGNORE);
        if (!done) return;
        leaving = MPI_REQUEST_NULL;
        if (computing) model_spend(model_costs()->byte_ns * bytes);
        --*queue[first++ % ROOM].left;
        send_first();
    }
}

void model_queue_wake(void) {
    double until = simgrid_get_clock() + model_costs()->wake_ns * 1e-9;
    for (double rest; (rest = until - simgrid_get_clock()) > 1e-7;) {
        model_spend(leaving == MPI_REQUEST_NULL || rest < 5e-6 ? rest * 1e9 : 5000);
        model_queue_advance(false);
    }
    seen = simgrid_get_clock();
}
