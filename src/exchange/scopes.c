// SPDX-License-Identifier: MIT
// The ranks over which gradients are averaged: the communicator of each scope, and the transport
// that suits it.
#include "exchange/scopes.h"

#include "comm/traffic.h"

#include <string.h>

// The alignment of parameters in bytes.
#define UNIT ((size_t)64)

// Ranks whose GPUs NCCL connects.
typedef struct gpu_group {
    bool asked;      // make_nccl has determined whether it can be used
    iso__nccl *nccl; // or NULL
} gpu_group;

struct iso__scopes {
    iso_comm *world, *node;
    iso_device *device; // borrowed; NULL unless it has its own memory
    bool exchanges;
    bool zero;            // updates are divided among ranks
    bool in_nodes;        // among those of each node
    bool scatters;        // in nodes: scatters bring the averages over all nodes
    bool sparse;          // there are sparse buckets
    bool converts;        // a hook converts buckets
    bool owns;            // a hook owns its exchange
    bool equal_nodes;     // all nodes have equally many ranks
    int64_t most, fewest; // ranks of a node, if measured
    bool wants_nccl;      // all ranks want NCCL
    bool nccl_spans;      // NCCL also sums between nodes
    size_t unit;
    gpu_group of_node, of_world;
    iso_topology *topology;   // of shards, and of sums in two levels
    iso__channel_nodes nodes; // for sums in two levels; node NULL: there are none
    iso__transport *alone;
    iso__transport
        *transport[ISO_SCOPE_RANK]; // of the world and the node; NULL: this rank is alone
    bool made[ISO_SCOPE_RANK];      // by all ranks
};

const char *iso__scope_name(iso_scope scope) {
    static const char *const name[] = {"world", "node", "rank"};
    return name[scope];
}

iso_status iso__scope_check(iso_scope scope) {
    ISO_CHECK((int)scope >= 0 && scope <= ISO_SCOPE_RANK, ISO_ERR_ARG,
              "unknown scope %d of gradient averaging", (int)scope);
    return ISO_OK;
}

// If all ranks are on one node, the scope world uses the node's communicator, which is faster.
static bool world_is_node(const iso__scopes *s) {
    return iso_comm_size(s->node) == iso_comm_size(s->world);
}

// ---- NCCL -------------------------------------------------------------------------------------------

enum { NCCL_WITHIN, NCCL_BETWEEN, ZERO_IN_NODES, WANTS };

// Between nodes, a hook that converts needs shards.
static iso_status prefer_nccl(const iso__scopes *s, int64_t wants[WANTS]) {
    int mode;
    ISO_TRY(iso__node_collective(&mode));
    bool asked = mode == ISO_NODE_NCCL || mode == ISO_NODE_NCCL_ALL;
    ISO_CHECK(!asked || iso__nccl_is_built() || iso_comm_size(s->world) == 1, ISO_ERR_UNSUPPORTED,
              "ISO_NODE_COLLECTIVE is %s, but this build has no NCCL (configure --with-nccl): set "
              "it to auto, shm or mpi",
              mode == ISO_NODE_NCCL ? "nccl" : "nccl-all");
    bool may = s->exchanges && !s->sparse && !s->zero && s->device &&
               strcmp(s->device->ops->name, "cuda") == 0;
    wants[NCCL_WITHIN] = may && (mode == ISO_NODE_AUTO || asked);
    wants[NCCL_BETWEEN] = may && mode == ISO_NODE_NCCL_ALL && !s->converts;
    wants[ZERO_IN_NODES] = s->in_nodes;
    return ISO_OK;
}

// Determines whether nodes are equal, and rounds the size of buckets so that every shard is a
// multiple of UNIT.
static iso_status measure_nodes(iso__scopes *s) {
    int64_t range[2] = {iso_comm_size(s->node), -iso_comm_size(s->node)};
    ISO_TRY(iso_comm_allreduce_i64(s->world, range, 2, ISO_MAX));
    s->most = range[0];
    s->fewest = -range[1];
    s->equal_nodes = s->most == s->fewest;
    if (s->equal_nodes) s->unit = UNIT * (size_t)range[0];
    return ISO_OK;
}

// The worst state of any rank: 0 success, 1 NCCL cannot be used, 2 an error.
static iso_status worst_of(const iso__scopes *s, iso_status mine, int64_t *out) {
    *out = mine >= 0 ? 0 : mine == ISO_ERR_UNSUPPORTED ? 1 : 2;
    return iso_comm_allreduce_i64(s->world, out, 1, ISO_MAX);
}

// The ranks that sum the gradients of comm by NCCL: of all nodes, or of this one.
static gpu_group *group_of(iso__scopes *s, const iso_comm *comm) {
    return s->nccl_spans && comm == s->world ? &s->of_world : &s->of_node;
}

// NCCL cannot be used: an error if that was asked for, otherwise a warning.
static iso_status do_without_nccl(const iso__scopes *s, const char *why) {
    int mode;
    ISO_TRY(iso__node_collective(&mode));
    ISO_CHECK(mode != ISO_NODE_NCCL && mode != ISO_NODE_NCCL_ALL, ISO_ERR_UNSUPPORTED,
              "ISO_NODE_COLLECTIVE is %s, but %s", mode == ISO_NODE_NCCL ? "nccl" : "nccl-all",
              why);
    if (iso_comm_rank(s->world) == 0)
        iso__log(ISO_LOG_WARN, "gradients go through the host's memory, not by NCCL: %s", why);
    return ISO_OK;
}

// Tries once. If one node cannot use NCCL, no node does, so that all nodes sum in the same way.
static iso_status make_nccl(iso__scopes *s, gpu_group *group) {
    iso_comm *ranks = group == &s->of_world ? s->world : s->node;
    int64_t worst;
    iso_status mine = ISO_OK;
    if (group->asked) return ISO_OK;
    if (iso_comm_size(ranks) > 1) mine = iso__nccl_create(ranks, s->device, &group->nccl);
    iso_status agreed = iso_comm_agree(s->world, mine);
    group->asked = agreed == ISO_OK;
    if (agreed == ISO_OK) return ISO_OK;
    char why[400];
    snprintf(why, sizeof(why), "%.390s", iso_last_error()->message);
    iso__nccl_destroy(&group->nccl);
    ISO_TRY(worst_of(s, mine, &worst));
    ISO_CHECK(worst < 2, agreed == ISO_ERR_UNSUPPORTED ? ISO_ERR_DEVICE : agreed, "%s", why);
    ISO_TRY(do_without_nccl(s, why));
    group->asked = true;
    return ISO_OK;
}

// A later check ensures that all ranks have the same settings. Until then, nothing here may depend
// on the settings of one rank.
static iso_status ask_for_nccl(iso__scopes *s) {
    int64_t wants[WANTS] = {0};
    ISO_TRY(iso_comm_agree(s->world, prefer_nccl(s, wants)));
    ISO_TRY(iso_comm_allreduce_i64(s->world, wants, WANTS, ISO_MIN));
    s->wants_nccl = wants[NCCL_WITHIN] && iso_comm_size(s->world) > 1;
    s->nccl_spans = s->wants_nccl && wants[NCCL_BETWEEN];
    s->in_nodes = wants[ZERO_IN_NODES];
    bool shards = (s->wants_nccl && !s->nccl_spans) || s->in_nodes;
    if (shards) ISO_TRY(measure_nodes(s));
    ISO_CHECK(
        !s->in_nodes || s->equal_nodes, ISO_ERR_UNSUPPORTED,
        "ZeRO among the ranks of a node needs equally many ranks on each node, and nodes have "
        "%lld to %lld: start equally many, or divide among all ranks; with daso, use no ZeRO",
        (long long)s->fewest, (long long)s->most);
    return ISO_OK;
}

// A hook converts on the host, so where NCCL makes the whole sum, it rules out NCCL. Shards require
// nodes with equally many ranks.
static bool takes_nccl(const iso__scopes *s, const iso_comm *comm) {
    if (s->owns || !s->wants_nccl) return false;
    return comm == s->node ? !s->converts : s->nccl_spans || s->equal_nodes;
}

// ---- Life -------------------------------------------------------------------------------------------

static iso_status find_nodes(iso__scopes *s) {
    iso_status mine = iso__comm_create_node(s->world, ISO_SCOPE_NODE, false, &s->node);
    if (mine == ISO_OK) mine = iso__comm_place_subset(s->node, s->world);
    ISO_TRY(iso_comm_agree(s->world, mine)); // each node may have failed on its own
    return ask_for_nccl(s);
}

iso_status iso__scopes_create(iso_comm *world, iso_device *device, const iso_comm_hook *hook,
                              bool exchanges, iso__zero_among zero, bool sparse,
                              iso__scopes **out) {
    iso_status status;
    iso__scopes *s = NULL;
    ISO_TRY_GOTO(iso_comm_agree(world, iso__alloc_zero(sizeof(*s), (void **)&s)));
    s->world = iso_comm_retain(world);
    s->device = device && !device->ops->host_memory ? device : NULL;
    s->exchanges = exchanges;
    s->owns = iso__hook_owns(hook);
    s->converts = hook->compress || s->owns;
    s->zero = zero != ISO__ZERO_NONE;
    s->in_nodes = zero == ISO__ZERO_NODE || zero == ISO__ZERO_NODE_SHARDS;
    s->scatters = zero == ISO__ZERO_NODE_SHARDS && !s->converts;
    s->sparse = sparse;
    ISO_TRY_GOTO(find_nodes(s));
    *out = s;
    return ISO_OK;
fail:
    iso__scopes_destroy(&s);
    return status;
}

bool iso__scopes_destroy(iso__scopes **pointer) {
    iso__scopes *s = *pointer;
    *pointer = NULL;
    bool all = true;
    if (!s) return true;
    iso__nccl_destroy(&s->of_world.nccl);
    iso__nccl_destroy(&s->of_node.nccl);
    for (int k = 0; k < ISO_SCOPE_RANK; k++)
        if (!iso__transport_destroy(&s->transport[k])) all = false;
    if (!all) return false;
    iso__transport_destroy(&s->alone);
    iso_topology_destroy(&s->topology);
    iso_comm_destroy(&s->node);
    iso_comm_destroy(&s->world);
    iso__free(s);
    return true;
}

// ---- What the layout asks ---------------------------------------------------------------------------

size_t iso__scopes_unit(const iso__scopes *s) {
    if (!s->zero) return s->unit;
    return UNIT * (size_t)iso_comm_size(s->scatters ? s->world : iso__scopes_owners(s));
}

bool iso__scopes_may_share(const iso__scopes *s) {
    return s->exchanges && !s->converts && iso_comm_size(s->node) > 1;
}

// ---- Transports -------------------------------------------------------------------------------------

iso_comm *iso__scopes_comm(const iso__scopes *s, iso_scope scope) {
    if (!s->exchanges || scope == ISO_SCOPE_RANK) return NULL;
    return scope == ISO_SCOPE_NODE || world_is_node(s) ? s->node : s->world;
}

iso_comm *iso__scopes_owners(const iso__scopes *s) { return s->in_nodes ? s->node : s->world; }

static void say_once(const iso__scopes *s, const char *what) {
    if (iso_comm_rank(s->world) == 0) iso__log(ISO_LOG_INFO, "gradients of GPUs: %s", what);
}

typedef iso_status (*maker)(const iso__transport_setup *, iso_comm *, iso__transport **);
static maker maker_of(const iso__scopes *s) {
    return s->owns ? iso__transport_phases : iso__transport_host;
}

// With a device, wraps *out, a transport of the host, in one that copies between the device and the
// arena.
static iso_status stage_arena(const iso__transport_setup *setup, iso__transport **out) {
    iso__staged_config config = {.limit_s = iso__comm_timeout(setup->world)};
    return setup->store->device ? iso__transport_staged(setup, &config, *out, out) : ISO_OK;
}

// Whether sums over several nodes may go in two levels: some node has several ranks, and all ranks
// have a helper thread and would use shared memory.
static iso_status may_link_nodes(const iso__scopes *s, bool *out) {
    int mode;
    int64_t most = iso_comm_size(s->node), all;
    ISO_TRY(iso_comm_agree(s->world, iso__node_collective(&mode)));
    ISO_TRY(iso_comm_allreduce_i64(s->world, &most, 1, ISO_MAX));
    all =
        !s->converts && mode != ISO_NODE_MPI && iso_comm_progress(s->world) == ISO_PROGRESS_THREAD;
    ISO_TRY(iso_comm_allreduce_i64(s->world, &all, 1, ISO_MIN));
    *out = most > 1 && all;
    if (most > 1 && !all && iso_comm_rank(s->world) == 0)
        iso__log(ISO_LOG_INFO, "sums over nodes: messages between all ranks (%s)",
                 s->converts            ? "a communication hook converts"
                 : mode == ISO_NODE_MPI ? "ISO_NODE_COLLECTIVE"
                                        : "some process has no progress thread");
    return ISO_OK;
}

// Shares the arena inside each node, if all nodes can, and finds the ranks that sum a slice.
static iso_status link_nodes(iso__scopes *s, iso__store *store) {
    bool may = false;
    if (s->nodes.node) return ISO_OK;
    ISO_TRY(may_link_nodes(s, &may));
    if (!may) return ISO_OK;
    ISO_TRY(iso_comm_agree(s->world, iso__store_share(store, s->node)));
    int64_t all =
        iso_comm_size(s->node) == 1 || iso__comm_is_shared(s->node, store->arena, store->bytes);
    ISO_TRY(iso_comm_allreduce_i64(s->world, &all, 1, ISO_MIN));
    if (iso_comm_rank(s->world) == 0)
        iso__log(ISO_LOG_INFO, "sums over nodes: %s",
                 all ? "in two levels"
                     : "messages between all ranks (a node has no shared memory)");
    if (!all) return ISO_OK;
    if (!s->topology) ISO_TRY(iso__topology_create(s->world, NULL, false, &s->topology));
    const iso_topology *t = s->topology;
    iso_comm *across = t->local_rank < t->smallest ? t->leaders[t->local_rank] : NULL;
    s->nodes = (iso__channel_nodes){s->node, across, t->nodes, t->smallest};
    return ISO_OK;
}

// Sums of whole buckets. Shares the arena if comm is the node, or if sums over several nodes go in
// two levels.
static iso_status make_sums(iso__scopes *s, const iso__transport_setup *setup, iso_comm *comm,
                            iso__transport **out) {
    iso__transport_setup own = *setup;
    ISO_TRY(comm == s->node ? iso__store_share(setup->store, s->node)
                            : link_nodes(s, setup->store));
    if (comm != s->node && s->nodes.node) own.nodes = &s->nodes;
    return maker_of(s)(&own, comm, out);
}

static iso_status make_host(iso__scopes *s, const iso__transport_setup *setup, iso_comm *comm,
                            iso__transport **out) {
    iso__transport *host = NULL;
    ISO_TRY(make_sums(s, setup, comm, &host));
    *out = host;
    if (s->sparse) ISO_TRY(iso__transport_rows(setup, comm, host, &host));
    *out = host;
    return iso_comm_agree(comm, stage_arena(setup, out));
}

// What brings the whole average to each rank; *out remains NULL if reduce-scatters suffice.
static iso_status make_whole(iso__scopes *s, const iso__transport_setup *setup,
                             const iso__zero_ranks *ranks, iso__transport **out) {
    iso_comm *comm = ranks->all;
    bool alone = iso_comm_size(ranks->owners) == 1; // on every node, as nodes are equal
    if (comm == s->node) ISO_TRY(iso__store_share(setup->store, s->node));
    if (ranks->owners == comm) return s->converts ? maker_of(s)(setup, comm, out) : ISO_OK;
    return s->scatters && !alone ? ISO_OK : make_sums(s, setup, comm, out);
}

static iso_status make_zero(iso__scopes *s, const iso__transport_setup *setup, iso_comm *comm,
                            iso__transport **out) {
    iso__transport *sums = NULL;
    const iso__zero_ranks ranks = {.owners = s->in_nodes ? s->node : comm, .all = comm};
    if (s->device) say_once(s, "through the host, where ZeRO divides them");
    ISO_TRY(make_whole(s, setup, &ranks, &sums));
    iso__transport *made = sums;
    iso_status status = ISO_OK;
    if (iso_comm_size(ranks.owners) > 1) status = iso__transport_zero(setup, &ranks, sums, &made);
    if (status < 0) iso__transport_destroy(&sums);
    ISO_TRY(status);
    *out = made;
    return iso_comm_agree(comm, stage_arena(setup, out));
}

static iso_status make_shards(iso__scopes *s, const iso__transport_setup *setup,
                              iso__transport **out) {
    if (!s->topology) ISO_TRY(iso__topology_create(s->world, NULL, false, &s->topology));
    iso_comm *across = s->topology->leaders[s->topology->local_rank];
    say_once(s, "NCCL inside nodes, shards through the host between them");
    iso_status status = iso__transport_shards(setup, s->of_node.nccl, s->node, across, out);
    return iso_comm_agree(s->world, status);
}

static iso_status make_transport(iso__scopes *s, iso_comm *comm, const iso__transport_setup *setup,
                                 iso__transport **out) {
    if (s->zero) return make_zero(s, setup, comm, out);
    iso__nccl *nccl = group_of(s, comm)->nccl;
    if (comm == s->world && s->wants_nccl && !s->nccl_spans && !s->equal_nodes)
        say_once(s, "through the host, as nodes have different numbers of ranks");
    if (s->wants_nccl && (s->owns || (s->converts && comm == s->node)))
        say_once(s, "through the host, where a communication hook converts them");
    if (!nccl || !takes_nccl(s, comm)) return make_host(s, setup, comm, out);
    if (comm == s->world && !s->nccl_spans) return make_shards(s, setup, out);
    say_once(s, comm == s->node ? "NCCL inside the node" : "NCCL between all ranks");
    return iso_comm_agree(comm, iso__transport_nccl(setup, nccl, comm, out));
}

// Some nodes may have a single rank, which has no transport to create but takes part in the
// agreement.
static iso_status make_scope(iso__scopes *s, iso_scope scope, const iso__transport_setup *setup) {
    iso_comm *comm = iso__scopes_comm(s, scope);
    iso__transport *new = NULL;
    if (takes_nccl(s, comm)) ISO_TRY(make_nccl(s, group_of(s, comm)));
    iso_status status = ISO_OK;
    if (iso_comm_size(comm) > 1) status = make_transport(s, comm, setup, &new);
    status = iso_comm_agree(s->world, status);
    if (status < 0) iso__transport_destroy(&new); // if it failed on one rank, no rank keeps it
    ISO_TRY(status);
    s->transport[scope] = new;
    s->made[scope] = true;
    return ISO_OK;
}

iso_status iso__scopes_choose(iso__scopes *s, iso_scope scope, const iso__transport_setup *setup,
                              iso__transport **out) {
    bool together = iso__scopes_comm(s, scope) != NULL;
    iso__transport_setup own = *setup;
    own.over_world = scope == ISO_SCOPE_WORLD;
    if (together && !s->made[scope]) ISO_TRY(make_scope(s, scope, &own));
    together = together && s->transport[scope];
    if (!together && !s->alone) ISO_TRY(iso__transport_none(&own, &s->alone));
    *out = together ? s->transport[scope] : s->alone;
    return ISO_OK;
}

iso_status iso__scopes_make_all(iso__scopes *s, const iso__transport_setup *setup) {
    iso__transport *unused;
    for (int scope = 0; scope <= ISO_SCOPE_RANK; scope++)
        ISO_TRY(iso__scopes_choose(s, (iso_scope)scope, setup, &unused));
    return ISO_OK;
}
