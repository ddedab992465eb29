// SPDX-License-Identifier: MIT
// Private to src/comm: sums by pairwise exchange, in two stages of messages between all pairs of
// ranks. Each rank receives its slice of every other rank's data, adds up the slices, and sends the
// sum to every other rank.
//
// A rank sends 2 (P - 1) / P of its bytes, the least that a sum can take. Open MPI's Rabenseifner
// sends as little only if P is a power of two; with three ranks its busiest rank sends nearly twice
// as much. Each element is added in the order that isotherm/comm.h gives, so the bits are those of
// Rabenseifner's algorithm, and depend neither on its place nor on the length of the data.
#ifndef ISO_PAIRWISE_H
#define ISO_PAIRWISE_H

#include "comm/stages.h"

// The most ranks that sum this way. Each of the 2 (P - 1) messages of a sum costs a rank work, so
// long data is cut into sums of up to ISO_PAIRWISE_SLICE bytes for each rank, and its messages have
// at least half as many. Measured with 24 hosts, simulated without the cost of messages with 96.
#define ISO_PAIRWISE_MOST  128
#define ISO_PAIRWISE_SLICE ((size_t)8192)

// One sum.
typedef struct iso__pairwise_sum {
    iso__stages base;
    struct iso__pairwise *pool;
    char *data;
    size_t count; // elements
    char *blocks; // this rank's slice of the other ranks' data
    int tag;
    bool summed; // in the second stage
} iso__pairwise_sum;

// The sums that can be under way at once on one communicator. The engine's lock guards it.
typedef struct iso__pairwise {
    iso__engine *engine;
    int rank, size; // in the communicator
    int count;
    bool fixed;
    iso__pairwise_sum *sum;
    char **block; // [size]
    unsigned turn;
    int promised; // MPI requests of the engine
} iso__pairwise;

// Whether ISO_IALLREDUCE allows it, with Open MPI's algorithm `number` (coll_mpi.c).
bool iso__pairwise_is_wanted(int number);
// Whether so many ranks sum so, if each is on a node of its own.
bool iso__pairwise_is_best(const iso__engine *engine, int size);
// The least length at which to cut long data for them; 0 if they sum in another way.
size_t iso__pairwise_least_bytes(const iso__engine *engine, int size);

// Local. For `count` sums at once, of at most bytes[i] each, on a communicator in which this rank
// has the given rank. fixed: sum i is always made at place i, and otherwise at any that is free.
// Makes room for its messages, so that posting allocates nothing.
typedef struct iso__pairwise_config {
    int rank, size, count;
    const size_t *bytes;
    bool fixed;
} iso__pairwise_config;
iso_status iso__pairwise_create(iso__engine *engine, const iso__pairwise_config *config,
                                iso__pairwise **out);
// Nothing may be in use. Accepts NULL.
void iso__pairwise_destroy(iso__pairwise **pairwise);

// All of the following with the lock held. The first two accept NULL.
bool iso__pairwise_has_room(const iso__pairwise *pairwise, int place); // place: if they are fixed
bool iso__pairwise_is_in_use(const iso__pairwise *pairwise); // so that MPI may write into it
// Begins to sum `count` elements at request->next; there is room. All ranks do so in one order. The
// request has one more part under way then. Returns an MPI return code.
int iso__pairwise_post(iso__pairwise *pairwise, int place, iso_request *request, size_t count,
                       MPI_Comm mpi);
extern const iso__collective_ops iso__collective_pairwise; // for chunks of a channel

#endif
