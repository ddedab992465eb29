// SPDX-License-Identifier: MIT
// Data sets of any tensors, from arrays and from callbacks: what a loader makes of them.
#include "common/balance.h"
#include "common/samples_fixture.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(samples, .fini = balance_check, .timeout = 60);

static const iso_sampler_config shuffled = {.batch = BATCH, .ranks = 1, .seed = 3, .shuffle = true};

// Tensors of batches have the shapes of the description behind the number of samples.
static void check_shape(iso_tensor *t, int64_t n, const iso_tensor_spec *spec) {
    cr_assert_eq(iso_tensor_dtype(t), spec->dtype);
    cr_assert_eq(iso_tensor_ndim(t), spec->ndim + 1);
    cr_assert_eq(iso_tensor_shape(t)[0], n);
    for (int d = 0; d < spec->ndim; d++) cr_assert_eq(iso_tensor_shape(t)[d + 1], spec->shape[d]);
}

static void check_batch(const iso_batch *batch, const int64_t *indices) {
    float x[BATCH][4];
    int64_t tokens[BATCH][4];
    double y[BATCH];
    cr_assert(batch->images == batch->inputs[0] && !batch->targets[0]);
    check_shape(batch->inputs[0], batch->n, &samples_specs[0]);
    check_shape(batch->inputs[1], batch->n, &samples_specs[1]);
    check_shape(batch->targets[1], batch->n, &samples_specs[3]);
    cr_assert_eq(tensor_get(batch->inputs[0], x), ISO_OK);
    cr_assert_eq(tensor_get(batch->inputs[1], tokens), ISO_OK);
    cr_assert_eq(tensor_get(batch->targets[1], y), ISO_OK);
    for (int64_t i = 0; i < batch->n; i++) {
        sample s = sample_of(indices[i]);
        cr_assert_eq(memcmp(x[i], s.x, sizeof(s.x)), 0);
        cr_assert_eq(memcmp(tokens[i], s.tokens, sizeof(s.tokens)), 0);
        cr_assert_eq(memcmp(batch->labels + i * LABELS, s.labels, sizeof(s.labels)), 0);
        cr_assert_eq(y[i], s.y);
    }
}

Test(samples, a_loader_gives_all_tensors_of_each_sample) {
    static columns c;
    samples_fill(&c);
    for (int kind = 0; kind < KINDS; kind++)
        for (int prefetch = 0; prefetch < 4; prefetch += 3) {
            iso_dataset *dataset = samples_create(kind, &c);
            iso_sampler_config order = shuffled;
            iso_sampler *sampler;
            iso_loader *loader =
                samples_load(dataset, order, (iso_loader_config){.prefetch = prefetch});
            order.count = COUNT;
            cr_assert_eq(iso_sampler_create(&order, &sampler), ISO_OK);
            cr_assert_eq(iso_sampler_set_epoch(sampler, 2), ISO_OK);
            cr_assert_eq(iso_loader_start(loader, 2, 0), ISO_OK);
            for (int64_t k = 0; k < iso_sampler_batches(sampler); k++) {
                iso_batch batch;
                const int64_t *indices;
                cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
                cr_assert_eq(iso_sampler_batch(sampler, k, &indices), batch.n);
                check_batch(&batch, indices);
            }
            iso_sampler_destroy(&sampler);
            iso_loader_destroy(&loader);
            iso_dataset_destroy(&dataset);
        }
}

Test(samples, arrays_are_copied_or_borrowed) {
    static columns c;
    samples_fill(&c);
    iso_dataset *copied = samples_create(COPIED, &c), *borrowed = samples_create(BORROWED, &c);
    c.y[7] = -5;
    sample s;
    void *const room[TENSORS] = {s.x, s.tokens, s.labels, &s.y};
    cr_assert_eq(iso_dataset_sample(copied, 7, room), ISO_OK);
    cr_assert_eq(s.y, 0.1 * 7);
    cr_assert_eq(iso_dataset_sample(borrowed, 7, room), ISO_OK);
    cr_assert_eq(s.y, -5);
    cr_assert_eq(iso_dataset_sample(borrowed, COUNT, room), ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "sample 37 of a data set of 37"));
    iso_dataset_destroy(&copied);
    iso_dataset_destroy(&borrowed);
}

Test(samples, the_description_can_be_asked_for) {
    iso_dataset *dataset = samples_create(READ, NULL);
    iso_dataset_info info;
    iso_dataset_get_info(dataset, &info);
    cr_assert(info.count == COUNT && info.inputs == 2 && info.targets == 2);
    cr_assert(info.classes == CLASSES && info.channels == 4 && info.height == 1 && info.width == 1);
    cr_assert(info.tensors[1].dtype == ISO_I64 && info.tensors[1].shape[1] == 2);
    cr_assert(!info.mean && !info.std && !iso_dataset_image(dataset, 0, NULL));
    iso_dataset_destroy(&dataset);
}

// A loader that was interrupted goes on with the same bits, whatever the samples come from.
Test(samples, a_loader_goes_on_from_its_state) {
    static columns c;
    samples_fill(&c);
    for (int kind = 0; kind < KINDS; kind++) {
        iso_dataset *dataset = samples_create(kind, &c);
        iso_loader *first = samples_load(dataset, shuffled, ISO_LOADER_DEFAULT);
        cr_assert_eq(iso_loader_start(first, 1, 0), ISO_OK);
        for (int64_t k = 0; k < iso_loader_batches(first); k++) {
            iso_batch a, b;
            iso_loader_state state;
            float x[2][BATCH][4];
            iso_loader *second =
                samples_load(dataset, shuffled, (iso_loader_config){.prefetch = 0});
            iso_loader_get_state(first, &state);
            cr_assert_eq(iso_loader_set_state(second, &state), ISO_OK);
            cr_assert(iso_loader_next(first, &a) == ISO_OK &&
                      iso_loader_next(second, &b) == ISO_OK);
            cr_assert(a.n == b.n && a.index == k && b.index == k);
            cr_assert_eq(tensor_get(a.images, x[0]), ISO_OK);
            cr_assert_eq(tensor_get(b.images, x[1]), ISO_OK);
            cr_assert_eq(memcmp(x[0], x[1], (size_t)a.n * sizeof(x[0][0])), 0);
            cr_assert_eq(memcmp(a.labels, b.labels, (size_t)a.n * LABELS * sizeof(int32_t)), 0);
            iso_loader_destroy(&second);
        }
        iso_loader_destroy(&first);
        iso_dataset_destroy(&dataset);
    }
}

// ---- Normalisation and augmentation -------------------------------------------------------------

// Features 0, 2, 4, 6 and a constant; the first has mean 3 and deviation sqrt(5).
Test(samples, real_inputs_are_normalised_if_statistics_are_given) {
    const double xd[4][2] = {{0, 0.1}, {2, 0.1}, {4, 0.1}, {6, 0.1}};
    float xf[4][2];
    for (int i = 0; i < 8; i++) xf[i / 2][i % 2] = (float)xd[i / 2][i % 2];
    for (int type = 0; type < 2; type++) {
        const iso_tensor_spec spec = {type ? ISO_F64 : ISO_F32, 1, {2}};
        const iso_dataset_config config = {.count = 4, .inputs = 1, .tensors = &spec};
        const void *const arrays[] = {type ? (const void *)xd : (const void *)xf};
        iso_dataset *dataset;
        iso_dataset_info info;
        cr_assert_eq(iso_dataset_create_arrays(&config, arrays, true, &dataset), ISO_OK);
        iso_dataset_get_info(dataset, &info);
        cr_assert(info.mean[0] == 3 && fabs(info.std[0] - sqrt(5)) < 1e-15 && info.std[1] == 0);
        for (int given = 0; given < 2; given++) {
            iso_loader_config how = {.prefetch = 0};
            if (given) how.mean = info.mean, how.std = info.std;
            iso_sampler_config order = {.batch = 4, .ranks = 1};
            iso_loader *loader = samples_load(dataset, order, how);
            iso_batch batch;
            double got[4][2];
            float small[4][2];
            cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
            cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
            cr_assert_eq(iso_tensor_dtype(batch.images), spec.dtype);
            cr_assert_eq(tensor_get(batch.images, type ? (void *)got : (void *)small), ISO_OK);
            for (int i = 0; i < 8; i++) {
                double x = type ? got[i / 2][i % 2] : (double)small[i / 2][i % 2];
                double plain = type ? xd[i / 2][i % 2] : (double)xf[i / 2][i % 2];
                double wanted = given && i % 2 == 0 ? (plain - 3) / sqrt(5) : plain;
                cr_assert(fabs(x - wanted) <= (type ? 1e-15 : 1e-7), "%d: %g", i, x);
            }
            iso_loader_destroy(&loader);
        }
        iso_dataset_destroy(&dataset);
    }
}

static iso_status read_image(int64_t i, void *const *tensors, void *user) {
    (void)user;
    for (int p = 0; p < 6; p++) ((uint8_t *)tensors[0])[p] = (uint8_t)(i * 6 + p);
    return ISO_OK;
}

// Its statistics are not known: bytes become byte / 255.
Test(samples, images_of_a_callback_become_real_numbers) {
    const iso_tensor_spec spec = {ISO_U8, 3, {1, 2, 3}};
    const iso_dataset_config config = {.count = 5, .inputs = 1, .tensors = &spec};
    iso_sampler_config order = {.batch = 5, .ranks = 1};
    iso_dataset *dataset;
    iso_batch batch;
    float got[30];
    cr_assert_eq(iso_dataset_create_callback(&config, read_image, NULL, &dataset), ISO_OK);
    iso_loader *loader = samples_load(dataset, order, ISO_LOADER_DEFAULT);
    cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
    cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
    cr_assert(!batch.labels);
    cr_assert_eq(tensor_get(batch.images, got), ISO_OK);
    for (int p = 0; p < 30; p++) cr_assert_eq(got[p], (float)(p / 255.0));
    iso_loader_destroy(&loader);
    iso_dataset_destroy(&dataset);
}

// Writes what it is given into the first input, and the index into the second.
static iso_status tell_sample(const iso_sample *s, void *user) {
    float *x = s->tensors[0];
    int64_t *tokens = s->tensors[1];
    x[0] = (float)(s->random >> 40);
    x[1] = (float)s->epoch;
    tokens[0] = s->index;
    *(int *)user += 1;
    return ISO_OK;
}

static void collect_random(int ranks, int prefetch, int64_t epoch, uint64_t seed,
                           float random[COUNT]) {
    iso_dataset *dataset = samples_create(READ, NULL);
    int calls = 0, samples = 0;
    for (int rank = 0; rank < ranks; rank++) {
        iso_sampler_config order = {.batch = BATCH,
                                    .rank = rank,
                                    .ranks = ranks,
                                    .seed = seed,
                                    .shuffle = true,
                                    .end = ISO_SAMPLER_SHARE};
        iso_loader_config config = {.prefetch = prefetch, .transform = tell_sample, .user = &calls};
        iso_loader *loader = samples_load(dataset, order, config);
        iso_batch batch;
        cr_assert_eq(iso_loader_start(loader, epoch, 0), ISO_OK);
        while (iso_loader_next(loader, &batch) == ISO_OK) {
            float x[BATCH][4];
            int64_t tokens[BATCH][4];
            cr_assert_eq(tensor_get(batch.inputs[0], x), ISO_OK);
            cr_assert_eq(tensor_get(batch.inputs[1], tokens), ISO_OK);
            for (int64_t i = 0; i < batch.n; i++, samples++) {
                sample s = sample_of(tokens[i][0]);
                cr_assert(x[i][1] == (float)epoch && x[i][2] == s.x[2]);
                random[tokens[i][0]] = x[i][0];
            }
        }
        iso_loader_destroy(&loader);
    }
    cr_assert(samples == COUNT && calls == COUNT);
    iso_dataset_destroy(&dataset);
}

Test(samples, an_augmentation_draws_the_same_on_any_number_of_ranks) {
    float one[COUNT], many[COUNT];
    int equal = 0;
    collect_random(1, 0, 2, 9, one);
    for (int ranks = 1; ranks <= 4; ranks++) {
        collect_random(ranks, 2, 2, 9, many);
        cr_assert_eq(memcmp(one, many, sizeof(one)), 0);
    }
    for (int i = 1; i < COUNT; i++) equal += one[i] == one[i - 1];
    cr_assert_eq(equal, 0);
    collect_random(1, 0, 3, 9, many);
    for (int i = 0; i < COUNT; i++) equal += one[i] == many[i];
    collect_random(1, 0, 2, 10, many);
    for (int i = 0; i < COUNT; i++) equal += one[i] == many[i];
    cr_assert_eq(equal, 0, "%d numbers of another epoch or seed are the same", equal);
}
