// SPDX-License-Identifier: MIT
// Private to src/comm: sums of a channel in two levels, inside nodes and between them.
#ifndef ISO_HIERARCHY_H
#define ISO_HIERARCHY_H

#include "comm/pairwise.h"
#include "comm/traffic.h"

// The number of elements of a piece, unless pairwise exchange needs longer pieces. All-reduces send
// halves of a piece, and from 64 KB on Open MPI's TCP transport asks the receiver first.
#define ISO_PIECE ((size_t)30720)

// The engine's lock guards the queue.
typedef struct iso__hierarchy {
    iso_comm *world, *node;  // of the channel; its ranks that share memory
    iso__shared *shared;     // of the node; NULL: this rank is alone on it
    MPI_Comm across;         // the ranks that sum the same slice; MPI_COMM_NULL: this one sums none
    iso__pairwise *pairwise; // how they do; NULL: by MPI's all-reduce
    int nodes, slices;
    size_t piece; // elements that travel at a time
    int queue;    // in the counters of the shared memory
    iso__sum_cost cost;
    // The exchanges that are not complete, in the order of issue. `summing` is the first one whose
    // slice this rank has not yet summed in the node and sent. `spreading` is the first one whose
    // slice is not yet in the memory of the node's other ranks.
    iso_request *first, *last, *summing, *spreading;
    uint64_t posted; // used if this rank is alone on its node; otherwise the shared queue counts
    bool busy;       // a thread works on it with the lock released
    bool stopped;    // a slice could not be sent, so no further slice is sent
    bool broken;     // a request has failed, so no further request completes
    struct iso__hierarchy *older; // in the engine's list
} iso__hierarchy;

extern const iso__collective_ops iso__collective_hierarchy; // coll_hierarchy.c

// ---- hierarchy.c ----
// Collective over the channel's communicator, which is located; retains node. *out NULL: some rank
// has no queue left in its shared memory. See iso__channel_use_nodes.
iso_status iso__hierarchy_create(iso_comm *world, const iso__channel_nodes *nodes,
                                 iso__hierarchy **out);
// Whether messages that were given up may still use its memory. Accepts NULL.
static inline bool iso__hierarchy_is_in_use(const iso__hierarchy *h) {
    return h && iso__pairwise_is_in_use(h->pairwise);
}
// Nothing may be under way. Accepts NULL.
void iso__hierarchy_destroy(iso__hierarchy **hierarchy);

#endif
