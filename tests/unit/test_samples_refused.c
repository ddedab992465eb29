// SPDX-License-Identifier: MIT
// Data sets of any tensors: errors of callbacks, what is refused, and the checksum.
#include "common/any_device.h"
#include "common/balance.h"
#include "common/samples_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(samples_refused, .fini = balance_check, .timeout = 60);

// ---- Errors -------------------------------------------------------------------------------------

static int64_t bad_sample;

static iso_status read_badly(int64_t i, void *const *tensors, void *user) {
    int *labels = user;
    iso_status status = samples_read(i, tensors, NULL);
    if (i != bad_sample) return status;
    if (!labels) return iso_error_set(ISO_ERR_IO, "shelf %lld is empty", (long long)i);
    ((int32_t *)tensors[2])[1] = CLASSES;
    return ISO_OK;
}

static iso_status refuse_sample(const iso_sample *s, void *user) {
    (void)user;
    return s->index == bad_sample
               ? iso_error_set(ISO_ERR_STATE, "no sample %lld, please", (long long)s->index)
               : ISO_OK;
}

// The batch of the sample fails, with the message of the callback; another epoch can begin.
static void expect_failure(iso_dataset *dataset, iso_loader_config config, iso_status code,
                           const char *words) {
    iso_sampler_config order = {.batch = BATCH, .ranks = 1};
    for (config.prefetch = 0; config.prefetch < 4; config.prefetch++) {
        iso_loader *loader = samples_load(dataset, order, config);
        iso_batch batch;
        for (int epoch = 0; epoch < 2; epoch++) {
            bad_sample = 2 * BATCH + 1;
            cr_assert_eq(iso_loader_start(loader, epoch, 0), ISO_OK);
            for (int k = 0; k < 2; k++) cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
            cr_assert_eq(iso_loader_next(loader, &batch), code);
            cr_assert(strstr(iso_last_error()->message, words), "no \"%s\" in: %s", words,
                      iso_last_error()->message);
        }
        bad_sample = -1;
        cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
        while (iso_loader_next(loader, &batch) == ISO_OK) {
        }
        cr_assert_eq(batch.index, iso_loader_batches(loader));
        iso_loader_destroy(&loader);
    }
}

Test(samples_refused, an_error_of_a_callback_reaches_the_caller) {
    iso_dataset *dataset, *labels;
    int wrong = 1;
    cr_assert_eq(iso_dataset_create_callback(&samples_usual, read_badly, NULL, &dataset), ISO_OK);
    cr_assert_eq(iso_dataset_create_callback(&samples_usual, read_badly, &wrong, &labels), ISO_OK);
    expect_failure(dataset, ISO_LOADER_DEFAULT, ISO_ERR_IO, "shelf 11 is empty");
    expect_failure(labels, ISO_LOADER_DEFAULT, ISO_ERR_ARG, "label 11 is 6, outside [0, 6)");
    iso_dataset_destroy(&dataset);
    iso_dataset_destroy(&labels);
    dataset = samples_create(READ, NULL);
    expect_failure(dataset, (iso_loader_config){.transform = refuse_sample}, ISO_ERR_STATE,
                   "no sample 11");
    iso_dataset_destroy(&dataset);
}

static void refuse(iso_dataset_config config, iso_status code, const char *words) {
    static columns c;
    iso_dataset *dataset = NULL;
    const void *const arrays[TENSORS] = {c.x, c.tokens, c.labels, c.y};
    cr_assert_eq(iso_dataset_create_arrays(&config, arrays, true, &dataset), code);
    cr_assert(strstr(iso_last_error()->message, words), "no \"%s\" in: %s", words,
              iso_last_error()->message);
    cr_assert_eq(iso_dataset_create_callback(&config, samples_read, NULL, &dataset), code);
    cr_assert_null(dataset);
}

Test(samples_refused, descriptions_that_cannot_be_are_refused) {
    iso_dataset_config config = samples_usual;
    iso_tensor_spec changed[TENSORS];
    memcpy(changed, samples_specs, sizeof(samples_specs));
    config.count = 0;
    refuse(config, ISO_ERR_ARG, "0 samples is impossible");
    config = samples_usual, config.inputs = 0;
    refuse(config, ISO_ERR_ARG, "0 inputs and 2 targets");
    config = samples_usual, config.classes = -1;
    refuse(config, ISO_ERR_ARG, "-1 classes");
    config = samples_usual, config.inputs = 3, config.targets = 1;
    refuse(config, ISO_ERR_ARG, "needs labels: make its first target i32");
    config = samples_usual, config.targets = 0;
    refuse(config, ISO_ERR_ARG, "needs labels");
    config = samples_usual, config.tensors = changed;
    changed[1].dtype = ISO_BF16;
    refuse(config, ISO_ERR_UNSUPPORTED, "input 1 of a data set is bf16");
    memcpy(changed, samples_specs, sizeof(samples_specs));
    changed[3].ndim = ISO_MAX_DIMS;
    refuse(config, ISO_ERR_ARG,
           "target 1 of a data set has 5 dimensions: a sample may have 0 to 4");
    memcpy(changed, samples_specs, sizeof(samples_specs));
    changed[1].shape[1] = 0;
    refuse(config, ISO_ERR_ARG, "dimension 1 of input 1 of a data set is 0");
    changed[1].shape[0] = changed[1].shape[1] = INT64_C(1) << 40;
    refuse(config, ISO_ERR_ARG, "the size of input 1 of a data set overflows");
    changed[1].shape[1] = 1;
    config.count = INT64_C(1) << 30;
    refuse(config, ISO_ERR_ARG, "of 1073741824 samples overflows");
}

Test(samples_refused, labels_in_arrays_are_checked) {
    static columns c;
    iso_dataset *dataset = NULL;
    const void *arrays[TENSORS] = {c.x, c.tokens, c.labels, c.y};
    samples_fill(&c);
    c.labels[20][2] = CLASSES;
    for (int copy = 0; copy < 2; copy++) {
        cr_assert_eq(iso_dataset_create_arrays(&samples_usual, arrays, copy, &dataset),
                     ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message, "label 20 is 6, outside [0, 6)"));
    }
    arrays[1] = NULL;
    cr_assert_eq(iso_dataset_create_arrays(&samples_usual, arrays, true, &dataset), ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "array 1 is NULL"));
    cr_assert_null(dataset);
}

static void refuse_loader(iso_dataset *dataset, iso_loader_config config, const char *words) {
    iso_sampler_config order = {.batch = BATCH, .ranks = 1};
    iso_device *device;
    iso_loader *loader = NULL;
    cr_assert_eq(iso_device_create(test_device(), &device), ISO_OK);
    cr_assert_eq(
        iso_loader_create_take(device, iso_dataset_retain(dataset), &order, &config, &loader),
        ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, words), "no \"%s\" in: %s", words,
              iso_last_error()->message);
    iso_device_destroy(&device);
}

Test(samples_refused, only_images_are_moved_and_only_real_numbers_normalised) {
    const iso_tensor_spec spec = {ISO_I64, 1, {3}};
    const iso_dataset_config config = {.count = 2, .inputs = 1, .tensors = &spec};
    const int64_t tokens[2][3] = {{1, 2, 3}, {4, 5, 6}};
    const double mean[4] = {0}, std[4] = {1, 1, 1, -1};
    iso_dataset *real = samples_create(READ, NULL), *whole;
    cr_assert_eq(iso_dataset_create_arrays(&config, (const void *const[]){tokens}, true, &whole),
                 ISO_OK);
    refuse_loader(real, (iso_loader_config){.shift = 1}, "only images of bytes can be moved");
    refuse_loader(real, (iso_loader_config){.flip = 0.5}, "only images of bytes can be moved");
    refuse_loader(real, (iso_loader_config){.mean = mean, .std = std}, "channel 3 cannot");
    refuse_loader(whole, (iso_loader_config){.mean = mean, .std = std},
                  "an input of i64 cannot be normalised");
    iso_dataset_destroy(&real);
    iso_dataset_destroy(&whole);
}

// ---- Checksum -----------------------------------------------------------------------------------

static uint64_t sum_arrays(const iso_dataset_config *config, const columns *c) {
    iso_dataset *dataset;
    const void *const arrays[TENSORS] = {c->x, c->tokens, c->labels, c->y};
    cr_assert_eq(iso_dataset_create_arrays(config, arrays, false, &dataset), ISO_OK);
    uint64_t sum = iso_dataset_checksum(dataset);
    iso_dataset_destroy(&dataset);
    return sum;
}

static uint64_t sum_callback(const iso_dataset_config *config) {
    iso_dataset *dataset;
    cr_assert_eq(iso_dataset_create_callback(config, samples_read, NULL, &dataset), ISO_OK);
    uint64_t sum = iso_dataset_checksum(dataset);
    iso_dataset_destroy(&dataset);
    return sum;
}

// Eight descriptions that differ from the samples_usual one in a single property.
static int change_description(int i, iso_dataset_config *config, iso_tensor_spec changed[TENSORS]) {
    memcpy(changed, samples_specs, sizeof(samples_specs));
    *config = samples_usual;
    config->tensors = changed;
    switch (i) {
    case 0: config->count--; break;
    case 1: config->classes++; break;
    case 2: config->targets--; break;
    case 3: changed[1].dtype = ISO_F64; break;
    case 4: changed[0].dtype = ISO_I32; break;
    case 5: changed[1] = (iso_tensor_spec){ISO_I64, 1, {4}}; break;
    case 6: changed[1] = (iso_tensor_spec){ISO_I64, 2, {4, 1}}; break;
    case 7: changed[3].ndim = 1, changed[3].shape[0] = 1; break;
    default: return 0;
    }
    return 1;
}

Test(samples_refused, everything_has_its_share_in_the_checksum) {
    static columns c;
    iso_dataset_config config;
    iso_tensor_spec changed[TENSORS];
    samples_fill(&c);
    uint64_t sum = sum_arrays(&samples_usual, &c), other = sum_callback(&samples_usual);
    for (int i = 0; change_description(i, &config, changed); i++) {
        cr_assert_neq(sum_arrays(&config, &c), sum, "change %d", i);
        cr_assert_neq(sum_callback(&config), other, "change %d", i);
    }
    char *byte = (char *)&c;
    const size_t places[] = {0, sizeof(c.x) + 9, sizeof(c.x) + sizeof(c.tokens) + 4, sizeof(c) - 1};
    for (int i = 0; i < 4; i++) {
        byte[places[i]] ^= 1;
        cr_assert_neq(sum_arrays(&samples_usual, &c), sum, "place %d", i);
        byte[places[i]] ^= 1;
    }
    cr_assert_eq(sum_arrays(&samples_usual, &c), sum);
    config = samples_usual, config.contents = 1;
    cr_assert_neq(sum_callback(&config), other);
}

// Saved states of training runs contain this number.
Test(samples_refused, images_keep_their_checksum) {
    const uint8_t images[2][6] = {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}};
    const int32_t labels[2] = {3, 1};
    const int64_t sizes[] = {2, 3, 1, 2, 4};
    iso_dataset *dataset;
    uint64_t sum = iso__checksum(ISO_HASH_START, sizes, sizeof(sizes));
    sum = iso__checksum(sum, images, sizeof(images));
    sum = iso__checksum(sum, labels, sizeof(labels));
    cr_assert_eq(iso_dataset_create(images[0], labels, 2, 3, 1, 2, 4, &dataset), ISO_OK);
    cr_assert_eq(iso_dataset_checksum(dataset), sum);
    iso_dataset_destroy(&dataset);
}
