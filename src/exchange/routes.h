// SPDX-License-Identifier: MIT
// Private to src/exchange and optim: sets of communicators for several means that are under way at
// once.
//
// A mean posts collectives whenever it is polled, so it needs communicators that nothing else uses
// in the meantime: a route. All ranks start and finish means in the same order and take the lowest
// free route, so they choose the same one.
#ifndef ISO_ROUTES_H
#define ISO_ROUTES_H

#include "base/base.h"

#include <isotherm/topology.h>

typedef struct iso__routes iso__routes;

// Collective over comm, which is retained. Creates `count` routes (at least 1), each with its own
// communicators for the same topology. Reference-counted: create returns one reference.
iso_status iso__routes_create(iso_comm *comm, const iso_topology_config *config, int count,
                              iso__routes **out);
// The same for means within groups of `ranks` consecutive ranks: the topology of a route is that of
// this rank's group. All ranks of comm start and finish such a mean together, and fail together.
iso_status iso__routes_create_groups(iso_comm *comm, int ranks, const iso_topology_config *config,
                                     int count, iso__routes **out);
iso__routes *iso__routes_retain(iso__routes *routes);
void iso__routes_destroy(iso__routes **routes); // collective; accepts NULL

// The communicator of iso__routes_create, for blocking collectives in program order.
iso_comm *iso__routes_comm(const iso__routes *routes);
// Nodes, groups and this rank's place, which are the same for every route.
const iso_topology *iso__routes_layout(const iso__routes *routes);

// Local. Call it in the same order on every rank. ISO_ERR_STATE if all routes are in use. Also
// ISO_ERR_STATE if a mean that timed out still holds a route: other ranks may have returned it
// already, and would choose another route than this rank.
iso_status iso__routes_take(iso__routes *routes, const iso_topology **out);
// The route's communicator of all ranks, of all groups too.
iso_comm *iso__routes_all(iso__routes *routes, const iso_topology *route);
// Sets *route to NULL.
void iso__routes_return(iso__routes *routes, const iso_topology **route);
// Marks a route as held by a mean that timed out. Returning the route removes the mark.
void iso__routes_hold(iso__routes *routes, const iso_topology *route);

#endif
