// SPDX-License-Identifier: MIT
// Private to src/exchange, src/parallel/reducer and DASO (which needs only the names): the ranks
// over which gradients are averaged, and the transport between them.
#ifndef ISO_SCOPES_H
#define ISO_SCOPES_H

#include "exchange/transports.h"

typedef struct iso__scopes iso__scopes;

const char *iso__scope_name(iso_scope scope);
iso_status iso__scope_check(iso_scope scope); // ISO_ERR_ARG for an invalid value

// Collective over world, which must be located (iso__comm_locate); retains it. Determines which
// ranks share a node, and whether GPUs are to sum by NCCL: the layout of buckets depends on both.
// Creates neither the NCCL communicator nor shared memory. exchanges: false if nothing is to
// travel. zero: which ranks divide the updates. sparse: there are sparse buckets. With either, NCCL
// is not used. ISO_ERR_UNSUPPORTED if the ranks of each node are to divide them, and nodes have
// different numbers of ranks.
typedef enum iso__zero_among {
    ISO__ZERO_NONE,
    ISO__ZERO_ALL,
    ISO__ZERO_NODE,
    ISO__ZERO_NODE_SHARDS // and each rank keeps the gradients of its shards only (stages 2 and 3)
} iso__zero_among;
iso_status iso__scopes_create(iso_comm *world, iso_device *device, const iso_comm_hook *hook,
                              bool exchanges, iso__zero_among zero, bool sparse, iso__scopes **out);
// Collective. Accepts NULL. Returns false if exchanges are under way; the caller must then keep all
// memory that they use.
bool iso__scopes_destroy(iso__scopes **scopes);

// The granularity of buckets in bytes; 0: any length.
size_t iso__scopes_unit(const iso__scopes *s);
// Whether iso__scopes_choose may make the arena memory that the ranks of a node share.
bool iso__scopes_may_share(const iso__scopes *s);
// The ranks over which this scope averages; NULL: this rank alone.
iso_comm *iso__scopes_comm(const iso__scopes *s, iso_scope scope);
// The ranks among which ZeRO divides the updates.
iso_comm *iso__scopes_owners(const iso__scopes *s);

// Collective. Returns the transport of a scope. The first call for a scope creates it, and the NCCL
// communicator or the shared memory that it needs. setup must be the same in every call. Nothing
// may be under way. If creation fails on one rank, it fails on all; the next call tries again.
iso_status iso__scopes_choose(iso__scopes *s, iso_scope scope, const iso__transport_setup *setup,
                              iso__transport **out);
// Collective. Creates the transports of all scopes, so that later calls of iso__scopes_choose
// create nothing.
iso_status iso__scopes_make_all(iso__scopes *s, const iso__transport_setup *setup);

#endif
