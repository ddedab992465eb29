// SPDX-License-Identifier: MIT
// Raw binary files: known bytes give known samples, and sizes that do not fit are refused.
#include "common/balance.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <string.h>

static void clean_up(void) {
    scratch_remove();
    balance_check();
}
TestSuite(raw, .fini = clean_up, .timeout = 60);

enum { COUNT = 10, HEADER = 6 };

static float x[COUNT][3];
static int64_t y[COUNT];

// inputs.bin has a header, which begins as a gzip file does; targets.bin has none.
static void write_files(iso_raw_file files[2]) {
    char bytes[HEADER + sizeof(x)] = "\x1f\x8b\x08...";
    for (int i = 0; i < COUNT; i++) {
        y[i] = (i * 7) % 4;
        for (int k = 0; k < 3; k++) x[i][k] = (float)(i + 0.1 * k);
    }
    memcpy(bytes + HEADER, x, sizeof(x));
    files[0] = (iso_raw_file){.tensor = {ISO_F32, 1, {3}}, .offset = HEADER};
    files[0].path = scratch_write("inputs.bin", bytes, sizeof(bytes));
    files[1] = (iso_raw_file){.tensor = {.dtype = ISO_I64}};
    files[1].path = scratch_write("targets.bin", y, sizeof(y));
}

static void expect_samples(iso_dataset *dataset, int64_t first, int64_t count) {
    iso_dataset_info info;
    float got[3];
    int64_t target;
    iso_dataset_get_info(dataset, &info);
    cr_assert_eq(info.count, count);
    for (int64_t i = 0; i < count; i++) {
        cr_assert_eq(iso_dataset_sample(dataset, i, (void *const[]){got, &target}), ISO_OK);
        cr_assert_eq(memcmp(got, x[first + i], sizeof(got)), 0);
        cr_assert_eq(target, y[first + i]);
    }
    iso_dataset_destroy(&dataset);
}

Test(raw, samples_are_read_as_they_lie) {
    iso_raw_file files[2];
    const int64_t range[][4] = {
        {0, 0, 0, 10}, {0, 10, 0, 10}, {3, 0, 3, 7}, {3, 4, 3, 4}, {9, 1, 9, 1}};
    write_files(files);
    for (int i = 0; i < 5; i++) {
        const iso_raw_config config = {
            .inputs = 1, .targets = 1, .files = files, .first = range[i][0], .count = range[i][1]};
        iso_dataset *dataset = NULL;
        cr_assert_eq(iso_dataset_read_raw(&config, &dataset), ISO_OK, "%s",
                     iso_last_error()->message);
        expect_samples(dataset, range[i][2], range[i][3]);
    }
}

Test(raw, a_file_and_arrays_of_the_same_contents_have_the_same_checksum) {
    iso_raw_file files[2];
    iso_dataset *read, *made;
    write_files(files);
    const iso_tensor_spec specs[2] = {files[0].tensor, files[1].tensor};
    const iso_raw_config config = {.inputs = 1, .targets = 1, .files = files};
    const iso_dataset_config same = {.count = COUNT, .inputs = 1, .targets = 1, .tensors = specs};
    cr_assert_eq(iso_dataset_read_raw(&config, &read), ISO_OK);
    cr_assert_eq(iso_dataset_create_arrays(&same, (const void *const[]){x, y}, false, &made),
                 ISO_OK);
    cr_assert_eq(iso_dataset_checksum(read), iso_dataset_checksum(made));
    iso_dataset_destroy(&read);
    iso_dataset_destroy(&made);
}

// Of u8, i32 and i64.
Test(raw, labels_may_have_any_integer_type) {
    const iso_dtype types[] = {ISO_U8, ISO_I32, ISO_I64};
    iso_raw_file files[2];
    uint8_t small[COUNT];
    int32_t middle[COUNT];
    write_files(files);
    for (int i = 0; i < COUNT; i++) small[i] = (uint8_t)y[i], middle[i] = (int32_t)y[i];
    const void *const arrays[] = {small, middle, y};
    for (int k = 0; k < 3; k++) {
        iso_raw_config config = {
            .inputs = 1, .targets = 1, .files = files, .classes = 4, .first = 2};
        iso_dataset *dataset;
        files[1].tensor.dtype = types[k];
        scratch_write("targets.bin", arrays[k], COUNT * iso_dtype_size(types[k]));
        cr_assert_eq(iso_dataset_read_raw(&config, &dataset), ISO_OK, "%s",
                     iso_last_error()->message);
        for (int i = 0; i < COUNT - 2; i++) {
            float got[3];
            int32_t label;
            cr_assert_eq(iso_dataset_sample(dataset, i, (void *const[]){got, &label}), ISO_OK);
            cr_assert_eq(label, y[i + 2]);
        }
        iso_dataset_destroy(&dataset);
        config.classes = 3; // 7 * 5 % 4 is 3
        cr_assert_eq(iso_dataset_read_raw(&config, &dataset), ISO_ERR_FORMAT);
        cr_assert(strstr(iso_last_error()->message, "label 5 of") &&
                      strstr(iso_last_error()->message, "targets.bin is 3, outside [0, 3)"),
                  "%s", iso_last_error()->message);
    }
}

// Of bytes, with a label each: what there was before there was anything else.
Test(raw, images_are_images) {
    uint8_t pixels[2][12], labels[2] = {1, 0};
    for (int p = 0; p < 24; p++) pixels[p / 12][p % 12] = (uint8_t)(p * 9);
    const iso_raw_file files[2] = {
        {.path = scratch_write("pixels.bin", pixels, sizeof(pixels)),
         .tensor = {ISO_U8, 3, {3, 2, 2}}},
        {.path = scratch_write("labels.bin", labels, sizeof(labels)), .tensor = {.dtype = ISO_U8}}};
    const iso_raw_config config = {.inputs = 1, .targets = 1, .files = files, .classes = 2};
    iso_dataset *read, *made;
    cr_assert_eq(iso_dataset_read_raw(&config, &read), ISO_OK, "%s", iso_last_error()->message);
    cr_assert_eq(iso_dataset_create(pixels[0], (const int32_t[]){1, 0}, 2, 3, 2, 2, 2, &made),
                 ISO_OK);
    cr_assert_eq(iso_dataset_checksum(read), iso_dataset_checksum(made));
    cr_assert_eq(memcmp(iso_dataset_image(read, 1, NULL), pixels[1], 12), 0);
    iso_dataset_destroy(&read);
    iso_dataset_destroy(&made);
}

static void refuse(const iso_raw_config *config, iso_status code, const char *words) {
    iso_dataset *dataset = NULL;
    const char *message = iso_last_error()->message;
    iso_status status = iso_dataset_read_raw(config, &dataset);
    cr_assert_eq(status, code, "%s: got %d: %s", words, status, message);
    cr_assert(strstr(message, words), "no \"%s\" in: %s", words, message);
    cr_assert_null(dataset);
}

Test(raw, files_of_other_sizes_are_refused) {
    iso_raw_file files[2];
    iso_raw_config config = {.inputs = 1, .targets = 1, .files = files};
    write_files(files);
    scratch_write("targets.bin", y, sizeof(y) - 8);
    refuse(&config, ISO_ERR_FORMAT, "inputs.bin holds 10 samples but ");
    refuse(&config, ISO_ERR_FORMAT, "targets.bin holds 9: they do not belong together");
    scratch_write("targets.bin", y, sizeof(y) - 1);
    refuse(&config, ISO_ERR_FORMAT,
           "targets.bin has 79 bytes from byte 0 on: samples of 8 bytes leave 7 over");
    write_files(files);
    files[0].offset = 0;
    refuse(&config, ISO_ERR_FORMAT, "inputs.bin has 126 bytes from byte 0 on: samples of 12 bytes");
    files[0].offset = 127;
    refuse(&config, ISO_ERR_FORMAT,
           "inputs.bin has 126 bytes, so its samples cannot begin at byte 127");
    files[0].offset = -1;
    refuse(&config, ISO_ERR_FORMAT, "cannot begin at byte -1");
    files[0].offset = 126;
    refuse(&config, ISO_ERR_FORMAT, "inputs.bin holds 0 samples");
    files[0].offset = HEADER;
    config.first = 8, config.count = 3;
    refuse(&config, ISO_ERR_FORMAT,
           "inputs.bin holds 10 samples, and 3 from sample 8 on were asked for");
    config.first = 10, config.count = 0;
    refuse(&config, ISO_ERR_FORMAT, "inputs.bin holds 10 samples");
    config.first = -1;
    refuse(&config, ISO_ERR_ARG, "from sample -1 on");
    config.first = INT64_MAX, config.count = INT64_MAX;
    refuse(&config, ISO_ERR_FORMAT, "inputs.bin holds 10 samples");
    config.first = config.count = 0;
    files[1].path = scratch_path("none.bin");
    refuse(&config, ISO_ERR_IO, "none.bin: No such file");
}

Test(raw, descriptions_that_cannot_be_are_refused) {
    iso_raw_file files[2];
    iso_raw_config config = {.inputs = 1, .targets = 1, .files = files};
    write_files(files);
    config.inputs = 0;
    refuse(&config, ISO_ERR_ARG, "0 inputs");
    config.inputs = 2, config.targets = 0, config.classes = 2;
    refuse(&config, ISO_ERR_ARG, "make its first target i32, i64 or u8");
    config.inputs = config.targets = 1;
    files[1].tensor.dtype = ISO_F64;
    refuse(&config, ISO_ERR_ARG, "make its first target i32, i64 or u8");
    config.classes = 0;
    files[0].tensor.shape[0] = 0;
    refuse(&config, ISO_ERR_ARG, "the shape given for the samples of");
    files[0].tensor.shape[0] = INT64_MAX / 2;
    refuse(&config, ISO_ERR_ARG, "inputs.bin is impossible");
    write_files(files);
    files[1].tensor.dtype = ISO_BF16;
    scratch_write("targets.bin", y, COUNT * 2);
    refuse(&config, ISO_ERR_UNSUPPORTED, "target 0 of a data set is bf16");
}
