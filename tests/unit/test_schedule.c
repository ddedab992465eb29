// Learning-rate schedules against torch.optim.lr_scheduler, and that they are pure functions.
#include "common/fixture.h"

#include <isotherm/optim.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(schedule, .timeout = 60);

#define UPDATES    40
#define SET_BEFORE 0.5 // momentum and beta1 where a schedule leaves them alone

static iso_hyper value_at(const iso_schedule *s, int64_t t) {
    iso_hyper hyper = {.lr = -1, .momentum = SET_BEFORE, .beta1 = SET_BEFORE};
    iso_schedule_apply(s, t, &hyper);
    return hyper;
}

// The recursions of PyTorch round differently from closed forms: relative to the largest value,
// 1e-14.
static void check(const double *expected, int t, double got, double largest, const char *what) {
    cr_assert(fabs(got - expected[t]) <= 1e-14 * largest, "%s at update %d is %.17g, not %.17g",
              what, t, got, expected[t]);
}

static void check_golden(const char *name, const iso_schedule *s) {
    fixture *f = fixture_open("schedule.txt");
    bool cycles = s->kind == ISO_SCHEDULE_ONE_CYCLE;
    int64_t count;
    const double *lr = fixture_get(f, name, "lr", &count);
    const double *momentum = fixture_get(f, name, "momentum", NULL);
    cr_assert_eq(count, UPDATES);
    for (int t = 0; t < UPDATES; t++) {
        iso_hyper hyper = value_at(s, t);
        check(lr, t, hyper.lr, s->lr, "lr");
        check(momentum, t, hyper.momentum, 1, "momentum");
        if (cycles)
            check(fixture_get(f, name, "beta1", NULL), t, hyper.beta1, 1, "beta1");
        else
            cr_assert_eq(hyper.beta1, SET_BEFORE);
    }
    fixture_close(&f);
}

// ---- Golden values --------------------------------------------------------------------------------

Test(schedule, step_is_torch_StepLR) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_STEP, 0.2, UPDATES);
    s.step_size = 7;
    s.gamma = 0.5;
    check_golden("step", &s);
}

Test(schedule, cosine_is_torch_CosineAnnealingLR) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_COSINE, 0.2, 39);
    s.eta_min = 1e-4;
    check_golden("cosine", &s);
}

Test(schedule, linear_is_torch_LinearLR) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_LINEAR, 0.2, 30);
    s.end_factor = 0.1;
    check_golden("linear", &s);
}

Test(schedule, one_cycle_is_torch_OneCycleLR) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 0.2, UPDATES);
    check_golden("one_cycle", &s);
}

// 0.22 * 40 is no whole number, so the peak lies between two updates.
Test(schedule, one_cycle_with_other_settings_is_torch_OneCycleLR) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 0.2, UPDATES);
    s.pct_start = 0.22;
    s.div_factor = 10;
    s.final_div_factor = 100;
    s.base_momentum = 0.7;
    s.max_momentum = 0.9;
    check_golden("one_cycle_other", &s);
}

Test(schedule, warmup_then_constant_is_torch_SequentialLR) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_CONSTANT, 0.2, UPDATES);
    s.warmup_steps = 6;
    check_golden("warmup_constant", &s);
}

Test(schedule, warmup_then_step_is_torch_SequentialLR) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_STEP, 0.2, UPDATES);
    s.step_size = 7;
    s.gamma = 0.5;
    s.warmup_steps = 6;
    s.warmup_start = 0.2;
    check_golden("warmup_step", &s);
}

Test(schedule, warmup_then_cosine_is_torch_SequentialLR) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_COSINE, 0.2, 34);
    s.eta_min = 1e-4;
    s.warmup_steps = 6;
    check_golden("warmup_cosine", &s);
}

Test(schedule, warmup_then_one_cycle_is_torch_SequentialLR) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 0.2, UPDATES);
    s.warmup_steps = 6;
    check_golden("warmup_one_cycle", &s);
}

// ---- Properties -----------------------------------------------------------------------------------

Test(schedule, values_do_not_depend_on_the_order_of_evaluation) {
    for (int kind = ISO_SCHEDULE_CONSTANT; kind <= ISO_SCHEDULE_LINEAR; kind++) {
        iso_schedule s = iso_schedule_default((iso_schedule_kind)kind, 0.2, UPDATES);
        s.warmup_steps = 3;
        iso_hyper rising[UPDATES], one = {0};
        for (int t = 0; t < UPDATES; t++) iso_schedule_apply(&s, t, &one), rising[t] = one;
        for (int t = UPDATES - 1; t >= 0; t--) {
            iso_schedule_apply(&s, t, &one);
            cr_assert_eq(one.lr, rising[t].lr, "kind %d, update %d", kind, t);
            cr_assert_eq(one.momentum, rising[t].momentum, "kind %d, update %d", kind, t);
            cr_assert_eq(one.beta1, rising[t].beta1, "kind %d, update %d", kind, t);
        }
    }
}

Test(schedule, later_updates_keep_the_last_value) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_COSINE, 0.2, UPDATES);
    s.eta_min = 0.01;
    cr_assert_float_eq(value_at(&s, 10 * UPDATES).lr, 0.01, 1e-16);
    s = iso_schedule_default(ISO_SCHEDULE_LINEAR, 0.2, UPDATES);
    s.end_factor = 0.25;
    cr_assert_float_eq(value_at(&s, 10 * UPDATES).lr, 0.05, 1e-16);
    s = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 0.2, UPDATES);
    cr_assert_float_eq(value_at(&s, 10 * UPDATES).lr, 0.2 / 25 / 1e4, 1e-16);
    cr_assert_float_eq(value_at(&s, 10 * UPDATES).momentum, 0.95, 1e-15);
}

Test(schedule, constant_is_lr_and_nothing_else) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_CONSTANT, 0.2, 0);
    iso_hyper before = iso_hyper_default(ISO_ADAMW), after = before;
    iso_schedule_apply(&s, 1234567, &after);
    cr_assert_eq(after.lr, 0.2);
    after.lr = before.lr;
    cr_assert_eq(memcmp(&before, &after, sizeof(before)), 0);
}

Test(schedule, one_cycle_leaves_momentum_alone_when_told) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 0.2, UPDATES);
    s.cycle_momentum = false;
    for (int t = 0; t < UPDATES; t++) {
        iso_hyper hyper = value_at(&s, t);
        cr_assert_eq(hyper.momentum, SET_BEFORE);
        cr_assert_eq(hyper.beta1, SET_BEFORE);
    }
}

// Runs of one or two updates, and phases of no length, would divide by zero.
Test(schedule, short_runs_give_numbers_in_range) {
    for (int kind = ISO_SCHEDULE_CONSTANT; kind <= ISO_SCHEDULE_LINEAR; kind++)
        for (int64_t total = 0; total < 12; total++)
            for (int64_t t = 0; t < 14; t++)
                for (int start = 0; start <= 10; start++) {
                    iso_schedule s = iso_schedule_default((iso_schedule_kind)kind, 0.2, total);
                    s.pct_start = start / 10.0;
                    s.step_size = total / 6;
                    double lr = value_at(&s, t).lr;
                    cr_assert(lr >= 0 && lr <= 0.2 * (1 + 1e-15),
                              "kind %d, total %d, update %d, pct_start %g: lr %g", kind, (int)total,
                              (int)t, s.pct_start, lr);
                }
}

Test(schedule, names_are_parsed_and_unknown_ones_refused) {
    static const char *const names[] = {"constant", "step", "cosine", "one-cycle", "linear"};
    iso_schedule_kind kind;
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(iso_schedule_kind_parse(names[i], &kind), ISO_OK);
        cr_assert_eq((int)kind, i);
    }
    cr_assert_eq(iso_schedule_kind_parse("cosinus", &kind), ISO_ERR_ARG);
    cr_assert_not_null(strstr(iso_last_error()->message, "cosinus"));
    cr_assert_not_null(strstr(iso_last_error()->message, "one-cycle"));
}
