// SPDX-License-Identifier: MIT
// Routes: sets of communicators for several means that are under way at once.
#include "exchange/routes.h"

#include "comm/comm_calls.h"

typedef struct route {
    iso_topology *topology;
    bool taken, held;
} route;

struct iso__routes {
    int references, count;
    iso_comm *comm;
    route route[];
};

static iso_status make_route(iso_comm *comm, const iso_topology_config *config, route *out) {
    iso_comm *own;
    ISO_TRY(iso__comm_create_like(comm, iso_comm_mpi(comm), false, &own));
    iso_status status = iso_topology_create(own, config, &out->topology);
    iso_comm_destroy(&own);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__routes_create(iso_comm *comm, const iso_topology_config *config, int count,
                              iso__routes **out) {
    iso_status status;
    void *memory = NULL;
    ISO_CHECK(count > 0, ISO_ERR_ARG, "means need at least one route, not %d", count);
    size_t bytes = sizeof(iso__routes) + (size_t)count * sizeof(route);
    ISO_TRY(iso_comm_agree(comm, iso__alloc_zero(bytes, &memory)));
    iso__routes *routes = memory;
    routes->references = 1;
    routes->comm = iso_comm_retain(comm);
    routes->count = count;
    for (int i = 0; i < count; i++) ISO_TRY_GOTO(make_route(comm, config, &routes->route[i]));
    *out = routes;
    return ISO_OK;
fail:
    iso__routes_destroy(&routes);
    return status;
}

iso__routes *iso__routes_retain(iso__routes *routes) {
    routes->references++;
    return routes;
}

void iso__routes_destroy(iso__routes **pointer) {
    iso__routes *routes = *pointer;
    *pointer = NULL;
    if (!routes || --routes->references > 0) return;
    for (int i = 0; i < routes->count; i++) iso_topology_destroy(&routes->route[i].topology);
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

void iso__routes_hold(iso__routes *routes, const iso_topology *topology) {
    find_route(routes, topology)->held = true;
}

void iso__routes_return(iso__routes *routes, const iso_topology **topology) {
    route *back = find_route(routes, *topology);
    back->taken = back->held = false;
    *topology = NULL;
}
