// SPDX-License-Identifier: MIT
// The loader: normalised batches in the sampler's order, the same with and without its thread.
#include "common/balance.h"
#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <isotherm/trace.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define COUNT  103
#define BATCH  8
#define PIXELS 12

typedef struct fixture {
    iso_device *device;
    iso_dataset *dataset;
    iso_sampler *sampler; // as the one in the loader
    iso_loader *loader;
    iso_dataset_info info;
} fixture;

TestSuite(loader, .fini = balance_check, .timeout = 60);

static const char *device_name = "cpu";

static void on_each_device(void (*body)(void)) {
    iso_device *gpu;
    body();
    if (iso_device_create("cuda", &gpu) != ISO_OK) return;
    iso_device_destroy(&gpu);
    device_name = "cuda";
    body();
}
// A test on the CPU and, where there is one, on a GPU.
#define DEVICE_TEST(name)                                                                          \
    static void name(void);                                                                        \
    Test(loader, name) { on_each_device(name); }                                                   \
    static void name(void)

// Image i: pixels (7 i + 31 p) mod 256, label i mod 10.
static fixture create(int prefetch) {
    uint8_t images[COUNT * PIXELS];
    int32_t labels[COUNT];
    fixture f;
    for (int i = 0; i < COUNT; i++) {
        labels[i] = i % 10;
        for (int p = 0; p < PIXELS; p++) images[i * PIXELS + p] = (uint8_t)(7 * i + 31 * p);
    }
    iso_sampler_config order = {
        .count = COUNT, .batch = BATCH, .ranks = 1, .seed = 1, .shuffle = true};
    cr_assert_eq(iso_device_create(device_name, &f.device), ISO_OK);
    cr_assert_eq(iso_dataset_create(images, labels, COUNT, 1, 3, 4, 10, &f.dataset), ISO_OK);
    cr_assert_eq(iso_sampler_create(&order, &f.sampler), ISO_OK);
    iso_dataset_get_info(f.dataset, &f.info);
    iso_loader_config config = {.prefetch = prefetch};
    cr_assert_eq(
        iso_loader_create_take(f.device, iso_dataset_retain(f.dataset), &order, &config, &f.loader),
        ISO_OK);
    return f;
}

static void destroy(fixture *f) {
    iso_loader_destroy(&f->loader);
    cr_assert_null(f->loader);
    iso_sampler_destroy(&f->sampler);
    iso_dataset_destroy(&f->dataset);
    iso_device_destroy(&f->device);
}

static iso_batch next(fixture *f) {
    iso_batch batch;
    cr_assert_eq(iso_loader_next(f->loader, &batch), ISO_OK, "%s", iso_last_error()->message);
    return batch;
}

// The batch is number k of the sampler's epoch, and each value is (byte / 255 - mean) / std.
static void check_batch(fixture *f, const iso_batch *batch, int64_t k) {
    const int64_t *indices, *shape = iso_tensor_shape(batch->images);
    void *memory;
    cr_assert_eq(batch->index, k);
    cr_assert_eq(batch->n, iso_sampler_batch(f->sampler, k, &indices));
    cr_assert(shape[0] == batch->n && shape[1] == 1 && shape[2] == 3 && shape[3] == 4);
    cr_assert_eq(iso_tensor_map(batch->images, ISO_READ, &memory), ISO_OK);
    for (int64_t i = 0; i < batch->n; i++) {
        cr_assert_eq(batch->labels[i], indices[i] % 10);
        for (int p = 0; p < PIXELS; p++) {
            double byte = (double)((7 * indices[i] + 31 * p) % 256);
            double expected = (byte / 255 - f->info.mean[0]) / f->info.std[0];
            cr_assert(fabs(((float *)memory)[i * PIXELS + p] - expected) < 1e-6);
        }
    }
    cr_assert_eq(iso_tensor_unmap(batch->images), ISO_OK);
}

static void check_epoch(fixture *f, int64_t epoch, int64_t first) {
    iso_batch batch;
    cr_assert_eq(iso_sampler_set_epoch(f->sampler, epoch), ISO_OK);
    cr_assert_eq(iso_loader_batches(f->loader), iso_sampler_batches(f->sampler));
    cr_assert_eq(iso_loader_start(f->loader, epoch, first), ISO_OK);
    for (int64_t k = first; k < iso_sampler_batches(f->sampler); k++) {
        batch = next(f);
        check_batch(f, &batch, k);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(iso_loader_next(f->loader, &batch), ISO_PENDING);
        cr_assert_eq(batch.n, 0);
    }
}

static const int prefetches[] = {0, 1, 2, 5, 40};

DEVICE_TEST(gives_the_batches_of_the_sampler) {
    for (int i = 0; i < 5; i++) {
        fixture f = create(prefetches[i]);
        check_epoch(&f, 0, 0);
        check_epoch(&f, 3, 0);
        destroy(&f);
    }
}

DEVICE_TEST(starts_anywhere_in_an_epoch) {
    for (int i = 0; i < 5; i++) {
        fixture f = create(prefetches[i]);
        check_epoch(&f, 1, 5);
        check_epoch(&f, 1, iso_sampler_batches(f.sampler)); // nothing left
        cr_assert_eq(iso_loader_start(f.loader, 1, 14), ISO_ERR_ARG);
        destroy(&f);
    }
}

DEVICE_TEST(starts_again_in_mid_epoch) {
    for (int i = 0; i < 5; i++) {
        fixture f = create(prefetches[i]);
        for (int round = 0; round < 20; round++) {
            cr_assert_eq(iso_loader_start(f.loader, round, 0), ISO_OK);
            for (int k = 0; k < round % 5; k++) next(&f);
        }
        check_epoch(&f, 2, 0);
        destroy(&f);
    }
}

DEVICE_TEST(is_destroyed_in_mid_epoch) {
    for (int round = 0; round < 50; round++) {
        fixture f = create(prefetches[round % 5]);
        cr_assert_eq(iso_loader_start(f.loader, 0, 0), ISO_OK);
        for (int k = 0; k < round % 7; k++) next(&f);
        destroy(&f);
    }
}

// While the caller holds a batch, the thread fills every other slot and must stop there.
DEVICE_TEST(leaves_a_batch_alone_until_the_next_call) {
    fixture f = create(2);
    cr_assert_eq(iso_loader_start(f.loader, 0, 0), ISO_OK);
    for (int k = 0; k < 6; k++) {
        iso_batch batch = next(&f);
        usleep(20000);
        check_batch(&f, &batch, k);
    }
    destroy(&f);
}

// What is launched on a batch may run when later ones have long been prepared, and must not see
// them.
DEVICE_TEST(work_sees_the_batch_that_it_was_launched_for) {
    enum { BATCHES = (COUNT + BATCH - 1) / BATCH };
    for (int i = 0; i < 5; i++) {
        fixture f = create(prefetches[i]);
        iso_batch batch[BATCHES];
        int32_t labels[BATCHES][BATCH];
        iso_tensor *copy[BATCHES];
        cr_assert_eq(iso_loader_start(f.loader, 0, 0), ISO_OK);
        for (int k = 0; k < BATCHES; k++) {
            batch[k] = next(&f);
            memcpy(labels[k], batch[k].labels, (size_t)batch[k].n * sizeof(int32_t));
            cr_assert_eq(iso_tensor_create(f.device, ISO_F32, 4, iso_tensor_shape(batch[k].images),
                                           &copy[k]),
                         ISO_OK);
            cr_assert_eq(iso_tensor_copy(batch[k].images, copy[k]), ISO_OK);
        }
        for (int k = 0; k < BATCHES; k++) {
            batch[k].images = copy[k];
            batch[k].labels = labels[k];
            check_batch(&f, &batch[k], k);
            iso_tensor_destroy(&copy[k]);
        }
        destroy(&f);
    }
}

// Statistics of another set, as a test set has those of the training set; and bytes / 255.
DEVICE_TEST(normalises_with_given_statistics) {
    const double statistics[2][2] = {{0.25, 0.5}, {0, 1}};
    fixture f = create(0);
    for (int i = 0; i < 2; i++) {
        double mean = statistics[i][0], std = statistics[i][1];
        iso_loader_config config = {&mean, &std, .prefetch = 0};
        iso_sampler_config order = {.batch = BATCH, .ranks = 1};
        iso_loader *loader;
        iso_batch batch;
        void *memory;
        cr_assert_eq(iso_loader_create_take(f.device, iso_dataset_retain(f.dataset), &order,
                                            &config, &loader),
                     ISO_OK);
        cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
        cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
        cr_assert_eq(iso_tensor_map(batch.images, ISO_READ, &memory), ISO_OK);
        for (int p = 0; p < PIXELS; p++)
            cr_assert_eq(((float *)memory)[p], (float)((31 * p % 256 / 255.0 - mean) / std));
        iso_tensor_unmap(batch.images);
        iso_loader_destroy(&loader);
    }
    destroy(&f);
}

// Three channels of one pixel, of which the last is the same in all images.
DEVICE_TEST(normalises_each_channel) {
    const uint8_t pixels[6] = {0, 100, 51, 255, 200, 51};
    const int32_t label[2] = {0, 1};
    const double mean[3] = {0.25, 0.5, 0.75}, std[3] = {0.5, 0.125, 2};
    const iso_loader_config configs[] = {{NULL}, {mean, std, .prefetch = 0}};
    iso_sampler_config order = {.batch = 2, .ranks = 1};
    for (int i = 0; i < 4; i++) {
        iso_loader_config config = configs[i / 2];
        iso_device *device;
        iso_dataset *colours;
        iso_loader *loader;
        iso_batch batch;
        void *memory;
        config.dtype = i % 2 ? ISO_F64 : ISO_F32;
        cr_assert_eq(iso_device_create(device_name, &device), ISO_OK);
        cr_assert_eq(iso_dataset_create(pixels, label, 2, 3, 1, 1, 2, &colours), ISO_OK);
        cr_assert_eq(iso_loader_create_take(device, colours, &order, &config, &loader), ISO_OK);
        cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
        cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
        cr_assert_eq(iso_tensor_dtype(batch.images), config.dtype);
        cr_assert_eq(iso_tensor_map(batch.images, ISO_READ, &memory), ISO_OK);
        // (0, 255): mean 1/2, deviation 1/2. (100, 200): 150 and 50. (51, 51): no deviation.
        const double own[6] = {-1, -1, 0.2, 1, 1, 0.2};
        for (int k = 0; k < 6; k++) {
            double given = (pixels[k] / 255.0 - mean[k % 3]) / std[k % 3];
            double expected = i / 2 ? given : own[k], got;
            got = i % 2 ? ((double *)memory)[k] : (double)((float *)memory)[k];
            cr_assert(fabs(got - expected) <= (i % 2 ? 1e-14 : 1e-6), "%d, %d: %g", i, k, got);
        }
        iso_tensor_unmap(batch.images);
        iso_loader_destroy(&loader);
        iso_device_destroy(&device);
    }
}

static void refuse(fixture *f, iso_loader_config config, iso_status code, const char *words) {
    iso_loader *loader = NULL;
    iso_sampler_config order = {.batch = BATCH, .ranks = 1};
    cr_assert_eq(
        iso_loader_create_take(f->device, iso_dataset_retain(f->dataset), &order, &config, &loader),
        code);
    cr_assert(strstr(iso_last_error()->message, words), "no \"%s\" in: %s", words,
              iso_last_error()->message);
    cr_assert_null(loader);
}

// Images have 3 x 4 pixels.
Test(loader, refuses_what_cannot_be) {
    const double zero = 0, one = 1, none = NAN, negative = -1;
    fixture f = create(0);
    refuse(&f, (iso_loader_config){.shift = 3}, ISO_ERR_ARG, "3 x 4 pixels cannot be moved");
    refuse(&f, (iso_loader_config){.shift = -1}, ISO_ERR_ARG, "by up to -1");
    refuse(&f, (iso_loader_config){.flip = 1.01}, ISO_ERR_ARG, "probability 1.01");
    refuse(&f, (iso_loader_config){.flip = NAN}, ISO_ERR_ARG, "probability nan");
    refuse(&f, (iso_loader_config){.mean = &zero}, ISO_ERR_ARG, "only one of mean and std");
    refuse(&f, (iso_loader_config){.std = &one}, ISO_ERR_ARG, "only one of mean and std");
    refuse(&f, (iso_loader_config){&zero, &negative, .prefetch = 0}, ISO_ERR_ARG, "deviation -1");
    refuse(&f, (iso_loader_config){&none, &one, .prefetch = 0}, ISO_ERR_ARG, "mean nan");
    refuse(&f, (iso_loader_config){.dtype = ISO_BF16}, ISO_ERR_UNSUPPORTED, "not bf16");
    refuse(&f, (iso_loader_config){.prefetch = -1}, ISO_ERR_ARG, "-1 batches");
    destroy(&f);
}

// There is no deviation to divide by.
DEVICE_TEST(takes_images_of_one_grey) {
    const uint8_t pixels[4] = {51, 51, 51, 51};
    const int32_t label = 0;
    iso_sampler_config order = {.batch = 1, .ranks = 1};
    iso_device *device;
    iso_dataset *grey;
    iso_loader *loader;
    iso_batch batch;
    void *memory;
    cr_assert_eq(iso_device_create(device_name, &device), ISO_OK);
    cr_assert_eq(iso_dataset_create(pixels, &label, 1, 1, 2, 2, 1, &grey), ISO_OK);
    cr_assert_eq(iso_loader_create_take(device, iso_dataset_retain(grey), &order, NULL, &loader),
                 ISO_OK);
    cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
    cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
    cr_assert_eq(iso_tensor_map(batch.images, ISO_READ, &memory), ISO_OK);
    cr_assert_eq(((float *)memory)[0], 51 / 255.0f);
    iso_tensor_unmap(batch.images);
    iso_loader_destroy(&loader);
    iso_dataset_destroy(&grey);
    iso_device_destroy(&device);
}

// Nobody else holds it any more.
DEVICE_TEST(keeps_its_data_set) {
    fixture f = create(2);
    iso_dataset_destroy(&f.dataset);
    check_epoch(&f, 1, 0);
    cr_assert_eq(iso_loader_info(f.loader)->count, COUNT);
    destroy(&f);
}

// 103 samples on 110 ranks: the last 7 have nothing.
DEVICE_TEST(gives_the_shares_of_all_ranks) {
    fixture f = create(0);
    int64_t batches = 0, samples = 0;
    for (int rank = 0; rank < 110; rank++) {
        iso_sampler_config order = {
            .batch = 30, .rank = rank, .ranks = 110, .end = ISO_SAMPLER_SHARE};
        iso_loader *loader;
        iso_batch batch;
        cr_assert_eq(
            iso_loader_create_take(f.device, iso_dataset_retain(f.dataset), &order, NULL, &loader),
            ISO_OK);
        cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
        while (iso_loader_next(loader, &batch) == ISO_OK) {
            batches++;
            samples += batch.n;
            cr_assert_eq(batch.labels[0], rank % 10);
        }
        iso_loader_destroy(&loader);
    }
    cr_assert(batches == COUNT && samples == COUNT);
    destroy(&f);
}

// The last batch of an epoch is smaller; neither it nor growing back may allocate.
DEVICE_TEST(allocates_nothing_after_creation) {
    for (int i = 0; i < 3; i++) {
        fixture f = create(prefetches[i]);
        long long before, after;
        iso_memory_balance(NULL, NULL, &before);
        for (int epoch = 0; epoch < 2; epoch++) {
            iso_batch batch;
            cr_assert_eq(iso_loader_start(f.loader, epoch, 0), ISO_OK);
            while (iso_loader_next(f.loader, &batch) == ISO_OK) {
            }
        }
        iso_memory_balance(NULL, NULL, &after);
        cr_assert_eq(after, before);
        destroy(&f);
    }
}

// A tensor that the test has left mapped cannot be filled again: the thread meets that error,
// batches later.
Test(loader, reports_an_error_of_its_thread) {
    for (int prefetch = 0; prefetch < 3; prefetch++) {
        fixture f = create(prefetch);
        iso_batch batch;
        void *memory;
        cr_assert_eq(iso_loader_start(f.loader, 0, 0), ISO_OK);
        iso_tensor *held = next(&f).images;
        cr_assert_eq(iso_tensor_map(held, ISO_READ, &memory), ISO_OK);
        for (int k = 0; k < prefetch; k++) next(&f);
        for (int again = 0; again < 2; again++) {
            cr_assert_eq(iso_loader_next(f.loader, &batch), ISO_ERR_STATE);
            cr_assert(strstr(iso_last_error()->message, "mapped"), "%s", iso_last_error()->message);
            if (again == 0) cr_assert_eq(iso_tensor_unmap(held), ISO_OK); // the error stays
        }
        check_epoch(&f, 1, 0);
        destroy(&f);
    }
}

DEVICE_TEST(refuses_to_go_on_without_an_epoch) {
    fixture f = create(1);
    iso_batch batch;
    cr_assert_eq(iso_loader_next(f.loader, &batch), ISO_ERR_STATE);
    destroy(&f);
}

DEVICE_TEST(refuses_more_samples_than_there_are) {
    fixture f = create(0);
    iso_loader *loader = NULL;
    iso_sampler_config order = {.count = COUNT + 1, .batch = BATCH, .ranks = 1};
    cr_assert_eq(
        iso_loader_create_take(f.device, iso_dataset_retain(f.dataset), &order, NULL, &loader),
        ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "104 samples, but the data set has 103"));
    cr_assert_null(loader);
    destroy(&f);
}

DEVICE_TEST(traces_each_batch) {
    fixture f = create(2);
    char *text;
    size_t size;
    int spans = 0;
    cr_assert_eq(iso_trace_start(1000), ISO_OK);
    check_epoch(&f, 0, 0);
    cr_assert_eq(iso_loader_start(f.loader, 0, iso_sampler_batches(f.sampler)),
                 ISO_OK); // ends the thread
    cr_assert_eq(iso_trace_text(0, &text, &size), ISO_OK);
    for (const char *at = text; (at = strstr(at, "\"cat\":\"data\"")); at++) spans++;
    cr_assert_eq(spans, iso_sampler_batches(f.sampler));
    iso_trace_free_text(text);
    iso_trace_stop();
    destroy(&f);
}
