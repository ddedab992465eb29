// SPDX-License-Identifier: MIT
// Data sets: statistics, shapes from IDX files, the MNIST folder, and what is refused.
#include "common/balance.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <string.h>

static void clean_up(void) {
    scratch_remove();
    balance_check();
}
TestSuite(dataset, .fini = clean_up, .timeout = 60);

static void expect_error(iso_status status, iso_status code, const char *words) {
    const char *message = iso_last_error()->message;
    cr_assert_eq(status, code, "%s: got %d, message: %s", words, status, message);
    cr_assert(strstr(message, words), "no \"%s\" in: %s", words, message);
}

// An IDX file of u8: dimensions and `count` elements 0, 1, 2, ...
static const char *write_idx(const char *name, int ndim, const uint8_t *shape, size_t count) {
    uint8_t bytes[300] = {0, 0, 8, (uint8_t)ndim};
    size_t n = 4;
    for (int d = 0; d < ndim; d++, n += 4) bytes[n + 3] = shape[d];
    for (size_t i = 0; i < count; i++) bytes[n + i] = (uint8_t)i;
    return scratch_write(name, bytes, n + count);
}

// Half of the pixels 0 and half 255: mean and deviation are 1/2 exactly.
Test(dataset, mean_and_deviation_are_over_all_pixels) {
    const uint8_t images[] = {0, 255, 255, 0, 0, 0, 255, 255};
    const int32_t labels[] = {1, 0};
    iso_dataset *dataset;
    iso_dataset_info info;
    cr_assert_eq(iso_dataset_create(images, labels, 2, 1, 2, 2, 3, &dataset), ISO_OK);
    iso_dataset_get_info(dataset, &info);
    cr_assert(info.mean[0] == 0.5 && info.std[0] == 0.5);
    cr_assert(info.count == 2 && info.channels == 1 && info.height == 2 && info.width == 2);
    cr_assert_eq(info.classes, 3);
    iso_dataset_destroy(&dataset);
    cr_assert_null(dataset);
}

// One channel is 0 and 255 in equal parts, the other 51 everywhere.
Test(dataset, each_channel_has_its_own_statistics) {
    const uint8_t images[] = {0, 255, 51, 51, 255, 0, 51, 51, 0, 255, 51, 51};
    const int32_t labels[] = {1, 0, 1};
    iso_dataset *dataset;
    iso_dataset_info info;
    cr_assert_eq(iso_dataset_create(images, labels, 3, 2, 1, 2, 2, &dataset), ISO_OK);
    iso_dataset_get_info(dataset, &info);
    cr_assert(info.mean[0] == 0.5 && info.std[0] == 0.5);
    cr_assert(info.mean[1] == 0.2 && info.std[1] == 0);
    iso_dataset_destroy(&dataset);
}

Test(dataset, copies_what_it_is_given) {
    uint8_t images[] = {1, 2, 3, 4};
    int32_t labels[] = {0, 1}, label;
    iso_dataset *dataset;
    cr_assert_eq(iso_dataset_create(images, labels, 2, 1, 1, 2, 2, &dataset), ISO_OK);
    memset(images, 9, sizeof(images));
    labels[1] = 0;
    const uint8_t *image = iso_dataset_image(dataset, 1, &label);
    cr_assert(image[0] == 3 && image[1] == 4 && label == 1);
    iso_dataset_destroy(&dataset);
}

// Of 2 images of 1 x 2 x 4.
static uint64_t checksum_of(const uint8_t images[16], const int32_t labels[2], int64_t channels,
                            int classes) {
    iso_dataset *dataset;
    cr_assert_eq(
        iso_dataset_create(images, labels, 2, channels, 2, 4 / channels, classes, &dataset),
        ISO_OK);
    uint64_t sum = iso_dataset_checksum(dataset);
    iso_dataset_destroy(&dataset);
    return sum;
}

Test(dataset, every_pixel_label_and_size_has_a_part_in_the_checksum) {
    uint8_t images[16] = {0};
    int32_t labels[] = {0, 2};
    uint64_t sum = checksum_of(images, labels, 1, 3);
    for (int bit = 0; bit < 128; bit++) {
        images[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_neq(checksum_of(images, labels, 1, 3), sum, "bit %d", bit);
        images[bit / 8] = 0;
    }
    cr_assert_neq(checksum_of(images, (const int32_t[]){2, 0}, 1, 3), sum);
    cr_assert_neq(checksum_of(images, (const int32_t[]){0, 1}, 1, 3), sum);
    cr_assert_neq(checksum_of(images, labels, 2, 3), sum);
    cr_assert_neq(checksum_of(images, labels, 1, 4), sum);
    cr_assert_eq(checksum_of(images, labels, 1, 3), sum);
}

Test(dataset, a_file_and_an_array_of_the_same_contents_have_the_same_checksum) {
    const uint8_t images[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32_t labels[] = {0, 1};
    iso_dataset *file, *array;
    const char *path = write_idx("images", 4, (const uint8_t[]){2, 1, 2, 2}, 8);
    cr_assert_eq(iso_dataset_read_idx(path, write_idx("labels", 1, (const uint8_t[]){2}, 2), &file),
                 ISO_OK);
    cr_assert_eq(iso_dataset_create(images, labels, 2, 1, 2, 2, 2, &array), ISO_OK);
    cr_assert_eq(iso_dataset_checksum(file), iso_dataset_checksum(array));
    iso_dataset_destroy(&file);
    iso_dataset_destroy(&array);
}

Test(dataset, generated_sets_differ_by_their_values) {
    iso_dataset *set[3];
    cr_assert_eq(iso_dataset_create_digits(true, 50, &set[0]), ISO_OK);
    cr_assert_eq(iso_dataset_create_digits(true, 50, &set[1]), ISO_OK);
    cr_assert_eq(iso_dataset_create_digits(false, 50, &set[2]), ISO_OK);
    cr_assert_eq(iso_dataset_checksum(set[0]), iso_dataset_checksum(set[1]));
    cr_assert_neq(iso_dataset_checksum(set[0]), iso_dataset_checksum(set[2]));
    for (int i = 0; i < 3; i++) iso_dataset_destroy(&set[i]);
}

Test(dataset, lives_until_the_last_reference) {
    const uint8_t images[] = {7};
    const int32_t labels[] = {0};
    iso_dataset *dataset;
    cr_assert_eq(iso_dataset_create(images, labels, 1, 1, 1, 1, 1, &dataset), ISO_OK);
    iso_dataset *second = iso_dataset_retain(dataset);
    iso_dataset_destroy(&dataset);
    cr_assert_eq(iso_dataset_image(second, 0, NULL)[0], 7);
    iso_dataset_destroy(&second);
    iso_dataset_destroy(&second);
}

Test(dataset, refuses_labels_outside_the_classes) {
    const uint8_t images[] = {1, 2};
    const int32_t high[] = {0, 2}, low[] = {-1, 0};
    iso_dataset *dataset = NULL;
    expect_error(iso_dataset_create(images, high, 2, 1, 1, 1, 2, &dataset), ISO_ERR_ARG,
                 "label 1 is 2, outside [0, 2)");
    expect_error(iso_dataset_create(images, low, 2, 1, 1, 1, 2, &dataset), ISO_ERR_ARG,
                 "label 0 is -1");
    expect_error(iso_dataset_create(images, low, 0, 1, 1, 1, 2, &dataset), ISO_ERR_ARG,
                 "impossible");
    cr_assert_null(dataset);
}

Test(dataset, takes_images_of_two_to_four_dimensions) {
    const uint8_t shapes[3][4] = {{2, 12}, {2, 3, 4}, {2, 3, 2, 2}};
    const int64_t expected[3][3] = {{1, 1, 12}, {1, 3, 4}, {3, 2, 2}};
    const char *labels = write_idx("labels", 1, (const uint8_t[]){2}, 2);
    for (int i = 0; i < 3; i++) {
        iso_dataset *dataset;
        iso_dataset_info info;
        iso_status status =
            iso_dataset_read_idx(write_idx("images", i + 2, shapes[i], 24), labels, &dataset);
        cr_assert_eq(status, ISO_OK, "%s", iso_last_error()->message);
        iso_dataset_get_info(dataset, &info);
        int32_t label;
        cr_assert(info.count == 2 && info.channels == expected[i][0]);
        cr_assert(info.height == expected[i][1] && info.width == expected[i][2]);
        cr_assert_eq(info.classes, 2);
        cr_assert(iso_dataset_image(dataset, 1, &label)[0] == 12 && label == 1);
        iso_dataset_destroy(&dataset);
    }
}

Test(dataset, takes_labels_of_any_integer_type) {
    const char *images = write_idx("images", 2, (const uint8_t[]){2, 3}, 6);
    const struct {
        size_t bytes;
        uint8_t data[16];
    } files[] = {{10, {0, 0, 9, 1, 0, 0, 0, 2, 5, 3}},
                 {12, {0, 0, 0x0B, 1, 0, 0, 0, 2, 0, 5, 0, 3}},
                 {16, {0, 0, 0x0C, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 3}}};
    for (int i = 0; i < 3; i++) {
        iso_dataset *dataset;
        iso_dataset_info info;
        int32_t first, second;
        const char *labels = scratch_write("labels", files[i].data, files[i].bytes);
        cr_assert_eq(iso_dataset_read_idx(images, labels, &dataset), ISO_OK);
        iso_dataset_get_info(dataset, &info);
        iso_dataset_image(dataset, 0, &first);
        iso_dataset_image(dataset, 1, &second);
        cr_assert(first == 5 && second == 3 && info.classes == 6);
        iso_dataset_destroy(&dataset);
    }
}

Test(dataset, names_both_files_when_the_counts_differ) {
    const char *images = write_idx("images", 2, (const uint8_t[]){3, 4}, 12);
    const char *labels = write_idx("labels", 1, (const uint8_t[]){2}, 2);
    iso_dataset *dataset = NULL;
    expect_error(iso_dataset_read_idx(images, labels, &dataset), ISO_ERR_FORMAT, "has 3 images");
    cr_assert(strstr(iso_last_error()->message, images) &&
              strstr(iso_last_error()->message, labels));
    cr_assert(strstr(iso_last_error()->message, "has 2 labels"));
}

Test(dataset, refuses_files_of_the_wrong_kind) {
    const char *images = write_idx("images", 2, (const uint8_t[]){1, 4}, 4);
    const char *flat = write_idx("flat", 1, (const uint8_t[]){1}, 1);
    const uint8_t negative[] = {0, 0, 9, 1, 0, 0, 0, 1, 0xFF};
    const uint8_t real[] = {0, 0, 0x0D, 1, 0, 0, 0, 1, 0, 0, 0, 0};
    iso_dataset *dataset = NULL;
    expect_error(iso_dataset_read_idx(flat, flat, &dataset), ISO_ERR_FORMAT, "has 1 dimension:");
    expect_error(iso_dataset_read_idx(images, images, &dataset), ISO_ERR_FORMAT, "labels have 1");
    expect_error(iso_dataset_read_idx(images, scratch_write("l", real, sizeof(real)), &dataset),
                 ISO_ERR_FORMAT,
                 "holds 32-bit floats (0x0d), as byte 2 of its header says, but labels are");
    expect_error(iso_dataset_read_idx(scratch_write("l", real, sizeof(real)), flat, &dataset),
                 ISO_ERR_FORMAT,
                 "holds 32-bit floats (0x0d), as byte 2 of its header says, but images are");
    expect_error(iso_dataset_read_idx(images, scratch_write("l", negative, 9), &dataset),
                 ISO_ERR_FORMAT, "label 0 of");
    cr_assert_null(dataset);
}

// Both spellings of MNIST's names; the training set has 2 images, the test set 1.
Test(dataset, finds_the_files_of_an_mnist_folder) {
    iso_dataset *dataset;
    iso_dataset_info info;
    write_idx("train-images-idx3-ubyte", 3, (const uint8_t[]){2, 2, 2}, 8);
    write_idx("train-labels-idx1-ubyte", 1, (const uint8_t[]){2}, 2);
    write_idx("t10k-images.idx3-ubyte", 3, (const uint8_t[]){1, 2, 2}, 4);
    write_idx("t10k-labels.idx1-ubyte.gz", 1, (const uint8_t[]){1}, 1);
    for (int train = 0; train < 2; train++) {
        iso_status status = iso_dataset_read_mnist(scratch_folder(), train, &dataset);
        cr_assert_eq(status, ISO_OK, "%s", iso_last_error()->message);
        iso_dataset_get_info(dataset, &info);
        cr_assert_eq(info.count, train ? 2 : 1);
        iso_dataset_destroy(&dataset);
    }
}

// Whatever the name says, the header tells the dimensions.
Test(dataset, takes_colour_images_under_either_name) {
    iso_dataset *dataset;
    iso_dataset_info info;
    const char *const names[] = {"idx3-ubyte", "idx4-ubyte", "idx4-ubyte.gz"};
    const uint8_t shape[] = {2, 3, 2, 2};
    write_idx("train-labels-idx1-ubyte", 1, (const uint8_t[]){2}, 2);
    for (int i = 0; i < 3; i++) {
        char name[60];
        snprintf(name, sizeof(name), "train-images%c%s", i == 2 ? '.' : '-', names[i]);
        const char *path = write_idx(name, 4, shape, 24);
        iso_status status = iso_dataset_read_mnist(scratch_folder(), true, &dataset);
        cr_assert_eq(status, ISO_OK, "%s", iso_last_error()->message);
        iso_dataset_get_info(dataset, &info);
        cr_assert(info.count == 2 && info.channels == 3 && info.height == 2);
        iso_dataset_destroy(&dataset);
        cr_assert_eq(remove(path), 0);
    }
    dataset = NULL;
    write_idx("train-images-idx3-ubyte", 4, shape, 24);
    write_idx("train-images-idx4-ubyte.gz", 4, shape, 24);
    expect_error(iso_dataset_read_mnist(scratch_folder(), true, &dataset), ISO_ERR_IO,
                 "has train-images twice, as idx3-ubyte and as idx4-ubyte: remove one");
    expect_error(iso_dataset_read_mnist(scratch_folder(), false, &dataset), ISO_ERR_IO,
                 "of colour images, t10k-images-idx4-ubyte");
    cr_assert_null(dataset);
}

Test(dataset, prefers_unpacked_files) {
    iso_dataset *dataset;
    iso_dataset_info info;
    write_idx("train-images-idx3-ubyte.gz", 3, (const uint8_t[]){1, 2, 2}, 4);
    write_idx("train-images-idx3-ubyte", 3, (const uint8_t[]){2, 2, 2}, 8);
    write_idx("train-labels-idx1-ubyte", 1, (const uint8_t[]){2}, 2);
    cr_assert_eq(iso_dataset_read_mnist(scratch_folder(), true, &dataset), ISO_OK);
    iso_dataset_get_info(dataset, &info);
    cr_assert_eq(info.count, 2);
    iso_dataset_destroy(&dataset);
}

Test(dataset, says_what_an_mnist_folder_lacks) {
    iso_dataset *dataset = NULL;
    write_idx("train-images-idx3-ubyte", 3, (const uint8_t[]){2, 2, 2}, 8);
    expect_error(iso_dataset_read_mnist(scratch_folder(), true, &dataset), ISO_ERR_IO,
                 "train-labels-idx1-ubyte");
    cr_assert(strstr(iso_last_error()->message, scratch_folder()));
    expect_error(iso_dataset_read_mnist(scratch_path("none"), true, &dataset), ISO_ERR_IO,
                 "there is no data folder");
    expect_error(iso_dataset_read_mnist(scratch_path("train-images-idx3-ubyte"), true, &dataset),
                 ISO_ERR_IO, "train-images-idx3-ubyte is a file: give a folder");
    cr_assert_null(dataset);
}
