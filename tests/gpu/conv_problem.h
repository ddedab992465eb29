// SPDX-License-Identifier: MIT
// A convolution on a GPU and in double precision, for the tests of both libraries that do it.
#ifndef ISO_TEST_CONV_PROBLEM_H
#define ISO_TEST_CONV_PROBLEM_H

#include "common/device_fixture.h"
#include "common/oracle.h"

typedef struct problem {
    const oracle_conv *c;
    iso_conv2d_config config;
    pair x, w, b, y;
} problem;

problem problem_in(const target *on, const oracle_conv *c, iso_layout of_x, iso_layout of_w,
                   iso_layout of_y);
problem problem_of(const target *on, const oracle_conv *c); // all logical; c stays the caller's
void problem_destroy(problem *p);
// Forward with bias and relu, and all gradients, against the oracle.
void problem_check(const target *on, problem *p, double tolerance);

#endif
