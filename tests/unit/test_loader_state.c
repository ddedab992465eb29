// SPDX-License-Identifier: MIT
// The state of a loader: another one goes on with the same samples, or says why it cannot.
#include "common/balance.h"
#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <stddef.h>
#include <string.h>

enum { COUNT = 103, SIDE = 6, PIXELS = SIDE * SIDE, BATCH = 8 };

typedef struct fixture {
    iso_device *device;
    iso_dataset *dataset;
} fixture;

TestSuite(loader_state, .fini = balance_check, .timeout = 60);

static fixture create(void) {
    uint8_t images[COUNT * PIXELS];
    int32_t labels[COUNT];
    fixture f;
    for (int i = 0; i < COUNT; i++) labels[i] = i;
    for (int i = 0; i < COUNT * PIXELS; i++) images[i] = (uint8_t)(i * 7 + i / PIXELS);
    cr_assert_eq(iso_device_create("cpu", &f.device), ISO_OK);
    cr_assert_eq(iso_dataset_create(images, labels, COUNT, 1, SIDE, SIDE, COUNT, &f.dataset),
                 ISO_OK);
    return f;
}

static void destroy(fixture *f) {
    iso_dataset_destroy(&f->dataset);
    iso_device_destroy(&f->device);
}

static const iso_sampler_config usual = {
    .batch = BATCH, .rank = 1, .ranks = 2, .seed = 7, .shuffle = true};

static iso_loader *load(fixture *f, iso_sampler_config order, iso_loader_config config) {
    iso_loader *loader = NULL;
    cr_assert_eq(
        iso_loader_create_take(f->device, iso_dataset_retain(f->dataset), &order, &config, &loader),
        ISO_OK, "%s", iso_last_error()->message);
    return loader;
}

// Both loaders give the same batches until the epoch ends, and the same number of them.
static void compare(iso_loader *a, iso_loader *b, int64_t expected) {
    iso_batch first, second;
    int64_t batches = 0;
    while (iso_loader_next(a, &first) == ISO_OK) {
        void *x, *y;
        cr_assert_eq(iso_loader_next(b, &second), ISO_OK);
        cr_assert(first.n == second.n && first.index == second.index);
        cr_assert_eq(memcmp(first.labels, second.labels, (size_t)first.n * sizeof(int32_t)), 0);
        cr_assert_eq(iso_tensor_map(first.images, ISO_READ, &x), ISO_OK);
        cr_assert_eq(iso_tensor_map(second.images, ISO_READ, &y), ISO_OK);
        cr_assert_eq(memcmp(x, y, (size_t)first.n * PIXELS * sizeof(float)), 0);
        iso_tensor_unmap(first.images);
        iso_tensor_unmap(second.images);
        batches++;
    }
    cr_assert_eq(iso_loader_next(b, &second), ISO_PENDING);
    cr_assert_eq(batches, expected);
}

// At every place of an epoch, though the thread is far ahead; the state has passed through memory.
Test(loader_state, goes_on_in_the_middle_of_an_epoch) {
    fixture f = create();
    const int prefetches[] = {0, 1, 2, 40};
    for (int i = 0; i < 16; i++) {
        iso_loader_config config = {.prefetch = prefetches[i % 4], .shift = 2, .flip = 0.5};
        iso_sampler_config order = usual;
        order.end = i < 8 ? ISO_SAMPLER_PAD : ISO_SAMPLER_OVERLAP;
        iso_loader *first = load(&f, order, config);
        int64_t batches = iso_loader_batches(first);
        cr_assert_eq(iso_loader_start(first, 3, 0), ISO_OK);
        for (int64_t k = 0; k < batches; k++) {
            int64_t saved[sizeof(iso_loader_state) / 8];
            iso_loader_state state;
            iso_batch batch;
            cr_assert_eq(iso_loader_next(first, &batch), ISO_OK);
            iso_loader_get_state(first, &state);
            cr_assert(state.epoch == 3 && state.next == k + 1);
            memcpy(saved, &state, sizeof(saved));
            config.prefetch = prefetches[i / 4];
            iso_loader *second = load(&f, order, config), *third = load(&f, order, config);
            cr_assert_eq(iso_loader_set_state(second, (const iso_loader_state *)saved), ISO_OK);
            cr_assert_eq(iso_loader_start(third, 3, k + 1), ISO_OK);
            compare(third, second, batches - k - 1);
            iso_loader_destroy(&second);
            iso_loader_destroy(&third);
        }
        iso_loader_destroy(&first);
    }
    destroy(&f);
}

Test(loader_state, before_an_epoch_is_its_begin) {
    fixture f = create();
    iso_loader *first = load(&f, usual, ISO_LOADER_DEFAULT);
    iso_loader *second = load(&f, usual, ISO_LOADER_DEFAULT);
    iso_loader_state state;
    iso_loader_get_state(first, &state);
    cr_assert_eq(iso_loader_set_state(second, &state), ISO_OK);
    cr_assert_eq(iso_loader_start(first, 0, 0), ISO_OK);
    compare(first, second, iso_loader_batches(first));
    iso_loader_destroy(&first);
    iso_loader_destroy(&second);
    destroy(&f);
}

// The loader goes on with its own epoch after it has refused.
static void refuse(fixture *f, iso_sampler_config order, iso_loader_config config,
                   const char *words) {
    iso_loader *saved = load(f, usual, ISO_LOADER_DEFAULT), *other = load(f, order, config);
    iso_loader_state state;
    iso_batch batch;
    cr_assert_eq(iso_loader_start(saved, 2, 3), ISO_OK);
    iso_loader_get_state(saved, &state);
    cr_assert_eq(iso_loader_start(other, 1, 0), ISO_OK);
    cr_assert_eq(iso_loader_set_state(other, &state), ISO_ERR_MISMATCH);
    cr_assert(strstr(iso_last_error()->message, words), "no \"%s\" in: %s", words,
              iso_last_error()->message);
    iso_loader_get_state(other, &state);
    cr_assert(state.epoch == 1 && state.next == 0);
    cr_assert_eq(iso_loader_next(other, &batch), ISO_OK);
    cr_assert_eq(batch.index, 0);
    iso_loader_destroy(&saved);
    iso_loader_destroy(&other);
}

Test(loader_state, refuses_other_settings) {
    fixture f = create();
    iso_loader_config plain = ISO_LOADER_DEFAULT, changed = plain;
    iso_sampler_config order = usual;
    order.count = 100;
    refuse(&f, order, plain, "with count 103 does not fit this one with count 100");
    order = usual, order.batch = 9;
    refuse(&f, order, plain, "with batch 8 does not fit this one with batch 9");
    order = usual, order.ranks = 3;
    refuse(&f, order, plain, "with ranks 2 does not fit this one with ranks 3");
    order = usual, order.seed = 8;
    refuse(&f, order, plain, "with seed 7 does not fit this one with seed 8");
    order = usual, order.shuffle = false;
    refuse(&f, order, plain, "with shuffle 1 does not fit this one with shuffle 0");
    order = usual, order.end = ISO_SAMPLER_DROP;
    refuse(&f, order, plain, "with end 0 does not fit this one with end 1");
    changed.shift = 1;
    refuse(&f, usual, changed, "with shift 0 does not fit this one with shift 1");
    changed.shift = 0, changed.flip = 0.5;
    refuse(&f, usual, changed, "with flip 0 does not fit this one with flip 8388608");
    destroy(&f);
}

Test(loader_state, refuses_a_place_that_is_not_there) {
    fixture f = create();
    iso_loader *loader = load(&f, usual, ISO_LOADER_DEFAULT);
    iso_loader_state state;
    iso_loader_get_state(loader, &state);
    state.next = 1000;
    cr_assert_eq(iso_loader_set_state(loader, &state), ISO_ERR_ARG);
    state.next = 0, state.epoch = -1;
    cr_assert_eq(iso_loader_set_state(loader, &state), ISO_ERR_ARG);
    iso_loader_destroy(&loader);
    destroy(&f);
}
