// SPDX-License-Identifier: MIT
// How the items of a channel travel: in shared memory, in two levels, by pairwise exchange, or by
// MPI's collectives; and what follows from that. Nothing here changes while exchanges are under
// way.
#include "comm/blocks.h"
#include "comm/channel_impl.h"
#include "comm/hierarchy.h"
#include "comm/pairwise.h"
#include "comm/traffic.h"

const iso__collective_ops *iso__channel_ops(const iso__channel *c, const iso__channel_entry *m) {
    size_t blocks = m->given.operation == ISO__SUM ? 1 : (size_t)c->comm->size;
    if (c->hierarchy && m->given.operation == ISO__SUM && m->given.dtype == ISO_F32)
        return &iso__collective_hierarchy;
    if (c->queue > 0 && m->given.operation != ISO__ALLTOALL &&
        iso__collective_choose(c->comm, m->given.data, blocks * m->given.bytes, m->given.dtype) ==
            &iso__collective_shm)
        return &iso__collective_shm;
    bool alltoall = m->given.operation == ISO__ALLTOALL, sums = m->given.operation == ISO__SUM;
    if (!sums && !alltoall && c->nodes > 0) return &iso__collective_blocks;
    return c->pairwise && sums ? &iso__collective_pairwise : &iso__collective_mpi;
}

bool iso__channel_in_two_levels(const iso__channel *c, int i) {
    const iso__collective_ops *ops = iso__channel_ops(c, &c->item[i]);
    return ops == &iso__collective_hierarchy ||
           (ops == &iso__collective_blocks && c->nodes < c->comm->size);
}

bool iso__channel_in_pairs(const iso__channel *c, int i) {
    if (iso__channel_ops(c, &c->item[i]) == &iso__collective_hierarchy)
        return iso__pairwise_is_best(c->comm->engine, c->hierarchy->nodes);
    return iso__channel_ops(c, &c->item[i]) == &iso__collective_pairwise;
}

void iso__channel_count(const iso__channel *c, int i, iso_traffic *to) {
    const iso__channel_entry *m = &c->item[i];
    const iso__collective_ops *ops = iso__channel_ops(c, m);
    if (ops == &iso__collective_blocks)
        iso__count_blocks_by_node(to, c->comm, m->given.bytes, c->nodes,
                                  m->given.operation == ISO__NODE_SCATTER);
    else if (m->given.operation != ISO__SUM)
        iso__count_blocks(to, c->comm, m->given.bytes);
    else if (ops == &iso__collective_hierarchy)
        iso__count_cost(to, c->comm, &c->hierarchy->cost, m->given.bytes);
    else if (ops == &iso__collective_pairwise)
        iso__count_pairwise_sum(to, c->comm, m->given.bytes);
    else
        (ops == &iso__collective_shm ? iso__count_node_sum : iso__count_sum)(to, c->comm,
                                                                             m->given.bytes);
}

// MPI's all-reduce adds the ranks of a node first, so direct pairwise exchange may send more bytes
// between nodes. Pairwise exchange by halves does not, if neighbouring ranks share nodes.
bool iso__channel_sums_pairwise(const iso_comm *comm) {
    double most = comm->sum_between * (1 + 1e-9); // both are sums of rounded numbers
    return (!comm->node_of || comm->pairwise_between <= most) &&
           iso__pairwise_is_best(comm->engine, comm->size);
}

int iso__sums_under_way(int ranks) {
    int rounds = 0;
    while (1 << rounds < ranks) rounds++;
    return rounds > 3 ? 2 * (rounds - 2) : 2;
}

static iso__channel_needs needs_of(const iso__engine *engine, int ranks, int slices) {
    size_t least = iso__pairwise_least_bytes(engine, ranks);
    return (iso__channel_needs){.chunk = (size_t)slices * least,
                                .under_way = least > 0 ? 2 : iso__sums_under_way(ranks)};
}

iso__channel_needs iso__channel_needs_for(const iso_comm *comm, const iso__channel_nodes *nodes) {
    if (nodes) return needs_of(comm->engine, nodes->nodes, nodes->slices);
    if (iso__channel_sums_pairwise(comm)) return needs_of(comm->engine, comm->size, 1);
    return (iso__channel_needs){.under_way = iso__sums_under_way(comm->size)};
}

iso__channel_needs iso__channel_needs_of(const iso__channel *c) {
    const iso__hierarchy *h = c->hierarchy;
    return h ? needs_of(c->comm->engine, h->nodes, h->slices)
             : iso__channel_needs_for(c->comm, NULL);
}
