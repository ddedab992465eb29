// SPDX-License-Identifier: MIT
// For tests of element types: models for a trainer (dp_fixture.h) of f64, of both types, and with a
// layer that has parameters of both.
#ifndef ISO_TEST_TYPES_FIXTURE_H
#define ISO_TEST_TYPES_FIXTURE_H

#include <isotherm/nn.h>

// A cast, then the small CNN in f64.
iso_status build_wide(iso_device *device, bool dropout, iso_module **out);
// The small CNN with its convolutions in f32 and, behind a cast, the rest in f64.
iso_status build_mixed(iso_device *device, bool dropout, iso_module **out);
// The same with build_smooth (daso_fixture.h).
iso_status build_smooth_wide(iso_device *device, bool dropout, iso_module **out);
iso_status build_smooth_mixed(iso_device *device, bool dropout, iso_module **out);
// flatten, fc1 200-16, affine, relu, fc2 16-5: all f32 but the shift of affine, which is
// y = x * scale (f32) + shift (f64).
iso_status build_both(iso_device *device, bool dropout, iso_module **out);

#endif
