// SPDX-License-Identifier: MIT
#include "common/optim_golden.h"

#include "common/bag_fixture.h"

#include <criterion/criterion.h>
#include <math.h>

void golden_set_gradients(fixture *golden, iso_module *bag, int t) {
    char name[12];
    snprintf(name, sizeof(name), "%d", t);
    bag_set_gradients(bag, fixture_get(golden, "gradient", name, NULL));
}

static void compare_values(const golden_run *run, iso_module *bag, const char *when,
                           double tolerance) {
    const double *expected = fixture_get(run->golden, run->name, when, NULL);
    double got[BAG_ELEMENTS];
    bag_get_values(bag, got);
    for (int i = 0; i < BAG_ELEMENTS; i++)
        cr_assert(fabs(got[i] - expected[i]) <= tolerance * fmax(1, fabs(expected[i])),
                  "%s %s: element %d is %.17g, not %.17g", run->name, when, i, got[i], expected[i]);
}

void golden_check(const golden_run *run, iso_dtype dtype, double tolerance) {
    iso_module *bag = bag_create(run->device);
    iso_optimizer *optimizer;
    cr_assert_eq(iso_module_to(bag, dtype), ISO_OK);
    bag_set_values(bag, fixture_get(run->golden, NULL, "start", NULL));
    cr_assert_eq(iso_optimizer_create(run->kind, bag, &run->hyper, &optimizer), ISO_OK);
    for (int t = 0; t < GOLDEN_STEPS; t++) {
        golden_set_gradients(run->golden, bag, t);
        cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
        if (t == 0) compare_values(run, bag, "after1", tolerance);
    }
    compare_values(run, bag, "after30", tolerance);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&bag);
}
