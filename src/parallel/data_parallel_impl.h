// SPDX-License-Identifier: MIT
// Private to data_parallel*.c: what a DataParallel module holds.
#ifndef ISO_DATA_PARALLEL_IMPL_H
#define ISO_DATA_PARALLEL_IMPL_H

#include "nn/nn_impl.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"
#include "tensor/tensor_impl.h"

#include <isotherm/trace.h>

// The data of a module's hooks: the indices of its parameters in the reducer.
typedef struct iso__layer_link {
    struct iso__data_parallel *owner;
    iso_module *module;
    int *slot; // [count], ascending; points into owner->link_slots
    int count;
    int handle; // of the hooks on the module
    // With ZeRO stage 3:
    int *bucket; // [bucket_count], of its parameters; points into owner->uses.lists
    int bucket_count;
    int uses;      // in the latest forward
    bool repeats;  // some forward used it several times
    bool finished; // its last backward in this backward is over
} iso__layer_link;

// A parameter whose gradient leaves in pieces.
typedef struct iso__cut {
    iso_pieces pieces; // count 0: it leaves as a whole
    struct iso__data_parallel *owner;
    int slot;          // index of the parameter
    iso_tensor **grad; // [pieces.count], views
} iso__cut;

// The user's hooks of one kind.
typedef struct iso__user_hook {
    int handle;
    iso_pre_sync_hook pre_sync; // either this or before_forward is set
    iso_before_forward before_forward;
    void *user;
} iso__user_hook;
typedef struct iso__user_hooks {
    iso__user_hook *item; // in the order in which they were added
    int count, handle;    // number of hooks; the last handle that was given out
} iso__user_hooks;

// With ZeRO stage 3: which layers of the pass have yet to use the values of a bucket.
typedef struct iso__value_uses {
    bool divided; // values are divided; the other members are for this case
    bool placed;  // they are in the memory of the reducer
    bool learnt;  // a forward has shown which layers repeat
    int *left;    // [buckets]: layers that have yet to use it
    bool *held;   // [buckets]: it stays until the pass ends
    int *lists;   // memory for the lists of buckets of all layers
} iso__value_uses;

// Of forwards or backwards.
typedef struct iso__clock {
    int64_t began, passed; // ns
    long long count;
} iso__clock;

static inline void iso__clock_start(iso__clock *c) { c->began = iso_now(); }
static inline void iso__clock_stop(iso__clock *c) {
    c->passed += iso_now() - c->began;
    c->count++;
}

typedef struct iso__data_parallel {
    iso_module base; // its one child is the wrapped module
    iso_comm *comm;
    int64_t number; // the same on all ranks, and larger than that of any created before
    iso_reducer *reducer;
    iso_reducer_config settings; // of the reducer; kept to create another one with other buckets
    size_t *bucket_list;         // the settings'
    iso_reducer_param *param;    // [trainable_count], that the reducer was given
    char (*text)[64];            // their shapes
    iso_sync sync;
    iso_unused unused;
    iso_parameter_list list;
    iso_buffer_list buffers;
    iso__buffer_sync buffer_sync;
    iso_parameter **trainable; // by the index of the reducer
    int trainable_count;
    iso_gradient *gradient; // [trainable_count], for config.reduce
    bool *old;              // [trainable_count]: holds an average to which nothing was added
    bool *used;             // [trainable_count]: by this rank, for config.reduce
    bool *reported;         // [trainable_count]: other_ready has reported it in this backward
    bool *asked;            // [trainable_count]: marked valid; must be undone if no rank used it
    bool any_asked;
    iso__cut *cut; // [trainable_count]
    iso__value_uses uses;
    iso__layer_link *link;
    int link_count;
    int *link_slots;
    iso_reduce_function reduce; // NULL: the reducer
    void *reduce_user;
    iso__user_hooks pre_sync, before_forward;
    iso__clock forward, backward;
    iso__train_hook hook;
    void *hook_user;
    bool evaluating;
    int no_sync;       // depth of nesting
    bool joined;       // an iso_join exists
    bool placed;       // parameters and buffers have places (by_name)
    bool by_weight;    // config.by_weight
    bool refused;      // the reducer has refused a gradient of this backward
    bool carried;      // a backward that exchanged nothing has used the weights that were added
    int64_t first_row; // of this rank's batch in the global one; -1: all batches are equally long
} iso__data_parallel;

extern const iso_module_ops iso__data_parallel_ops;

static inline iso__data_parallel *iso__data_parallel_of(iso_module *module) {
    return iso_container_of(module, iso__data_parallel, base);
}
static inline bool iso__is_data_parallel(const iso_module *module) {
    return module->ops == &iso__data_parallel_ops;
}
static inline bool iso__is_explicit(const iso__data_parallel *self) {
    return self->sync == ISO_SYNC_EXPLICIT;
}
// Whether all ranks meet while the layer runs.
static inline bool iso__data_parallel_meets(const iso_module *module) {
    return iso__batch_norm_features(module) > 0 && iso__batch_norm_user(module);
}
// ISO_ERR_ARG unless the module is a DataParallel.
iso_status iso__data_parallel_check(const iso_module *module);
// The functions of an iso__cut's pieces.
iso_status iso__data_parallel_piece_ready(const iso_pieces *pieces, int k);
iso_status iso__data_parallel_other_ready(const iso_pieces *pieces, const iso_parameter *other);
iso_status iso__data_parallel_piece_needed(const iso_pieces *pieces, int k);
// Collective, before the reducer is created: puts the lists into the order of rank 0, and gives
// parameters and buffers places, which later lists follow.
iso_status iso__data_parallel_take_order(iso__data_parallel *self);
void iso__data_parallel_drop_order(iso__data_parallel *self); // takes the places away
// Discards a carried weight if zero_grad has discarded the gradients that it belongs to.
void iso__data_parallel_drop_weight(iso__data_parallel *self);
// ---- A reducer, and the gradients in it ----
// Collective. From self->settings and self->param; key: as iso__reducer_create_sorted.
iso_status iso__data_parallel_make_reducer(iso__data_parallel *self, const int *key,
                                           iso_reducer **out);
// ISO_ERR_ARG unless mb is a valid size of buckets.
iso_status iso__data_parallel_check_mb(const char *field, double mb);
// How parameters and layers see their gradients in the memory of a reducer.
typedef struct iso__views {
    iso_tensor **grad; // [trainable_count]
    iso__cut *cut;     // [trainable_count]
} iso__views;
// Local. Free *out with iso__data_parallel_drop_views, also on failure.
iso_status iso__data_parallel_make_views(iso__data_parallel *self, iso_reducer *reducer,
                                         iso__views *out);
// Local. Gives the views to the parameters, in the place of those they have.
void iso__data_parallel_take_views(iso__data_parallel *self, iso__views *views);
void iso__data_parallel_drop_views(const iso__data_parallel *self, iso__views *views);
// Replaces inputs of the call that are on other devices by copies on the module's. Waits for them.
iso_status iso__data_parallel_move_inputs(iso_module *module, iso_call *call);
// Installs the hooks on all layers below.
iso_status iso__data_parallel_link(iso__data_parallel *self, iso_module *module);

// ---- ZeRO stage 3; otherwise these calls do nothing ----
// Local, once layers are linked.
iso_status iso__data_parallel_make_uses(iso__data_parallel *self);
void iso__data_parallel_drop_uses(iso__data_parallel *self);
// ISO_ERR_UNSUPPORTED if a value cannot move. Call it with stage 3 only.
iso_status iso__data_parallel_check_values(const iso__data_parallel *self);
// Local. Moves this rank's shards of the values to the reducer; frees the rest.
void iso__data_parallel_place_values(iso__data_parallel *self);
// Before the reducer is destroyed. Collective if the module outlives the wrapper: gathers values
// into memory of their own.
void iso__data_parallel_take_back_values(iso__data_parallel *self);
// Waits for the values of a layer.
iso_status iso__data_parallel_gather_layer(const iso__layer_link *link);
// Hooks of layers.
iso_status iso__data_parallel_after_layer(iso_module *module, iso_tensor *in, iso_tensor *out,
                                          void *user);
iso_status iso__data_parallel_before_layer_backward(iso_module *module, iso_tensor *grad_out,
                                                    void *user);
iso_status iso__data_parallel_after_layer_backward(iso_module *module, iso_tensor *grad_in,
                                                   void *user);
// A pass is a forward or backward of all layers. The first call begins it. Make the second call
// when the layers have run, with their status: it sends what other ranks may need. The third call
// waits, and ends the pass. Both return the given status, or an error of their own.
iso_status iso__data_parallel_begin_uses(iso__data_parallel *self, iso__pass pass);
iso_status iso__data_parallel_end_uses(iso__data_parallel *self, iso_status status);
iso_status iso__data_parallel_end_pass(iso__data_parallel *self, iso_status status);
// Takes part in a pass of the other ranks without using any values.
iso_status iso__data_parallel_shadow_pass(iso__data_parallel *self, iso__pass pass);

// ---- For join: local, except before_forward and shadow ----
void iso__data_parallel_set_joined(iso__data_parallel *self, bool joined);
// For batches from now on. weight, total, root: as in iso__buffer_sync_weigh. first_row: as above.
void iso__data_parallel_place_batch(iso__data_parallel *self, double weight, double total, int root,
                                    int64_t first_row);
// Exchanges the buffers that are due before a forward. Ranks without a batch call it, too.
iso_status iso__data_parallel_before_forward(iso__data_parallel *self);
iso_status iso__data_parallel_after_forward(iso__data_parallel *self); // starts an exchange of them
// Notes a backward of the other ranks that this rank does not make. syncs: it is outside no_sync.
void iso__data_parallel_note_backward(iso__data_parallel *self, bool syncs);
// Collective, in place of a backward outside no_sync on a rank without a batch. Contributes the
// gradients that it has accumulated (leftover), or zeros.
iso_status iso__data_parallel_shadow(iso_module *module, bool leftover);
// The function iso_parameter.complete: a program reads a parameter or its gradient.
iso_status iso__data_parallel_complete(void *user, iso_parameter *parameter);

#endif
