// SPDX-License-Identifier: MIT
// Checks a module's outputs and gradients against a double-precision reference of its forward.
#ifndef ISO_TEST_GRADCHECK_H
#define ISO_TEST_GRADCHECK_H

#include <isotherm/nn.h>

// y from x and the parameters in the order of iso_module_parameters, all in logical order.
typedef void (*gradcheck_forward)(const void *user, const double *x, double *const *parameter,
                                  double *y);

typedef struct gradcheck {
    iso_module *module; // in training mode; its parameters are used as they are
    int ndim;           // of the input
    int64_t shape[ISO_MAX_DIMS];
    gradcheck_forward forward;
    const void *user;
    double tolerance; // of each number, relative to the largest of its tensor; 0: 1e-5
} gradcheck;

// One forward and backward for a random input and a random linear objective of the output. Compares
// the output, the gradient of the input and those of all parameters that require one with the
// reference and with its central differences. Returns NULL, or a text (valid until the next call)
// that says what differs.
const char *gradcheck_run(const gradcheck *check);

#endif
