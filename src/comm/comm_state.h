// SPDX-License-Identifier: MIT
// Private to src/comm: what a communicator is made of, and what makes it.
#ifndef ISO_COMM_STATE_H
#define ISO_COMM_STATE_H

#include "comm/engine.h"

// Of exchanges in the shared memory of a communicator, each in an order that all ranks share: one
// for iso_comm_iallreduce, others for channels.
#define ISO_QUEUES 8

typedef struct iso__debug iso__debug; // debug.c

struct iso_comm {
    int references;
    MPI_Comm mpi;
    // Long exchanges leave in chunks, strictly one after the other, on a communicator of their own:
    // a short one that is issued later and needed earlier is not behind all of their bytes. Which
    // goes where depends on its length alone, so the order on each communicator is the same on all
    // ranks. MPI_COMM_NULL: this communicator carries short exchanges only.
    MPI_Comm bulk;
    iso_request *bulk_first, *bulk_last; // requests that have chunks to post
    int bulk_under_way;
    int rank, size;
    double timeout_s;
    // A blocking collective has timed out: MPI goes on with it, so nothing of this is freed.
    bool lost;
    void *scratch; // that blocking collectives go through
    size_t scratch_bytes;
    iso__engine *engine;
    iso__shared *shared;          // memory that all its ranks can reach; NULL: none
    bool queue_taken[ISO_QUEUES]; // by channels
    // Of what traffic.c counts. [size]: equal for ranks that share a node; NULL: not asked for.
    int64_t *node_of;
    double sum_all, sum_between; // what a sum moves, in multiples of the bytes of one rank
    int elsewhere;               // ranks on other nodes
    iso_traffic traffic;         // of layers that have no statistics of their own
    bool counted;                // of those, by a count that is going on
    iso__debug *debug;           // NULL unless ISO_DEBUG=detail
};

// ISO_ERR_STATE where an mpirun of another MPI has started several, each of which is alone.
iso_status iso__check_launcher(void);
// Collective over mpi, whose rank and size comm has. Of ISO_* variables, bad values are ISO_ERR_ARG
// and values that must be equal and are not ISO_ERR_MISMATCH, on every rank; warns of unknown ones.
iso_status iso__comm_check_environment(iso_comm *comm, MPI_Comm mpi);
// Waits for what an MPI call that returned rc has started, giving up after the time-out: MPI then
// goes on with the buffers, and comm->lost says that nothing of it may be freed. what: as below.
iso_status iso__comm_await(iso_comm *comm, int rc, MPI_Request *request, const char *what);
// Collective. All ranks meet, under the time-out, before a call that can only block: what follows
// waits for no rank that is stuck. what: "the barrier before MPI_Comm_split".
iso_status iso__comm_meet(iso_comm *comm, const char *what);
// A communicator made of `from`: by MPI_Comm_dup; MPI_Comm_split with color and key;
// MPI_Comm_split_type by shared memory, with key; MPI_Comm_create_group with group and the tag key.
typedef enum iso__make {
    ISO_MAKE_DUP,
    ISO_MAKE_SPLIT,
    ISO_MAKE_SPLIT_SHARED,
    ISO_MAKE_GROUP
} iso__make;
typedef struct iso__comm_recipe {
    iso__make kind;
    MPI_Comm from;
    int color, key;
    MPI_Group group;
} iso__comm_recipe;
// Collective over those who become members. With MPI_THREAD_MULTIPLE it is under comm's time-out,
// after which MPI still uses what the recipe names.
iso_status iso__comm_make(iso_comm *comm, const iso__comm_recipe *recipe, MPI_Comm *out);
// Sets Open MPI's all-reduce algorithm through MPI_T; writes what holds and why. Gives its number,
// 0 where that is MPI's own choice.
int iso__choose_algorithm(char *text, size_t room);

#endif
