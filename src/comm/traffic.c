// SPDX-License-Identifier: MIT
// Counts the bytes that exchanges move between ranks, from the messages of MPI's algorithms.
#include "comm/traffic.h"

#include "comm/comm_state.h"
#include "comm/pairwise.h"

#include <string.h>

// ---- Messages of an all-reduce ----------------------------------------------------------------------

enum { RING = 1, BINOMIAL, RABENSEIFNER, RECURSIVE_DOUBLING }; // as Open MPI counts them

typedef struct tally {
    const int64_t *node_of;
    iso__sum_cost cost;
} tally;

// amount: in multiples of the vector's length.
static void add_message(tally *t, int from, int to, double amount) {
    t->cost.all += amount;
    if (t->node_of[from] != t->node_of[to]) t->cost.between += amount;
}

// Every rank sends P - 1 slices of 1 / P to its neighbour, twice.
static void add_ring(tally *t, int size) {
    for (int r = 0; r < size; r++) add_message(t, r, (r + 1) % size, 2 * (1 - 1.0 / size));
}

// A reduction to rank 0 and a broadcast from it, along trees.
static void add_trees(tally *t, int size) {
    for (int r = 1, highest = 1; r < size; r++) {
        if (r >= 2 * highest) highest *= 2;
        add_message(t, r, r & (r - 1), 1);
        add_message(t, r - highest, r, 1);
    }
}

// The two algorithms that exchange in pairs use a power of two of ranks. Each rank beyond that
// gives its vector to a neighbour first, and gets the sum from it at the end.

// The rank with number v in the power of two. stays: which rank of a pair of neighbours takes part.
static int paired_rank(int v, int beyond, int stays) {
    return v < beyond ? 2 * v + stays : v + beyond;
}

static int power_below(int size) {
    int power = 1;
    while (2 * power <= size) power *= 2;
    return power;
}

// Ranks exchange halves of the remaining vector with ever more distant partners, and gather the
// result in the same way. A pair of neighbours shares the first sum: half a vector each way, and
// half back.
static void add_rabenseifner(tally *t, int size) {
    int power = power_below(size), beyond = size - power;
    for (int r = 0; r < 2 * beyond; r += 2) {
        add_message(t, r, r + 1, 0.5 + 1);
        add_message(t, r + 1, r, 0.5 + 0.5);
    }
    double fraction = 0.5;
    for (int distance = 1; distance < power; distance *= 2, fraction /= 2)
        for (int v = 0; v < power; v++)
            add_message(t, paired_rank(v, beyond, 0), paired_rank(v ^ distance, beyond, 0),
                        2 * fraction);
}

// As Rabenseifner's, but both neighbours of a pair continue, each with half a vector.
static void add_halving(tally *t, int size) {
    int power = power_below(size), beyond = size - power;
    for (int r = 0; r < 2 * beyond; r++) add_message(t, r, r ^ 1, 0.5 + 0.5);
    double fraction = 0.5;
    for (int distance = 1; distance < power; distance *= 2, fraction /= 2)
        for (int i = 0; i < 2 * power; i++) {
            int v = i / 2, half = i % 2;
            add_message(t, paired_rank(v, beyond, half), paired_rank(v ^ distance, beyond, half),
                        fraction);
        }
}

// Ranks exchange whole vectors.
static void add_doubling(tally *t, int size) {
    int power = power_below(size), beyond = size - power;
    for (int r = 0; r < 2 * beyond; r += 2) {
        add_message(t, r, r + 1, 1);
        add_message(t, r + 1, r, 1);
    }
    for (int distance = 1; distance < power; distance *= 2)
        for (int v = 0; v < power; v++)
            add_message(t, paired_rank(v, beyond, 1), paired_rank(v ^ distance, beyond, 1), 1);
}

// Every rank sends a slice of 1 / P to every other one, twice.
static void add_pairwise(tally *t, int size) {
    for (int r = 0; r < size; r++)
        for (int to = 0; to < size; to++)
            if (to != r) add_message(t, r, to, 2.0 / size);
}

iso__sum_cost iso__sum_cost_of(int algorithm, const int64_t *node_of, int size) {
    tally t = {.node_of = node_of};
    switch (algorithm) {
    case BINOMIAL: add_trees(&t, size); break;
    case RABENSEIFNER: add_rabenseifner(&t, size); break;
    case RECURSIVE_DOUBLING: add_doubling(&t, size); break;
    case ISO_SUM_PAIRWISE: add_pairwise(&t, size); break;
    case ISO_SUM_HALVING: add_halving(&t, size); break;
    default: add_ring(&t, size); // also if the algorithm is unknown
    }
    return t.cost;
}

// ---- Where ranks are --------------------------------------------------------------------------------

iso_status iso__comm_place(iso_comm *comm, const int64_t *node_of) {
    size_t bytes = (size_t)comm->size * sizeof(*node_of);
    if (!comm->node_of) ISO_TRY(iso__alloc(bytes, (void **)&comm->node_of));
    memcpy(comm->node_of, node_of, bytes);
    iso__sum_cost cost = iso__sum_cost_of(comm->engine->algorithm_number, node_of, comm->size);
    comm->sum_all = cost.all;
    comm->sum_between = cost.between;
    int choice = iso__pairwise_choice(comm->engine, comm->size);
    if (choice != 0) comm->pairwise_between = iso__sum_cost_of(choice, node_of, comm->size).between;
    comm->elsewhere = 0;
    for (int r = 0; r < comm->size; r++) comm->elsewhere += node_of[r] != node_of[comm->rank];
    return ISO_OK;
}

static int ranks_beside(const iso_comm *comm, int rank, int end) {
    int count = 0;
    for (int r = 0; r < end; r++) count += comm->node_of[r] == comm->node_of[rank];
    return count;
}

int iso__comm_nodes(const iso_comm *comm, bool *equal) {
    int nodes = 0, first = comm->node_of ? ranks_beside(comm, 0, comm->size) : comm->size;
    *equal = true;
    for (int r = 0; comm->node_of && r < comm->size; r++) {
        nodes += ranks_beside(comm, r, r) == 0;
        *equal = *equal && ranks_beside(comm, r, comm->size) == first;
    }
    return nodes > 0 ? nodes : 1;
}

iso__sum_cost iso__ring_cost(const iso_comm *comm) {
    bool equal;
    int nodes = iso__comm_nodes(comm, &equal);
    double all = 2.0 * (comm->size - 1);
    return (iso__sum_cost){all, nodes > 1 ? all * nodes / comm->size : 0};
}

static iso_status find_ranks(const iso_comm *subset, const iso_comm *whole, int *rank) {
    MPI_Group some, all;
    ISO_TRY_MPI(MPI_Comm_group(subset->mpi, &some));
    int rc = MPI_Comm_group(whole->mpi, &all);
    if (rc == MPI_SUCCESS) {
        for (int r = 0; r < subset->size; r++) rank[subset->size + r] = r;
        rc = MPI_Group_translate_ranks(some, subset->size, rank + subset->size, all, rank);
        MPI_Group_free(&all);
    }
    MPI_Group_free(&some);
    ISO_TRY_MPI_CODE(rc, "MPI_Group_translate_ranks");
    return ISO_OK;
}

iso_status iso__comm_place_subset(iso_comm *subset, const iso_comm *whole) {
    int *rank = NULL;
    int64_t *node_of = NULL;
    if (!subset) return ISO_OK;
    size_t count = (size_t)subset->size;
    iso_status status = iso__alloc(2 * count * sizeof(*rank), (void **)&rank);
    if (status == ISO_OK) status = iso__alloc(count * sizeof(*node_of), (void **)&node_of);
    if (status == ISO_OK) status = find_ranks(subset, whole, rank);
    for (size_t r = 0; status == ISO_OK && r < count; r++) node_of[r] = whole->node_of[rank[r]];
    if (status == ISO_OK) status = iso__comm_place(subset, node_of);
    iso__free(node_of);
    iso__free(rank);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Counting ---------------------------------------------------------------------------------------

// This rank's share of `total`; the shares of all ranks add up to it.
static int64_t share_of(const iso_comm *comm, double total) {
    int64_t all = (int64_t)(total + 0.5), rank = comm->rank, size = comm->size;
    return all / size + (all % size * (rank + 1) / size - all % size * rank / size);
}

void iso__count_sum(iso_traffic *to, const iso_comm *comm, size_t bytes) {
    if (!comm->node_of) {
        iso__count_node_sum(to, comm, bytes);
        return;
    }
    iso__count_cost(to, comm, &(iso__sum_cost){comm->sum_all, comm->sum_between}, bytes);
}

void iso__count_cost(iso_traffic *to, const iso_comm *comm, const iso__sum_cost *cost,
                     size_t bytes) {
    to->bytes_sent += share_of(comm, cost->all * (double)bytes);
    to->bytes_between_nodes += share_of(comm, cost->between * (double)bytes);
}

void iso__count_pairwise_sum(iso_traffic *to, const iso_comm *comm, size_t bytes) {
    iso__sum_cost cost = {2.0 * (comm->size - 1), comm->pairwise_between};
    iso__count_cost(to, comm, &cost, bytes);
}

// Each of P ranks receives its slice, 1 / P of the vector, from P - 1 others, and sends the sum of
// the slice to them.
void iso__count_node_sum(iso_traffic *to, const iso_comm *comm, size_t bytes) {
    to->bytes_sent += share_of(comm, 2.0 * (comm->size - 1) * (double)bytes);
}

void iso__count_blocks(iso_traffic *to, const iso_comm *comm, size_t bytes) {
    to->bytes_sent += (int64_t)bytes * (comm->size - 1);
    to->bytes_between_nodes += (int64_t)bytes * comm->elsewhere;
}

// Inside the node, a rank's blocks for each node go to every other rank, or come from it; between
// nodes, one block for each other node.
void iso__count_blocks_by_node(iso_traffic *to, const iso_comm *comm, size_t bytes, int nodes,
                               bool in_nodes) {
    int64_t across = (int64_t)bytes * (nodes - 1);
    to->bytes_sent += (int64_t)bytes * (comm->size - 1) + (in_nodes ? across : 0);
    to->bytes_between_nodes += in_nodes ? 2 * across : across;
}

void iso__count_message(iso_traffic *to, const iso_comm *comm, int rank, size_t bytes) {
    bool here = !comm->node_of || comm->node_of[rank] == comm->node_of[comm->rank];
    to->bytes_sent += rank == comm->rank ? 0 : (int64_t)bytes;
    to->bytes_between_nodes += here ? 0 : (int64_t)bytes;
}

void iso__comm_count_sum(iso_comm *comm, size_t bytes) {
    iso__count_sum(&comm->traffic, comm, bytes);
}

void iso__comm_collect(iso_comm *comm, iso_traffic *to) {
    if (to && !comm->counted) iso__traffic_add(to, &comm->traffic);
    comm->counted = to != NULL;
}
