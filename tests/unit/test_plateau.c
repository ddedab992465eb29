// SPDX-License-Identifier: MIT
// DetectMetricPlateau against the vectors of HeAT's own test, and its corner cases.
#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(plateau, .timeout = 60);

enum { COUNT = 16 };
// HeAT, tests/optim/test_utils.py, with patience 2.
static const double values[COUNT] = {1, .9, .8, .7, .8, .9, 1, 1.1, 1, .9, .8, .7, .6, .5, .4, .3};

static iso_plateau make(iso_plateau_config config) {
    iso_plateau p;
    cr_assert_eq(iso_plateau_init(&p, &config), ISO_OK);
    return p;
}

// "..x" for values that make no, no and a plateau.
static void check(iso_plateau_config config, const char *expected) {
    iso_plateau p = make(config);
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(iso_plateau_test(&p, values[i]), expected[i] == 'x', "value %d", i);
    cr_assert_eq(p.last_epoch, COUNT);
}

Test(plateau, min_abs_is_heats_vector) {
    check((iso_plateau_config){.absolute = true, .patience = 2, .threshold = 1e-4},
          "......x..x......");
}

Test(plateau, min_rel_with_cooldown_is_heats_vector) {
    check((iso_plateau_config){.patience = 2, .threshold = 1e-4, .cooldown = 1},
          "......x...x.....");
}

Test(plateau, max_abs_is_heats_vector) {
    check((iso_plateau_config){.max = true, .absolute = true, .patience = 2, .threshold = 1e-4},
          "...x..x...x..x..");
}

Test(plateau, max_rel_is_heats_vector) {
    check((iso_plateau_config){.max = true, .patience = 2, .threshold = 1e-4}, "...x..x...x..x..");
}

// Steps of 0.1 are no improvement where 0.15 is asked for: each best is two steps below the last.
Test(plateau, threshold_is_what_counts_as_better) {
    iso_plateau p = make((iso_plateau_config){.absolute = true, .patience = 9, .threshold = 0.15});
    for (int i = 0; i < 4; i++) iso_plateau_test(&p, values[i]); // 1, .9, .8, .7
    cr_assert_eq(p.best, .8);
    p = make((iso_plateau_config){.max = true, .patience = 9, .threshold = 0.15});
    for (int i = 3; i < 8; i++) iso_plateau_test(&p, values[i]); // .7, .8, .9, 1, 1.1
    cr_assert_eq(p.best, 1.1);
    cr_assert_eq(p.bad, 0);
}

Test(plateau, default_has_heats_values) {
    iso_plateau p = make(ISO_PLATEAU_DEFAULT);
    cr_assert(!p.config.max && !p.config.absolute);
    cr_assert_eq(p.config.patience, 10);
    cr_assert_eq(p.config.cooldown, 0);
    cr_assert_float_eq(p.config.threshold, 1e-4, 0);
    cr_assert(p.best == INFINITY);
}

Test(plateau, a_copy_goes_on_as_the_original) {
    iso_plateau p = make((iso_plateau_config){.patience = 1, .threshold = 1e-4, .cooldown = 2});
    for (int i = 0; i < 7; i++) iso_plateau_test(&p, values[i]);
    iso_plateau copy;
    memcpy(&copy, &p, sizeof(p));
    int plateaus = 0;
    for (int i = 7; i < COUNT; i++) {
        bool one = iso_plateau_test(&p, values[i]);
        cr_assert_eq(iso_plateau_test(&copy, values[i]), one, "value %d", i);
        plateaus += one;
    }
    cr_assert_gt(plateaus, 0);
    cr_assert_eq(copy.best, p.best);
}

// HeAT's test takes the state in the middle and sets it again.
Test(plateau, get_state_and_set_state_change_nothing) {
    iso_plateau p = make((iso_plateau_config){.patience = 2, .threshold = 1e-4, .cooldown = 1});
    iso_plateau other = make((iso_plateau_config){.max = true, .patience = 7});
    for (int i = 0; i < COUNT; i++) {
        iso_plateau state = iso_plateau_get_state(&p);
        cr_assert_eq(iso_plateau_set_state(&other, &state), ISO_OK);
        bool one = iso_plateau_test(&other, values[i]);
        cr_assert_eq(iso_plateau_set_state(&p, &state), ISO_OK);
        cr_assert_eq(iso_plateau_test(&p, values[i]), one);
        cr_assert_eq(one, i == 6 || i == 10, "value %d", i);
    }
}

#define REFUSED_STATE(change)                                                                      \
    do {                                                                                           \
        iso_plateau state = p;                                                                     \
        change;                                                                                    \
        cr_assert_eq(iso_plateau_set_state(&p, &state), ISO_ERR_ARG, "%s", #change);               \
        cr_assert_eq(p.config.patience, 2);                                                        \
        cr_assert_eq(p.bad, 0);                                                                    \
    } while (0)

Test(plateau, states_that_cannot_be_are_refused) {
    iso_plateau p = make((iso_plateau_config){.patience = 2, .threshold = 1e-4});
    REFUSED_STATE(state.config.patience = -1);
    REFUSED_STATE(state.best = NAN);
    REFUSED_STATE(state.bad = -1);
    REFUSED_STATE(state.cooldown_counter = -3);
    REFUSED_STATE(state.last_epoch = -2);
}

Test(plateau, reset_forgets_all_but_last_epoch) {
    iso_plateau p = make((iso_plateau_config){.patience = 2, .threshold = 1e-4, .cooldown = 5});
    for (int i = 0; i < 8; i++) iso_plateau_test(&p, values[i]);
    cr_assert_eq(p.cooldown_counter, 4);
    iso_plateau_reset(&p);
    cr_assert(p.best == INFINITY);
    cr_assert_eq(p.bad, 0);
    cr_assert_eq(p.cooldown_counter, 0);
    cr_assert_eq(p.last_epoch, 8);
    p.config.max = true;
    iso_plateau_reset(&p);
    cr_assert(p.best == -INFINITY);
}

Test(plateau, nan_is_bad_and_never_the_best) {
    iso_plateau p = make((iso_plateau_config){.patience = 1, .threshold = 0});
    cr_assert_not(iso_plateau_test(&p, NAN));
    cr_assert(iso_plateau_test(&p, NAN));
    cr_assert_not(iso_plateau_test(&p, 3));
    cr_assert_eq(p.best, 3);
}

// A tenth better than -1 is -1.1, not -0.9.
Test(plateau, min_rel_asks_for_more_of_a_negative_best) {
    iso_plateau p = make((iso_plateau_config){.patience = 0, .threshold = 0.1});
    cr_assert_not(iso_plateau_test(&p, -1));
    cr_assert(iso_plateau_test(&p, -1.05));
    cr_assert_eq(p.best, -1);
    cr_assert_not(iso_plateau_test(&p, -1.15));
    cr_assert_eq(p.best, -1.15);
}

static void refused(iso_plateau_config config, const char *option) {
    iso_plateau p = {.bad = 77};
    cr_assert_eq(iso_plateau_init(&p, &config), ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, option), "\"%s\" does not name %s",
              iso_last_error()->message, option);
    cr_assert_eq(p.bad, 77);
}

Test(plateau, negative_options_are_refused_by_name) {
    refused((iso_plateau_config){.patience = -1}, "patience is -1");
    refused((iso_plateau_config){.cooldown = -2}, "cooldown is -2");
    refused((iso_plateau_config){.threshold = -0.5}, "threshold is -0.5");
    refused((iso_plateau_config){.threshold = NAN}, "threshold is nan");
}
