// SPDX-License-Identifier: MIT
// For tests that train a small regression on several ranks: samples that are functions of their
// numbers, a model, and a training loop.
#ifndef ISO_TEST_REGRESSION_FIXTURE_H
#define ISO_TEST_REGRESSION_FIXTURE_H

#include <isotherm/optim.h>
#include <isotherm/parallel.h>

enum { REGRESSION_IN = 4, REGRESSION_OUT = 2 };

// Sample i of a stream. All its numbers have few digits.
void regression_sample(int stream, int64_t i, float x[REGRESSION_IN], float y[REGRESSION_OUT]);
// A data set of count samples, which are copied.
iso_dataset *regression_set(int64_t count, const float *x, const float *y);
// A data set of the first `count` samples of a stream.
iso_dataset *regression_arrays(int stream, int64_t count);
typedef struct regression {
    iso_device *device;
    iso_comm *comm;
    iso_module *model; // under data_parallel
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_loader *loader; // NULL at first
} regression;

// seed: of the initial parameters.
void regression_create(regression *r, iso_comm *comm, uint64_t seed);
// Owns the data set from now on. Replaces the loader.
void regression_load(regression *r, iso_dataset *dataset, int64_t batch, bool shuffle,
                     iso_sampler_end end);
void regression_destroy(regression *r);
iso_status regression_step(regression *r, iso_tensor *input, iso_tensor *target);
// Trains from the loader's position, epoch after epoch.
void regression_train(regression *r, int steps);
// The hash of the parameters, which must be equal on all ranks.
uint64_t regression_hash(regression *r);
// Largest absolute difference of two parameters.
double regression_difference(regression *a, regression *b);

#endif
