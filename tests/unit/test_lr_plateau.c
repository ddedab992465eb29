// SPDX-License-Identifier: MIT
// ReduceLROnPlateau against torch.optim.lr_scheduler, its state, and what it does to groups.
#include "common/bag_fixture.h"
#include "common/balance.h"
#include "common/fixture.h"

#include <isotherm/optim.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { VALUES = 60, STATE_AT = 29 }; // of the fixture

TestSuite(lr_plateau, .timeout = 60, .fini = balance_check);

static iso_lr_plateau make(iso_lr_plateau_config config) {
    iso_lr_plateau p;
    cr_assert_eq(iso_lr_plateau_init(&p, &config), ISO_OK);
    return p;
}

static void check_state(const double *state, const iso_plateau *p, const char *name) {
    cr_assert_eq(p->best, state[0], "%s", name);
    cr_assert_eq(p->bad, (int64_t)state[1], "%s", name);
    cr_assert_eq(p->cooldown_counter, (int64_t)state[2], "%s", name);
    cr_assert_eq(p->last_epoch, (int64_t)state[3], "%s", name);
}

static void check(const char *name, iso_lr_plateau_config config) {
    static const char *const metrics[] = {"falling", "negative", "nan"};
    fixture *f = fixture_open("lr_plateau.txt");
    for (int m = 0; m < 3; m++) {
        char key[64];
        const double *metric = fixture_get(f, "metric", metrics[m], NULL);
        snprintf(key, sizeof(key), "%s.%s", name, metrics[m]);
        const double *lr = fixture_get(f, key, "lr", NULL);
        iso_lr_plateau p = make(config);
        double now = 0.1;
        for (int i = 0; i < VALUES; i++) {
            if (iso_lr_plateau_test(&p, metric[i])) now = iso_lr_plateau_reduced(&p, now);
            cr_assert(fabs(now - lr[i]) <= 1e-15, "%s: value %d: lr %.17g, not %.17g", key, i, now,
                      lr[i]);
            if (i == STATE_AT) check_state(fixture_get(f, key, "state", NULL), &p.detector, key);
        }
    }
    fixture_close(&f);
}

static iso_lr_plateau_config config_of(double factor, int64_t patience) {
    iso_lr_plateau_config config = ISO_LR_PLATEAU_DEFAULT;
    config.factor = factor;
    config.plateau.patience = patience;
    return config;
}

#define GOLDEN(name, factor, patience, change)                                                     \
    Test(lr_plateau, name##_is_torchs) {                                                           \
        iso_lr_plateau_config c = config_of(factor, patience);                                     \
        change;                                                                                    \
        check(#name, c);                                                                           \
    }
GOLDEN(default, 0.1, 10, (void)c)
GOLDEN(min_rel, 0.5, 2, c.plateau.threshold = 0.02)
GOLDEN(min_abs, 0.3, 1, (c.plateau.threshold = 0.05, c.plateau.absolute = true))
GOLDEN(max_rel, 0.5, 2, (c.plateau.threshold = 0.02, c.plateau.max = true))
GOLDEN(max_abs, 0.9, 0,
       (c.plateau.threshold = 0.01, c.plateau.absolute = true, c.plateau.max = true))
GOLDEN(cooldown, 0.5, 1, c.plateau.cooldown = 3)
GOLDEN(min_lr, 0.1, 0, c.min_lr = 3e-3)
GOLDEN(eps, 0.5, 0, c.eps = 2e-3)

Test(lr_plateau, default_has_torchs_values) {
    iso_lr_plateau p = make((iso_lr_plateau_config)ISO_LR_PLATEAU_DEFAULT);
    cr_assert(p.factor == 0.1 && p.min_lr == 0 && p.eps == 1e-8);
    cr_assert(p.detector.config.patience == 10 && p.detector.config.threshold == 1e-4);
    cr_assert(!p.detector.config.max && !p.detector.config.absolute);
    cr_assert_eq(p.detector.config.cooldown, 0);
}

static bool is_p3(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return strcmp(name, "p3") == 0;
}

Test(lr_plateau, step_reduces_the_rates_of_all_groups) {
    iso_device *device;
    cr_assert_eq(iso_device_create("cpu", &device), ISO_OK);
    iso_module *bag = bag_create(device);
    iso_optimizer *optimizer;
    iso_hyper first = {.lr = 0.5}, second = {.lr = 0.25};
    cr_assert_eq(iso_optimizer_create(ISO_SGD, bag, &first, &optimizer), ISO_OK);
    cr_assert_eq(iso_optimizer_add_group(optimizer, &second, is_p3, NULL, NULL), ISO_OK);
    iso_lr_plateau_config config = config_of(0.5, 0);
    config.min_lr = 0.2;
    iso_lr_plateau p = make(config);
    cr_assert_not(iso_lr_plateau_step(&p, 1, optimizer));
    cr_assert_eq(iso_optimizer_hyper(optimizer)->lr, 0.5);
    cr_assert(iso_lr_plateau_step(&p, 1, optimizer));
    cr_assert_eq(iso_optimizer_group_hyper(optimizer, 0)->lr, 0.25);
    cr_assert_eq(iso_optimizer_group_hyper(optimizer, 1)->lr, 0.2);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
    iso_device_destroy(&device);
}

Test(lr_plateau, state_goes_on_as_the_original_and_reset_begins_again) {
    iso_lr_plateau_config config = config_of(0.5, 1);
    config.plateau.cooldown = 2;
    iso_lr_plateau p = make(config), copy = make(config_of(0.1, 7)), fresh = make(config);
    double metric[12] = {3, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2};
    for (int i = 0; i < 5; i++) iso_lr_plateau_test(&p, metric[i]);
    iso_lr_plateau state = iso_lr_plateau_get_state(&p);
    cr_assert_eq(iso_lr_plateau_set_state(&copy, &state), ISO_OK);
    int reductions = 0;
    for (int i = 5; i < 12; i++) {
        bool reduce = iso_lr_plateau_test(&p, metric[i]);
        cr_assert_eq(iso_lr_plateau_test(&copy, metric[i]), reduce);
        cr_assert_eq(iso_lr_plateau_reduced(&copy, 1), 0.5);
        reductions += reduce;
    }
    cr_assert_gt(reductions, 0);
    iso_lr_plateau_reset(&p);
    cr_assert_eq(p.detector.last_epoch, 12);
    for (int i = 0; i < 12; i++)
        cr_assert_eq(iso_lr_plateau_test(&p, metric[i]), iso_lr_plateau_test(&fresh, metric[i]));
}

static void refused(iso_lr_plateau_config config, const char *words) {
    iso_lr_plateau good = make(config_of(0.1, 1)), p = good;
    cr_assert_eq(iso_lr_plateau_init(&p, &config), ISO_ERR_ARG);
    cr_assert_not_null(strstr(iso_last_error()->message, words), "%s", iso_last_error()->message);
    iso_lr_plateau state = good;
    state.detector.config = config.plateau;
    state.factor = config.factor;
    state.min_lr = config.min_lr;
    state.eps = config.eps;
    cr_assert_eq(iso_lr_plateau_set_state(&p, &state), ISO_ERR_ARG);
    cr_assert(p.factor == good.factor && p.detector.config.patience == 1);
}

Test(lr_plateau, bad_settings_are_refused_by_name) {
    iso_lr_plateau_config c = ISO_LR_PLATEAU_DEFAULT;
    c.factor = 1;
    refused(c, "factor 1");
    c.factor = NAN;
    refused(c, "factor nan");
    c = (iso_lr_plateau_config)ISO_LR_PLATEAU_DEFAULT;
    c.min_lr = -1;
    refused(c, "min_lr -1");
    c = (iso_lr_plateau_config)ISO_LR_PLATEAU_DEFAULT;
    c.eps = -1;
    refused(c, "eps -1");
    c = (iso_lr_plateau_config)ISO_LR_PLATEAU_DEFAULT;
    c.plateau.patience = -1;
    refused(c, "patience is -1");
}
