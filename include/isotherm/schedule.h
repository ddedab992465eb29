// SPDX-License-Identifier: MIT
// Learning-rate schedules with the names and values of torch.optim.lr_scheduler. A schedule is a
// pure function of the update number, so it has no state to save or resume.
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

// t is the step of the schedule, from 0. An update at step t uses the value of PyTorch's schedule
// at that step.
typedef enum iso_schedule_kind {
    ISO_SCHEDULE_CONSTANT,
    ISO_SCHEDULE_STEP,   // StepLR: lr * gamma^floor(t / step_size)
    ISO_SCHEDULE_COSINE, // CosineAnnealingLR in closed form: T_max = total_steps, eta_min
    // OneCycleLR with two cosine phases: max_lr = lr; cycles momentum or beta1 too.
    ISO_SCHEDULE_ONE_CYCLE,
    ISO_SCHEDULE_LINEAR,          // LinearLR: from lr to lr * end_factor over total_steps
    ISO_SCHEDULE_MULTI_STEP,      // MultiStepLR: lr * gamma at each milestone
    ISO_SCHEDULE_EXPONENTIAL,     // ExponentialLR: lr * gamma^t
    ISO_SCHEDULE_MULTIPLICATIVE,  // MultiplicativeLR: lr * factor(1) * ... * factor(t)
    ISO_SCHEDULE_LAMBDA,          // LambdaLR: lr * factor(t)
    ISO_SCHEDULE_COSINE_RESTARTS, // CosineAnnealingWarmRestarts: t_0, t_mult, eta_min
    ISO_SCHEDULE_CYCLIC           // CyclicLR: base_lr = lr, max_lr; cycles momentum or beta1 too
} iso_schedule_kind;
// Parses "constant", "step", "cosine", "one-cycle", "linear", "multi-step", "exponential",
// "multiplicative", "lambda", "cosine-restarts" or "cyclic"; ISO_ERR_ARG for another name.
iso_status iso_schedule_kind_parse(const char *name, iso_schedule_kind *out);

// CyclicLR's mode. The amplitude of each cycle is constant (triangular), half of the previous one
// (triangular2), or scaled by gamma^t (exp_range).
typedef enum iso_cyclic_mode {
    ISO_CYCLIC_TRIANGULAR,
    ISO_CYCLIC_TRIANGULAR2,
    ISO_CYCLIC_EXP_RANGE
} iso_cyclic_mode;

// Must depend only on its arguments and return the same value on every rank. group: see
// iso_optimizer_add_group.
typedef double (*iso_schedule_factor)(int64_t t, int group, void *user);

// Each comment names the kinds that use the setting, then its default. Defaults are PyTorch's where
// PyTorch has one, except LinearLR's end_factor (PyTorch: 1).
typedef struct iso_schedule {
    iso_schedule_kind kind;
    double lr;           // base learning rate; one-cycle: the maximum
    int64_t total_steps; // cosine, one-cycle, linear; afterwards the last value holds
    int64_t step_size;   // step: total_steps / 3
    double gamma;        // step, multi-step, exponential: 0.1; cyclic with exp_range: 1
    double eta_min;      // cosine, cosine-restarts: 0
    double end_factor;   // linear: 0
    double pct_start, div_factor, final_div_factor; // one-cycle: 0.3, 25, 1e4
    bool cycle_momentum;                            // one-cycle, cyclic: true
    double base_momentum, max_momentum;             // one-cycle: 0.85, 0.95; cyclic: 0.8, 0.9
    // Linear warm-up before any kind (LinearLR, then SequentialLR): over warmup_steps updates
    // (default 0) the factor of lr rises from warmup_start (default 1/3) to 1. Then the schedule
    // starts at t = 0.
    int64_t warmup_steps;
    double warmup_start;
    // Updates per step of the schedule (default 1). Set it to the number of updates per epoch if
    // PyTorch's step() would be called once per epoch: t, step_size, milestones, total_steps etc.
    // then count epochs. warmup_steps always counts updates.
    int64_t interval;
    const int64_t *milestones; // multi-step; in any order, borrowed
    int milestone_count;
    int64_t t_0, t_mult;                  // cosine-restarts: T_0 = total_steps / 3, T_mult = 1
    iso_cyclic_mode mode;                 // cyclic
    double max_lr;                        // cyclic: 10 lr (PyTorch has no default)
    int64_t step_size_up, step_size_down; // cyclic: 2000, and 0, which means step_size_up
    // multiplicative, lambda. Multiplicative calls it t times for each value: in long runs use an
    // interval of an epoch.
    iso_schedule_factor factor;
    void *user;
} iso_schedule;

// A schedule with this lr and total_steps, and the defaults above for the other settings.
iso_schedule iso_schedule_default(iso_schedule_kind kind, double lr, int64_t total_steps);
// ISO_ERR_ARG for a setting that is NaN, infinite, negative or otherwise out of its range; the
// message names it. The functions below do not check: they are safe with such a setting, but the
// rate is then unspecified.
iso_status iso_schedule_check(const iso_schedule *schedule);
// Writes the values for update t (from 0) to hyper: lr, and momentum and beta1 if the schedule
// cycles them.
void iso_schedule_apply(const iso_schedule *schedule, int64_t t, iso_hyper *hyper);
// Sets the values for the next update of an optimizer, in all of its groups. The first group uses
// the lr of the schedule. Every other group uses its own initial lr instead (PyTorch: initial_lr;
// one-cycle: a list as max_lr). eta_min and max_lr are the same for all groups.
void iso_schedule_step(const iso_schedule *schedule, iso_optimizer *optimizer);

#ifdef __cplusplus
}
#endif
#endif
