// Optimizers and learning-rate schedules, with PyTorch's terms, defaults and formulas.
#ifndef ISOTHERM_OPTIM_H
#define ISOTHERM_OPTIM_H

#include <isotherm/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum iso_optimizer_kind { ISO_SGD, ISO_ADAM, ISO_ADAMW, ISO_ADADELTA } iso_optimizer_kind;
// "sgd", "adam", "adamw", "adadelta"
iso_status iso_optimizer_kind_parse(const char *name, iso_optimizer_kind *out);
const char *iso_optimizer_kind_name(iso_optimizer_kind kind);

// What an update depends on besides parameter, gradient and state. Frozen as a whole at step().
typedef struct iso_hyper {
    double lr;
    double momentum, dampening; // sgd
    double weight_decay;        // L2 term added to the gradient; adamw: decoupled
    double beta1, beta2;        // adam, adamw
    double rho;                 // adadelta
    double eps;                 // adam, adamw, adadelta
    bool nesterov;              // sgd
    int64_t step;               // 1 at the first update; set by step()
} iso_hyper;

// PyTorch's defaults of that optimizer (torch.optim.SGD has no default lr before 2.x: 1e-3 here).
iso_hyper iso_hyper_default(iso_optimizer_kind kind);

typedef struct iso_optimizer iso_optimizer;
typedef struct iso_state iso_state; // isotherm/resume.h
typedef struct iso_optimizer_ops {
    const char *name;
    iso_status (*step)(iso_optimizer *self);
    void (*zero_grad)(iso_optimizer *self);
    // Updates parameter i of list from gradient * scale with these hyperparameters.
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

// Local. Optimizer over the parameters of module that require gradients; state is allocated here
// (zeros, logical order). Retains the module. hyper NULL: the default. ISO_ERR_ARG for
// hyperparameters PyTorch refuses (negative lr, ...).
iso_status iso_optimizer_create(iso_optimizer_kind kind, iso_module *module, const iso_hyper *hyper,
                                iso_optimizer **out);
// DataParallelOptimizer: wraps an optimizer and ties it to a data_parallel module made from the
// same module. step() then only freezes the hyperparameters; each layer is updated when the next
// forward reaches it. Takes inner, on failure too. ISO_ERR_ARG if the two do not cover the same
// parameters, ISO_ERR_STATE if another optimizer is tied already. Retains data_parallel.
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

// ---- Schedules: pure functions of the step number -------------------------------------------------

typedef enum iso_schedule_kind {
    ISO_SCHEDULE_CONSTANT,
    ISO_SCHEDULE_STEP,      // lr * gamma^(t / step_size), torch StepLR
    ISO_SCHEDULE_COSINE,    // torch CosineAnnealingLR: T_max = total_steps, eta_min; closed form
    ISO_SCHEDULE_ONE_CYCLE, // torch OneCycleLR, two phases, cosine; max_lr = lr; cycles momentum or
                            // beta1
    ISO_SCHEDULE_LINEAR     // from lr to lr * end_factor over total_steps, torch LinearLR
} iso_schedule_kind;
// "constant", "step", "cosine", "one-cycle", "linear"
iso_status iso_schedule_kind_parse(const char *name, iso_schedule_kind *out);

typedef struct iso_schedule {
    iso_schedule_kind kind;
    double lr;           // base lr; one-cycle: the maximum
    int64_t total_steps; // cosine, one-cycle, linear; later steps keep the last value
    int64_t step_size;   // step; default a third of total_steps
    double gamma;        // step
    double eta_min;      // cosine
    double end_factor;   // linear; default 0
    double pct_start, div_factor, final_div_factor; // one-cycle: 0.3, 25, 1e4
    bool cycle_momentum; // one-cycle; base_momentum 0.85, max_momentum 0.95
    double base_momentum, max_momentum;
    int64_t warmup_steps; // linear warm-up before any of them: factor from warmup_start to 1 (torch
                          // LinearLR),
    double warmup_start;  // then the schedule starts at its step 0 (SequentialLR); default 1/3
} iso_schedule;

// PyTorch's defaults; lr and total_steps as given.
iso_schedule iso_schedule_default(iso_schedule_kind kind, double lr, int64_t total_steps);
// Values for update number t (0-based) written into hyper: lr, and momentum and beta1 where it
// cycles them.
void iso_schedule_apply(const iso_schedule *schedule, int64_t t, iso_hyper *hyper);
// The same for the next update of an optimizer.
void iso_schedule_step(const iso_schedule *schedule, iso_optimizer *optimizer);

#ifdef __cplusplus
}
#endif
#endif
