// Learning-rate schedules: pure functions of the update number, with the formulas of
// torch.optim.lr_scheduler.
#include "base/base.h"

#include <isotherm/optim.h>
#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

iso_status iso_schedule_kind_parse(const char *name, iso_schedule_kind *out) {
    static const char *const names[] = {
        [ISO_SCHEDULE_CONSTANT] = "constant", [ISO_SCHEDULE_STEP] = "step",
        [ISO_SCHEDULE_COSINE] = "cosine",     [ISO_SCHEDULE_ONE_CYCLE] = "one-cycle",
        [ISO_SCHEDULE_LINEAR] = "linear",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (iso_schedule_kind)i;
            return ISO_OK;
        }
    }
    return ISO_FAIL(ISO_ERR_ARG,
                    "unknown schedule \"%s\": use constant, step, cosine, one-cycle or linear",
                    name);
}

iso_schedule iso_schedule_default(iso_schedule_kind kind, double lr, int64_t total_steps) {
    return (iso_schedule){
        .kind = kind,
        .lr = lr,
        .total_steps = total_steps,
        .step_size = total_steps >= 3 ? total_steps / 3 : 1,
        .gamma = 0.1,
        .end_factor = 0,
        .pct_start = 0.3,
        .div_factor = 25,
        .final_div_factor = 1e4,
        .cycle_momentum = true,
        .base_momentum = 0.85,
        .max_momentum = 0.95,
        .warmup_start = 1.0 / 3,
    };
}

// From `start` at 0 to `end` at 1, flat at both.
static double anneal(double start, double end, double part) {
    return end + (start - end) / 2 * (cos(PI * part) + 1);
}

// OneCycleLR with two phases: up to the peak at pct_start * total - 1, down until total - 1. That
// bound is a real number, not rounded, and below 0 when the first phase is shorter than a step.
static void one_cycle(const iso_schedule *s, int64_t t, iso_hyper *hyper) {
    double last = (double)(s->total_steps - 1);
    double peak = s->pct_start * (double)s->total_steps - 1;
    double now = fmin((double)t, last);
    double low = s->lr / s->div_factor;
    bool rising = now <= peak;
    double part = rising ? now / peak : (now - peak) / (last - peak);
    if (!isfinite(part)) // a phase without length: 0/0
        part = 1;
    hyper->lr = rising ? anneal(low, s->lr, part) : anneal(s->lr, low / s->final_div_factor, part);
    if (s->cycle_momentum) {
        double m = rising ? anneal(s->max_momentum, s->base_momentum, part)
                          : anneal(s->base_momentum, s->max_momentum, part);
        hyper->momentum = m;
        hyper->beta1 = m;
    }
}

static void apply(const iso_schedule *s, int64_t t, iso_hyper *hyper) {
    double done = s->total_steps > 0 ? fmin((double)t / (double)s->total_steps, 1) : 1;
    hyper->lr = s->lr;
    switch (s->kind) {
    case ISO_SCHEDULE_CONSTANT: break;
    case ISO_SCHEDULE_STEP:
        if (s->step_size > 0) hyper->lr *= pow(s->gamma, (double)(t / s->step_size));
        break;
    case ISO_SCHEDULE_COSINE: hyper->lr = anneal(s->lr, s->eta_min, done); break;
    case ISO_SCHEDULE_ONE_CYCLE: one_cycle(s, t, hyper); break;
    case ISO_SCHEDULE_LINEAR: hyper->lr *= 1 + (s->end_factor - 1) * done; break;
    }
}

void iso_schedule_apply(const iso_schedule *s, int64_t t, iso_hyper *hyper) {
    if (t >= s->warmup_steps) {
        apply(s, t - s->warmup_steps, hyper);
        return;
    }
    // Towards the schedule's first value, which is lr for all but one-cycle.
    apply(s, 0, hyper);
    hyper->lr *= s->warmup_start + (1 - s->warmup_start) * (double)t / (double)s->warmup_steps;
}

void iso_schedule_step(const iso_schedule *s, iso_optimizer *optimizer) {
    iso_hyper *hyper = iso_optimizer_hyper(optimizer);
    iso_schedule_apply(s, hyper->step, hyper);
}
