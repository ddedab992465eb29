// SPDX-License-Identifier: MIT
// Private to the library: counts what exchanges of training move, as iso_traffic (isotherm/comm.h)
// defines it. Counting is local, and each rank counts its share of what all of them move together.
#ifndef ISO_TRAFFIC_H
#define ISO_TRAFFIC_H

#include "base/base.h"

#include <isotherm/comm.h>

// Collective (topology.c). Finds out which ranks of comm share a node, anew each time.
iso_status iso__comm_locate(iso_comm *comm);
// Local. The same where it is known: node_of[rank] is equal for ranks that share a node.
iso_status iso__comm_place(iso_comm *comm, const int64_t *node_of);
// Local. The same for a communicator of some of the ranks of `whole`, which has been located. Does
// nothing for NULL.
iso_status iso__comm_place_subset(iso_comm *subset, const iso_comm *whole);

// All of comm that has been located; else all ranks count as sharing a node. bytes: of one rank.
// A sum by messages.
void iso__count_sum(iso_traffic *to, const iso_comm *comm, size_t bytes);
// A sum in memory that the ranks share, or by NCCL inside a node.
void iso__count_node_sum(iso_traffic *to, const iso_comm *comm, size_t bytes);
// So many bytes from this rank to each other one: all-to-all, all-gather, broadcast of this rank.
void iso__count_blocks(iso_traffic *to, const iso_comm *comm, size_t bytes);

// What layers that have no statistics of their own exchange is counted at their communicator.
void iso__comm_count_sum(iso_comm *comm, size_t bytes);
// Adds it, and marks the communicator: from then on it adds nothing, until `to` is NULL, which
// removes the mark.
void iso__comm_collect(iso_comm *comm, iso_traffic *to);

static inline void iso__traffic_add(iso_traffic *to, const iso_traffic *more) {
    to->bytes_sent += more->bytes_sent;
    to->bytes_between_nodes += more->bytes_between_nodes;
}

// What messages of one all-reduce add up to, as multiples of the bytes of one rank: all of them,
// and those between nodes. algorithm: of Open MPI's coll_libnbc_iallreduce_algorithm.
typedef struct iso__sum_cost {
    double all, between;
} iso__sum_cost;
iso__sum_cost iso__sum_cost_of(int algorithm, const int64_t *node_of, int size);

#endif
