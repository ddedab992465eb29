// SPDX-License-Identifier: MIT
// For tests of parameters that have no gradient in some steps: a model whose gradients are those of
// unused.txt, under data_parallel.
#ifndef ISO_TEST_UNUSED_FIXTURE_H
#define ISO_TEST_UNUSED_FIXTURE_H

#include "common/bag_fixture.h"

#include <isotherm/optim.h>

// Suite fixtures: those of resume_fixture, with the file.
void unused_setup(void);
void unused_teardown(void);

enum { UNUSED_STEPS = 12, UNUSED_CASES = 5, UNUSED_ADAM = 1, UNUSED_ADAMW = 2 };

typedef struct unused_case {
    const char *name; // in the file
    iso_optimizer_kind kind;
    bool groups; // p0, p2 and p5 are a second group, with a tenth of lr
    iso_hyper hyper;
} unused_case;
extern const unused_case unused_cases[UNUSED_CASES];

// The next backward, and this process's role in it.
extern struct unused_now {
    int step, rank, ranks;
    // Which layers this rank uses, one for each parameter of the file, and its gradient as a
    // multiple of the file's. A layer of share 0 does not run.
    double (*share)(int layer);
} unused_now;
// A share function for which the mean is the file's gradient: all ranks have it, or only one rank.
double unused_fair_share(int layer);
// Whether the parameter has a gradient on any rank.
bool unused_has_gradient(int layer);

typedef struct unused_run {
    iso_device *device;
    iso_comm *comm;
    iso_module *model;
    iso_optimizer *optimizer;
    iso_tensor *one;
    iso_sync sync;
} unused_run;
// cut: the last two parameters in pieces. A bucket for each parameter and piece; explicit: one for
// all.
unused_run unused_create(const unused_case *c, iso_comm *comm, iso_sync sync, bool cut,
                         iso_dtype dtype);
void unused_destroy(unused_run *r);
// zero_grad, forward, backward.
iso_status unused_backward(unused_run *r, int step);
// Steps [from, to) with fair shares.
void unused_train(unused_run *r, int from, int to);
// All parameters one after the other; completes updates.
void unused_values(unused_run *r, double *out);
// Asserts that the values are those of the file after all steps of a case.
void unused_check(const double *got, const char *name);

#endif
