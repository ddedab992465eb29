// SPDX-License-Identifier: MIT
// Private to data_parallel*.c: what a DataParallel module holds.
#ifndef ISO_DATA_PARALLEL_IMPL_H
#define ISO_DATA_PARALLEL_IMPL_H

#include "nn/nn_impl.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"
#include "tensor/tensor_impl.h"

// What a hooked module needs to find its parameters in the reducer.
typedef struct iso__layer_link {
    struct iso__data_parallel *owner;
    const iso_module *module;
    int *slot; // [count], ascending; a piece of owner->link_slots
    int count;
} iso__layer_link;

// A parameter whose gradient leaves in pieces.
typedef struct iso__cut {
    iso_pieces pieces; // count 0: it leaves as a whole
    struct iso__data_parallel *owner;
    int slot;          // index of the parameter
    iso_tensor **grad; // [pieces.count], views
} iso__cut;

typedef struct iso__pre_sync_hook {
    int id;
    iso_pre_sync_hook call;
    void *user;
} iso__pre_sync_hook;

typedef struct iso__data_parallel {
    iso_module base; // its one child is the wrapped module
    iso_comm *comm;
    iso_reducer *reducer;
    iso_sync sync;
    iso_unused unused;
    iso_parameter_list list;
    iso_buffer_list buffers;
    iso__buffer_sync buffer_sync;
    iso_parameter **trainable; // index = the reducer's
    int trainable_count;
    iso_gradient *gradient; // [trainable_count], for config.reduce
    bool *old;              // [trainable_count]: averaged, and nothing was added since
    bool *used;             // [trainable_count]: by this rank, for config.reduce
    bool *reported;         // [trainable_count]: in this backward, before the end of its layer
    bool *asked;            // [trainable_count]: valid unless it turns out that no rank has used it
    iso__cut *cut;          // [trainable_count]
    iso__layer_link *link;
    int link_count;
    int *link_slots;
    iso_reduce_function reduce; // NULL: the reducer
    void *reduce_user;
    iso__pre_sync_hook *pre_sync;
    int pre_sync_count, pre_sync_ids;
    iso_before_forward before_forward;
    void *before_forward_user;
    iso__train_hook hook;
    void *hook_user;
    bool evaluating;
    int no_sync;       // how deep
    bool joined;       // there is an iso_join
    int64_t first_row; // of this rank's batch in the global one; -1: all batches are equally long
} iso__data_parallel;

extern const iso_module_ops iso__data_parallel_ops;

static inline iso__data_parallel *iso__data_parallel_of(iso_module *module) {
    return iso_container_of(module, iso__data_parallel, base);
}
static inline bool iso__is_data_parallel(const iso_module *module) {
    return module->ops == &iso__data_parallel_ops;
}
// ISO_ERR_ARG unless the module is one.
iso_status iso__data_parallel_check(const iso_module *module);
// The functions of an iso__cut's pieces.
iso_status iso__data_parallel_piece_ready(const iso_pieces *pieces, int k);
iso_status iso__data_parallel_other_ready(const iso_pieces *pieces, const iso_parameter *other);
iso_status iso__data_parallel_piece_needed(const iso_pieces *pieces, int k);
// Hooks all layers below.
void iso__data_parallel_link(iso__data_parallel *self, iso_module *module);

// ---- What a join changes, local but for what comes before a forward ----
void iso__data_parallel_set_joined(iso__data_parallel *self, bool joined);
// Of the batches from now on: how this rank's buffers count in a mean and whose are taken, as
// iso__buffer_sync_weigh; first_row as above.
void iso__data_parallel_place_batch(iso__data_parallel *self, double weight, double total, int root,
                                    int64_t first_row);
// Exchanges the buffers that are due before a forward. A rank without a batch does it, too.
iso_status iso__data_parallel_before_forward(iso__data_parallel *self);
// The others' backward is outside no_sync (syncs), which this rank does not make.
void iso__data_parallel_note_backward(iso__data_parallel *self, bool syncs);
// Collective as a backward outside no_sync is. This rank has no batch for it: it takes part with
// what it accumulated before (leftover), or with zeros.
iso_status iso__data_parallel_shadow(iso_module *module, bool leftover);
// Someone looks at a parameter or its gradient from outside: iso_parameter.complete.
iso_status iso__data_parallel_complete(void *user, iso_parameter *parameter);

#endif
