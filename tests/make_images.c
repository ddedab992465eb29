// SPDX-License-Identifier: MIT
// Writes generated digits as a folder of IDX files: make_images FOLDER TRAIN TEST CHANNELS SIDE.
// With one channel and SIDE 28 these are the digits of the library; otherwise the middle of larger
// images, and each channel has a brightness of its own.
#include <isotherm/data.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static FILE *create(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    return file;
}

static void put_number(FILE *to, int64_t number) {
    for (int shift = 24; shift >= 0; shift -= 8) fputc((int)(number >> shift & 255), to);
}

static void put_image(FILE *to, const uint8_t *image, int64_t channels, int64_t side) {
    int64_t border = (side - 28) / 2;
    for (int64_t c = 0; c < channels; c++)
        for (int64_t y = -border; y < side - border; y++)
            for (int64_t x = -border; x < side - border; x++) {
                bool inside = y >= 0 && y < 28 && x >= 0 && x < 28;
                fputc(inside ? image[28 * y + x] / (int)(c + 1) : 0, to);
            }
}

static const char *images_name(bool train, bool colour) {
    if (colour) return train ? "train-images-idx4-ubyte" : "t10k-images-idx4-ubyte";
    return train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte";
}

static void put_set(const char *folder, bool train, int64_t count, int64_t channels, int64_t side) {
    iso_dataset *digits;
    if (iso_dataset_create_digits(train, count, &digits) < 0) {
        iso_error_print(stderr);
        exit(EXIT_FAILURE);
    }
    FILE *images = create(folder, images_name(train, channels > 1));
    FILE *labels = create(folder, train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte");
    put_number(images, channels > 1 ? 0x0804 : 0x0803);
    put_number(images, count);
    if (channels > 1) put_number(images, channels);
    put_number(images, side);
    put_number(images, side);
    put_number(labels, 0x0801);
    put_number(labels, count);
    for (int64_t i = 0; i < count; i++) {
        int32_t label;
        put_image(images, iso_dataset_image(digits, i, &label), channels, side);
        fputc(label, labels);
    }
    fclose(images);
    fclose(labels);
    iso_dataset_destroy(&digits);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fputs("usage: make_images FOLDER TRAIN TEST CHANNELS SIDE\n", stderr);
        return EXIT_FAILURE;
    }
    int64_t channels = atoll(argv[4]), side = atoll(argv[5]);
    mkdir(argv[1], 0777);
    put_set(argv[1], true, atoll(argv[2]), channels, side);
    put_set(argv[1], false, atoll(argv[3]), channels, side);
    return EXIT_SUCCESS;
}
