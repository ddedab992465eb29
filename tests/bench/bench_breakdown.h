// SPDX-License-Identifier: MIT
// Where the time of a training step goes, kernel by kernel.
#ifndef BENCH_BREAKDOWN_H
#define BENCH_BREAKDOWN_H

#include <isotherm.h>

typedef struct bench_subject {
    iso_device *device;
    iso_module *model; // wrapped or not
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_tensor *images;
    const int32_t *labels;
    int threads;
} bench_subject;

// Makes steps of which the first `warmup` are not timed, and prints a line for each kernel of a
// step; prints nothing if quiet (on other ranks). Ends the program on errors.
void bench_breakdown(const bench_subject *subject, int warmup, int steps, bool quiet);

#endif
