// SPDX-License-Identifier: MIT
// Private to optim: what all optimizers with state share, and how wrappers reach them.
#ifndef ISO_OPTIM_IMPL_H
#define ISO_OPTIM_IMPL_H

#include "device/device_impl.h"

#include <isotherm/optim.h>

#define ISO_OPTIMIZER_STATES 4
// The kind of state with the f32 values of bf16 and f16 parameters (master weights). Updates change
// these, and round them to the parameter.
#define ISO_STATE_MASTER 3

// A parameter that is updated. Its state of each kind begins at `offset` in that kind's arena.
typedef struct iso__slot {
    iso_parameter *parameter;
    const char *name; // full name, owned by the list
    int64_t offset;   // bytes, a multiple of 64
    int group;        // 0: updated with base.hyper
    int64_t step;     // number of its updates that its rule counts, including the one under way;
                      // PyTorch's state["step"]
    double product;   // product of the rule's factors of these updates; 1 at first
    int64_t left; // elements that the update under way has not reached; 0: no update is under way
} iso__slot;

// Rows of a parameter that are updated together, often all of them.
typedef struct iso__piece {
    const iso_tensor *tensor; // of the device and the type of value
    void *value;              // the parameter, or its master weights
    int64_t count;
    size_t state_offset; // bytes, in each kind's arena
    int64_t step;       // the number of this update of the parameter, from 1, if its rule counts it
    double product;     // of the rule's factors, including that of this update
    iso__rounded_to to; // its 16-bit elements, if the device rounds in the update
} iso__piece;

// A group of parameters, except group 0.
typedef struct iso__group {
    iso_hyper hyper;
    double initial_lr; // schedules start from it
} iso__group;

typedef struct iso__dp_state iso__dp_state; // dp_state.h

// An optimizer that updates parameters itself: sgd, adam, adamw...
typedef struct iso__base_optimizer {
    iso_optimizer base;
    iso_module *module; // retained
    iso_parameter_list list;
    int count;       // parameters that require gradients, in the order of the list
    iso__slot *slot; // [count], by the index of ops->update
    iso_tensor *state[ISO_OPTIMIZER_STATES];
    iso__group **group; // [groups - 1]: groups 1, 2, ...
    int groups;
    int64_t
        *saved_group; // [count]: the group of each slot, for saving and loading; NULL: one group
    bool tied;        // a wrapper freezes the hyperparameters of these groups
    iso__dp_state *shards; // with ZeRO; NULL: this rank has the state of all elements
} iso__base_optimizer;

// What distinguishes optimizers: the table of functions, and the formula.
typedef struct iso__rule {
    iso_optimizer_ops ops;
    iso_hyper defaults;
    const char *state_name[ISO_STATE_MASTER]; // PyTorch's; NULL: no further state
    unsigned squares; // bit k: state k is a mean or sum of squares, and never negative
    // Whether an optimizer created with these hyperparameters has state `kind`. NULL: it has all of
    // them.
    bool (*has_state)(int kind, const iso_hyper *hyper);
    // The factor of an update, for rules that need the product of these factors over the updates of
    // a parameter; NULL: none.
    double (*factor)(const iso_hyper *hyper, int64_t step);
    const char *product_name; // PyTorch's name of that product
    // Whether updates with these hyperparameters use state `kind`. NULL: all of them, always.
    bool (*needs_state)(int kind, const iso_hyper *hyper);
    // Whether an update with these hyperparameters counts in iso__slot.step. NULL: always.
    bool (*counts)(const iso_hyper *hyper);
    iso_status (*check)(const char *name, const iso_hyper *hyper); // beyond lr and weight_decay
    bool whole; // an update needs the whole parameter at once
    // Updates a piece of a parameter from its gradient * scale. Allocates nothing. For the number
    // of updates use piece->step: hyper->step counts the steps of the group, some of which may have
    // left out the parameter.
    iso_status (*apply)(const iso__base_optimizer *self, const iso__piece *piece,
                        const void *gradient, double scale, const iso_hyper *hyper);
    // For a rule that is whole: apply in two halves, so that ranks can divide the elements of a
    // parameter. measure reads the gradient, leaves the value unchanged, and writes to square what
    // it measured of these elements. On a device with memory of its own, remote->collect writes
    // square, which must exist until then. finish gets the sums over all elements. NULL: the rule
    // has no halves.
    iso_status (*measure)(const iso__base_optimizer *self, const iso__piece *piece,
                          const void *gradient, double scale, const iso_hyper *hyper,
                          double square[2]);
    iso_status (*finish)(const iso__base_optimizer *self, const iso__piece *piece,
                         const double square[2], const iso_hyper *hyper);
    // Sets the initial values of the state of slot, which is zero. NULL: it stays zero.
    iso_status (*start)(const iso__base_optimizer *self, const iso__slot *slot,
                        const iso_hyper *hyper);
} iso__rule;

extern const iso__rule iso__rule_sgd, iso__rule_adam, iso__rule_adamw, iso__rule_adadelta,
    iso__rule_adagrad, iso__rule_rmsprop, iso__rule_lamb, iso__rule_nadam;

static inline const iso__rule *iso__rule_of(const iso__base_optimizer *self) {
    return iso_container_of(self->base.ops, iso__rule, ops);
}
// ISO_ERR_ARG for hyperparameters that PyTorch refuses.
iso_status iso__hyper_check(const iso__rule *rule, const iso_hyper *hyper);

// ISO_ERR_ARG if the optimizer lacks state that these hyperparameters need, or has state that they
// do not allow.
iso_status iso__hyper_check_state(const iso__base_optimizer *self, const iso_hyper *hyper);

// For rules with two moments: ISO_ERR_ARG for values of beta1, beta2 and eps that PyTorch refuses.
iso_status iso__check_moments(const char *name, const iso_hyper *hyper);

// The functions of every rule's table.
iso_status iso__base_step(iso_optimizer *self);
void iso__base_zero_grad(iso_optimizer *self);
iso_status iso__base_update(iso_optimizer *self, int i, const void *gradient, double scale,
                            const iso_hyper *hyper);
void iso__base_destroy(iso_optimizer *self);
iso_status iso__base_state(iso_optimizer *self, iso_state *state); // optimizer_state.c
iso_status iso__base_loaded(iso_optimizer *self);
#define ISO_BASE_OPTIMIZER_OPS(kind)                                                               \
    {                                                                                              \
        .name = (kind), .step = iso__base_step, .zero_grad = iso__base_zero_grad,                  \
        .update = iso__base_update, .destroy = iso__base_destroy, .state = iso__base_state,        \
        .loaded = iso__base_loaded                                                                 \
    }

// Whether a parameter of this type has master weights.
static inline bool iso__has_master(iso_dtype type) { return type == ISO_BF16 || type == ISO_F16; }
// The type of a parameter's state.
static inline iso_dtype iso__state_type(const iso__slot *slot) {
    iso_dtype type = slot->parameter->value->dtype;
    return iso__has_master(type) ? ISO_F32 : type;
}
// Bytes of a parameter's part of an arena, with the padding behind it.
static inline size_t iso__slot_room(const iso__slot *slot) {
    size_t bytes = (size_t)slot->parameter->value->count * iso_dtype_size(iso__state_type(slot));
    return iso__round_up(bytes, 64);
}
// Whether there is state `kind` of slot.
static inline bool iso__slot_has(const iso__base_optimizer *self, const iso__slot *slot, int kind) {
    bool needed = kind != ISO_STATE_MASTER || iso__has_master(slot->parameter->value->dtype);
    return self->state[kind] && needed;
}
// Its name in a state dict.
static inline const char *iso__state_name(const iso__base_optimizer *self, int kind) {
    return kind == ISO_STATE_MASTER ? "master_param" : iso__rule_of(self)->state_name[kind];
}

// The memory of state `kind` for slot.
static inline void *iso__slot_state(const iso__base_optimizer *self, const iso__slot *slot,
                                    int kind) {
    return (char *)self->state[kind]->data + slot->offset;
}

// The same as a tensor of the parameter's shape and the state's type, over the optimizer's memory.
iso_status iso__slot_tensor(const iso__base_optimizer *self, const iso__slot *slot, int kind,
                            iso_tensor **out);

static inline void *iso__piece_state(const iso__base_optimizer *self, const iso__piece *piece,
                                     int kind) {
    return (char *)self->state[kind]->data + piece->state_offset;
}

// Master weights, in the memory of `device`. `value` has 16-bit elements of `type`.
//
// If a value is not the rounded master weight, the program has changed the value: it becomes the
// master weight.
static inline iso_status iso__master_take(iso_device *device, iso_dtype type, int64_t count,
                                          const void *value, float *master) {
    return device->ops->take_master(device, type, count, value, master);
}
static inline iso_status iso__master_round(iso_device *device, iso_dtype type, int64_t count,
                                           const float *master, void *value) {
    return iso__device_convert(device, count, ISO_F32, master, type, value);
}

// Updates `count` elements of parameter i from element `first` on; gradient points to their
// gradient, which is f32 if the parameter has master weights. Rules that are `whole` take whole
// parameters only. The pieces of an update may come in any order, but all must come before the next
// update begins. Together they count as one update. A piece that failed may be tried again.
iso_status iso__update_piece(iso__base_optimizer *self, int i, int64_t first, int64_t count,
                             const void *gradient, double scale, const iso_hyper *hyper);

// The two halves of an update, for rules that have them; otherwise as iso__update_piece. measure
// counts the update and writes square, on a device with memory of its own by remote->collect.
// finish takes the sums of square over all elements.
iso_status iso__measure_piece(iso__base_optimizer *self, int i, int64_t first, int64_t count,
                              const void *gradient, double scale, const iso_hyper *hyper,
                              double square[2]);
iso_status iso__finish_piece(iso__base_optimizer *self, int i, int64_t first, int64_t count,
                             const double square[2], const iso_hyper *hyper);

// Where an optimizer is tied, all borrowed. parameter[i]: the reducer's parameter i.
typedef struct iso__tie {
    iso_module *module; // that holds the parameters
    iso_reducer *reducer;
    iso_parameter *const *parameter;
    int count;
} iso__tie;
// Wraps an optimizer, so that the reducer updates its parameters. Takes it, on failure too, and
// retains the module.
iso_status iso__optimizer_tie_take(iso_optimizer *wrapped, const iso__tie *tie,
                                   iso_optimizer **out);

// The hyperparameters of a group.
static inline iso_hyper *iso__group_hyper(iso__base_optimizer *self, int group) {
    return group == 0 ? &self->base.hyper : &self->group[group - 1]->hyper;
}
// Counts a step of every group, for schedules and saved state. A function that replaces step()
// calls this.
static inline void iso__count_step(iso__base_optimizer *self) {
    for (int g = 0; g < self->groups; g++) iso__group_hyper(self, g)->step++;
}
static inline void iso__uncount_step(iso__base_optimizer *self) {
    for (int g = 0; g < self->groups; g++) iso__group_hyper(self, g)->step--;
}

// The optimizer inside all wrappers.
static inline iso_optimizer *iso__innermost(iso_optimizer *optimizer) {
    while (optimizer->ops->inner) optimizer = optimizer->ops->inner(optimizer);
    return optimizer;
}
// The same; NULL if it is not an optimizer of the library.
iso__base_optimizer *iso__optimizer_innermost(iso_optimizer *optimizer);

// The data_parallel module that a dp_optimizer is tied to; NULL for another optimizer.
iso_module *iso__dp_optimizer_module(const iso_optimizer *optimizer);

#endif
