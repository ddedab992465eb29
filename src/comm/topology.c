// SPDX-License-Identifier: MIT
// Topology: determines which ranks share a node, and creates the groups inside nodes and across
// them.
#include "comm/comm_calls.h"
#include "comm/comm_state.h"
#include "comm/traffic.h"

#include <isotherm/topology.h>

const iso_topology_config iso_topology_default = ISO_TOPOLOGY_DEFAULT;

enum { UNIT_TAG = 32001 }; // at most 32767; no other message of the library has it

typedef struct topology {
    iso_topology base;
    int references;
    bool long_requests; // of its communicators
} topology;

static bool has_long_requests(const iso_topology *t) {
    return iso_container_of(t, const topology, base)->long_requests;
}

// ---- The node group -------------------------------------------------------------------------------

// ISO_RANKS_PER_NODE, 0 if it is not set. Collective: ranks that read different values would call
// different collectives.
static iso_status read_ranks_per_node(iso_comm *comm, int *out) {
    double value = 0;
    ISO_TRY(iso_comm_agree(comm, iso__env_number(ISO_ENV_RANKS_PER_NODE, 0, &value)));
    ISO_TRY(iso__comm_check_equal(comm, (int64_t)value, "ISO_RANKS_PER_NODE (0: not set)"));
    *out = (int)value;
    return ISO_OK;
}

static void cut_evenly(const iso_comm *comm, int ranks, int64_t *lowest) {
    for (int r = 0; r < comm->size; r++) lowest[r] = r - r % ranks;
}

// lowest[r]: the lowest rank of the unit that rank r is in. Collective.
static iso_status find_lowest(iso_comm *comm, iso_scope unit, int64_t *lowest) {
    int per_node = 1;
    if (unit == ISO_SCOPE_NODE) ISO_TRY(read_ranks_per_node(comm, &per_node));
    if (per_node == 0) return iso__comm_find_hosts(comm, lowest);
    cut_evenly(comm, per_node, lowest);
    return ISO_OK;
}

// Creates an iso_comm for the ranks of *group, and frees *group.
static iso_status adopt_group(iso_comm *like, MPI_Comm *group, bool long_requests, iso_comm **out) {
    iso_status status = iso__comm_create_like(like, *group, long_requests, out);
    if (status == ISO_ERR_MPI) iso__comm_lose(like); // the others may wait in the group
    // After these MPI may still use it, and would crash.
    if (status != ISO_ERR_TIMEOUT && status != ISO_ERR_MPI) MPI_Comm_free(group);
    ISO_TRY(status);
    return ISO_OK;
}

static int list_unit(const iso_comm *comm, const int64_t *lowest, int *members) {
    int n = 0;
    for (int r = 0; r < comm->size; r++)
        if (lowest[r] == lowest[comm->rank]) members[n++] = r;
    return n;
}

// Creates a communicator of the ranks that have the same lowest rank as this one. Collective.
static iso_status make_unit(iso_comm *comm, const int64_t *lowest, bool long_requests,
                            iso_comm **out) {
    void *members;
    MPI_Group listed;
    MPI_Comm group;
    ISO_TRY(iso__comm_alloc_zero(comm, (size_t)comm->size * sizeof(int), &members));
    int n = list_unit(comm, lowest, members);
    iso_status mine = iso__comm_list_group(comm, members, n, &listed);
    iso__free(members);
    iso_status status = iso_comm_agree(comm, mine); // a barrier, too: the next call only blocks
    if (status < 0 && mine == ISO_OK) MPI_Group_free(&listed);
    ISO_TRY(status);
    ISO_TRY(iso__comm_make_group(comm, &listed, UNIT_TAG, &group));
    return adopt_group(comm, &group, long_requests, out);
}

static iso_status alloc_lowest(iso_comm *comm, int64_t **out) {
    return iso__comm_alloc_zero(comm, (size_t)comm->size * sizeof(**out), (void **)out);
}

iso_status iso__comm_create_node(iso_comm *comm, iso_scope unit, bool long_requests,
                                 iso_comm **out) {
    int64_t *lowest;
    ISO_TRY(alloc_lowest(comm, &lowest));
    iso_status status = find_lowest(comm, unit, lowest);
    if (status == ISO_OK) status = make_unit(comm, lowest, long_requests, out);
    iso__free(lowest);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__comm_create_group(iso_comm *comm, int ranks, bool long_requests, iso_comm **out) {
    int64_t *lowest;
    ISO_TRY(alloc_lowest(comm, &lowest));
    cut_evenly(comm, ranks, lowest);
    iso_status status = make_unit(comm, lowest, long_requests, out);
    iso__free(lowest);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__comm_locate(iso_comm *comm) {
    int64_t *lowest;
    ISO_TRY(alloc_lowest(comm, &lowest));
    iso_status status = find_lowest(comm, ISO_SCOPE_NODE, lowest);
    if (status == ISO_OK) status = iso_comm_agree(comm, iso__comm_place(comm, lowest));
    iso__free(lowest);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Nodes, from the lowest rank of each rank's node ----------------------------------------------

static int count_equal(const int64_t *lowest, int size, int64_t wanted) {
    int n = 0;
    for (int r = 0; r < size; r++) n += lowest[r] == wanted;
    return n;
}

static void number_nodes(iso_topology *t, const int64_t *lowest) {
    int size = t->world->size;
    for (int r = 0; r < size; r++) {
        if (lowest[r] != r) continue; // not the first of its node
        if (lowest[t->world->rank] == r) t->node_index = t->nodes;
        int ranks = count_equal(lowest, size, r);
        t->smallest = t->nodes == 0 || ranks < t->smallest ? ranks : t->smallest;
        t->largest = ranks > t->largest ? ranks : t->largest;
        t->nodes++;
    }
    t->local_rank = t->node->rank;
    t->local_size = t->node->size;
    t->weight = (double)t->local_size / size;
    t->groups = t->largest;
}

// ---- Leader groups --------------------------------------------------------------------------------

// The rank with this local rank on the node that begins with rank `first`.
static int rank_at(const int64_t *lowest, int first, int local) {
    int r = first;
    for (; lowest[r] != first || local-- > 0;) r++;
    return r;
}

static void list_members(const iso_topology *t, const int64_t *lowest, int k, int *members) {
    int n = 0, size = t->world->size;
    for (int r = 0; r < size; r++)
        if (lowest[r] == r) members[n++] = rank_at(lowest, r, k % count_equal(lowest, size, r));
}

// Each group is created by its members only. All ranks create their groups in ascending order. A
// rank continues after adopt_group has failed, because the next group has other members.
static iso_status create_groups(iso_topology *t, const int64_t *lowest, int *members) {
    iso_status worst = ISO_OK;
    for (int k = 0; k < t->groups; k++) {
        if (k % t->local_size != t->local_rank) continue;
        MPI_Group listed;
        MPI_Comm group;
        list_members(t, lowest, k, members);
        iso_status status = iso__comm_list_group(t->world, members, t->nodes, &listed);
        if (status < 0) iso__comm_lose(t->world); // the other members wait for this rank
        ISO_TRY(status);
        ISO_TRY(iso__comm_make_group(t->world, &listed, k, &group));
        status = adopt_group(t->world, &group, has_long_requests(t), &t->leaders[k]);
        if (status < 0) worst = status;
    }
    return worst;
}

// One split creates the first `smallest` groups, which share no rank. Each further group needs its
// own split. All ranks make all splits, even after adopt_group has failed.
static iso_status split_groups(iso_topology *t) {
    iso_status status = ISO_OK;
    for (int k = t->smallest - 1; k < t->groups; k++) {
        bool first = k < t->smallest;
        int own = first ? t->local_rank : k; // the group that this rank may be in
        bool member = first ? own < t->smallest : k % t->local_size == t->local_rank;
        MPI_Comm group;
        iso__comm_recipe recipe = {ISO_MAKE_SPLIT, t->world->mpi,
                                   .color = member ? own : MPI_UNDEFINED, .key = t->node_index};
        ISO_TRY(iso__comm_make(t->world, &recipe, &group));
        if (!member) continue;
        iso_status one = adopt_group(t->world, &group, has_long_requests(t), &t->leaders[own]);
        if (one < 0) status = one;
    }
    return status;
}

static iso_status make_groups(iso_topology *t, bool use_mpi_groups, const int64_t *lowest) {
    void *memory;
    size_t bytes = (size_t)t->groups * sizeof(*t->leaders);
    ISO_TRY(iso__comm_alloc_zero(t->world, bytes, &memory));
    t->leaders = memory;
    ISO_TRY(iso__comm_meet(t->world, "the barrier before the groups of leaders are made"));
    if (!use_mpi_groups) return iso_comm_agree(t->world, split_groups(t));
    ISO_TRY(iso__comm_alloc_zero(t->world, (size_t)t->nodes * sizeof(int), &memory));
    iso_status status = create_groups(t, lowest, memory);
    iso__free(memory);
    return iso_comm_agree(t->world, status);
}

// ---- Life -----------------------------------------------------------------------------------------

// For counting bytes: determines the nodes of the ranks of each group, even if the unit is a rank.
static iso_status place_groups(iso_topology *t, iso_scope unit, const int64_t *lowest) {
    iso_status mine =
        unit == ISO_SCOPE_NODE ? iso__comm_place(t->world, lowest) : iso__comm_locate(t->world);
    if (mine == ISO_OK) mine = iso__comm_place_subset(t->node, t->world);
    for (int k = 0; k < t->groups && mine == ISO_OK; k++)
        mine = iso__comm_place_subset(t->leaders[k], t->world);
    return iso_comm_agree(t->world, mine);
}

static iso_status make_topology(iso_topology *t, iso_comm *comm,
                                const iso_topology_config *config) {
    int64_t *lowest;
    t->world = iso_comm_retain(comm);
    ISO_TRY(alloc_lowest(comm, &lowest));
    iso_status status = find_lowest(comm, config->unit, lowest);
    if (status == ISO_OK) status = make_unit(comm, lowest, has_long_requests(t), &t->node);
    status = iso_comm_agree(comm, status); // each node may have failed on its own
    if (status == ISO_OK) {
        number_nodes(t, lowest);
        status = make_groups(t, config->use_mpi_groups, lowest);
        if (status == ISO_OK) status = place_groups(t, config->unit, lowest);
    }
    iso__free(lowest);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_topology_create(iso_comm *comm, const iso_topology_config *config,
                               iso_topology **out) {
    return iso__topology_create(comm, config, true, out);
}

iso_status iso__topology_create(iso_comm *comm, const iso_topology_config *config,
                                bool long_requests, iso_topology **out) {
    iso_topology_config chosen = config ? *config : ISO_TOPOLOGY_DEFAULT;
    ISO_CHECK(chosen.unit == ISO_SCOPE_NODE || chosen.unit == ISO_SCOPE_RANK, ISO_ERR_ARG,
              "the unit of a topology is ISO_SCOPE_NODE or ISO_SCOPE_RANK, not %d",
              (int)chosen.unit);
    iso_status status;
    void *memory;
    ISO_TRY(iso__comm_alloc_zero(comm, sizeof(topology), &memory));
    topology *self = memory;
    iso_topology *t = &self->base;
    self->references = 1;
    self->long_requests = long_requests;
    ISO_TRY_GOTO(make_topology(t, comm, &chosen));
    iso__log(ISO_LOG_INFO, "topology: rank %d is %d of %d on node %d of %d", comm->rank,
             t->local_rank, t->local_size, t->node_index, t->nodes);
    *out = t;
    return ISO_OK;
fail:
    iso_topology_destroy(&t);
    return status;
}

iso_topology *iso_topology_retain(iso_topology *t) {
    iso_container_of(t, topology, base)->references++;
    return t;
}

void iso_topology_destroy(iso_topology **pointer) {
    iso_topology *t = *pointer;
    *pointer = NULL;
    if (!t || --iso_container_of(t, topology, base)->references > 0) return;
    for (int k = 0; t->leaders && k < t->groups; k++) iso_comm_destroy(&t->leaders[k]);
    iso__free(t->leaders);
    iso_comm_destroy(&t->node);
    iso_comm_destroy(&t->world);
    iso__free(iso_container_of(t, topology, base));
}
