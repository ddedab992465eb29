// Learning-rate schedules, with the terms, defaults and values of torch.optim.lr_scheduler. They
// are pure functions of the number of the update: nothing is to be saved or resumed.
#ifndef ISOTHERM_SCHEDULE_H
#define ISOTHERM_SCHEDULE_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_hyper iso_hyper;         // isotherm/optim.h
typedef struct iso_optimizer iso_optimizer; // isotherm/optim.h

// t: the step of the schedule, from 0. An update sees the value that PyTorch's has at that step.
typedef enum iso_schedule_kind {
    ISO_SCHEDULE_CONSTANT,
    ISO_SCHEDULE_STEP,      // lr * gamma^(t / step_size), torch StepLR
    ISO_SCHEDULE_COSINE,    // torch CosineAnnealingLR: T_max = total_steps, eta_min; closed form
    ISO_SCHEDULE_ONE_CYCLE, // torch OneCycleLR, two phases, cosine; max_lr = lr; cycles momentum or
                            // beta1
    ISO_SCHEDULE_LINEAR,    // from lr to lr * end_factor over total_steps, torch LinearLR
    ISO_SCHEDULE_MULTI_STEP,      // lr * gamma at each of the milestones, torch MultiStepLR
    ISO_SCHEDULE_EXPONENTIAL,     // lr * gamma^t, torch ExponentialLR
    ISO_SCHEDULE_MULTIPLICATIVE,  // lr * factor(1) * ... * factor(t), torch MultiplicativeLR
    ISO_SCHEDULE_LAMBDA,          // lr * factor(t), torch LambdaLR
    ISO_SCHEDULE_COSINE_RESTARTS, // torch CosineAnnealingWarmRestarts: t_0, t_mult, eta_min
    ISO_SCHEDULE_CYCLIC           // torch CyclicLR: base_lr = lr, max_lr; cycles momentum or beta1
} iso_schedule_kind;
// "constant", "step", "cosine", "one-cycle", "linear", "multi-step", "exponential",
// "multiplicative", "lambda", "cosine-restarts", "cyclic"
iso_status iso_schedule_kind_parse(const char *name, iso_schedule_kind *out);

// CyclicLR's mode: the height of a cycle is the same, half of that of the one before, or gamma^t.
typedef enum iso_cyclic_mode {
    ISO_CYCLIC_TRIANGULAR,
    ISO_CYCLIC_TRIANGULAR2,
    ISO_CYCLIC_EXP_RANGE
} iso_cyclic_mode;

// Depends on its arguments alone, and is the same on every rank. group: see
// iso_optimizer_add_group.
typedef double (*iso_schedule_factor)(int64_t t, int group, void *user);

typedef struct iso_schedule {
    iso_schedule_kind kind;
    double lr;           // base lr; one-cycle: the maximum
    int64_t total_steps; // cosine, one-cycle, linear; later steps keep the last value
    int64_t step_size;   // step; default a third of total_steps
    double gamma;        // step, multi-step, exponential: 0.1; cyclic exp_range: 1
    double eta_min;      // cosine, cosine-restarts
    double end_factor;   // linear; default 0
    double pct_start, div_factor, final_div_factor; // one-cycle: 0.3, 25, 1e4
    bool cycle_momentum; // one-cycle: base_momentum 0.85, max_momentum 0.95; cyclic: 0.8, 0.9
    double base_momentum, max_momentum;
    int64_t warmup_steps; // linear warm-up before any of them: factor from warmup_start to 1 (torch
                          // LinearLR),
    double warmup_start;  // then the schedule starts at its step 0 (SequentialLR); default 1/3
    // Updates in a step of the schedule, default 1. With the number of batches of an epoch the
    // schedule counts epochs, as where PyTorch's step() is called once an epoch: step_size,
    // milestones, total_steps and so on are epochs then. warmup_steps are updates in any case.
    int64_t interval;
    const int64_t *milestones; // multi-step; in any order, borrowed
    int milestone_count;
    int64_t t_0, t_mult; // cosine-restarts: T_0, default a third of total_steps, and T_mult, 1
    iso_cyclic_mode mode;
    double max_lr;                        // cyclic: PyTorch has no default, here it is 10 lr
    int64_t step_size_up, step_size_down; // cyclic: 2000, and 0: as up
    iso_schedule_factor factor; // multiplicative (is called t times for a value: let it count
    void *user;                 // epochs where runs are long) and lambda
} iso_schedule;

// PyTorch's defaults; lr and total_steps as given.
iso_schedule iso_schedule_default(iso_schedule_kind kind, double lr, int64_t total_steps);
// ISO_ERR_ARG names a setting that PyTorch refuses, or that gives no numbers. The functions below
// take any settings; those that make no sense leave the lr constant.
iso_status iso_schedule_check(const iso_schedule *schedule);
// Values for update number t (0-based) written into hyper: lr, and momentum and beta1 where it
// cycles them.
void iso_schedule_apply(const iso_schedule *schedule, int64_t t, iso_hyper *hyper);
// The same for the next update of an optimizer, for all of its groups: of the first with the
// schedule's lr, of the others with the lr that they were given at first in place of it (PyTorch:
// initial_lr; one-cycle: max_lr as a list of those). eta_min and max_lr hold for all.
void iso_schedule_step(const iso_schedule *schedule, iso_optimizer *optimizer);

#ifdef __cplusplus
}
#endif
#endif
