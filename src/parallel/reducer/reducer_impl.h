// SPDX-License-Identifier: MIT
// Private to reducer.c, reducer_create.c and measure.c: what a reducer is made of.
#ifndef ISO_REDUCER_IMPL_H
#define ISO_REDUCER_IMPL_H

#include "exchange/scopes.h"
#include "parallel/reducer/reducer_calls.h"
#include "parallel/reducer/round.h"
#include "parallel/reducer/value_shards.h"

struct iso_reducer {
    iso_comm *world; // owned
    iso__layout layout;
    iso__store store;
    iso__coder coder;
    iso__scopes *scopes;
    iso__exchange_stats exchanged;
    iso__buckets buckets; // the layout's
    iso__transport_setup setup;
    iso__appliers *appliers;
    iso__planner *planner;
    bool shares_updates;       // config.zero, also on a single rank
    bool shares_in_nodes;      // config.zero_scope
    iso__zero *zero;           // NULL: every rank updates everything
    iso__norms *norms;         // with zero
    iso__value_shards *values; // ZeRO stage 3; NULL: values are whole
    iso__sums *sums;           // NULL: config.sums is 0
    iso__weights *weights;     // NULL: config.by_weight is not set
    bool rides;                // sums travel in the tail of a bucket
    iso__round *round;
    iso_scope scope;           // in force
    bool scopes_made;          // all scopes that may be chosen exist
    iso__transport *transport; // of that scope
    iso_sync sync;
    bool exchanges;             // false: nothing travels (ISO_SYNC_NONE, or a silent hook)
    iso_device *host;           // of iso__reducer_device, or NULL
    int only;                   // the id of iso_reducer_set_apply, or negative
    iso_reducer_updater update; // of iso_reducer_set_update
    void *update_user;
    bool owned;       // an owner closes every backward; a step without a list is an error
    bool in_backward; // the owner's backward is not closed yet
    int unsynced;     // backwards since the last exchange whose gradients stay on this rank
    bool alone;       // EXPLICIT: gradients came since the last all-reduce
    long long steps;
    // The statistics at the last report of ISO_DEBUG.
    iso_reducer_stats reported;
    int64_t reported_ns;
};

// Collective, with nothing pending.
iso_status iso__reducer_choose_scope(iso_reducer *r, iso_scope scope);

#endif
