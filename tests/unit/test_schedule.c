// SPDX-License-Identifier: MIT
// Learning-rate schedules against torch.optim.lr_scheduler, and that they are pure functions.
#include "common/fixture.h"

#include <isotherm/optim.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(schedule, .timeout = 60);

#define UPDATES    40
#define MORE       60  // in schedule_more.txt
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

// ---- The others -----------------------------------------------------------------------------------

static void check_more(const char *name, const iso_schedule *s) {
    fixture *f = fixture_open("schedule_more.txt");
    int64_t count;
    const double *lr = fixture_get(f, name, "lr", &count);
    const double *momentum = fixture_get(f, name, "momentum", NULL);
    cr_assert_eq(count, MORE);
    cr_assert_eq(iso_schedule_check(s), ISO_OK);
    for (int t = 0; t < MORE; t++) {
        iso_hyper hyper = value_at(s, t);
        check(lr, t, hyper.lr, fmax(s->lr, s->max_lr), "lr");
        // The warm-up of CyclicLR has its first momentum here, its last in PyTorch.
        if (t >= s->warmup_steps) check(momentum, t, hyper.momentum, 1, "momentum");
        cr_assert_eq(hyper.beta1, hyper.momentum);
    }
    fixture_close(&f);
}

static iso_schedule multi_step(void) {
    static const int64_t milestones[] = {31, 5, 17, 17};
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_MULTI_STEP, 0.2, MORE);
    s.milestones = milestones;
    s.milestone_count = 4;
    s.gamma = 0.3;
    return s;
}

static iso_schedule exponential(void) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_EXPONENTIAL, 0.2, 0);
    s.gamma = 0.93;
    return s;
}

static double one_less(int64_t t, int group, void *user) {
    (void)group, (void)user;
    return 1 - 1 / (double)(t + 3);
}

// user: how fast it falls.
static double hyperbola(int64_t t, int group, void *user) {
    (void)group;
    return 1 / (1 + *(double *)user * (double)t);
}

static iso_schedule with_factor(iso_schedule_kind kind) {
    static double slope = 0.25;
    iso_schedule s = iso_schedule_default(kind, 0.2, 0);
    s.factor = kind == ISO_SCHEDULE_LAMBDA ? hyperbola : one_less;
    s.user = &slope;
    return s;
}

static iso_schedule restarts(int64_t t_0, int64_t t_mult, double eta_min) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_COSINE_RESTARTS, 0.2, 0);
    s.t_0 = t_0;
    s.t_mult = t_mult;
    s.eta_min = eta_min;
    return s;
}

static iso_schedule cyclic(iso_cyclic_mode mode, int64_t down) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_CYCLIC, 0.2, 0);
    s.mode = mode;
    s.max_lr = 1.1;
    s.step_size_up = 7;
    s.step_size_down = down;
    return s;
}

static iso_schedule warmed(iso_schedule s) {
    s.warmup_steps = 6;
    return s;
}

#define MORE_TEST(property, name, made)                                                            \
    Test(schedule, property) {                                                                     \
        iso_schedule s = (made);                                                                   \
        check_more(name, &s);                                                                      \
    }
MORE_TEST(multi_step_is_torch_MultiStepLR, "multi_step", multi_step())
MORE_TEST(exponential_is_torch_ExponentialLR, "exponential", exponential())
MORE_TEST(multiplicative_is_torch_MultiplicativeLR, "multiplicative",
          with_factor(ISO_SCHEDULE_MULTIPLICATIVE))
MORE_TEST(lambda_is_torch_LambdaLR, "lambda", with_factor(ISO_SCHEDULE_LAMBDA))
MORE_TEST(restarts_are_torch_CosineAnnealingWarmRestarts, "restarts", restarts(7, 1, 1e-3))
MORE_TEST(longer_restarts_are_torch_CosineAnnealingWarmRestarts, "restarts_longer",
          restarts(5, 2, 0))
MORE_TEST(triangular_is_torch_CyclicLR, "triangular", cyclic(ISO_CYCLIC_TRIANGULAR, 0))
MORE_TEST(triangular2_is_torch_CyclicLR, "triangular2", cyclic(ISO_CYCLIC_TRIANGULAR2, 12))
MORE_TEST(warmup_then_multi_step_is_torch_SequentialLR, "warmup_multi_step", warmed(multi_step()))
MORE_TEST(warmup_then_exponential_is_torch_SequentialLR, "warmup_exponential",
          warmed(exponential()))
MORE_TEST(warmup_then_lambda_is_torch_SequentialLR, "warmup_lambda",
          warmed(with_factor(ISO_SCHEDULE_LAMBDA)))
MORE_TEST(warmup_then_restarts_is_torch_SequentialLR, "warmup_restarts",
          warmed(restarts(7, 1, 1e-3)))
MORE_TEST(warmup_then_cyclic_is_torch_SequentialLR, "warmup_triangular2",
          warmed(cyclic(ISO_CYCLIC_TRIANGULAR2, 12)))

Test(schedule, uneven_triangular_is_torch_CyclicLR) {
    iso_schedule s = cyclic(ISO_CYCLIC_TRIANGULAR, 4);
    s.base_momentum = 0.6;
    s.max_momentum = 0.97;
    check_more("triangular_uneven", &s);
}

Test(schedule, exp_range_is_torch_CyclicLR) {
    iso_schedule s = cyclic(ISO_CYCLIC_EXP_RANGE, 0);
    s.gamma = 0.97;
    check_more("exp_range", &s);
}

// SequentialLR lets MultiplicativeLR go on from the last value of the warm-up, which is not lr yet.
// Here a warm-up ends at lr, whatever follows.
Test(schedule, warmup_then_multiplicative_begins_at_lr) {
    iso_schedule s = warmed(with_factor(ISO_SCHEDULE_MULTIPLICATIVE));
    iso_schedule bare = with_factor(ISO_SCHEDULE_MULTIPLICATIVE);
    for (int t = 0; t < 6; t++)
        cr_assert_float_eq(value_at(&s, t).lr, 0.2 * (1.0 / 3 + 2.0 / 3 * t / 6), 1e-15);
    for (int t = 6; t < 20; t++) cr_assert_eq(value_at(&s, t).lr, value_at(&bare, t - 6).lr);
}

// ---- Properties -----------------------------------------------------------------------------------

Test(schedule, values_do_not_depend_on_the_order_of_evaluation) {
    for (int kind = ISO_SCHEDULE_CONSTANT; kind <= ISO_SCHEDULE_CYCLIC; kind++) {
        iso_schedule s = iso_schedule_default((iso_schedule_kind)kind, 0.2, UPDATES);
        s.factor = one_less;
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

// PyTorch's example of MNIST: StepLR with gamma 0.7, stepped once after every epoch.
Test(schedule, an_interval_counts_epochs) {
    iso_schedule epochs = iso_schedule_default(ISO_SCHEDULE_STEP, 1.0, 0);
    epochs.interval = 9; // batches of an epoch
    epochs.step_size = 1;
    epochs.gamma = 0.7;
    double lr = 1;
    for (int epoch = 0; epoch < 14; epoch++, lr *= 0.7)
        for (int batch = 0; batch < 9; batch++)
            cr_assert_float_eq(value_at(&epochs, epoch * 9 + batch).lr, lr, 1e-15);
    // All of them hold still within an interval and go on with the next; the warm-up does not.
    iso_schedule all[] = {multi_step(),      exponential(),
                          restarts(7, 2, 0), with_factor(ISO_SCHEDULE_MULTIPLICATIVE),
                          cyclic(0, 0),      with_factor(ISO_SCHEDULE_LAMBDA)};
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        iso_schedule slow = warmed(all[k]);
        slow.interval = 5;
        for (int t = 0; t < 100; t++)
            cr_assert_eq(value_at(&slow, 6 + t).lr, value_at(&all[k], t / 5).lr);
        cr_assert_float_eq(value_at(&slow, 3).lr, all[k].lr * (1.0 / 3 + 1.0 / 3), 1e-15);
    }
}

static void refused(iso_schedule s, const char *words) {
    cr_assert_eq(iso_schedule_check(&s), ISO_ERR_ARG, "%s was accepted", words);
    cr_assert_not_null(strstr(iso_last_error()->message, words), "\"%s\" says nothing of %s",
                       iso_last_error()->message, words);
    cr_assert_not(isnan(value_at(&s, 5).momentum)); // applied all the same, it does no harm
}

#define REFUSED(kind, words, change)                                                               \
    do {                                                                                           \
        iso_schedule s = iso_schedule_default(kind, 0.2, 9);                                       \
        change;                                                                                    \
        refused(s, words);                                                                         \
    } while (0)

Test(schedule, settings_that_torch_refuses_are_refused) {
    REFUSED(ISO_SCHEDULE_STEP, "step_size 0", s.step_size = 0);
    REFUSED(ISO_SCHEDULE_STEP, "lr nan", s.lr = NAN);
    REFUSED(ISO_SCHEDULE_STEP, "gamma -1", s.gamma = -1);
    REFUSED(ISO_SCHEDULE_ONE_CYCLE, "div_factor inf", s.div_factor = INFINITY);
    static const int64_t before[] = {-5, 10};
    REFUSED(ISO_SCHEDULE_MULTI_STEP, "milestone -5",
            (s.milestones = before, s.milestone_count = 2));
    REFUSED(ISO_SCHEDULE_MULTI_STEP, "3 milestones", s.milestone_count = 3);
    REFUSED(ISO_SCHEDULE_LAMBDA, "function as factor", s.factor = NULL);
    REFUSED(ISO_SCHEDULE_MULTIPLICATIVE, "function as factor", s.factor = NULL);
    REFUSED(ISO_SCHEDULE_COSINE_RESTARTS, "t_0 0", s.t_0 = 0);
    REFUSED(ISO_SCHEDULE_COSINE_RESTARTS, "t_mult 0", s.t_mult = 0);
    REFUSED(ISO_SCHEDULE_CYCLIC, "step_size_up 0", s.step_size_up = 0);
    REFUSED(ISO_SCHEDULE_CYCLIC, "unknown mode 3", s.mode = (iso_cyclic_mode)3);
    REFUSED(ISO_SCHEDULE_ONE_CYCLE, "pct_start 1.5", s.pct_start = 1.5);
    REFUSED(ISO_SCHEDULE_COSINE, "total_steps 0", s.total_steps = 0);
    REFUSED(ISO_SCHEDULE_LINEAR, "warmup_start 2", s.warmup_start = 2);
    REFUSED(ISO_SCHEDULE_LINEAR, "warmup_steps -1", s.warmup_steps = -1);
}

Test(schedule, defaults_are_accepted) {
    for (int kind = ISO_SCHEDULE_CONSTANT; kind <= ISO_SCHEDULE_CYCLIC; kind++) {
        iso_schedule s = iso_schedule_default((iso_schedule_kind)kind, 0.2, UPDATES);
        s.factor = one_less;
        cr_assert_eq(iso_schedule_check(&s), ISO_OK, "%s", iso_last_error()->message);
    }
}

Test(schedule, names_are_parsed_and_unknown_ones_refused) {
    static const char *const names[] = {
        "constant",    "step",           "cosine", "one-cycle",       "linear", "multi-step",
        "exponential", "multiplicative", "lambda", "cosine-restarts", "cyclic"};
    iso_schedule_kind kind;
    for (int i = 0; i <= ISO_SCHEDULE_CYCLIC; i++) {
        cr_assert_eq(iso_schedule_kind_parse(names[i], &kind), ISO_OK);
        cr_assert_eq((int)kind, i);
    }
    cr_assert_eq(iso_schedule_kind_parse("cosinus", &kind), ISO_ERR_ARG);
    cr_assert_not_null(strstr(iso_last_error()->message, "cosinus"));
    cr_assert_not_null(strstr(iso_last_error()->message, "one-cycle"));
}
