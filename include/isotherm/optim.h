// Optimizers, with PyTorch's terms, defaults and formulas. Schedules: isotherm/schedule.h.
#ifndef ISOTHERM_OPTIM_H
#define ISOTHERM_OPTIM_H

#include <isotherm/parallel.h>
#include <isotherm/plateau.h>
#include <isotherm/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

// LAMB, which PyTorch lacks, is Algorithm 2 of You et al., Large Batch Optimization for Deep
// Learning (ICLR 2020), with a parameter (weight or bias) as its layer. From the gradient g:
//     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//     u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay x
//     x = x - lr (|x| / |u|) u
// with both bias corrections and Euclidean norms. phi(z) = z: the ratio of norms is neither clipped
// nor left out for any parameter, but it is 1 where |x| or |u| is 0. Gradients are not clipped.
typedef enum iso_optimizer_kind {
    ISO_SGD,
    ISO_ADAM,
    ISO_ADAMW,
    ISO_ADADELTA,
    ISO_ADAGRAD,
    ISO_RMSPROP,
    ISO_LAMB
} iso_optimizer_kind;
// "sgd", "adam", "adamw", "adadelta", "adagrad", "rmsprop", "lamb"
iso_status iso_optimizer_kind_parse(const char *name, iso_optimizer_kind *out);
const char *iso_optimizer_kind_name(iso_optimizer_kind kind);

// What an update depends on besides parameter, gradient and state. Frozen as a whole at step().
typedef struct iso_hyper {
    double lr;
    double momentum;                  // sgd, rmsprop
    double dampening;                 // sgd
    double weight_decay;              // L2 term added to the gradient; adamw, lamb: decoupled
    double beta1, beta2;              // adam, adamw, lamb
    double rho;                       // adadelta
    double alpha;                     // rmsprop
    double eps;                       // all but sgd
    double lr_decay;                  // adagrad: lr / (1 + (t - 1) lr_decay), t as below
    double initial_accumulator_value; // adagrad: of its sums; read at creation
    bool nesterov;                    // sgd
    bool centered;                    // rmsprop: by an estimate of the variance
    int64_t step; // of the optimizer: 1 at the first; set by step(), schedules go by it
} iso_hyper;
// Where a formula depends on the number of updates (bias corrections t of adam, adamw and lamb,
// lr_decay, the first momentum of sgd, which is the gradient), it counts the updates of the
// parameter, as in PyTorch: a parameter that a step leaves out (ISO_UNUSED_NEGOTIATE) is a step
// behind.

// PyTorch's defaults of that optimizer (torch.optim.SGD has no default lr before 2.x: 1e-3 here).
// LAMB: lr 1e-3, and the paper's beta1 0.9, beta2 0.999, eps 1e-6 and weight_decay 0.01.
iso_hyper iso_hyper_default(iso_optimizer_kind kind);

typedef struct iso_optimizer iso_optimizer;
typedef struct iso_state iso_state; // isotherm/resume.h
typedef struct iso_optimizer_ops {
    const char *name;
    iso_status (*step)(iso_optimizer *self);
    void (*zero_grad)(iso_optimizer *self);
    // Updates parameter i of list from gradient * scale with these hyperparameters, and counts that
    // as one more update of it, whatever hyper->step is.
    iso_status (*update)(iso_optimizer *self, int i, const void *gradient, double scale,
                         const iso_hyper *hyper);
    void (*destroy)(iso_optimizer *self);
    iso_optimizer *(*inner)(
        iso_optimizer *self); // the optimizer that this one wraps; NULL: wraps none
    // For iso_training_state and iso_training_loaded, which ask every optimizer of a chain of
    // wrappers (loaded: the innermost first), so that each speaks for itself only. state adds what
    // the next updates depend on, always entries of the same names, types and counts: loading fills
    // those of a new optimizer. loaded is called once they are filled. NULL: nothing to add or do;
    // the innermost must have state.
    iso_status (*state)(iso_optimizer *self, iso_state *state);
    iso_status (*loaded)(iso_optimizer *self);
    bool ranks_differ; // ranks may have different parameters between steps
} iso_optimizer_ops;

struct iso_optimizer {
    const iso_optimizer_ops *ops;
    iso_hyper hyper; // of a wrapper: unused; see iso_optimizer_hyper
};

// Local. Optimizer over the parameters of module that require gradients, a part of a model (one of
// its children) as well as the whole; state is allocated here
// (zeros, logical order). Retains the module. hyper NULL: the default. ISO_ERR_ARG for
// hyperparameters PyTorch refuses (negative lr, ...). Unless it is tied (see below), a step updates
// all of them, and a gradient that zero_grad dropped is zeros (PyTorch: set_to_none=False).
iso_status iso_optimizer_create(iso_optimizer_kind kind, iso_module *module, const iso_hyper *hyper,
                                iso_optimizer **out);
// DataParallelOptimizer: wraps an optimizer and ties it to a data_parallel module made from the
// same module. step() then only freezes the hyperparameters; each layer is updated when the next
// forward reaches it. inner may be over a part of the module (a child of it). Further optimizers
// may be tied over other parts: each steps for itself, as lazily, and zero_grad is of its own
// parameters. Those that none has are averaged and not updated. Where two share a parameter, steps
// wait for all exchanges and update at once, and a warning names it. A second step on the same
// gradients is ISO_ERR_STATE. Takes inner, on failure too. ISO_ERR_ARG if inner updates what
// data_parallel does not exchange. Retains data_parallel.
iso_status iso_dp_optimizer_create_take(iso_optimizer *inner, iso_module *data_parallel,
                                        iso_optimizer **out);

// ISO_ERR_ARG when a hyperparameter has become one that PyTorch refuses, or not a number.
iso_status iso_optimizer_step(iso_optimizer *optimizer);
// Flags gradients as zero; touches no memory.
void iso_optimizer_zero_grad(iso_optimizer *optimizer);
// Completes pending updates of a tied optimizer first (then collective).
void iso_optimizer_destroy(iso_optimizer **optimizer);
// Change freely between steps: what step() saw is what its update uses.
iso_hyper *iso_optimizer_hyper(iso_optimizer *optimizer); // of the innermost optimizer

// ---- Parameter groups (PyTorch: param_groups) -----------------------------------------------------

// name: as in the module's list, "conv1.weight".
typedef bool (*iso_group_filter)(const char *name, const iso_parameter *parameter, void *user);
// Gives those parameters of group 0, which has all of them at first, for which belongs is true
// hyperparameters of their own: group 1, then 2 and so on; *group (may be NULL) is its number. A
// layer's parameters may be in different groups, as when biases are to go without weight decay.
// Local; every rank makes the same groups. step() freezes the hyperparameters of all groups, and
// they are saved with the optimizer's state. ISO_ERR_STATE once the optimizer was wrapped or has
// made a step; ISO_ERR_ARG when no parameter, or every one of group 0, belongs to the new group,
// and for hyperparameters that PyTorch refuses.
iso_status iso_optimizer_add_group(iso_optimizer *optimizer, const iso_hyper *hyper,
                                   iso_group_filter belongs, void *user, int *group);
int iso_optimizer_groups(iso_optimizer *optimizer); // at least 1
// iso_optimizer_hyper is that of group 0. 0 <= group < iso_optimizer_groups. The pointer is valid
// as long as the optimizer.
iso_hyper *iso_optimizer_group_hyper(iso_optimizer *optimizer, int group);
// Group of a parameter by its name; -1: the optimizer has no such parameter.
int iso_optimizer_group_of(iso_optimizer *optimizer, const char *name);

#ifdef __cplusplus
}
#endif
#endif
