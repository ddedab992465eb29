// SPDX-License-Identifier: MIT
// Private to src/exchange and optim: sets of communicators over which several means are under way
// at once.
//
// A mean posts collectives whenever it is polled, so it needs communicators that nothing else uses
// meanwhile: a route. Why all ranks choose the same one: they start and finish means in the same
// order, and the lowest route that is free is taken.
#ifndef ISO_ROUTES_H
#define ISO_ROUTES_H

#include "base/base.h"

#include <isotherm/topology.h>

typedef struct iso__routes iso__routes;

// Collective over comm, which is retained. `count` routes (at least 1), each with communicators of
// its own for the same topology. Reference-counted: create returns one reference.
iso_status iso__routes_create(iso_comm *comm, const iso_topology_config *config, int count,
                              iso__routes **out);
iso__routes *iso__routes_retain(iso__routes *routes);
void iso__routes_destroy(iso__routes **routes); // collective; accepts NULL

// The communicator that they were created over: blocking collectives, in program order.
iso_comm *iso__routes_comm(const iso__routes *routes);
// Nodes, groups and this rank's place, which are the same for every route.
const iso_topology *iso__routes_layout(const iso__routes *routes);

// Local; in the same order on every rank. ISO_ERR_STATE when all routes are in use, or when a mean
// that timed out still holds one: other ranks may have returned it.
iso_status iso__routes_take(iso__routes *routes, const iso_topology **out);
// Sets *route to NULL.
void iso__routes_return(iso__routes *routes, const iso_topology **route);
// The mean on this route could not be finished in time. Returning the route ends that.
void iso__routes_hold(iso__routes *routes, const iso_topology *route);

#endif
