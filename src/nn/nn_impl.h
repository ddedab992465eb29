// SPDX-License-Identifier: MIT
// Private to src/nn, src/parallel and optim: what layers share with the base of all modules.
#ifndef ISO_NN_IMPL_H
#define ISO_NN_IMPL_H

#include "device/device_impl.h"

// For layers of the library: allocates `bytes` (a struct that starts with iso_module) and inits it.
iso_status iso__module_new(size_t bytes, const iso_module_ops *ops, iso_device *device,
                           iso_module **out);
// Adds a parameter with these tensors; any name. Takes the tensors, on failure too.
iso_status iso__module_add_tensors_take(iso_module *module, const char *name, iso_tensor *value,
                                        iso_tensor *grad, iso_parameter **out);
// Adds the one child of a wrapper. It has no name, so parameters below keep the names they have
// without the wrapper. Takes one reference of child, on failure too.
iso_status iso__module_add_wrapped_take(iso_module *wrapper, iso_module *child);

// As iso_module_add_child_take; name NULL: the number of the child. ISO_ERR_ARG unless module is
// one of `ops`.
iso_status iso__module_add_numbered_take(iso_module *module, const iso_module_ops *ops,
                                         const char *name, iso_module *child);

// Frees the calls of the module, but not those of its children.
void iso__module_drop_calls(iso_module *module);

// As iso_call_tensor, of another element type.
iso_status iso__call_tensor_of(iso_module *module, iso_dtype dtype, iso_tensor **slot, int ndim,
                               const int64_t *shape, iso_layout layout);
// Values of a weight and a bias (NULL: none).
typedef struct iso__values {
    iso_tensor *weight, *bias;
} iso__values;
// A layer's copies of parameters in a type of its activations.
typedef struct iso__rounded_copy {
    iso__values values; // NULL until first used
    bool ready;         // rounded for the forward that runs, and not taken yet
} iso__rounded_copy;
// In bf16 and in f16. Calls of both types may be outstanding.
typedef struct iso__rounded {
    iso__rounded_copy copy[2];
} iso__rounded;
static inline int iso__rounded_index(iso_dtype half) { return half == ISO_F16; }
// *out gets the tensors to use in a call: the parameters' own or, if activations have another type,
// copies of that type in *rounded. layout: of a weight that is rounded.
iso_status iso__call_values(iso_module *module, iso_layout layout, const iso_parameter *weight,
                            const iso_parameter *bias, iso__rounded *rounded, iso__values *out);
void iso__rounded_destroy(iso__rounded *rounded); // it may be used again
// For backward: the tensor that iso__call_values chose for this weight.
iso_tensor *iso__called_weight(const iso_module *module, const iso_parameter *weight,
                               const iso__rounded *rounded);
iso__rounded *iso__linear_rounded(iso_module *module); // NULL for other modules
iso__rounded *iso__conv2d_rounded(iso_module *module); // the same

// f32 tensors of a device that are rounded to bf16 or f16 in one call.
enum { ISO__ROUNDINGS = 64 };
typedef struct iso__roundings {
    iso_device *device;
    iso_dtype dtype;
    int count;
    iso__rounding item[ISO__ROUNDINGS];
} iso__roundings;
iso_status iso__roundings_add(iso__roundings *r, const iso_tensor *from, iso_tensor *to);
// Adds the parameters that layers below module round, for the next forward. When that forward ends,
// iso__roundings_drop discards what no layer has taken.
iso_status iso__roundings_add_below(iso__roundings *r, iso_module *module);
void iso__roundings_drop(iso_module *module);
iso_status iso__roundings_flush(iso__roundings *r);
// *out is x itself if it has this layout, else a copy of it in *slot.
iso_status iso__call_layout(iso_module *module, iso_tensor **slot, iso_layout layout, iso_tensor *x,
                            iso_tensor **out);

// The module that holds parameter `name` of the tree, and its index there; ISO_ERR_ARG: none does.
iso_status iso__module_find_parameter(iso_module *root, const char *name, iso_module **owner,
                                      int *index);
// The number of times iso_module_walk calls visit.
int iso__module_count(const iso_module *root);
// Copies `training` of root and all modules below it to modes, an array of iso__module_count(root)
// elements. Returns their number.
int iso__module_get_modes(const iso_module *root, bool *modes);
// Sets them from *modes, which then points behind the last one. As iso_module_train, it calls the
// train functions of all these modules.
iso_status iso__module_set_modes(iso_module *root, const bool **modes);

// Whether neither a wrapper nor an optimizer depends on its gradient and element type.
bool iso__parameter_is_free(const iso_parameter *parameter);
// Drops the reference of one module.
void iso__parameter_release(iso_parameter *parameter);
// ISO_ERR_STATE if a parameter below root is tied to one of a module that is not. what: "wrapped".
iso_status iso__module_check_tied(iso_module *root, const char *what);

// Whether a parameter requires a gradient. trains_own: of the module itself; trains: also of
// modules below it.
bool iso__module_trains_own(const iso_module *module);
bool iso__module_trains(const iso_module *module);

// The call that the next backward of the module undoes; NULL: there is none.
iso_call *iso__module_top_call(iso_module *module);
// `Conv2d "conv1"`, or the type alone for a module without a name, into text; returns text.
#define ISO_LABEL_ROOM 96
const char *iso__module_label(const iso_module *module, char *text);
// The inputs and the outputs of a call: an array of *count tensors.
static inline iso_tensor *const *iso__call_inputs(const iso_call *call, int *count) {
    *count = call->many ? call->many->in.count : 1;
    return call->many ? call->many->in.item : &call->in;
}
static inline iso_tensor *const *iso__call_results(const iso_call *call, int *count) {
    *count = call->many ? call->many->result.count : 1;
    return call->many ? call->many->result.item : &call->result;
}
// The error for another number of inputs: `Linear "fc" takes EXPECTED but got 2`, and, if known,
// which module they came from.
iso_status iso__count_error(const iso_module *module, int count, const char *expected);
// The error for an input that does not fit: `Conv2d "conv1" expects EXPECTED but got [64, 28, 28]`,
// and, if known, which module it came from.
iso_status iso__shape_error(const iso_module *module, const iso_tensor *in, const char *expected,
                            ...) __attribute__((format(printf, 3, 4)));

// Weight or bias ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in)) from the next stream of rng: element i is
// word i % 4 of block i / 4.
iso_status iso__init_uniform(iso_parameter *parameter, int64_t fan_in, iso_rng *rng);
// The same ~ U(-limit, limit).
iso_status iso__init_within(iso_parameter *parameter, double limit, iso_rng *rng);

// A parameter whose gradient leaves, and whose value is updated, in pieces of whole rows (of the
// first dimension), the first one first. If a layer can, it writes the gradients of the pieces one
// by one and reports each as soon as it is final for this backward. Pieces that it does not report
// are final together with its other gradients. A layer that awaits_pieces begins its forward while
// pieces are still to come: it calls needed for each one before it reads its rows.
typedef struct iso_pieces {
    int count;
    int64_t rows;      // of each but the last
    iso_tensor **grad; // [count]: views of the parameter's gradient
    iso_status (*ready)(const struct iso_pieces *self, int piece);
    // Another parameter of the layer is final. Parameters that are not cut leave with the first
    // piece, so report them before it.
    iso_status (*other_ready)(const struct iso_pieces *self, const iso_parameter *other);
    iso_status (*needed)(const struct iso_pieces *self, int piece);
} iso_pieces;

// The 8 bytes of a dropout that its masks depend on besides forward_number; NULL for other modules.
void *iso__dropout_key(iso_module *module);

// ---- Batch norms with statistics over several ranks ----

// The ranks, which nn does not know.
typedef struct iso__norm_group {
    // Sums numbers over the ranks in place, to the same bits on each of them. Blocks. NULL: there
    // is one rank.
    iso_status (*sum)(double *numbers, size_t count, void *user);
    void (*release)(void *user);
    void *user;
} iso__norm_group;

// The features of a batch norm, 0 for other modules.
int64_t iso__batch_norm_features(const iso_module *module);
// From the next forward in training mode, the statistics cover the batches of all ranks of this
// group. On success the layer owns `user`, and releases the one it had.
iso_status iso__batch_norm_share(iso_module *batch_norm, const iso__norm_group *group);
void *iso__batch_norm_user(const iso_module *batch_norm); // NULL: not shared

// norm_sync.c, for norm.c.
typedef struct iso__norm_sync {
    iso__norm_group group;
    int64_t channels;
    double *numbers; // what is exchanged, 2 * channels + 1, and behind it 2 * channels of our own
} iso__norm_sync;
iso_status iso__norm_sync_create(int64_t channels, const iso__norm_group *group,
                                 iso__norm_sync *out);
void iso__norm_sync_destroy(iso__norm_sync *sync);
// Puts the moments of all batches into args, until the next call.
iso_status iso__norm_sync_moments(iso__norm_sync *sync, const iso_tensor *x,
                                  iso__batch_norm_args *args);
// The same for the sums of backward, from those of this batch in sync->numbers.
iso_status iso__norm_sync_sums(iso__norm_sync *sync, const iso_tensor *x,
                               iso__batch_norm_args *args);

// ISO_ERR_UNSUPPORTED unless the device has a kernel of this layer, which is of type `type`.
iso_status iso__check_kernel(const iso_device *device, bool has, const char *type);
// Whether a tensor of this type holds indices.
static inline bool iso__is_index(iso_dtype dtype) { return dtype == ISO_I32 || dtype == ISO_I64; }
// A tensor over the memory of x as rows of its last dimension: a view for a kernel call.
iso_tensor iso__rows_of(const iso_tensor *x);
// The same, as this number of rows.
iso_tensor iso__matrix_of(const iso_tensor *x, int64_t rows);

// Whether this is the relu layer (which sequential fuses into the layer before it).
bool iso__module_is_relu(const iso_module *module);
// For layers that fuse a relu: turns grad_out into the gradient of the relu's input, in place.
iso_status iso__undo_activation(iso_module *self, iso_call *call, iso_tensor *grad_out);
// The same. If the device can, it also computes the gradient of bias (may be NULL) in this pass;
// *db is then NULL, otherwise the gradient still to be computed.
iso_status iso__undo_activation_and_bias(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                         const iso_parameter *bias, iso_tensor **db);

#endif
