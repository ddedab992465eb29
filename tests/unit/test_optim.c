// SPDX-License-Identifier: MIT
// Optimizers against torch.optim, and what holds for every one of them.
#include "common/bag_fixture.h"
#include "common/balance.h"
#include "common/fixture.h"
#include "optim/optim_impl.h"

#include <isotherm/trace.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define PARAMETERS BAG_PARAMETERS
#define ELEMENTS   BAG_ELEMENTS
#define STEPS      10

static iso_device *device;
static fixture *golden;

static iso_module *new_bag(void) { return bag_create(device); }

// The gradients of update t (0-based), the same for all optimizers.
static void set_golden_gradients(iso_module *bag, int t) {
    char name[] = {(char)('0' + t), 0};
    bag_set_gradients(bag, fixture_get(golden, "gradient", name, NULL));
}

static void setup(void) {
    cr_assert_eq(iso_device_create("cpu", &device), ISO_OK);
    golden = fixture_open("optim.txt");
}

static void teardown(void) {
    fixture_close(&golden);
    iso_device_destroy(&device);
    balance_check();
}

TestSuite(optim, .timeout = 60, .init = setup, .fini = teardown);

// ---- Golden values --------------------------------------------------------------------------------

static iso_hyper golden_hyper(const char *name, const char *which) {
    int64_t count;
    const double *h = fixture_get(golden, name, which, &count);
    cr_assert_eq(count, 9);
    return (iso_hyper){.lr = h[0],
                       .momentum = h[1],
                       .dampening = h[2],
                       .weight_decay = h[3],
                       .beta1 = h[4],
                       .beta2 = h[5],
                       .rho = h[6],
                       .eps = h[7],
                       .nesterov = h[8] != 0};
}

// Ten updates of float32 in another order of operations: a few units in the last place of numbers
// near 1.
static void compare_values(iso_module *bag, const char *name, const char *when) {
    const double *expected = fixture_get(golden, name, when, NULL);
    double got[ELEMENTS];
    bag_get_values(bag, got);
    for (int i = 0; i < ELEMENTS; i++)
        cr_assert(fabs(got[i] - expected[i]) <= 1e-6 * fmax(1, fabs(expected[i])),
                  "%s %s: element %d is %.9g, not %.9g", name, when, i, got[i], expected[i]);
}

static void check_golden(iso_optimizer_kind kind, const char *name) {
    iso_module *bag = new_bag();
    iso_optimizer *optimizer;
    iso_hyper hyper = golden_hyper(name, "hyper");
    bag_set_values(bag, fixture_get(golden, NULL, "start", NULL));
    cr_assert_eq(iso_optimizer_create(kind, bag, &hyper, &optimizer), ISO_OK);
    for (int t = 0; t < STEPS; t++) {
        set_golden_gradients(bag, t);
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
        if (t == 0) compare_values(bag, name, "after1");
    }
    compare_values(bag, name, "after10");
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

Test(optim, sgd_is_torch_SGD) { check_golden(ISO_SGD, "sgd"); }
Test(optim, sgd_with_weight_decay_is_torch_SGD) { check_golden(ISO_SGD, "sgd_decay"); }
Test(optim, sgd_with_momentum_is_torch_SGD) { check_golden(ISO_SGD, "sgd_momentum"); }
Test(optim, sgd_with_momentum_and_weight_decay_is_torch_SGD) {
    check_golden(ISO_SGD, "sgd_momentum_decay");
}
Test(optim, sgd_with_dampening_is_torch_SGD) { check_golden(ISO_SGD, "sgd_dampening"); }
Test(optim, sgd_with_nesterov_is_torch_SGD) { check_golden(ISO_SGD, "sgd_nesterov"); }
Test(optim, adam_is_torch_Adam) { check_golden(ISO_ADAM, "adam"); }
Test(optim, adam_with_weight_decay_is_torch_Adam) { check_golden(ISO_ADAM, "adam_decay"); }
Test(optim, adamw_is_torch_AdamW) { check_golden(ISO_ADAMW, "adamw"); }
Test(optim, adadelta_is_torch_Adadelta) { check_golden(ISO_ADADELTA, "adadelta"); }
Test(optim, adadelta_with_weight_decay_is_torch_Adadelta) {
    check_golden(ISO_ADADELTA, "adadelta_decay");
}

Test(optim, defaults_are_those_of_torch) {
    for (int kind = ISO_SGD; kind <= ISO_ADADELTA; kind++) {
        const char *name = iso_optimizer_kind_name((iso_optimizer_kind)kind);
        iso_hyper expected = golden_hyper(name, "default");
        iso_hyper got = iso_hyper_default((iso_optimizer_kind)kind);
        cr_assert_eq(memcmp(&got, &expected, sizeof(got)), 0, "%s", name);
    }
}

// ---- What holds for every optimizer ---------------------------------------------------------------

// Settings under which every term of every formula counts.
static iso_hyper full_hyper(iso_optimizer_kind kind) {
    iso_hyper hyper = iso_hyper_default(kind);
    hyper.lr = 0.1;
    hyper.weight_decay = 0.05;
    hyper.momentum = 0.9;
    hyper.centered = true;
    hyper.lr_decay = 0.05;
    return hyper;
}

static iso_optimizer *new_optimizer(iso_optimizer_kind kind, iso_module *bag) {
    iso_optimizer *optimizer;
    iso_hyper hyper = full_hyper(kind);
    cr_assert_eq(iso_optimizer_create(kind, bag, &hyper, &optimizer), ISO_OK);
    return optimizer;
}

// Three updates of every parameter by ops->update, in an order that changes, from gradients that
// were multiplied by `up` and are to be scaled by `scale`.
static void update_one_by_one(iso_optimizer_kind kind, double up, double scale, double *out) {
    static const int order[3][PARAMETERS] = {
        {6, 5, 4, 3, 2, 1, 0}, {3, 0, 6, 1, 5, 2, 4}, {0, 1, 2, 3, 4, 5, 6}};
    iso_module *bag = new_bag();
    iso_optimizer *optimizer = new_optimizer(kind, bag);
    iso_hyper hyper = optimizer->hyper;
    optimizer->hyper = (iso_hyper){.lr = 1e9, .step = 77};
    bag_set_values(bag, fixture_get(golden, NULL, "start", NULL));
    for (int t = 0; t < 3; t++) {
        hyper.step = t + 1;
        set_golden_gradients(bag, t);
        for (int k = 0; k < PARAMETERS; k++) {
            iso_tensor *grad = bag->parameter[order[t][k]]->grad;
            float gradient[64];
            for (int64_t i = 0; i < grad->count; i++)
                gradient[i] = (float)(((float *)grad->data)[i] * up);
            cr_assert_eq(optimizer->ops->update(optimizer, order[t][k], gradient, scale, &hyper),
                         ISO_OK);
        }
    }
    bag_get_values(bag, out);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

static void update_by_step(iso_optimizer_kind kind, double *out) {
    iso_module *bag = new_bag();
    iso_optimizer *optimizer = new_optimizer(kind, bag);
    bag_set_values(bag, fixture_get(golden, NULL, "start", NULL));
    for (int t = 0; t < 3; t++) {
        set_golden_gradients(bag, t);
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    }
    bag_get_values(bag, out);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

Test(optim, update_of_each_parameter_in_any_order_equals_step_bit_for_bit) {
    for (int kind = ISO_SGD; kind <= ISO_NADAM; kind++) {
        double whole[ELEMENTS], single[ELEMENTS];
        update_by_step((iso_optimizer_kind)kind, whole);
        update_one_by_one((iso_optimizer_kind)kind, 1, 1, single);
        cr_assert_eq(memcmp(whole, single, sizeof(whole)), 0, "kind %d", kind);
    }
}

// Powers of two, so that scaling does not round.
Test(optim, update_scales_the_gradient_it_is_given) {
    for (int kind = ISO_SGD; kind <= ISO_NADAM; kind++) {
        double whole[ELEMENTS], scaled[ELEMENTS];
        update_by_step((iso_optimizer_kind)kind, whole);
        update_one_by_one((iso_optimizer_kind)kind, 8, 0.125, scaled);
        cr_assert_eq(memcmp(whole, scaled, sizeof(whole)), 0, "kind %d", kind);
    }
}

// Every parameter of the bag = value, every gradient = gradient.
static void fill(iso_module *bag, double value, double gradient) {
    for (int i = 0; i < PARAMETERS; i++) {
        cr_assert_eq(iso_tensor_fill(bag->parameter[i]->value, value), ISO_OK);
        cr_assert_eq(iso_tensor_fill(bag->parameter[i]->grad, gradient), ISO_OK);
        bag->parameter[i]->grad_valid = true;
    }
}

static void check_all(iso_module *bag, float expected) {
    double got[ELEMENTS];
    bag_get_values(bag, got);
    for (int i = 0; i < ELEMENTS; i++)
        cr_assert_eq(got[i], expected, "element %d is %g, not %g", i, got[i], (double)expected);
}

Test(optim, hyperparameters_changed_between_steps_take_effect) {
    iso_module *bag = new_bag();
    iso_optimizer *optimizer;
    iso_hyper hyper = {.lr = 0.5};
    cr_assert_eq(iso_optimizer_create(ISO_SGD, bag, &hyper, &optimizer), ISO_OK);
    fill(bag, 4, 1);
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    check_all(bag, 3.5f);
    optimizer->hyper.lr = 0.25;
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    check_all(bag, 3.25f);
    // Momentum that was 0 at creation: its buffer starts from zero, then 1 and 0.5 * 1 + 1.
    iso_optimizer_hyper(optimizer)->momentum = 0.5;
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    check_all(bag, 3.0f);
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    check_all(bag, 2.625f);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

Test(optim, step_counts_from_one_whatever_the_given_count) {
    iso_module *bag = new_bag();
    iso_optimizer *optimizer;
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    hyper.step = 41;
    cr_assert_eq(iso_optimizer_create(ISO_ADAM, bag, &hyper, &optimizer), ISO_OK);
    for (int t = 1; t <= 3; t++) {
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
        cr_assert_eq(iso_optimizer_hyper(optimizer)->step, t);
    }
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

Test(optim, gradient_flagged_as_zero_counts_as_zero) {
    iso_module *bag = new_bag();
    iso_optimizer *optimizer;
    iso_hyper hyper = {.lr = 0.5, .weight_decay = 0.5};
    cr_assert_eq(iso_optimizer_create(ISO_SGD, bag, &hyper, &optimizer), ISO_OK);
    fill(bag, 4, 1000);
    iso_optimizer_zero_grad(optimizer);
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    check_all(bag, 3); // 4 - 0.5 * (0 + 0.5 * 4): updated, by its decay alone
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

Test(optim, frozen_parameters_are_left_alone) {
    iso_module *bag = new_bag();
    bag->parameter[0]->requires_grad = bag->parameter[3]->requires_grad = false;
    iso_optimizer *optimizer = new_optimizer(ISO_ADAMW, bag);
    cr_assert_eq(iso__optimizer_innermost(optimizer)->count, PARAMETERS - 2);
    fill(bag, 2, 1);
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    for (int i = 0; i < PARAMETERS; i++) {
        float first = *(float *)bag->parameter[i]->value->data;
        cr_assert_eq(first == 2, i == 0 || i == 3, "parameter %d is %g", i, first);
    }
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

Test(optim, step_allocates_nothing) {
    for (int kind = ISO_SGD; kind <= ISO_NADAM; kind++) {
        iso_module *bag = new_bag();
        iso_optimizer *optimizer = new_optimizer((iso_optimizer_kind)kind, bag);
        long long before, after;
        iso_memory_balance(NULL, NULL, &before);
        for (int t = 0; t < 3; t++) cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
        iso_memory_balance(NULL, NULL, &after);
        cr_assert_eq(after, before, "kind %d", kind);
        iso_optimizer_destroy(&optimizer);
        iso_module_destroy(&bag);
    }
}

Test(optim, trace_shows_each_update_by_its_parameters_name) {
    iso_module *bag = new_bag();
    iso_optimizer *optimizer = new_optimizer(ISO_SGD, bag);
    char *text;
    size_t size;
    cr_assert_eq(iso_trace_start(100), ISO_OK);
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    cr_assert_eq(iso_trace_text(0, &text, &size), ISO_OK);
    for (int i = 0; i < PARAMETERS; i++) {
        char name[] = {'"', 'p', (char)('0' + i), '"', 0};
        cr_assert_not_null(strstr(text, name), "no span named %s", name);
    }
    iso_trace_free_text(text);
    iso_trace_stop();
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

// ---- Bad input ------------------------------------------------------------------------------------

static void check_refused(iso_optimizer_kind kind, iso_module *module, iso_hyper hyper,
                          const char *text) {
    iso_optimizer *untouched = (iso_optimizer *)&hyper, *optimizer = untouched;
    cr_assert_eq(iso_optimizer_create(kind, module, &hyper, &optimizer), ISO_ERR_ARG,
                 "%s was accepted", text);
    cr_assert_eq(optimizer, untouched);
    cr_assert_not_null(strstr(iso_last_error()->message, text), "\"%s\" says nothing of \"%s\"",
                       iso_last_error()->message, text);
}

#define REFUSED(kind, text, ...)                                                                   \
    do {                                                                                           \
        iso_hyper hyper = iso_hyper_default(kind);                                                 \
        __VA_ARGS__;                                                                               \
        check_refused(kind, bag, hyper, text);                                                     \
    } while (0)

Test(optim, no_hyperparameters_means_the_defaults) {
    iso_module *bag = new_bag();
    for (int kind = ISO_SGD; kind <= ISO_NADAM; kind++) {
        iso_optimizer *optimizer;
        iso_hyper hyper = iso_hyper_default((iso_optimizer_kind)kind);
        cr_assert_eq(iso_optimizer_create((iso_optimizer_kind)kind, bag, NULL, &optimizer), ISO_OK);
        cr_assert_eq(memcmp(iso_optimizer_hyper(optimizer), &hyper, sizeof(hyper)), 0);
        iso_optimizer_destroy(&optimizer);
    }
    iso_module_destroy(&bag);
}

// Before each update, the schedule's value for just that update.
Test(optim, schedule_steps_with_the_optimizer) {
    iso_module *bag = new_bag();
    iso_optimizer *optimizer;
    iso_schedule schedule = iso_schedule_default(ISO_SCHEDULE_LINEAR, 0.5, 4);
    cr_assert_eq(iso_optimizer_create(ISO_SGD, bag, NULL, &optimizer), ISO_OK);
    for (int t = 0; t < 4; t++) {
        iso_schedule_step(&schedule, optimizer);
        cr_assert_eq(iso_optimizer_hyper(optimizer)->lr, 0.5 * (1 - t / 4.0));
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    }
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

Test(optim, hyperparameters_that_torch_refuses_are_refused) {
    iso_module *bag = new_bag();
    for (int i = ISO_SGD; i <= ISO_NADAM; i++) {
        iso_optimizer_kind kind = (iso_optimizer_kind)i;
        REFUSED(kind, "rate -0.5", hyper.lr = -0.5);
        REFUSED(kind, "rate nan", hyper.lr = NAN);
        REFUSED(kind, "decay -1", hyper.weight_decay = -1);
    }
    REFUSED(ISO_SGD, "rate inf", hyper.lr = INFINITY);
    REFUSED(ISO_SGD, "dampening nan", hyper.momentum = 0.9, hyper.dampening = NAN);
    REFUSED(ISO_ADAM, "decay inf", hyper.weight_decay = INFINITY);
    REFUSED(ISO_NADAM, "momentum_decay inf", hyper.momentum_decay = INFINITY);
    REFUSED(ISO_SGD, "momentum -0.1", hyper.momentum = -0.1);
    REFUSED(ISO_SGD, "Nesterov", hyper.nesterov = true);
    REFUSED(ISO_SGD, "Nesterov", hyper.nesterov = true, hyper.momentum = hyper.dampening = 0.5);
    REFUSED(ISO_ADAM, "beta1 1", hyper.beta1 = 1);
    REFUSED(ISO_ADAM, "beta1 -0.1", hyper.beta1 = -0.1);
    REFUSED(ISO_ADAM, "beta2 1.5", hyper.beta2 = 1.5);
    REFUSED(ISO_ADAMW, "beta2 -1", hyper.beta2 = -1);
    REFUSED(ISO_ADAM, "eps -1", hyper.eps = -1);
    REFUSED(ISO_ADADELTA, "rho 1.1", hyper.rho = 1.1);
    REFUSED(ISO_ADADELTA, "rho -0.1", hyper.rho = -0.1);
    REFUSED(ISO_ADADELTA, "eps -1", hyper.eps = -1);
    REFUSED(ISO_ADAGRAD, "lr_decay -1", hyper.lr_decay = -1);
    REFUSED(ISO_ADAGRAD, "initial_accumulator_value -1", hyper.initial_accumulator_value = -1);
    REFUSED(ISO_ADAGRAD, "eps -1", hyper.eps = -1);
    REFUSED(ISO_RMSPROP, "alpha -0.1", hyper.alpha = -0.1);
    REFUSED(ISO_RMSPROP, "momentum -1", hyper.momentum = -1);
    REFUSED(ISO_RMSPROP, "eps -1", hyper.eps = -1);
    REFUSED(ISO_LAMB, "beta1 1", hyper.beta1 = 1);
    REFUSED(ISO_LAMB, "beta2 -1", hyper.beta2 = -1);
    REFUSED(ISO_LAMB, "eps -1", hyper.eps = -1);
    REFUSED(ISO_NADAM, "beta1 1", hyper.beta1 = 1);
    REFUSED(ISO_NADAM, "momentum_decay -1", hyper.momentum_decay = -1);
    iso_module_destroy(&bag);
}

static void check_accepted(iso_optimizer_kind kind, iso_module *module, iso_hyper hyper) {
    iso_optimizer *optimizer;
    cr_assert_eq(iso_optimizer_create(kind, module, &hyper, &optimizer), ISO_OK, "%s",
                 iso_last_error()->message);
    iso_optimizer_destroy(&optimizer);
}

Test(optim, limits_of_the_allowed_ranges_are_accepted) {
    iso_module *bag = new_bag();
    check_accepted(ISO_SGD, bag, (iso_hyper){0});
    check_accepted(ISO_SGD, bag, (iso_hyper){.momentum = 0.5, .nesterov = true});
    check_accepted(ISO_ADAM, bag, (iso_hyper){0});
    check_accepted(ISO_ADADELTA, bag, (iso_hyper){.rho = 1});
    iso_module_destroy(&bag);
}

Test(optim, module_without_trainable_parameters_is_refused) {
    iso_module *bag = new_bag();
    for (int i = 0; i < PARAMETERS; i++) bag->parameter[i]->requires_grad = false;
    REFUSED(ISO_ADAM, "nothing requires a gradient", (void)0);
    iso_module_destroy(&bag);
}

Test(optim, names_are_parsed_and_unknown_ones_refused) {
    iso_optimizer_kind kind;
    for (int i = ISO_SGD; i <= ISO_NADAM; i++) {
        const char *name = iso_optimizer_kind_name((iso_optimizer_kind)i);
        cr_assert_eq(iso_optimizer_kind_parse(name, &kind), ISO_OK);
        cr_assert_eq((int)kind, i);
    }
    cr_assert_str_eq(iso_optimizer_kind_name(ISO_ADAMW), "adamw");
    cr_assert_eq(iso_optimizer_kind_parse("newton", &kind), ISO_ERR_ARG);
    cr_assert_not_null(strstr(iso_last_error()->message, "newton"));
    cr_assert_not_null(strstr(iso_last_error()->message, "adadelta"));
}

Test(optim, destroy_accepts_null) {
    iso_optimizer *optimizer = NULL;
    iso_optimizer_destroy(&optimizer);
    cr_assert_null(optimizer);
}
