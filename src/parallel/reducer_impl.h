// Private to src/parallel and optim/dp_optimizer: slots, buckets, and the state of each.
#ifndef ISO_REDUCER_IMPL_H
#define ISO_REDUCER_IMPL_H

#include "base/base.h"

#include <isotherm/reducer.h>

// One parameter.
typedef struct iso__grad_slot {
    char *name;
    void *value;
    size_t count;
    size_t offset; // bytes into the arena
    iso_dtype dtype;
    int layer, bucket;
    bool ready; // gradient final for this backward
} iso__grad_slot;

// OPEN: gradients are being written. POSTED: on the wire, memory belongs to MPI. REDUCED: holds the
// sum.
typedef enum iso__bucket_state {
    ISO_BUCKET_OPEN,
    ISO_BUCKET_POSTED,
    ISO_BUCKET_REDUCED
} iso__bucket_state;

// Slots of one element type, order[first] to order[last], adjacent in the arena: one all-reduce. Of
// a layer it holds all that are of its type.
typedef struct iso__bucket {
    char label[48]; // layer names, for traces and time-outs
    int first, last;
    iso_dtype dtype;
    int missing; // slots not ready
    size_t offset, bytes;
    iso__bucket_state state;
    bool update; // step() was called: completing it applies the update
    iso_request *request;
    int64_t ready_ns;
} iso__bucket;

struct iso_reducer {
    iso_comm *world, *node; // its own; node is NULL until a scope beyond the rank is asked for
    iso_scope scope;        // in force
    iso_comm *comm;         // over which it averages: world, node, or NULL for a rank alone
    bool arena_shared;      // with the ranks of the node
    iso_sync sync;
    iso__grad_slot *slot;
    int slot_count;
    int *order;          // the slots, bucket by bucket
    iso__bucket *bucket; // in the agreed order: that in which a backward completes them
    int bucket_count;
    int next;        // first bucket not yet issued in this backward
    int busy;        // buckets that are not OPEN
    int ready_count; // slots ready in OPEN buckets of the list that `next` walks
    char *arena;
    size_t arena_bytes;
    iso_reducer_apply apply;
    void *apply_user;
    void *hyper;
    size_t hyper_bytes;
    bool stepped;      // hyper is in use by pending updates
    bool fresh;        // a whole list was issued that no step has used yet
    bool keep_average; // no zero_grad since it was issued: gradients must become averages
    int unsynced; // backwards since the last exchange whose gradients stay on this rank, see no_sync
    iso_reducer_stats stats;
};

// Lays out the arena and the buckets from r->slot.
iso_status iso__reducer_make_buckets(iso_reducer *r, size_t bucket_bytes);
const char *iso__scope_name(iso_scope scope);
iso_status iso__scope_check(iso_scope scope); // ISO_ERR_ARG unless it is one
// Collective. Completes what is pending; the next backward is averaged over this scope. Gradients
// may have moved: iso_reducer_grad says where to.
iso_status iso__reducer_set_scope(iso_reducer *r, iso_scope scope);
// The same with nothing pending, for a scope that has been checked.
iso_status iso__reducer_choose_scope(iso_reducer *r, iso_scope scope);
void iso__reducer_free_arena(iso_reducer *r);
// Collective: ISO_ERR_MISMATCH on every rank, naming the odd rank and the first difference, unless
// all ranks list the same parameters and say the same of their settings.
iso_status iso__match(iso_comm *comm, const iso_reducer_param *params, int count,
                      const char *settings);
bool iso__reducer_is_ready(const iso_reducer *r, int i);

#endif
