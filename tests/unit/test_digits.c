// SPDX-License-Identifier: MIT
// Generated digits: the same on every machine, whatever the number asked for.
#include "common/balance.h"
#include "base/base.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <stdlib.h>
#include <string.h>

TestSuite(digits, .fini = balance_check, .timeout = 60);

static iso_dataset *create(bool train, int64_t count) {
    iso_dataset *dataset;
    cr_assert_eq(iso_dataset_create_digits(train, count, &dataset), ISO_OK);
    return dataset;
}

static uint64_t hash(bool train, int64_t count) {
    iso_dataset *dataset = create(train, count);
    uint64_t hash = ISO_HASH_START;
    for (int64_t i = 0; i < count; i++) {
        int32_t label;
        const uint8_t *image = iso_dataset_image(dataset, i, &label);
        uint8_t byte = (uint8_t)label;
        hash = iso__hash(iso__hash(hash, &byte, 1), image, 28 * 28);
    }
    iso_dataset_destroy(&dataset);
    return hash;
}

// Golden values of this generator (x86-64, gcc 12); accuracies quoted for the set hold for these
// bytes only.
Test(digits, first_hundred_are_the_known_ones) {
    cr_assert_eq(hash(true, 100), 0x8959d416601a2d6au, "%#llx",
                 (unsigned long long)hash(true, 100));
    cr_assert_eq(hash(false, 100), 0xc0fc296d56d4e9c3u, "%#llx",
                 (unsigned long long)hash(false, 100));
}

Test(digits, look_like_mnist) {
    iso_dataset *dataset = create(true, 10);
    iso_dataset_info info;
    iso_dataset_get_info(dataset, &info);
    cr_assert(info.count == 10 && info.channels == 1 && info.height == 28 && info.width == 28);
    cr_assert_eq(info.classes, 10);
    iso_dataset_destroy(&dataset);
}

Test(digits, a_longer_set_starts_with_the_shorter_one) {
    iso_dataset *shorter = create(true, 50), *longer = create(true, 80);
    for (int64_t i = 0; i < 50; i++) {
        int32_t a, b;
        const uint8_t *image = iso_dataset_image(shorter, i, &a);
        cr_assert_eq(memcmp(image, iso_dataset_image(longer, i, &b), 784), 0);
        cr_assert_eq(a, b);
    }
    iso_dataset_destroy(&shorter);
    iso_dataset_destroy(&longer);
}

Test(digits, iso_digits_says_how_many) {
    static const char *const values[] = {"600", "", NULL};
    static const int64_t counts[][2] = {{600, 100}, {60000, 10000}, {60000, 10000}};
    for (int i = 0; i < 3; i++)
        for (int test = 0; test < 2; test++) {
            iso_dataset *dataset;
            iso_dataset_info info;
            unsetenv("ISO_DIGITS");
            if (values[i]) setenv("ISO_DIGITS", values[i], 1);
            cr_assert_eq(iso_dataset_open("digits", !test, &dataset), ISO_OK);
            iso_dataset_get_info(dataset, &info);
            cr_assert_eq(info.count, counts[i][test]);
            iso_dataset_destroy(&dataset);
        }
}

Test(digits, no_test_image_is_a_training_image) {
    iso_dataset *train = create(true, 500), *test = create(false, 500);
    for (int64_t i = 0; i < 500; i++)
        for (int64_t j = 0; j < 500; j++)
            cr_assert_neq(
                memcmp(iso_dataset_image(train, i, NULL), iso_dataset_image(test, j, NULL), 784),
                0);
    iso_dataset_destroy(&train);
    iso_dataset_destroy(&test);
}

// 12,000 draws of 10 classes: 1200 each, standard deviation 33; six of them are allowed.
Test(digits, classes_are_equally_frequent) {
    iso_dataset *dataset = create(true, 12000);
    int count[10] = {0};
    for (int64_t i = 0; i < 12000; i++) {
        int32_t label;
        iso_dataset_image(dataset, i, &label);
        cr_assert(label >= 0 && label < 10);
        count[label]++;
    }
    for (int c = 0; c < 10; c++)
        cr_assert(count[c] > 1000 && count[c] < 1400, "%d of class %d", count[c], c);
    iso_dataset_destroy(&dataset);
}

// Strokes may touch the border, but few do: it holds far less bright ink than the middle rows.
Test(digits, stay_in_the_picture) {
    iso_dataset *dataset = create(true, 2000);
    int border = 0, middle = 0;
    for (int64_t i = 0; i < 2000; i++) {
        const uint8_t *image = iso_dataset_image(dataset, i, NULL);
        for (int x = 0; x < 28; x++) {
            border += (image[x] > 128) + (image[27 * 28 + x] > 128);
            middle += (image[13 * 28 + x] > 128) + (image[14 * 28 + x] > 128);
        }
    }
    cr_assert_lt(border, middle / 10, "%d of %d", border, middle);
    iso_dataset_destroy(&dataset);
}

Test(digits, refuses_an_empty_set) {
    iso_dataset *dataset = NULL;
    cr_assert_eq(iso_dataset_create_digits(true, 0, &dataset), ISO_ERR_ARG);
    cr_assert_null(dataset);
}
