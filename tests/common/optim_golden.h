// SPDX-License-Identifier: MIT
// For tests of optimizers against golden values: the bag of bag_fixture.h after 1 and 30 steps on
// the gradients of a fixture.
#ifndef ISO_TEST_OPTIM_GOLDEN_H
#define ISO_TEST_OPTIM_GOLDEN_H

#include "common/fixture.h"

#include <isotherm/optim.h>

enum { GOLDEN_STEPS = 30 };

typedef struct golden_run {
    iso_device *device;
    fixture *golden; // has "gradient" of each step, "start", and NAME of "after1" and "after30"
    iso_optimizer_kind kind;
    iso_hyper hyper;
    const char *name;
} golden_run;

// Sets the gradients of step t.
void golden_set_gradients(fixture *golden, iso_module *bag, int t);
// Asserts that each parameter is within `tolerance` of the golden value, relative to its magnitude,
// or to 1 if that is larger.
void golden_check(const golden_run *run, iso_dtype dtype, double tolerance);

#endif
