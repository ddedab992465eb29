// SPDX-License-Identifier: MIT
// AMSGrad, NAdam and maximize against torch.optim, in f32 and f64.
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
    golden = fixture_open("optim_small.txt");
}

static void teardown(void) {
    fixture_close(&golden);
    iso_device_destroy(&device);
    balance_check();
}

TestSuite(optim_small, .timeout = 60, .init = setup, .fini = teardown);

static iso_hyper golden_hyper(const char *name, const char *which) {
    int64_t count;
    const double *h = fixture_get(golden, name, which, &count);
    cr_assert_eq(count, 11);
    return (iso_hyper){.lr = h[0],
                       .momentum = h[1],
                       .weight_decay = h[2],
                       .beta1 = h[3],
                       .beta2 = h[4],
                       .alpha = h[5],
                       .rho = h[6],
                       .eps = h[7],
                       .amsgrad = h[8] != 0,
                       .maximize = h[9] != 0,
                       .momentum_decay = h[10]};
}

// The golden values are doubles. f32 rounds in each of 30 steps.
static void check_both(iso_optimizer_kind kind, const char *name) {
    golden_run run = {device, golden, kind, golden_hyper(name, "hyper"), name};
    golden_check(&run, ISO_F64, 1e-13);
    golden_check(&run, ISO_F32, 1e-5);
}

Test(optim_small, amsgrad_is_torchs) {
    check_both(ISO_ADAM, "adam_amsgrad");
    check_both(ISO_ADAM, "adam_amsgrad_all");
    check_both(ISO_ADAMW, "adamw_amsgrad");
}

Test(optim_small, nadam_is_torch_NAdam) {
    check_both(ISO_NADAM, "nadam");
    check_both(ISO_NADAM, "nadam_all");
    iso_hyper got = iso_hyper_default(ISO_NADAM), expected = golden_hyper("nadam", "default");
    cr_assert_eq(memcmp(&got, &expected, sizeof(got)), 0);
}

Test(optim_small, maximize_is_torchs) {
    check_both(ISO_SGD, "sgd_maximize");
    check_both(ISO_ADAM, "adam_maximize");
    check_both(ISO_ADAMW, "adamw_maximize");
    check_both(ISO_ADADELTA, "adadelta_maximize");
    check_both(ISO_ADAGRAD, "adagrad_maximize");
    check_both(ISO_RMSPROP, "rmsprop_maximize");
}

// Of the others too, which PyTorch lacks: the gradient with the other sign.
Test(optim_small, maximize_is_minimizing_the_negative) {
    for (int kind = ISO_SGD; kind <= ISO_NADAM; kind++) {
        iso_module *bag[2] = {bag_create(device), bag_create(device)};
        double values[2][BAG_ELEMENTS], negative[BAG_ELEMENTS];
        for (int b = 0; b < 2; b++) {
            iso_hyper hyper = iso_hyper_default((iso_optimizer_kind)kind);
            iso_optimizer *optimizer;
            hyper.maximize = b == 1;
            bag_set_values(bag[b], fixture_get(golden, NULL, "start", NULL));
            cr_assert_eq(iso_optimizer_create((iso_optimizer_kind)kind, bag[b], &hyper, &optimizer),
                         ISO_OK);
            const double *gradient = fixture_get(golden, "gradient", "1", NULL);
            for (int i = 0; i < BAG_ELEMENTS; i++) negative[i] = -gradient[i];
            bag_set_gradients(bag[b], b == 1 ? negative : gradient);
            for (int t = 0; t < 3; t++) cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
            bag_get_values(bag[b], values[b]);
            iso_optimizer_destroy(&optimizer);
        }
        cr_assert_eq(memcmp(values[0], values[1], sizeof(values[0])), 0, "kind %d", kind);
        for (int b = 0; b < 2; b++) iso_module_destroy(&bag[b]);
    }
}

static bool is_first(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return name[strlen(name) - 1] == '0';
}

Test(optim_small, amsgrad_is_chosen_at_creation_for_all_groups) {
    iso_module *bag = bag_create(device);
    for (int ams = 0; ams < 2; ams++) {
        iso_optimizer *optimizer;
        iso_hyper hyper = iso_hyper_default(ISO_ADAM);
        hyper.amsgrad = ams == 1;
        cr_assert_eq(iso_optimizer_create(ISO_ADAM, bag, &hyper, &optimizer), ISO_OK);
        hyper.amsgrad = ams == 0;
        cr_assert_eq(iso_optimizer_add_group(optimizer, &hyper, is_first, NULL, NULL), ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message, "amsgrad"), "%s", iso_last_error()->message);
        golden_set_gradients(golden, bag, 0);
        iso_optimizer_hyper(optimizer)->amsgrad = ams == 0;
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_ERR_ARG);
        iso_optimizer_hyper(optimizer)->amsgrad = ams == 1;
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
        iso_optimizer_destroy(&optimizer);
    }
    iso_module_destroy(&bag);
}
