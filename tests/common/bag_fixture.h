// SPDX-License-Identifier: MIT
// For tests of optimizers: a module that has parameters and nothing else.
#ifndef ISO_TEST_BAG_FIXTURE_H
#define ISO_TEST_BAG_FIXTURE_H

#include <isotherm/nn.h>

enum { BAG_PARAMETERS = 7, BAG_ELEMENTS = 162 };

// Parameters p0 to p6 of the shapes that make_fixtures.py gives them, f32 and zero.
iso_module *bag_create(iso_device *device);
// All parameters one after the other, as in the fixtures. The setters round to f32 first, even in a
// bag of f64.
void bag_get_values(iso_module *bag, double *out);
void bag_set_values(iso_module *bag, const double *from);
void bag_set_gradients(iso_module *bag, const double *from);

#endif
