// SPDX-License-Identifier: MIT
// Private to src/comm: scatters and gathers of a channel in two levels, by messages.
//
// In a scatter each rank of a node first adds up the node's blocks for the ranks at its place on
// all nodes, and sends these sums there. In a gather each rank first gets the blocks of the ranks
// at its place on the other nodes, and gives them to the ranks of its node. So each block, or the
// node's sum of it, crosses between two nodes once, and not once for each rank of a node. A scatter
// among the ranks of each node ends with a gather between nodes.
#ifndef ISO_BLOCKS_H
#define ISO_BLOCKS_H

#include "comm/stages.h"

enum { ISO_STAGES_OF_BLOCKS = 3 }; // at most

// One exchange.
typedef struct iso__block_exchange {
    iso__stages base;
    struct iso__blocks *pool;
    iso__operation operation;
    int step;             // its number
    char *data;           // this chunk's part of this rank's first block
    char *memory;         // scatters only: room for the parts of all ranks
    size_t bytes, stride; // the length of a part; from one part to the next in data
    iso_dtype dtype;
    int tag;
} iso__block_exchange;

// The exchanges that can be under way at once on one channel. The engine's lock guards them.
typedef struct iso__blocks {
    iso__engine *engine;
    int nodes, places; // places: ranks of each node
    int node, place;   // of this rank
    int *rank_at;      // [nodes * places]: the rank at a place of a node
    MPI_Aint *at;      // [nodes]
    char **block;      // [nodes]
    iso__block_exchange *exchange;
    int count;
    int turn;     // of the tags, the next one
    int promised; // MPI requests of the engine
} iso__blocks;

// Local. The number of nodes of a communicator whose blocks travel in this way, otherwise 0. Such a
// communicator is located, and has several nodes with equally many ranks. With one rank per node,
// only the level between nodes remains.
int iso__blocks_nodes(const iso_comm *comm);
// Local. For `count` exchanges at once. Posting one allocates nothing, except in MPI.
iso_status iso__blocks_create(const iso_comm *comm, int count, iso__blocks **out);
void iso__blocks_destroy(iso__blocks **blocks); // nothing may be in use; accepts NULL

// Call both with the lock held. They accept NULL. The first returns whether another exchange can
// begin, the second whether MPI may still write into the memory of one.
bool iso__blocks_have_room(const iso__blocks *blocks);
bool iso__blocks_are_in_use(const iso__blocks *blocks);

// For chunks of a channel. In a scatter, request->send points to this rank's blocks, and
// request->next to memory for the chunk's parts of all blocks. Inside a node, ranks are added in
// their order. The sums of the nodes are added in the order of isotherm/comm.h, as in all-reduces.
extern const iso__collective_ops iso__collective_blocks;

#endif
