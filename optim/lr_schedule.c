// SPDX-License-Identifier: MIT
// Learning-rate schedules: pure functions of the update number, with the formulas of
// torch.optim.lr_scheduler.
#include "optim/optim_impl.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

// ---- Kinds and settings --------------------------------------------------------------------------

static const char *const names[] = {
    [ISO_SCHEDULE_CONSTANT] = "constant",       [ISO_SCHEDULE_STEP] = "step",
    [ISO_SCHEDULE_COSINE] = "cosine",           [ISO_SCHEDULE_ONE_CYCLE] = "one-cycle",
    [ISO_SCHEDULE_LINEAR] = "linear",           [ISO_SCHEDULE_MULTI_STEP] = "multi-step",
    [ISO_SCHEDULE_EXPONENTIAL] = "exponential", [ISO_SCHEDULE_MULTIPLICATIVE] = "multiplicative",
    [ISO_SCHEDULE_LAMBDA] = "lambda",           [ISO_SCHEDULE_COSINE_RESTARTS] = "cosine-restarts",
    [ISO_SCHEDULE_CYCLIC] = "cyclic",
};
#define KIND_COUNT (int)(sizeof(names) / sizeof(names[0]))

iso_status iso_schedule_kind_parse(const char *name, iso_schedule_kind *out) {
    for (int i = 0; i < KIND_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (iso_schedule_kind)i;
            return ISO_OK;
        }
    }
    return ISO_FAIL(ISO_ERR_ARG,
                    "unknown schedule \"%s\": use constant, step, multi-step, exponential, "
                    "multiplicative, lambda, cosine, cosine-restarts, cyclic, one-cycle or linear",
                    name);
}

iso_schedule iso_schedule_default(iso_schedule_kind kind, double lr, int64_t total_steps) {
    bool cyclic = kind == ISO_SCHEDULE_CYCLIC;
    int64_t third = total_steps >= 3 ? total_steps / 3 : 1;
    return (iso_schedule){
        .kind = kind,
        .lr = lr,
        .total_steps = total_steps,
        .step_size = third,
        .gamma = cyclic ? 1 : 0.1,
        .end_factor = 0,
        .pct_start = 0.3,
        .div_factor = 25,
        .final_div_factor = 1e4,
        .cycle_momentum = true,
        .base_momentum = cyclic ? 0.8 : 0.85,
        .max_momentum = cyclic ? 0.9 : 0.95,
        .warmup_start = 1.0 / 3,
        .interval = 1,
        .t_0 = third,
        .t_mult = 1,
        .max_lr = 10 * lr,
        .step_size_up = 2000,
    };
}

static iso_status check_numbers(const iso_schedule *s) {
    const struct {
        const char *name;
        double number;
    } numbers[] = {
        {"lr", s->lr},
        {"gamma", s->gamma},
        {"eta_min", s->eta_min},
        {"end_factor", s->end_factor},
        {"pct_start", s->pct_start},
        {"base_momentum", s->base_momentum},
        {"max_momentum", s->max_momentum},
        {"max_lr", s->max_lr},
        {"warmup_start", s->warmup_start},
        {"div_factor", s->div_factor},
        {"final_div_factor", s->final_div_factor},
        {"warmup_steps", (double)s->warmup_steps},
        {"interval", (double)s->interval},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        ISO_CHECK(numbers[i].number >= 0 && isfinite(numbers[i].number), ISO_ERR_ARG,
                  "%s schedule: %s %g: give a finite number of at least 0", names[s->kind],
                  numbers[i].name, numbers[i].number);
    return ISO_OK;
}

static iso_status check_kind(const iso_schedule *s) {
    switch (s->kind) {
    case ISO_SCHEDULE_STEP:
        ISO_CHECK(s->step_size >= 1, ISO_ERR_ARG, "step schedule: step_size %lld: give at least 1",
                  (long long)s->step_size);
        break;
    case ISO_SCHEDULE_MULTI_STEP:
        ISO_CHECK(s->milestone_count >= 0 && (s->milestones || s->milestone_count == 0),
                  ISO_ERR_ARG, "multi-step schedule: %d milestones, but no list of them",
                  s->milestone_count);
        for (int i = 0; i < s->milestone_count; i++)
            ISO_CHECK(s->milestones[i] >= 0, ISO_ERR_ARG,
                      "multi-step schedule: milestone %lld: give a step of at least 0",
                      (long long)s->milestones[i]);
        break;
    case ISO_SCHEDULE_MULTIPLICATIVE:
    case ISO_SCHEDULE_LAMBDA:
        ISO_CHECK(s->factor, ISO_ERR_ARG, "%s schedule: give a function as factor", names[s->kind]);
        break;
    case ISO_SCHEDULE_COSINE_RESTARTS:
        ISO_CHECK(s->t_0 >= 1 && s->t_mult >= 1, ISO_ERR_ARG,
                  "cosine-restarts schedule: t_0 %lld and t_mult %lld: give at least 1",
                  (long long)s->t_0, (long long)s->t_mult);
        break;
    case ISO_SCHEDULE_CYCLIC:
        ISO_CHECK(s->step_size_up >= 1 && s->step_size_down >= 0, ISO_ERR_ARG,
                  "cyclic schedule: step_size_up %lld and step_size_down %lld: give at least 1 "
                  "(step_size_down 0: the same as step_size_up)",
                  (long long)s->step_size_up, (long long)s->step_size_down);
        ISO_CHECK((int)s->mode >= 0 && s->mode <= ISO_CYCLIC_EXP_RANGE, ISO_ERR_ARG,
                  "cyclic schedule: unknown mode %d", (int)s->mode);
        break;
    case ISO_SCHEDULE_ONE_CYCLE:
        ISO_CHECK(s->pct_start <= 1, ISO_ERR_ARG,
                  "one-cycle schedule: pct_start %g: give a number from 0 to 1", s->pct_start);
        ISO_CHECK(s->div_factor > 0 && s->final_div_factor > 0, ISO_ERR_ARG,
                  "one-cycle schedule: div_factor %g and final_div_factor %g: give numbers above 0",
                  s->div_factor, s->final_div_factor);
        break;
    default: break;
    }
    bool needs_total = s->kind == ISO_SCHEDULE_COSINE || s->kind == ISO_SCHEDULE_LINEAR ||
                       s->kind == ISO_SCHEDULE_ONE_CYCLE;
    ISO_CHECK(!needs_total || s->total_steps >= 1, ISO_ERR_ARG,
              "%s schedule: total_steps %lld: give at least 1", names[s->kind],
              (long long)s->total_steps);
    return ISO_OK;
}

iso_status iso_schedule_check(const iso_schedule *s) {
    ISO_CHECK((int)s->kind >= 0 && (int)s->kind < KIND_COUNT, ISO_ERR_ARG,
              "unknown schedule kind %d", (int)s->kind);
    ISO_TRY(check_numbers(s));
    ISO_TRY(check_kind(s));
    ISO_CHECK(s->warmup_start <= 1, ISO_ERR_ARG,
              "%s schedule: warmup_start %g: give a number from 0 to 1", names[s->kind],
              s->warmup_start);
    return ISO_OK;
}

// ---- Formulas -------------------------------------------------------------------------------------

// From `start` at 0 to `end` at 1, flat at both.
static double anneal_cosine(double start, double end, double fraction) {
    return end + (start - end) / 2 * (cos(PI * fraction) + 1);
}

static void set_momentum(iso_hyper *hyper, double momentum) {
    hyper->momentum = momentum;
    hyper->beta1 = momentum;
}

// OneCycleLR with two phases: up to the peak at pct_start * total - 1, down until total - 1. That
// bound is a real number, not rounded, and below 0 when the first phase is shorter than a step.
static void one_cycle(const iso_schedule *s, int64_t t, iso_hyper *hyper) {
    double last = (double)(s->total_steps - 1);
    double peak = s->pct_start * (double)s->total_steps - 1;
    double now = fmin((double)t, last);
    double low = s->lr / s->div_factor;
    bool rising = now <= peak;
    double fraction = rising ? now / peak : (now - peak) / (last - peak);
    if (!isfinite(fraction)) // a phase without length: 0/0
        fraction = 1;
    hyper->lr = rising ? anneal_cosine(low, s->lr, fraction)
                       : anneal_cosine(s->lr, low / s->final_div_factor, fraction);
    if (s->cycle_momentum)
        set_momentum(hyper, rising ? anneal_cosine(s->max_momentum, s->base_momentum, fraction)
                                   : anneal_cosine(s->base_momentum, s->max_momentum, fraction));
}

// Smith (WACV 2017), as CyclicLR computes it: where in its cycle t is decides the height.
static void set_cyclic(const iso_schedule *s, int64_t t, iso_hyper *hyper) {
    if (s->step_size_up < 1) return;
    double up = (double)s->step_size_up;
    double total = up + (s->step_size_down > 0 ? (double)s->step_size_down : up);
    double peak = up / total, done = (double)t / total;
    double cycle = floor(1 + done), x = 1 + done - cycle;
    double height = x <= peak ? x / peak : (x - 1) / (peak - 1);
    double scale = 1;
    if (s->mode == ISO_CYCLIC_TRIANGULAR2) scale = 1 / pow(2, cycle - 1);
    if (s->mode == ISO_CYCLIC_EXP_RANGE) scale = pow(s->gamma, (double)t);
    hyper->lr = s->lr + (s->max_lr - s->lr) * height * scale;
    if (s->cycle_momentum)
        set_momentum(hyper,
                     s->max_momentum - (s->max_momentum - s->base_momentum) * height * scale);
}

// SGDR (Loshchilov and Hutter, ICLR 2017): cosines of t_0, t_0 * t_mult, t_0 * t_mult^2... steps.
static double cosine_restarts(const iso_schedule *s, int64_t t) {
    int64_t length = s->t_0;
    if (length < 1 || s->t_mult < 1) return s->lr;
    if (s->t_mult == 1) t %= length;
    while (t >= length) {
        t -= length;
        // A period that t_mult would carry past the largest number has no end.
        length = length <= INT64_MAX / s->t_mult ? length * s->t_mult : INT64_MAX;
    }
    return anneal_cosine(s->lr, s->eta_min, (double)t / (double)length);
}

static int64_t milestones_reached(const iso_schedule *s, int64_t t) {
    int64_t reached = 0;
    for (int i = 0; s->milestones && i < s->milestone_count; i++)
        if (s->milestones[i] >= 0 && s->milestones[i] <= t) reached++;
    return reached;
}

static double multiply_factors(const iso_schedule *s, int64_t t, int group) {
    double lr = s->lr;
    if (s->factor)
        for (int64_t i = 1; i <= t; i++) lr *= s->factor(i, group, s->user);
    return lr;
}

// t: steps of the schedule.
static void apply_kind(const iso_schedule *s, int64_t t, int group, iso_hyper *hyper) {
    double done = s->total_steps > 0 ? fmin((double)t / (double)s->total_steps, 1) : 1;
    hyper->lr = s->lr;
    switch (s->kind) {
    case ISO_SCHEDULE_CONSTANT: break;
    case ISO_SCHEDULE_STEP:
        if (s->step_size > 0) hyper->lr *= pow(s->gamma, (double)(t / s->step_size));
        break;
    case ISO_SCHEDULE_COSINE: hyper->lr = anneal_cosine(s->lr, s->eta_min, done); break;
    case ISO_SCHEDULE_ONE_CYCLE: one_cycle(s, t, hyper); break;
    case ISO_SCHEDULE_LINEAR: hyper->lr *= 1 + (s->end_factor - 1) * done; break;
    case ISO_SCHEDULE_MULTI_STEP:
        hyper->lr *= pow(s->gamma, (double)milestones_reached(s, t));
        break;
    case ISO_SCHEDULE_EXPONENTIAL: hyper->lr *= pow(s->gamma, (double)t); break;
    case ISO_SCHEDULE_MULTIPLICATIVE: hyper->lr = multiply_factors(s, t, group); break;
    case ISO_SCHEDULE_LAMBDA:
        if (s->factor) hyper->lr *= s->factor(t, group, s->user);
        break;
    case ISO_SCHEDULE_COSINE_RESTARTS: hyper->lr = cosine_restarts(s, t); break;
    case ISO_SCHEDULE_CYCLIC: set_cyclic(s, t, hyper); break;
    }
}

// t: updates.
static void apply_group(const iso_schedule *s, int64_t t, int group, iso_hyper *hyper) {
    int64_t interval = s->interval > 1 ? s->interval : 1;
    if (t >= s->warmup_steps) {
        apply_kind(s, (t - s->warmup_steps) / interval, group, hyper);
        return;
    }
    // Towards the schedule's first value, which is lr for all but one-cycle.
    apply_kind(s, 0, group, hyper);
    hyper->lr *= s->warmup_start + (1 - s->warmup_start) * (double)t / (double)s->warmup_steps;
}

// ---- The optimizer's next update ------------------------------------------------------------------

void iso_schedule_apply(const iso_schedule *s, int64_t t, iso_hyper *hyper) {
    apply_group(s, t, 0, hyper);
}

void iso_schedule_step(const iso_schedule *s, iso_optimizer *optimizer) {
    iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    iso_hyper *hyper = iso_optimizer_hyper(optimizer);
    iso_schedule_apply(s, hyper->step, hyper);
    for (int g = 1; core && g < core->groups; g++) {
        iso_schedule own = *s;
        own.lr = core->group[g - 1]->initial_lr;
        hyper = iso__group_hyper(core, g);
        apply_group(&own, hyper->step, g, hyper);
    }
}
