// SPDX-License-Identifier: MIT
// For tests of data sets of any tensors: samples whose values are functions of their number.
#ifndef ISO_TEST_SAMPLES_FIXTURE_H
#define ISO_TEST_SAMPLES_FIXTURE_H

#include <isotherm/data.h>

enum { COUNT = 37, BATCH = 5, TENSORS = 4, CLASSES = 6, LABELS = 3 };

// Two inputs, f32 [4] and i64 [2, 2]; two targets: three i32 labels, and one f64 number.
extern const iso_tensor_spec samples_specs[TENSORS];
extern const iso_dataset_config samples_usual;

typedef struct sample {
    float x[4];
    int64_t tokens[4];
    int32_t labels[LABELS];
    double y;
} sample;

sample sample_of(int64_t i);
// An iso_sample_reader of them.
iso_status samples_read(int64_t i, void *const *tensors, void *user);

// All of them.
typedef struct columns {
    float x[COUNT][4];
    int64_t tokens[COUNT][4];
    int32_t labels[COUNT][LABELS];
    double y[COUNT];
} columns;
void samples_fill(columns *c);

enum { COPIED, BORROWED, READ, KINDS };
// columns NULL for READ.
iso_dataset *samples_create(int kind, const columns *c);
// On test_device().
iso_loader *samples_load(iso_dataset *dataset, iso_sampler_config order, iso_loader_config config);

#endif
