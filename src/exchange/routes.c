// SPDX-License-Identifier: MIT
// Routes: sets of communicators for several means that are under way at once.
#include "exchange/routes.h"

#include "comm/comm_calls.h"
#include "comm/traffic.h"

typedef struct route {
    iso_topology *topology;
    iso_comm *all;
    bool taken, held;
} route;

struct iso__routes {
    int references, count;
    iso_comm *comm;
    route route[];
};

// For counting bytes: the nodes are those of all ranks.
static iso_status place_group(iso_comm *all, iso_topology *t) {
    ISO_TRY(iso__comm_locate(all));
    iso_status mine = iso__comm_place_subset(t->world, all);
    if (mine == ISO_OK) mine = iso__comm_place_subset(t->node, all);
    for (int k = 0; k < t->groups && mine == ISO_OK; k++)
        mine = iso__comm_place_subset(t->leaders[k], all);
    return iso_comm_agree(all, mine);
}

static iso_status make_group(iso_comm *all, int ranks, const iso_topology_config *config,
                             iso_topology **out) {
    iso_comm *group = NULL;
    iso_status status = iso__comm_create_group(all, ranks, true, &group);
    if (status == ISO_OK) status = iso_topology_create(group, config, out);
    iso_comm_destroy(&group);
    ISO_TRY(iso_comm_agree(all, status)); // each group may have failed on its own
    return place_group(all, *out);
}

// ranks 0: no groups.
static iso_status make_route(iso_comm *comm, int ranks, const iso_topology_config *config,
                             route *out) {
    ISO_TRY(iso__comm_create_like(comm, iso_comm_mpi(comm), false, &out->all));
    if (ranks > 0) return make_group(out->all, ranks, config, &out->topology);
    return iso_topology_create(out->all, config, &out->topology);
}

static iso_status create_routes(iso_comm *comm, int ranks, const iso_topology_config *config,
                                int count, iso__routes **out) {
    iso_status status;
    void *memory = NULL;
    ISO_CHECK(count > 0, ISO_ERR_ARG, "means need at least one route, not %d", count);
    size_t bytes = sizeof(iso__routes) + (size_t)count * sizeof(route);
    ISO_TRY(iso__comm_alloc_zero(comm, bytes, &memory));
    iso__routes *routes = memory;
    routes->references = 1;
    routes->comm = iso_comm_retain(comm);
    routes->count = count;
    for (int i = 0; i < count; i++)
        ISO_TRY_GOTO(make_route(comm, ranks, config, &routes->route[i]));
    *out = routes;
    return ISO_OK;
fail:
    iso__routes_destroy(&routes);
    return status;
}

iso_status iso__routes_create(iso_comm *comm, const iso_topology_config *config, int count,
                              iso__routes **out) {
    return create_routes(comm, 0, config, count, out);
}

iso_status iso__routes_create_groups(iso_comm *comm, int ranks, const iso_topology_config *config,
                                     int count, iso__routes **out) {
    ISO_CHECK(ranks > 0, ISO_ERR_ARG, "a group has at least one rank, not %d", ranks);
    return create_routes(comm, ranks, config, count, out);
}

iso__routes *iso__routes_retain(iso__routes *routes) {
    routes->references++;
    return routes;
}

void iso__routes_destroy(iso__routes **pointer) {
    iso__routes *routes = *pointer;
    *pointer = NULL;
    if (!routes || --routes->references > 0) return;
    for (int i = 0; i < routes->count; i++) {
        iso_topology_destroy(&routes->route[i].topology);
        iso_comm_destroy(&routes->route[i].all);
    }
    iso_comm_destroy(&routes->comm);
    iso__free(routes);
}

iso_comm *iso__routes_comm(const iso__routes *routes) { return routes->comm; }

const iso_topology *iso__routes_layout(const iso__routes *routes) {
    return routes->route[0].topology;
}

iso_status iso__routes_take(iso__routes *routes, const iso_topology **out) {
    route *unused = NULL;
    for (int i = routes->count - 1; i >= 0; i--) {
        ISO_CHECK(!routes->route[i].held, ISO_ERR_STATE,
                  "a mean over nodes has timed out: finish it before starting another");
        if (!routes->route[i].taken) unused = &routes->route[i];
    }
    ISO_CHECK(unused, ISO_ERR_STATE,
              "%d mean%s over nodes %s under way, on all routes: finish one before starting "
              "another",
              routes->count, ISO_PLURAL(routes->count), routes->count == 1 ? "is" : "are");
    unused->taken = true;
    *out = unused->topology;
    return ISO_OK;
}

static route *find_route(iso__routes *routes, const iso_topology *topology) {
    int i = 0;
    while (routes->route[i].topology != topology) i++;
    return &routes->route[i];
}

iso_comm *iso__routes_all(iso__routes *routes, const iso_topology *topology) {
    return find_route(routes, topology)->all;
}

void iso__routes_hold(iso__routes *routes, const iso_topology *topology) {
    find_route(routes, topology)->held = true;
}

void iso__routes_return(iso__routes *routes, const iso_topology **topology) {
    route *back = find_route(routes, *topology);
    back->taken = back->held = false;
    *topology = NULL;
}
