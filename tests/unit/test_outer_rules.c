// SPDX-License-Identifier: MIT
// The rules of outer optimizers on single elements: values from PyTorch, and rules that are special
// cases of others.
#include "optim/periodic/outer_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(outer, .timeout = 60);

enum { COUNT = 5 };

// A parameter of COUNT equal elements, with its state, in one type.
typedef struct element {
    bool f64;
    double x, sent, mean, state[ISO_OUTER_STATES];
    int64_t merges;
    double lr;
} element;

static void store(bool f64, void *array, double value) {
    for (int i = 0; i < COUNT; i++)
        if (f64)
            ((double *)array)[i] = value;
        else
            ((float *)array)[i] = (float)value;
}

// All elements must have come out the same.
static double load(bool f64, const void *array) {
    size_t size = f64 ? sizeof(double) : sizeof(float);
    for (int i = 1; i < COUNT; i++)
        cr_assert_eq(memcmp((const char *)array + (size_t)i * size, array, size), 0);
    return f64 ? ((const double *)array)[0] : (double)((const float *)array)[0];
}

static void apply(const iso_outer *rule, element *e, bool sends) {
    double now[COUNT], sent[COUNT], mean[COUNT], state[ISO_OUTER_STATES][COUNT];
    iso_outer_span span = {.count = COUNT,
                           .f64 = e->f64,
                           .now = now,
                           .sent = sent,
                           .mean = mean,
                           .ranks = 2,
                           .lr = e->lr};
    store(e->f64, now, e->x);
    store(e->f64, sent, e->sent);
    store(e->f64, mean, e->mean);
    for (int k = 0; k < ISO_OUTER_STATES; k++) {
        store(e->f64, state[k], e->state[k]);
        span.state[k] = state[k];
    }
    span.merges = sends ? e->merges : ++e->merges;
    if (sends)
        rule->send(rule, &span, sent);
    else
        rule->merge(rule, &span);
    e->x = load(e->f64, now);
    e->sent = load(e->f64, sent);
    for (int k = 0; k < ISO_OUTER_STATES; k++) e->state[k] = load(e->f64, state[k]);
}

// torch.optim.SGD(lr=0.7, momentum=0.9, nesterov=True) from 1 with the gradients 0.5, 0.25, -0.1
// and 0.3: the parameter and momentum_buffer after each step.
static void nesterov_is_torchs(bool f64) {
    static const double d[] = {0.5, 0.25, -0.1, 0.3}, a[] = {0.335, -0.281, -0.5449, -1.24441},
                        u[] = {0.5, 0.7, 0.53, 0.777};
    element e = {.f64 = f64, .x = 7, .state = {1}};
    for (int i = 0; i < 4; i++) {
        e.mean = e.state[0] - d[i];
        apply(&iso_outer_nesterov, &e, false);
        cr_assert_float_eq(e.state[0], a[i], 1e-6);
        cr_assert_float_eq(e.state[1], u[i], 1e-6);
        cr_assert_eq(e.x, e.state[0]);
    }
}
Test(outer, nesterov_is_torchs_f32) { nesterov_is_torchs(false); }
Test(outer, nesterov_is_torchs_f64) { nesterov_is_torchs(true); }

// torch.optim.SGD(lr=0.5, momentum=0.5), by hand: u = 1, 1.5, 0.75; a = 1 - 0.5 (sum of u).
Test(outer, sgd_by_hand) {
    static const double d[] = {1, 1, 0}, a[] = {0.5, -0.25, -0.625};
    iso_outer rule = iso_outer_sgd;
    rule.lr = rule.momentum = 0.5;
    rule.mix = 0.25;
    element e = {.state = {1}};
    for (int i = 0; i < 3; i++) {
        e.x = 8;
        e.mean = e.state[0] - d[i];
        apply(&rule, &e, false);
        cr_assert_float_eq(e.state[0], a[i], 1e-6);
        cr_assert_float_eq(e.x, 0.75 * a[i] + 2, 1e-6);
    }
}

// SlowMo with gamma = 0.1, alpha = 0.5, beta = 0.5, by hand: u = 10, 15; a -= 0.05 u.
Test(outer, slowmo_by_hand) {
    iso_outer rule = iso_outer_slowmo;
    rule.lr = 0.5;
    element e = {.lr = 0.1, .mean = 1, .state = {2}};
    apply(&rule, &e, false);
    cr_assert(fabs(e.state[0] - 1.5) < 1e-6 && fabs(e.state[1] - 10) < 1e-5 && e.x == e.state[0]);
    e.mean = 0.5;
    apply(&rule, &e, false);
    cr_assert(fabs(e.state[0] - 0.75) < 1e-6 && fabs(e.state[1] - 15) < 1e-5);
}

// A learning rate that has decayed to zero must give no NaN and lose no progress.
Test(outer, slowmo_takes_the_mean_where_the_learning_rate_is_zero) {
    element e = {.x = 4, .mean = 3, .state = {2, 5}};
    apply(&iso_outer_slowmo, &e, false);
    cr_assert(e.x == 3 && e.state[0] == 3 && e.state[1] == 5);
}

Test(outer, pull_sends_its_parameters_where_the_learning_rate_is_zero) {
    element e = {.x = 1, .state = {2, 5}};
    apply(&iso_outer_pull, &e, true);
    cr_assert_float_eq(e.x, 1.6, 1e-6);
    cr_assert(e.sent == e.x && e.state[0] == 2 && e.state[1] == 5);
}

// Without momentum, SlowMo and SGD with lr 1 are the mean.
Test(outer, without_momentum_they_are_the_mean) {
    const iso_outer *rules[] = {&iso_outer_sgd, &iso_outer_nesterov, &iso_outer_slowmo};
    for (int i = 0; i < 3; i++) {
        iso_outer rule = *rules[i];
        element e = {.f64 = true, .lr = 0.05, .x = 9, .mean = 0.3, .state = {0.7}};
        rule.lr = 1;
        rule.momentum = 0;
        apply(&rule, &e, false);
        cr_assert_float_eq(e.x, 0.3, 1e-12);
    }
}

// The first step of Adam is lr * sign(d), if eps is small.
Test(outer, first_step_of_adam_is_its_learning_rate) {
    for (int sign = -1; sign <= 1; sign += 2) {
        iso_outer rule = iso_outer_adam;
        element e = {.f64 = true, .mean = 1 + 0.2 * sign, .state = {1}};
        rule.eps = 1e-12;
        apply(&rule, &e, false);
        cr_assert_float_eq(e.x, 1 + 0.01 * sign, 1e-9);
    }
}

// EASGD (Zhang et al., 2015): x_i <- x_i - a (x_i - z);  z <- z + a sum(x_i - z), with x_i before
// the pull. Pull without momentum is that with lr = P a / (1 - a).
Test(outer, easgd_is_a_case_of_pull) {
    const double a = 0.1, x[] = {1, 2, 6}, z = 0.5;
    iso_outer rule = iso_outer_pull;
    element e[3];
    double expected = z, mean = 0;
    rule.mix = a;
    rule.momentum = 0;
    rule.lr = 3 * a / (1 - a);
    for (int r = 0; r < 3; r++) {
        e[r] = (element){.f64 = true, .lr = 0.05, .x = x[r], .state = {z}};
        apply(&rule, &e[r], true);
        cr_assert_float_eq(e[r].x, x[r] - a * (x[r] - z), 1e-12);
        expected += a * (x[r] - z);
        mean += e[r].sent / 3;
    }
    for (int r = 0; r < 3; r++) {
        e[r].mean = mean;
        apply(&rule, &e[r], false);
        cr_assert_float_eq(e[r].state[0], expected, 1e-12);
        cr_assert_float_eq(e[r].x, x[r] - a * (x[r] - z), 1e-12);
    }
}

// ---- Names and checks -----------------------------------------------------------------------------

Test(outer, names_are_found) {
    static const char *const names[] = {"mean", "sgd", "nesterov", "slowmo", "pull", "adam"};
    for (int i = 0; i < 6; i++) {
        const iso_outer *found = NULL;
        cr_assert_eq(iso_outer_parse(names[i], &found), ISO_OK);
        cr_assert_str_eq(found->name, names[i]);
        cr_assert_eq(iso__outer_check(found), ISO_OK);
    }
    const iso_outer *found;
    cr_assert_eq(iso_outer_parse("lion", &found), ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "\"lion\"") &&
              strstr(iso_last_error()->message, "nesterov"));
}

static void refused(iso_outer rule, const char *words) {
    cr_assert_eq(iso__outer_check(&rule), ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, words), "says %s", iso_last_error()->message);
}

Test(outer, bad_numbers_are_refused) {
    iso_outer rule = iso_outer_adam;
#define BAD(field, value, words)                                                                   \
    do {                                                                                           \
        iso_outer bad = rule;                                                                      \
        bad.field = (value);                                                                       \
        refused(bad, words);                                                                       \
    } while (0)
    BAD(name, NULL, "needs a name");
    BAD(name, "two words", "needs a name");
    BAD(merge, NULL, "merge is NULL");
    BAD(states, 5, "states is 5");
    BAD(lr, 0, "lr is 0");
    BAD(lr, NAN, "lr is nan");
    BAD(momentum, 1, "momentum is 1");
    BAD(momentum, -0.1, "momentum is -0.1");
    BAD(mix, 1.5, "mix is 1.5");
    BAD(beta2, 1, "beta2 is 1");
    BAD(eps, -1, "eps is -1");
}
