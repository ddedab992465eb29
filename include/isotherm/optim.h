// SPDX-License-Identifier: MIT
// Optimizers with PyTorch's names, defaults and formulas. For schedules see isotherm/schedule.h.
#ifndef ISOTHERM_OPTIM_H
#define ISOTHERM_OPTIM_H

#include <isotherm/parallel.h>
#include <isotherm/plateau.h>
#include <isotherm/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

// LAMB is not in PyTorch. It is Algorithm 2 of You et al., Large Batch Optimization for Deep
// Learning (ICLR 2020), where each parameter (weight or bias) is a layer of its own. From the
// gradient g:
//     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//     u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay x
//     x = x - lr (|x| / |u|) u
// with both bias corrections, Euclidean norms and phi(z) = z. The ratio |x| / |u| is not clipped
// and is used for all parameters; it is 1 if |x| or |u| is 0. Gradients are not clipped.
typedef enum iso_optimizer_kind {
    ISO_SGD,
    ISO_ADAM,
    ISO_ADAMW,
    ISO_ADADELTA,
    ISO_ADAGRAD,
    ISO_RMSPROP,
    ISO_LAMB,
    ISO_NADAM // Dozat, Incorporating Nesterov Momentum into Adam (2016), as torch.optim.NAdam of
              // PyTorch 2
} iso_optimizer_kind;
// "sgd", "adam", "adamw", "adadelta", "adagrad", "rmsprop", "lamb", "nadam"
iso_status iso_optimizer_kind_parse(const char *name, iso_optimizer_kind *out);
const char *iso_optimizer_kind_name(iso_optimizer_kind kind);

// The hyperparameters of an update. step() freezes a copy of all of them.
typedef struct iso_hyper {
    double lr;
    double momentum;                  // sgd, rmsprop
    double dampening;                 // sgd
    double weight_decay;              // L2 term added to the gradient; adamw, lamb: decoupled
    double beta1, beta2;              // adam, adamw, lamb, nadam
    double rho;                       // adadelta
    double alpha;                     // rmsprop
    double eps;                       // all except sgd
    double lr_decay;                  // adagrad: lr / (1 + (t - 1) lr_decay), with t as below
    double initial_accumulator_value; // adagrad: initial value of its sums; read at creation
    bool nesterov;                    // sgd
    bool centered;                    // rmsprop: normalise by an estimate of the variance
    bool amsgrad;  // adam, adamw: divide by the largest average of squares so far. Must be equal
                   // in all groups, and must not change after creation
    bool maximize; // all: move along the gradient instead of against it
    double momentum_decay; // nadam
    int64_t step;          // steps made so far, counted by step(); schedules use it
} iso_hyper;
// Formulas that use the number of updates count the updates of each parameter, as in PyTorch. These
// are t in the bias corrections (adam, adamw, lamb, nadam), t in lr_decay, nadam's product of
// momentum factors, and sgd's first update with momentum, which sets the momentum buffer to the
// gradient (sgd counts no other updates). A parameter that a step leaves out (ISO_UNUSED_NEGOTIATE)
// is one update behind.

// The defaults of PyTorch's optimizer. (torch.optim.SGD has no default lr before PyTorch 2.2; here
// it is 1e-3.) LAMB: lr 1e-3, and the paper's beta1 0.9, beta2 0.999, eps 1e-6, weight_decay 0.01.
iso_hyper iso_hyper_default(iso_optimizer_kind kind);

typedef struct iso_optimizer iso_optimizer;
typedef struct iso_state iso_state; // isotherm/resume.h
typedef struct iso_optimizer_ops {
    const char *name;
    iso_status (*step)(iso_optimizer *self);
    void (*zero_grad)(iso_optimizer *self);
    // Updates parameter i of the list from gradient * scale with these hyperparameters, and counts
    // one update of this parameter, regardless of hyper->step.
    iso_status (*update)(iso_optimizer *self, int i, const void *gradient, double scale,
                         const iso_hyper *hyper);
    void (*destroy)(iso_optimizer *self);
    iso_optimizer *(*inner)(
        iso_optimizer *self); // the wrapped optimizer; function NULL: this is not a wrapper
    // iso_training_state calls `state`, and iso_training_loaded calls `loaded` (innermost first),
    // for each optimizer in a chain of wrappers. Each handles only its own data. `state` adds
    // everything that the next updates depend on. It must always add entries of the same names,
    // types and counts, because loading fills the entries of a new optimizer. `loaded` is called
    // after that. Either may be NULL, except `state` of the innermost optimizer.
    iso_status (*state)(iso_optimizer *self, iso_state *state);
    iso_status (*loaded)(iso_optimizer *self);
    bool ranks_differ; // ranks may have different parameters between steps
    // Of a wrapper around a tied optimizer, for iso_dp_optimizer_release: completes its work and
    // gives up the wrapped optimizer; `destroy` is called next. NULL: it is not a wrapper that can
    // be left.
    iso_status (*release)(iso_optimizer *self, iso_optimizer **inner);
} iso_optimizer_ops;

struct iso_optimizer {
    const iso_optimizer_ops *ops;
    iso_hyper hyper; // unused in a wrapper; see iso_optimizer_hyper
};

// Local. Creates an optimizer of the parameters of module that require gradients. module may be a
// whole model or a child of it. State is allocated now, in logical layout, and is zero except
// for adagrad's sums. Retains the module. hyper NULL: the default. ISO_ERR_ARG for hyperparameters
// that PyTorch refuses, such as a negative lr. If the optimizer is not tied (see below), step()
// updates all parameters, and a gradient discarded by zero_grad counts as zero (PyTorch:
// set_to_none=False).
iso_status iso_optimizer_create(iso_optimizer_kind kind, iso_module *module, const iso_hyper *hyper,
                                iso_optimizer **out);
// DataParallelOptimizer: wraps an optimizer and ties it to a data_parallel module made from the
// same module. step() then only freezes the hyperparameters; each layer is updated when the next
// forward reaches it. Takes inner, also on failure; retains data_parallel. Collective if an
// exchange is pending, else local. ISO_ERR_ARG if the innermost optimizer is user-defined, or
// updates a parameter that data_parallel does not exchange.
//
// inner may cover only a child of the module, and several optimizers may be tied to different
// children. Each has its own step() and zero_grad. Each step() is lazy. Gradients of parameters
// without an optimizer are only averaged. If two optimizers share a parameter, a step waits for all
// exchanges and updates immediately; a warning names the parameter. A second step on the same
// gradients is ISO_ERR_STATE.
iso_status iso_dp_optimizer_create_take(iso_optimizer *inner, iso_module *data_parallel,
                                        iso_optimizer **out);
// Unties an optimizer: completes what is pending, destroys *tied (which becomes NULL) and hands its
// inner optimizer to the caller, with its state. So training can move to another communicator
// (PyTorch: _update_process_group), where module is the wrapped module:
//
//     iso_module_retain(module);
//     iso_reducer_get_hook_memory(iso_data_parallel_reducer(data_parallel), &memory);
//     iso_dp_optimizer_release(&optimizer, &inner);
//     iso_module_destroy(&data_parallel);
//     iso_sync_batchnorm_convert(module, new_comm, NULL); // if it has any of these
//     iso_data_parallel_create_take(module, new_comm, &config, &data_parallel);
//     iso_reducer_set_hook_memory(iso_data_parallel_reducer(data_parallel), memory, NULL);
//     iso_dp_optimizer_create_take(inner, data_parallel, &optimizer);
//     iso_hook_memory_destroy(&memory);
//
// The calls after iso_module_destroy are collective over the new communicator only. Parameters and
// buffers become those of its rank 0. Each rank keeps its own optimizer state, so a rank that comes
// from elsewhere first loads the state of another rank (isotherm/state_dict.h). Training is then
// bitwise identical to a run that begins on the new communicator with these parameters and this
// state. The calls with `memory` move what a communication hook remembers (isotherm/reducer.h);
// without them, the hook starts over. Statistics and pre-sync hooks start over; gradients are
// discarded.
//
// A periodic mode (isotherm/daso.h) around the optimizer ends first, as by iso_daso_finish:
// parameters become the mean over all ranks of the old communicator. Its period, and the anchor and
// the momentum of an outer optimizer, are not kept, because they belong to a run of total_steps.
// Create a new periodic mode for the remaining steps.
//
// Collective over the old communicator. Errors that change nothing: ISO_ERR_STATE during a
// backward, ISO_ERR_UNSUPPORTED with ZeRO, ISO_ERR_ARG for an optimizer that is not tied to a
// data_parallel.
iso_status iso_dp_optimizer_release(iso_optimizer **tied, iso_optimizer **out);

// Makes a step: updates the parameters. For a tied optimizer it only freezes the hyperparameters,
// and every rank must call it. ISO_ERR_ARG if a hyperparameter is now NaN, infinite or a value that
// PyTorch refuses.
iso_status iso_optimizer_step(iso_optimizer *optimizer);
// Marks gradients as zero (grad_valid = false). It does not write gradient memory.
void iso_optimizer_zero_grad(iso_optimizer *optimizer);
// Collective for a tied optimizer, whose pending updates it completes first; else local.
void iso_optimizer_destroy(iso_optimizer **optimizer);
// The hyperparameters, to be read or changed between steps. An update uses the values at its
// step().
iso_hyper *iso_optimizer_hyper(iso_optimizer *optimizer); // of the innermost optimizer

// ---- Parameter groups (PyTorch: param_groups) -----------------------------------------------------

// name: the full name of the parameter, e.g. "conv1.weight".
typedef bool (*iso_group_filter)(const char *name, const iso_parameter *parameter, void *user);
// Creates the next group (1, 2, ...) with its own hyperparameters. Moves to it all parameters of
// group 0 for which `belongs` returns true. Initially all parameters are in group 0. *group (may be
// NULL) is its number. Parameters of one layer may be in different groups, e.g. biases without
// weight decay.
//
// Local; every rank must create the same groups. step() freezes the hyperparameters of all groups,
// and they are saved with the optimizer's state. ISO_ERR_STATE once the optimizer is wrapped or has
// made a step. ISO_ERR_ARG if no parameter of group 0, or every one, belongs to the new group, and
// for hyperparameters that PyTorch refuses.
iso_status iso_optimizer_add_group(iso_optimizer *optimizer, const iso_hyper *hyper,
                                   iso_group_filter belongs, void *user, int *group);
int iso_optimizer_groups(iso_optimizer *optimizer); // at least 1
// The hyperparameters of a group, 0 <= group < iso_optimizer_groups; iso_optimizer_hyper returns
// those of group 0. The pointer is valid as long as the optimizer.
iso_hyper *iso_optimizer_group_hyper(iso_optimizer *optimizer, int group);
// The group of a parameter, by its name; -1: the optimizer has no such parameter.
int iso_optimizer_group_of(iso_optimizer *optimizer, const char *name);

// ---- Plain arrays ---------------------------------------------------------------------------------

typedef struct iso_optimizer_group {
    iso_hyper hyper;
    iso_group_filter belongs; // as for iso_optimizer_add_group
    void *user;               // of belongs
} iso_optimizer_group;

// Creates an optimizer of all parameters of a reducer (reducer.h) and ties it to them.
// iso_optimizer_step takes the place of iso_reducer_step, and is lazy. groups (NULL: none) become
// groups 1, 2, ... Their filters see a parameter with `row` above 0 as a matrix [count / row, row],
// and any other as a vector [count]. hyper NULL: the default. Destroy the optimizer before the
// reducer. Collective if an exchange is pending, else local. ISO_ERR_STATE if the reducer has an
// update function. To clip, call iso_reducer_clip_grad_norm (clip.h) before the step.
//
// For a bf16 or f16 parameter, of a reducer or of a module, an optimizer keeps f32 values, the
// master weights, and its other state in f32. An update changes the master weights, and rounds them
// to the parameter, to nearest. An element that the program has changed since the last update is
// taken over: its master weight becomes the new value. Master weights are saved with the
// optimizer's state (state.NAME.master_param of the state dict), and with ZeRO each rank keeps
// those that it updates.
iso_status iso_reducer_set_optimizer(iso_reducer *reducer, iso_optimizer_kind kind,
                                     const iso_hyper *hyper, const iso_optimizer_group *groups,
                                     int group_count, iso_optimizer **out);

#ifdef __cplusplus
}
#endif
#endif
