// SPDX-License-Identifier: MIT
// Private to src/exchange, src/parallel/reducer and DASO, which names scopes: over whom gradients
// are averaged, and which transport serves that.
#ifndef ISO_SCOPES_H
#define ISO_SCOPES_H

#include "exchange/transports.h"

typedef struct iso__scopes iso__scopes;

const char *iso__scope_name(iso_scope scope);
iso_status iso__scope_check(iso_scope scope); // ISO_ERR_ARG unless it is one

// Collective over world, which has been located, and which it retains. Finds out who shares a node
// and whether GPUs are to sum by NCCL, which is all that the layout of buckets must know; neither
// NCCL nor shared memory is needed yet. exchanges: false where nothing is to travel. zero: updates
// are shared out, which takes the host's memory, a hook that converts nothing, and the world's
// scope.
iso_status iso__scopes_create(iso_comm *world, iso_device *device, const iso_comm_hook *hook,
                              bool exchanges, bool zero, iso__scopes **out);
// Accepts NULL. False: exchanges are under way, and what they use must stay. Collective.
bool iso__scopes_destroy(iso__scopes **scopes);

// Buckets are multiples of so many bytes; 0: they may be of any length.
size_t iso__scopes_unit(const iso__scopes *s);
// Whether the ranks of a node may come to share the arena.
bool iso__scopes_may_share(const iso__scopes *s);
// Over whom this scope averages: NULL for a rank alone.
iso_comm *iso__scopes_comm(const iso__scopes *s, iso_scope scope);

// Collective. The transport of a scope, made when it is first asked for, with the NCCL or the
// shared memory that it needs; setup: the same each time. Nothing may be under way. What fails on
// one rank fails on all, and is tried again when it is asked for again.
iso_status iso__scopes_choose(iso__scopes *s, iso_scope scope, const iso__transport_setup *setup,
                              iso__transport **out);
// Collective. Makes the transports of all scopes, so that choosing one makes nothing.
iso_status iso__scopes_make_all(iso__scopes *s, const iso__transport_setup *setup);

#endif
