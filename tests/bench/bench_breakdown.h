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
    const char *table; // file for what bench_model.h reads; NULL: none
} bench_subject;

// Makes steps of which the first `warmup` are not timed, and prints a line for each kernel of a
// step; prints nothing if quiet (on other ranks). Ends the program on errors.
void bench_breakdown(const bench_subject *subject, int warmup, int steps, bool quiet);

// Takes the place of a kernel, or of a part of it: `operation` is the name of its slot; flops 0:
// what counts is memory; share: of the kernel that this part is.
typedef void (*bench_spend)(const char *operation, double flops, double bytes, double share);
// From now on, kernels of f32 and copies of this device compute nothing but call `spend`. For the
// lifetime of the process.
void bench_breakdown_replace(iso_device *device, bench_spend spend);

#endif
