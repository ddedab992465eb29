// SPDX-License-Identifier: MIT
// Samples whose values follow from their number, as data sets and loaders.
#include "common/samples_fixture.h"

#include "common/any_device.h"

#include <criterion/criterion.h>
#include <string.h>

const iso_tensor_spec samples_specs[TENSORS] = {
    {ISO_F32, 1, {4}}, {ISO_I64, 2, {2, 2}}, {ISO_I32, 1, {LABELS}}, {.dtype = ISO_F64}};
const iso_dataset_config samples_usual = {
    .count = COUNT, .inputs = 2, .targets = 2, .tensors = samples_specs, .classes = CLASSES};

sample sample_of(int64_t i) {
    sample s = {.y = 0.1 * (double)i};
    for (int k = 0; k < 4; k++) {
        s.x[k] = (float)(100 * i + k);
        s.tokens[k] = -i * 1000000007 - k;
    }
    for (int k = 0; k < LABELS; k++) s.labels[k] = (int32_t)(i + k) % CLASSES;
    return s;
}

iso_status samples_read(int64_t i, void *const *tensors, void *user) {
    (void)user;
    sample s = sample_of(i);
    memcpy(tensors[0], s.x, sizeof(s.x));
    memcpy(tensors[1], s.tokens, sizeof(s.tokens));
    memcpy(tensors[2], s.labels, sizeof(s.labels));
    memcpy(tensors[3], &s.y, sizeof(s.y));
    return ISO_OK;
}

void samples_fill(columns *c) {
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(
            samples_read(i, (void *const[]){c->x[i], c->tokens[i], c->labels[i], &c->y[i]}, NULL),
            ISO_OK);
}

iso_dataset *samples_create(int kind, const columns *c) {
    static const columns none;
    iso_dataset *out = NULL;
    if (!c) c = &none;
    const void *const arrays[TENSORS] = {c->x, c->tokens, c->labels, c->y};
    iso_status status =
        kind == READ ? iso_dataset_create_callback(&samples_usual, samples_read, NULL, &out)
                     : iso_dataset_create_arrays(&samples_usual, arrays, kind == COPIED, &out);
    cr_assert_eq(status, ISO_OK, "%s", iso_last_error()->message);
    return out;
}

iso_loader *samples_load(iso_dataset *dataset, iso_sampler_config order, iso_loader_config config) {
    iso_device *device;
    iso_loader *out = NULL;
    cr_assert_eq(iso_device_create(test_device(), &device), ISO_OK);
    cr_assert_eq(iso_loader_create_take(device, iso_dataset_retain(dataset), &order, &config, &out),
                 ISO_OK, "%s", iso_last_error()->message);
    iso_device_destroy(&device);
    return out;
}
