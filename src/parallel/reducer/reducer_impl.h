// SPDX-License-Identifier: MIT
// Private to reducer.c, reducer_create.c and measure.c: the parts of a reducer.
#ifndef ISO_REDUCER_IMPL_H
#define ISO_REDUCER_IMPL_H

#include "exchange/scopes.h"
#include "parallel/reducer/reducer_calls.h"
#include "parallel/reducer/round.h"

struct iso_reducer {
    iso_comm *world; // its own
    iso__layout layout;
    iso__store store;
    iso__coder coder;
    iso__scopes *scopes;
    iso__exchange_stats exchanged;
    iso__buckets buckets; // of the layout
    iso__transport_setup setup;
    iso__appliers *appliers;
    iso__planner *planner;
    bool shares_updates; // as asked for, also where this rank is alone
    iso__zero *zero;     // NULL: every rank updates everything
    iso__sums *sums;     // NULL: none were asked for
    bool rides;          // they may lie behind gradients
    iso__round *round;
    iso_scope scope;           // in force
    bool scopes_made;          // all that may be chosen are there
    iso__transport *transport; // of that scope
    iso_sync sync;
    bool exchanges;   // false: nothing travels, with ISO_SYNC_NONE as with a silent hook
    int only;         // iso_reducer_set_apply's, or negative
    bool owned;       // an owner closes every backward: a step without a list is a mistake
    bool in_backward; // of that owner, who has not closed it yet
    int unsynced;     // backwards since the last exchange whose gradients stay on this rank
    long long steps;
    // What the last report of ISO_DEBUG counted up to.
    iso_reducer_stats reported;
    int64_t reported_ns;
};

// Collective, with nothing pending.
iso_status iso__reducer_choose_scope(iso_reducer *r, iso_scope scope);

#endif
