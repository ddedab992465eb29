// SPDX-License-Identifier: MIT
// Adagrad and RMSprop against torch.optim, and LAMB against its paper, in f32 and f64.
#include "common/bag_fixture.h"
#include "common/balance.h"
#include "common/optim_golden.h"
#include "optim/optim_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static iso_device *device;
static fixture *golden;

static void setup(void) {
    cr_assert_eq(iso_device_create("cpu", &device), ISO_OK);
    golden = fixture_open("optim_more.txt");
}

static void teardown(void) {
    fixture_close(&golden);
    iso_device_destroy(&device);
    balance_check();
}

TestSuite(optim_more, .timeout = 60, .init = setup, .fini = teardown);

static iso_hyper golden_hyper(const char *name, const char *which) {
    int64_t count;
    const double *h = fixture_get(golden, name, which, &count);
    cr_assert_eq(count, 10);
    return (iso_hyper){.lr = h[0],
                       .momentum = h[1],
                       .weight_decay = h[2],
                       .beta1 = h[3],
                       .beta2 = h[4],
                       .alpha = h[5],
                       .eps = h[6],
                       .centered = h[7] != 0,
                       .lr_decay = h[8],
                       .initial_accumulator_value = h[9]};
}

// The golden values are doubles. f32 rounds in each of 30 steps.
static void check_both(iso_optimizer_kind kind, const char *name) {
    golden_run run = {device, golden, kind, golden_hyper(name, "hyper"), name};
    golden_check(&run, ISO_F64, 1e-13);
    golden_check(&run, ISO_F32, 3e-6);
}

Test(optim_more, adagrad_is_torch_Adagrad) { check_both(ISO_ADAGRAD, "adagrad"); }
Test(optim_more, adagrad_with_every_option_is_torch_Adagrad) {
    check_both(ISO_ADAGRAD, "adagrad_all");
}
Test(optim_more, rmsprop_is_torch_RMSprop) { check_both(ISO_RMSPROP, "rmsprop"); }
Test(optim_more, rmsprop_with_weight_decay_is_torch_RMSprop) {
    check_both(ISO_RMSPROP, "rmsprop_decay");
}
Test(optim_more, rmsprop_with_momentum_is_torch_RMSprop) {
    check_both(ISO_RMSPROP, "rmsprop_momentum");
}
Test(optim_more, centered_rmsprop_is_torch_RMSprop) { check_both(ISO_RMSPROP, "rmsprop_centered"); }
Test(optim_more, rmsprop_with_every_option_is_torch_RMSprop) {
    check_both(ISO_RMSPROP, "rmsprop_all");
}
Test(optim_more, lamb_is_that_of_the_paper) { check_both(ISO_LAMB, "lamb"); }
Test(optim_more, lamb_with_other_settings_is_that_of_the_paper) {
    check_both(ISO_LAMB, "lamb_other");
}
Test(optim_more, lamb_without_weight_decay_is_that_of_the_paper) {
    check_both(ISO_LAMB, "lamb_plain");
}

Test(optim_more, defaults_are_those_of_torch) {
    for (int kind = ISO_ADAGRAD; kind <= ISO_RMSPROP; kind++) {
        iso_hyper got = iso_hyper_default((iso_optimizer_kind)kind);
        iso_hyper expected =
            golden_hyper(iso_optimizer_kind_name((iso_optimizer_kind)kind), "default");
        cr_assert_eq(memcmp(&got, &expected, sizeof(got)), 0, "kind %d", kind);
    }
}

// ---- Properties -----------------------------------------------------------------------------------

// A gradient that never changes has no variance: rounding must not make it negative, and sqrt NaN.
Test(optim_more, centered_rmsprop_bears_constant_gradients) {
    static const double gradient[BAG_ELEMENTS] = {
        [0] = 0.1, [1] = 1e-4, [2] = 3.3, [9] = 1e3, [40] = -7e-3, [100] = 0.7, [161] = 1e-12};
    iso_module *bag = bag_create(device);
    iso_optimizer *optimizer;
    iso_hyper hyper = iso_hyper_default(ISO_RMSPROP);
    double got[BAG_ELEMENTS];
    hyper.centered = true;
    hyper.alpha = 0.5;
    hyper.lr = 1e-9;
    cr_assert_eq(iso_optimizer_create(ISO_RMSPROP, bag, &hyper, &optimizer), ISO_OK);
    for (int t = 0; t < 200; t++) {
        bag_set_gradients(bag, gradient);
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    }
    bag_get_values(bag, got);
    for (int i = 0; i < BAG_ELEMENTS; i++) cr_assert(isfinite(got[i]), "element %d", i);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

// LAMB moves every parameter by lr times its own norm, whatever the size of its gradient.
Test(optim_more, lamb_moves_each_parameter_by_lr_of_its_norm) {
    iso_module *bag = bag_create(device);
    iso_optimizer *optimizer;
    iso_hyper hyper = iso_hyper_default(ISO_LAMB);
    double before[BAG_ELEMENTS], after[BAG_ELEMENTS];
    hyper.lr = 0.125;
    bag_set_values(bag, fixture_get(golden, NULL, "start", NULL));
    bag_get_values(bag, before);
    cr_assert_eq(iso_optimizer_create(ISO_LAMB, bag, &hyper, &optimizer), ISO_OK);
    golden_set_gradients(golden, bag, 7);
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    bag_get_values(bag, after);
    for (int i = 0, k = 0; i < BAG_PARAMETERS; i++) {
        double norm = 0, moved = 0;
        for (int64_t end = k + bag->parameter[i]->value->count; k < end; k++) {
            norm += before[k] * before[k];
            moved += (after[k] - before[k]) * (after[k] - before[k]);
        }
        if (i != 3) // which begins as zeros: there the ratio is 1
            cr_assert_float_eq(sqrt(moved), 0.125 * sqrt(norm), 1e-6 * sqrt(norm), "p%d", i);
        else
            cr_assert(moved > 0);
    }
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}
