// SPDX-License-Identifier: MIT
// Private to src/comm: what a communicator is made of, and what makes it.
#ifndef ISO_COMM_STATE_H
#define ISO_COMM_STATE_H

#include "comm/engine.h"
#include "comm/stall.h"

// The number of queues for exchanges in a communicator's shared memory. All ranks use the same
// order within a queue. One queue serves iso_comm_iallreduce, the others channels.
#define ISO_QUEUES 8

#define ISO_SCRATCH_LEAST 1024

typedef struct iso__debug iso__debug; // debug.c

struct iso_comm {
    int references;
    MPI_Comm mpi;
    // Long exchanges leave in chunks, strictly one after the other, on a communicator of their own.
    // So a short one that is issued later and needed earlier does not wait for all of their bytes.
    // The length alone decides which communicator an exchange uses, so the order on each is the
    // same on all ranks. MPI_COMM_NULL: this communicator carries short exchanges only.
    MPI_Comm bulk;
    iso_request *bulk_first, *bulk_last; // requests that still have chunks to post
    int bulk_under_way;
    int bulk_error; // of MPI: a chunk could not be posted, and no other one is
    iso_request *talks_first, *talks_last; // messages that still have pieces to post
    bool talks_failed;                     // a piece could not be posted
    int rank, size;
    uint64_t group;    // a hash of the ranks in the job, not 0
    int64_t number;    // the same on all its ranks, unique in the job, not 0
    iso_comm *younger; // in the list of comm_parents.c
    double timeout_s;
    // A blocking collective has timed out, or MPI reported an error in it. MPI may still execute
    // it, so nothing of the communicator may be freed.
    bool lost;
    // Blocking collectives let MPI use this memory in place of the caller's. It grows. It has at
    // least ISO_SCRATCH_LEAST bytes, and 8 bytes for each rank: enough for a reduction of one
    // number, and for the lengths with which a gather begins.
    void *scratch;
    size_t scratch_bytes;
    iso__engine *engine;
    iso__shared *shared;          // memory that all its ranks can reach; NULL: none
    bool queue_taken[ISO_QUEUES]; // a channel uses it
    // For traffic.c. [size]: equal for ranks that share a node; NULL: not located.
    int64_t *node_of;
    double sum_all, sum_between; // what a sum moves, in multiples of the bytes of one rank
    double pairwise_between;     // of a sum by pairwise exchange
    int elsewhere;               // ranks on other nodes
    iso_traffic traffic;         // of layers that have no statistics of their own
    bool counted;                // iso__comm_collect has already added it
    iso__debug *debug;           // NULL unless ISO_DEBUG=detail
    // Who is stuck (stall.h). NULL: one rank, or the communicator is being created. seat_of[r]: the
    // number of rank r in the watch. meetings: blocking collectives; sums: non-blocking ones.
    iso__watch *watch;
    int *seat_of;
    iso__stream meetings, sums;
    iso__stream messages; // between two ranks, of iso__comm_imessage: neither shown nor recorded
    uint64_t channels;    // created so far
    iso__idle idle;       // of all waits, see iso__comm_set_idle
};

// A queue for a channel, 0 if all are taken. All ranks take and give them back in the same order,
// and so get the same.
static inline int iso__comm_take_queue(iso_comm *comm) {
    for (int q = 1; q < ISO_QUEUES; q++) {
        if (comm->queue_taken[q]) continue;
        comm->queue_taken[q] = true;
        return q;
    }
    return 0;
}
static inline void iso__comm_give_queue(iso_comm *comm, int queue) {
    comm->queue_taken[queue] = false;
}

// ISO_ERR_STATE if the mpirun of another MPI library started several processes, so that each one is
// alone in MPI_COMM_WORLD.
iso_status iso__check_launcher(void);
// This process among all of its job.
iso_status iso__rank_in_job(int *rank, int *size);
// Collective over mpi; comm has its rank and size. Checks the ISO_* variables: on every rank,
// ISO_ERR_ARG for an invalid value, and ISO_ERR_MISMATCH for values that must be equal but are not.
// Warns of unknown variables. memory: iso__comm_environment_bytes zeros, which MPI may still use if
// comm is lost. Sets comm->group.
iso_status iso__comm_check_environment(iso_comm *comm, MPI_Comm mpi, void *memory);
size_t iso__comm_environment_bytes(void);
// After an error of MPI, or a wait that was given up: sets comm->lost.
void iso__comm_lose(iso_comm *comm);
// Whether MPI has failed, or a wait was given up, on any communicator of this process.
bool iso__comm_any_lost(void);
// Waits for the operation of an MPI call that returned rc, at most until the time-out. After a
// time-out or an error of MPI, MPI may still use the buffers, and comm->lost is set: nothing of
// comm may be freed. what: as below. Counts as a collective, so all ranks of comm must call it
// alike.
iso_status iso__comm_await(iso_comm *comm, int rc, MPI_Request *request, const char *what);
// The same for a message between two ranks.
iso_status iso__comm_await_message(iso_comm *comm, int rc, MPI_Request *request, const char *what);
// A collective that is made of messages: begins it on this rank, and waits for one of its messages.
void iso__comm_begin(iso_comm *comm);
iso_status iso__comm_await_part(iso_comm *comm, MPI_Request *request, const char *what);
// broadcast_long.c. Collective: `bytes` from root to all ranks, in messages. After an error MPI may
// still use data.
iso_status iso__bcast_long(iso_comm *comm, void *data, size_t bytes, int root);
// Collective over mpi. Reduces each number over all ranks, in place, in 2 log2 P rounds. Not by
// MPI's all-reduce: on some rank another algorithm may be set for it, and for few numbers Open
// MPI's takes a ring. numbers: in memory that MPI may still use if comm is lost.
iso_status iso__comm_reduce(iso_comm *comm, MPI_Comm mpi, int64_t *numbers, int count, MPI_Op op,
                            const char *what);
// Collective. A barrier with the time-out, before a call that has no time-out, so that this call
// does not wait for a stuck rank. what: "the barrier before MPI_Comm_dup".
iso_status iso__comm_meet(iso_comm *comm, const char *what);
// How to make a communicator from `from`: by MPI_Comm_dup; as a copy; by MPI_Comm_split with color
// and key; by MPI_Comm_create_group with group, and key as its tag.
//
// A copy has the ranks of `like`, all of which `from` must have, and its calls return errors. It is
// made by MPI_Comm_create_group, in which Open MPI agrees on the new communicator along a tree.
// MPI_Comm_dup agrees by all-reduces of one number, for which Open MPI uses a ring. So use a copy,
// unless `from` is a communicator of the program: Open MPI sends the messages of the tree with the
// tag on `from`, where the program may receive any tag.
typedef enum iso__make { ISO_MAKE_DUP, ISO_MAKE_COPY, ISO_MAKE_SPLIT, ISO_MAKE_GROUP } iso__make;
typedef struct iso__comm_recipe {
    iso__make kind;
    MPI_Comm from, like;
    int color, key;
    MPI_Group group;
} iso__comm_recipe;
// Collective over the members. With MPI_THREAD_MULTIPLE, waits until comm's time-out at most; after
// a time-out MPI still uses the communicator and the group of the recipe.
iso_status iso__comm_make(iso_comm *comm, const iso__comm_recipe *recipe, MPI_Comm *out);
// The same: a copy of `from` with its ranks.
iso_status iso__comm_copy(iso_comm *comm, MPI_Comm from, MPI_Comm *out);
// The first is local, and makes a group of these ranks of comm. The second is collective over the
// members as above, makes a communicator of them by MPI_Comm_create_group, and frees the group. In
// between, ranks can agree that all of them have a group.
iso_status iso__comm_list_group(iso_comm *comm, const int *members, int count, MPI_Group *out);
iso_status iso__comm_make_group(iso_comm *comm, MPI_Group *group, int tag, MPI_Comm *out);
// comm_parents.c. Local. Finds the oldest iso_comm of the program that has all ranks of mpi. A new
// communicator can be made from it as by ISO_MAKE_COPY. Without it, the program's own communicator
// must be duplicated, for which Open MPI needs rounds whose number grows with the ranks. NULL if
// there is none, or no memory to find it. Ranks that have found different ones must use none.
iso_comm *iso__comm_find_parent(MPI_Comm mpi, int size);
int64_t iso__comm_number(int rank_in_job); // a new one
void iso__comm_keep(iso_comm *comm);       // it may become a parent
void iso__comm_forget(iso_comm *comm);
// Sets Open MPI's all-reduce algorithm through MPI_T, if may_set, and writes the algorithm and the
// reason. Returns its number, 0 if MPI chooses.
int iso__choose_algorithm(bool may_set, char *text, size_t room);

#endif
