// SPDX-License-Identifier: MIT
// Private to the library: counts what exchanges of training move, as iso_traffic (isotherm/comm.h)
// defines it. Counting is local, and each rank counts its share of what all of them move together.
#ifndef ISO_TRAFFIC_H
#define ISO_TRAFFIC_H

#include "base/base.h"

#include <isotherm/comm.h>

// Collective (topology.c). Determines which ranks of comm share a node. Each call does so anew.
iso_status iso__comm_locate(iso_comm *comm);
// Local. The same if this is known already: node_of[rank] is equal for ranks that share a node.
iso_status iso__comm_place(iso_comm *comm, const int64_t *node_of);
// Local. The same for a communicator of some of the ranks of `whole`, which has been located. Does
// nothing for NULL.
iso_status iso__comm_place_subset(iso_comm *subset, const iso_comm *whole);

// Local. The number of nodes of a communicator that has been located, otherwise 1; *equal: whether
// all have equally many ranks.
int iso__comm_nodes(const iso_comm *comm, bool *equal);

// The cost of one all-reduce: the total length of all messages, and of those between nodes, as
// multiples of the bytes of one rank. algorithm: a value of Open MPI's
// coll_libnbc_iallreduce_algorithm, or one of pairwise exchange (pairwise.h): directly, by halves.
enum { ISO_SUM_PAIRWISE = 5, ISO_SUM_HALVING };
typedef struct iso__sum_cost {
    double all, between;
} iso__sum_cost;
iso__sum_cost iso__sum_cost_of(int algorithm, const int64_t *node_of, int size);
// The cost of a sum by NCCL, counted as that of a ring that leaves each node once. Its computation
// takes time proportional to the square of the number of ranks.
iso__sum_cost iso__ring_cost(const iso_comm *comm);

// These need a located comm; otherwise all ranks count as sharing a node. bytes: per rank.
// A sum by messages.
void iso__count_sum(iso_traffic *to, const iso_comm *comm, size_t bytes);
// A sum by pairwise exchange.
void iso__count_pairwise_sum(iso_traffic *to, const iso_comm *comm, size_t bytes);
// A sum in memory that the ranks share.
void iso__count_node_sum(iso_traffic *to, const iso_comm *comm, size_t bytes);
// A sum of this cost.
void iso__count_cost(iso_traffic *to, const iso_comm *comm, const iso__sum_cost *cost,
                     size_t bytes);
// `bytes` from this rank to each other rank: all-to-all, all-gather, broadcast by this rank.
void iso__count_blocks(iso_traffic *to, const iso_comm *comm, size_t bytes);
// The same, but by node, between `nodes` equal nodes (blocks.h). in_nodes: the exchange is a
// scatter among the ranks of each node.
void iso__count_blocks_by_node(iso_traffic *to, const iso_comm *comm, size_t bytes, int nodes,
                               bool in_nodes);
// `bytes` from this rank to another rank of comm.
void iso__count_message(iso_traffic *to, const iso_comm *comm, int rank, size_t bytes);

// Layers without statistics of their own count their exchanges at their communicator.
void iso__comm_count_sum(iso_comm *comm, size_t bytes);
// Adds the communicator's traffic to *to, once: further calls add nothing until a call with `to`
// NULL removes the mark.
void iso__comm_collect(iso_comm *comm, iso_traffic *to);

static inline void iso__traffic_add(iso_traffic *to, const iso_traffic *more) {
    to->bytes_sent += more->bytes_sent;
    to->bytes_between_nodes += more->bytes_between_nodes;
}

#endif
