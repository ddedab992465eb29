// SPDX-License-Identifier: MIT
// Groups of parameters against PyTorch's param_groups, and what is refused of them.
#include "common/bag_fixture.h"
#include "common/balance.h"
#include "common/fixture.h"
#include "optim/optim_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define STEPS 30

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

TestSuite(param_groups, .timeout = 60, .init = setup, .fini = teardown);

// Whether the digit in "pN" is among those of user.
static bool named(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter;
    return strchr(user, name[1]) != NULL;
}

#define SECOND "025" // of the fixture

// ---- Golden values --------------------------------------------------------------------------------

static void check_golden(const char *name, iso_optimizer_kind kind, iso_hyper first,
                         iso_hyper second, const iso_schedule *schedule) {
    iso_module *bag = bag_create(device);
    iso_optimizer *optimizer;
    int group = -1;
    const double *lr = fixture_get(golden, name, "lr", NULL);
    const double *after = fixture_get(golden, name, "after", NULL);
    double got[BAG_ELEMENTS];
    cr_assert_eq(iso_module_to(bag, ISO_F64), ISO_OK);
    bag_set_values(bag, fixture_get(golden, NULL, "start", NULL));
    cr_assert_eq(iso_optimizer_create(kind, bag, &first, &optimizer), ISO_OK);
    cr_assert_eq(iso_optimizer_add_group(optimizer, &second, named, SECOND, &group), ISO_OK);
    cr_assert_eq(group, 1);
    for (int t = 0; t < STEPS; t++) {
        char number[12];
        snprintf(number, sizeof(number), "%d", t);
        iso_schedule_step(schedule, optimizer);
        for (int g = 0; g < 2; g++)
            cr_assert_float_eq(iso_optimizer_group_hyper(optimizer, g)->lr, lr[2 * t + g], 1e-15);
        bag_set_gradients(bag, fixture_get(golden, "gradient", number, NULL));
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    }
    bag_get_values(bag, got);
    for (int i = 0; i < BAG_ELEMENTS; i++)
        cr_assert(fabs(got[i] - after[i]) <= 1e-13 * fmax(1, fabs(after[i])),
                  "%s: element %d is %.17g, not %.17g", name, i, got[i], after[i]);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

Test(param_groups, sgd_with_cosine_is_torchs) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_COSINE, 0.1, 40);
    s.eta_min = 1e-3;
    check_golden("groups_sgd", ISO_SGD, (iso_hyper){.lr = 0.1, .momentum = 0.9},
                 (iso_hyper){.lr = 0.02, .momentum = 0.5}, &s);
}

Test(param_groups, adamw_without_decay_for_some_is_torchs) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_STEP, 0.1, 0);
    s.step_size = 4;
    s.gamma = 0.5;
    iso_hyper first = iso_hyper_default(ISO_ADAMW), second = first;
    first.lr = 0.1;
    first.weight_decay = 0.2;
    second.lr = 0.03;
    second.weight_decay = 0;
    check_golden("groups_adamw", ISO_ADAMW, first, second, &s);
}

static double fall(int64_t t, int group, void *user) {
    (void)user;
    return pow(group == 0 ? 0.9 : 0.8, (double)t);
}

Test(param_groups, adagrad_with_a_lambda_of_each_group_is_torchs) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_LAMBDA, 0.1, 0);
    s.factor = fall;
    iso_hyper first = iso_hyper_default(ISO_ADAGRAD), second = first;
    first.lr = 0.1;
    first.weight_decay = 0.1;
    second.lr = 0.3;
    second.lr_decay = 0.1;
    check_golden("groups_adagrad", ISO_ADAGRAD, first, second, &s);
}

Test(param_groups, one_cycle_gives_each_group_its_own_maximum_as_torch) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 0.1, 40);
    check_golden("groups_one_cycle", ISO_SGD, (iso_hyper){.lr = 0.1, .momentum = 0.9},
                 (iso_hyper){.lr = 0.02, .momentum = 0.9, .weight_decay = 0.1}, &s);
}

Test(param_groups, warmup_then_exponential_is_torchs) {
    iso_schedule s = iso_schedule_default(ISO_SCHEDULE_EXPONENTIAL, 0.1, 0);
    s.gamma = 0.95;
    s.warmup_steps = 6;
    check_golden("groups_warmup", ISO_SGD, (iso_hyper){.lr = 0.1, .momentum = 0.9},
                 (iso_hyper){.lr = 0.02, .momentum = 0.9, .weight_decay = 0.1}, &s);
}

// ---- Properties -----------------------------------------------------------------------------------

static iso_optimizer *adam_of(iso_module *bag) {
    iso_optimizer *optimizer;
    cr_assert_eq(iso_optimizer_create(ISO_ADAM, bag, NULL, &optimizer), ISO_OK);
    return optimizer;
}

// Groups that have the same hyperparameters are one group, bit for bit.
Test(param_groups, equal_groups_are_one_group) {
    double got[2][BAG_ELEMENTS];
    for (int grouped = 0; grouped < 2; grouped++) {
        iso_module *bag = bag_create(device);
        bag_set_values(bag, fixture_get(golden, NULL, "start", NULL));
        iso_optimizer *optimizer = adam_of(bag);
        iso_hyper same = iso_hyper_default(ISO_ADAM);
        for (int g = 0; grouped && g < 3; g++)
            cr_assert_eq(iso_optimizer_add_group(optimizer, &same, named,
                                                 (char *[]){"13", "3560", "2"}[g], NULL),
                         ISO_OK);
        for (int t = 0; t < 3; t++) {
            bag_set_gradients(bag, fixture_get(golden, "gradient", "3", NULL));
            cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
        }
        bag_get_values(bag, got[grouped]);
        iso_optimizer_destroy(&optimizer);
        iso_module_destroy(&bag);
    }
    cr_assert_eq(memcmp(got[0], got[1], sizeof(got[0])), 0);
}

Test(param_groups, members_leave_group_0_only) {
    iso_module *bag = bag_create(device);
    iso_optimizer *optimizer = adam_of(bag);
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    cr_assert_eq(iso_optimizer_groups(optimizer), 1);
    hyper.lr = 0.5;
    iso_hyper *first = NULL;
    cr_assert_eq(iso_optimizer_add_group(optimizer, &hyper, named, "13", NULL), ISO_OK);
    first = iso_optimizer_group_hyper(optimizer, 1);
    hyper.lr = 0.25;
    cr_assert_eq(iso_optimizer_add_group(optimizer, &hyper, named, "3456", NULL), ISO_OK);
    cr_assert_eq(iso_optimizer_groups(optimizer), 3);
    static const int expected[] = {0, 1, 0, 1, 2, 2, 2};
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        char name[] = {'p', (char)('0' + i), 0};
        cr_assert_eq(iso_optimizer_group_of(optimizer, name), expected[i], "%s", name);
    }
    cr_assert_eq(iso_optimizer_group_of(optimizer, "p7"), -1);
    cr_assert_eq(first, iso_optimizer_group_hyper(optimizer, 1)); // pointers last
    cr_assert_eq(first->lr, 0.5);
    cr_assert_eq(iso_optimizer_group_hyper(optimizer, 2)->lr, 0.25);
    cr_assert_eq(iso_optimizer_group_hyper(optimizer, 0), iso_optimizer_hyper(optimizer));
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

Test(param_groups, all_groups_count_steps_together) {
    iso_module *bag = bag_create(device);
    iso_optimizer *optimizer = adam_of(bag);
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    hyper.step = 77; // of the caller's copy
    cr_assert_eq(iso_optimizer_add_group(optimizer, &hyper, named, "13", NULL), ISO_OK);
    for (int t = 1; t <= 3; t++) {
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
        for (int g = 0; g < 2; g++) cr_assert_eq(iso_optimizer_group_hyper(optimizer, g)->step, t);
    }
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

// Adagrad's sums begin at the value of their own group.
Test(param_groups, a_new_group_starts_its_state) {
    iso_module *bag = bag_create(device);
    iso_optimizer *optimizer;
    iso_hyper hyper = iso_hyper_default(ISO_ADAGRAD);
    hyper.initial_accumulator_value = 2;
    cr_assert_eq(iso_optimizer_create(ISO_ADAGRAD, bag, &hyper, &optimizer), ISO_OK);
    hyper.initial_accumulator_value = 5;
    cr_assert_eq(iso_optimizer_add_group(optimizer, &hyper, named, "25", NULL), ISO_OK);
    iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    for (int i = 0; i < core->count; i++) {
        const float *sum = iso__slot_state(core, &core->slot[i], 0);
        for (int64_t k = 0; k < core->slot[i].parameter->value->count; k++)
            cr_assert_eq(sum[k], i == 2 || i == 5 ? 5 : 2, "p%d", i);
    }
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}

// ---- Bad input ------------------------------------------------------------------------------------

static void refused(iso_optimizer *optimizer, const iso_hyper *hyper, char *members,
                    iso_status expected, const char *words) {
    int group = 55, groups = iso_optimizer_groups(optimizer);
    cr_assert_eq(iso_optimizer_add_group(optimizer, hyper, named, members, &group), expected,
                 "%s was accepted", words);
    cr_assert_not_null(strstr(iso_last_error()->message, words), "\"%s\" says nothing of \"%s\"",
                       iso_last_error()->message, words);
    cr_assert_eq(group, 55);
    cr_assert_eq(iso_optimizer_groups(optimizer), groups);
    cr_assert_eq(iso_optimizer_group_of(optimizer, "p2"), 0);
}

Test(param_groups, groups_that_cannot_be_are_refused) {
    iso_module *bag = bag_create(device);
    iso_optimizer *optimizer = adam_of(bag);
    iso_hyper good = iso_hyper_default(ISO_ADAM), bad = good;
    bad.beta1 = 1;
    refused(optimizer, &good, "789", ISO_ERR_ARG, "no parameter belongs to group 1");
    refused(optimizer, &good, "0123456", ISO_ERR_ARG, "none are left in group 0");
    refused(optimizer, &bad, "2", ISO_ERR_ARG, "beta1 1");
    cr_assert_eq(iso_optimizer_add_group(optimizer, &good, named, "01", NULL), ISO_OK);
    refused(optimizer, &good, "01", ISO_ERR_ARG, "no parameter belongs to group 2");
    // A hyperparameter of any group that has become bad is noticed at step().
    iso_optimizer_group_hyper(optimizer, 1)->lr = NAN;
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_ERR_ARG);
    iso_optimizer_group_hyper(optimizer, 1)->lr = 1;
    cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    refused(optimizer, &good, "2", ISO_ERR_STATE, "before its first step");
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}
