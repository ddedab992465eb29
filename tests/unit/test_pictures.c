// SPDX-License-Identifier: MIT
// Pictures of every kind are decoded to the pixels that were written and resized as Pillow does;
// damaged ones are refused with one sentence, and the libraries print nothing.
#define _GNU_SOURCE // memmem
#include "common/balance.h"
#include "common/picture_writer.h"
#include "common/scratch.h"
#include "data/picture.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void set_up(void) {
    if (!pictures_are_there()) cr_skip_test("this build has no libjpeg or libpng");
    scratch_take_stderr();
}

static void clean_up(void) {
    if (!pictures_are_there()) return;
    if (scratch_release_stderr()) abort();
    scratch_remove();
    balance_check();
}
TestSuite(pictures, .init = set_up, .fini = clean_up, .timeout = 60);
TestSuite(picture_crop, .fini = balance_check, .timeout = 60);

enum { WIDTH = 19, HEIGHT = 13, PIXELS = WIDTH * HEIGHT, WHOLE = 1000000 };

// ---- Decoding -----------------------------------------------------------------------------------

static const char *write_kind(picture_kind kind, uint8_t *pixels) {
    const char *path = scratch_path("picture");
    int channels = picture_channels(kind);
    for (int i = 0; i < PIXELS * channels; i++) {
        int x = i / channels % WIDTH, y = i / channels / WIDTH;
        pixels[i] = (uint8_t)(5 * x + 5 * y + 30 * (i % channels));
        if (kind == PICTURE_PNG_PALETTE) pixels[i] &= 3;
    }
    picture_write(path, kind, WIDTH, HEIGHT, pixels);
    return path;
}

// What light a pixel of the file gives.
static int light_of(picture_kind kind, const uint8_t *pixel, int c) {
    static const uint8_t colours[4][3] = {
        {0, 0, 0}, {100, 100, 100}, {255, 255, 255}, {200, 10, 0}};
    if (kind == PICTURE_PNG_PALETTE) return colours[pixel[0]][c];
    if (kind == PICTURE_JPEG_PRINT) return pixel[c] * pixel[3] / 255;
    return pixel[picture_channels(kind) == 1 ? 0 : c];
}

Test(pictures, every_kind_becomes_the_pixels_that_were_written) {
    static uint8_t pixels[PIXELS * 4];
    for (picture_kind kind = 0; kind < PICTURE_KINDS; kind++) {
        iso__picture picture;
        const char *path = write_kind(kind, pixels);
        int most = kind < PICTURE_JPEG ? 0 : 25; // colours of JPEG have half the resolution
        cr_assert_eq(iso__picture_read(path, WHOLE, &picture), ISO_OK, "%d: %s", (int)kind,
                     iso_last_error()->message);
        cr_assert(picture.width == WIDTH && picture.height == HEIGHT);
        for (int i = 0; i < PIXELS * 3; i++) {
            const uint8_t *pixel = pixels + i / 3 * picture_channels(kind);
            int wanted = light_of(kind, pixel, i % 3);
            cr_assert(abs(picture.pixels[i] - wanted) <= most, "kind %d, %d: %d is not %d",
                      (int)kind, i, picture.pixels[i], wanted);
        }
        iso__picture_free(&picture);
    }
}

static void fill_pixels(uint8_t *pixels, int width, int height, const uint8_t *value,
                        int channels) {
    for (int i = 0; i < width * height * channels; i++) pixels[i] = value[i % channels];
}

static void expect_colour(const char *path, int r, int g, int b) {
    iso__picture picture;
    const int wanted[] = {r, g, b};
    cr_assert_eq(iso__picture_read(path, WHOLE, &picture), ISO_OK, "%s", iso_last_error()->message);
    for (int c = 0; c < 3; c++)
        cr_assert(abs(picture.pixels[c] - wanted[c]) <= 3, "%d is not %d", picture.pixels[c],
                  wanted[c]);
    iso__picture_free(&picture);
}

// Adobe's marker says that the values are complements of the ink.
Test(pictures, colours_of_print_become_light) {
    static uint8_t pixels[8 * 8 * 4];
    const char *path = scratch_path("print.jpg");
    size_t bytes;
    fill_pixels(pixels, 8, 8, (const uint8_t[]){200, 100, 50, 128}, 4);
    picture_write(path, PICTURE_JPEG_PRINT, 8, 8, pixels);
    expect_colour(path, 100, 50, 25);
    char *data = scratch_read(path, &bytes);
    char *marker = memmem(data, bytes, "Adobe", 5);
    cr_assert_not_null(marker);
    *marker = 'a';
    expect_colour(scratch_write("print.jpg", data, bytes), 55 * 127 / 255, 155 * 127 / 255,
                  205 * 127 / 255);
    free(data);
}

// Only those of which at least twice the pixels that are needed are left.
Test(pictures, large_jpeg_files_are_decoded_at_a_fraction) {
    static uint8_t pixels[200 * 160 * 3];
    const int64_t least[] = {200, 80, 41, 40, 20, 10, 1}, side[] = {160, 160, 160, 80, 40, 20, 20};
    fill_pixels(pixels, 200, 160, (const uint8_t[]){90, 160, 30}, 3);
    picture_write(scratch_path("large.jpg"), PICTURE_JPEG, 200, 160, pixels);
    for (int i = 0; i < 7; i++) {
        iso__picture picture;
        cr_assert_eq(iso__picture_read(scratch_path("large.jpg"), least[i], &picture), ISO_OK);
        cr_assert_eq(picture.height, side[i], "%d: %d", (int)least[i], (int)picture.height);
        cr_assert_eq(picture.width, side[i] * 200 / 160);
        cr_assert(abs(picture.pixels[1] - 160) <= 3);
        iso__picture_free(&picture);
    }
}

// ---- Damage -------------------------------------------------------------------------------------

static void refuse(const char *path, const char *words) {
    iso__picture picture = {.width = -1};
    iso_status status = iso__picture_read(path, WHOLE, &picture);
    const char *message = iso_last_error()->message;
    cr_assert_eq(status, ISO_ERR_FORMAT, "%s: got %d", words, status);
    cr_assert(strstr(message, words) && strstr(message, path), "no \"%s\" in: %s", words, message);
    cr_assert_eq(picture.width, -1);
}

Test(pictures, what_is_no_picture_is_refused) {
    iso__picture picture;
    refuse(scratch_write("empty.jpg", "", 0), "is empty");
    refuse(scratch_write("text.png", "A picture.\n", 11), "does not begin as a JPEG or PNG file");
    refuse(scratch_write("short.png", "\x89PN", 3), "does not begin as a JPEG or PNG file");
    cr_assert_eq(iso__picture_read(scratch_path("none.png"), WHOLE, &picture), ISO_ERR_IO);
    cr_assert_eq(iso__picture_read(scratch_folder(), WHOLE, &picture), ISO_ERR_IO);
}

// Wherever a file ends too early.
Test(pictures, truncated_files_are_refused) {
    static uint8_t pixels[PIXELS * 4];
    for (picture_kind kind = 0; kind < PICTURE_KINDS; kind++) {
        size_t bytes, begin = kind < PICTURE_JPEG ? 8 : 2;
        char *whole = scratch_read(write_kind(kind, pixels), &bytes);
        for (size_t left = begin; left < bytes; left++)
            refuse(scratch_write("short", whole, left), "is truncated or damaged (");
        free(whole);
    }
}

// A wrong byte may do no harm, or give other pixels; it is no crash, and nothing is printed.
Test(pictures, any_wrong_byte_is_survived) {
    static const picture_kind kinds[] = {PICTURE_PNG, PICTURE_PNG_PALETTE, PICTURE_JPEG,
                                         PICTURE_JPEG_PROGRESSIVE};
    static uint8_t pixels[PIXELS * 4];
    for (int k = 0; k < 4; k++) {
        size_t bytes;
        char *data = scratch_read(write_kind(kinds[k], pixels), &bytes);
        for (size_t i = 0; i < bytes; i++) {
            iso__picture picture = {0};
            data[i] ^= 0x5a;
            iso_status status =
                iso__picture_read(scratch_write("damaged", data, bytes), WHOLE, &picture);
            cr_assert(status == ISO_OK || status == ISO_ERR_FORMAT, "%d", status);
            iso__picture_free(&picture);
            data[i] ^= 0x5a;
        }
        free(data);
    }
}

// Of PNG's chunks, as its specification defines it.
static uint32_t check_chunk(const uint8_t *bytes, size_t count) {
    uint32_t sum = 0xffffffff;
    for (size_t i = 0; i < count; i++) {
        sum ^= bytes[i];
        for (int k = 0; k < 8; k++) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
    }
    return ~sum;
}

static void put_number(char *to, uint32_t number, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (char)(number >> 8 * (bytes - 1 - i));
}

// The sizes alone would take gigabytes.
Test(pictures, hostile_sizes_are_refused) {
    static uint8_t pixels[PIXELS * 4];
    size_t bytes;
    char *png = scratch_read(write_kind(PICTURE_PNG, pixels), &bytes);
    put_number(png + 16, 60000, 4);
    put_number(png + 20, 50000, 4);
    put_number(png + 29, check_chunk((const uint8_t *)png + 12, 17), 4);
    refuse(scratch_write("huge.png", png, bytes), "has 60000 x 50000 pixels");
    put_number(png + 16, 0x7fffffff, 4);
    put_number(png + 29, check_chunk((const uint8_t *)png + 12, 17), 4);
    refuse(scratch_write("huge.png", png, bytes), "has 2147483647 x 50000 pixels");
    free(png);
    char *jpeg = scratch_read(write_kind(PICTURE_JPEG, pixels), &bytes);
    char *frame = memmem(jpeg, bytes, "\xff\xc0", 2);
    cr_assert_not_null(frame);
    put_number(frame + 5, 50000, 2);
    put_number(frame + 7, 65000, 2);
    refuse(scratch_write("huge.jpg", jpeg, bytes), "has 65000 x 50000 pixels");
    free(jpeg);
}

// What stands from `at` to `end` stands there so many times.
static void try_scans(const char *jpeg, size_t bytes, size_t at, size_t end, int times,
                      const char *why) {
    size_t length = end - at, size = bytes + (size_t)(times - 1) * length;
    char *all = malloc(size), *to = all;
    cr_assert_not_null(all);
    to = mempcpy(to, jpeg, at);
    for (int k = 0; k < times; k++) to = mempcpy(to, jpeg + at, length);
    mempcpy(to, jpeg + end, bytes - end);
    const char *path = scratch_write("scans.jpg", all, size);
    iso__picture picture = {0};
    if (why) refuse(path, why);
    if (!why)
        cr_assert_eq(iso__picture_read(path, WHOLE, &picture), ISO_OK, "%s",
                     iso_last_error()->message);
    iso__picture_free(&picture);
    free(all);
}

// Each scan goes over the whole picture, so a small file could take minutes.
Test(pictures, jpeg_files_of_very_many_scans_are_refused) {
    static uint8_t pixels[PIXELS * 4];
    size_t bytes;
    char *jpeg = scratch_read(write_kind(PICTURE_JPEG_PROGRESSIVE, pixels), &bytes);
    char *scan = memmem(jpeg, bytes, "\xff\xda", 2); // the first; then come tables
    cr_assert_not_null(scan);
    char *end = memmem(scan, bytes - (size_t)(scan - jpeg), "\xff\xc4", 2);
    cr_assert_not_null(end);
    size_t from = (size_t)(scan - jpeg), to = (size_t)(end - jpeg);
    try_scans(jpeg, bytes, from, to, 400, NULL);
    try_scans(jpeg, bytes, from, to, 600, "more than 500 scans");
    free(jpeg);
}

// ---- Resizing -----------------------------------------------------------------------------------

static uint64_t hash_crop(uint64_t hash, int64_t width, int64_t height, int64_t shorter,
                          int64_t size) {
    static uint8_t pixels[40 * 40 * 3], out[32 * 32 * 3];
    for (int64_t i = 0; i < width * height * 3; i++) {
        int64_t c = i % 3, x = i / 3 % width, y = i / 3 / width;
        pixels[i] = (uint8_t)(x * 37 + y * 91 + c * 53 + x * y * 11);
    }
    const iso__picture picture = {width, height, pixels};
    iso__span x, y;
    iso__picture_centre(&picture, shorter, size, &x, &y);
    cr_assert_eq(iso__picture_crop(&picture, &x, &y, size, out), ISO_OK);
    return iso__hash(hash, out, (size_t)(3 * size * size));
}

// Pillow 13.0.0: resize with BILINEAR to the width and then to the height of torchvision's
// Resize(shorter), in two calls because it begins tall pictures with their columns; then the crop
// of CenterCrop(size). A hash of the planes of 416 results.
Test(picture_crop, is_pillow_s_bit_for_bit) {
    static const int64_t sizes[4][2] = {{8, 8}, {9, 7}, {33, 32}, {20, 5}};
    uint64_t hash = ISO_HASH_START;
    for (int64_t width = 1; width < 40; width += 3)
        for (int64_t height = 1; height < 40; height += 5)
            for (int i = 0; i < 4; i++)
                hash = hash_crop(hash, width, height, sizes[i][0], sizes[i][1]);
    cr_assert_eq(hash, UINT64_C(0xdf1576c93b8f9b91), "%llx", (unsigned long long)hash);
}

// All bytes of a picture of one colour keep it, whatever the size.
Test(picture_crop, keeps_a_colour) {
    static uint8_t pixels[301 * 3], out[11 * 11 * 3];
    memset(pixels, 255, sizeof(pixels));
    for (int64_t width = 1; width <= 301; width += 60) {
        const iso__picture picture = {width, 1, pixels};
        iso__span x, y;
        iso__picture_centre(&picture, 12, 11, &x, &y);
        cr_assert_eq(iso__picture_crop(&picture, &x, &y, 11, out), ISO_OK);
        for (int i = 0; i < 11 * 11 * 3; i++) cr_assert_eq(out[i], 255);
    }
}

// ---- Random parts -------------------------------------------------------------------------------

// Pillow 13.0.0: Image.crop, then resize as above; a hash of the planes of 12 results.
Test(picture_crop, of_a_part_is_pillow_s) {
    static const int64_t parts[6][4] = {{0, 0, 40, 30}, {3, 5, 20, 20}, {11, 0, 7, 9},
                                        {39, 29, 1, 1}, {0, 12, 30, 2}, {5, 1, 3, 29}};
    static uint8_t pixels[40 * 30 * 3], out[16 * 16 * 3];
    uint64_t hash = ISO_HASH_START;
    for (int64_t i = 0; i < 40 * 30 * 3; i++) {
        int64_t c = i % 3, x = i / 3 % 40, y = i / 3 / 40;
        pixels[i] = (uint8_t)(x * 37 + y * 91 + c * 53 + x * y * 11);
    }
    const iso__picture picture = {40, 30, pixels};
    for (int i = 0; i < 12; i++) {
        const int64_t *p = parts[i / 2], size = i % 2 ? 16 : 5;
        const iso__span x = {0, (double)p[2] / (double)size, p[0], p[2]};
        const iso__span y = {0, (double)p[3] / (double)size, p[1], p[3]};
        cr_assert_eq(iso__picture_crop(&picture, &x, &y, size, out), ISO_OK);
        hash = iso__hash(hash, out, (size_t)(3 * size * size));
    }
    cr_assert_eq(hash, UINT64_C(0xeb4a2857ce84680d), "%llx", (unsigned long long)hash);
}

// RandomResizedCrop's (0.08, 1) and (3/4, 4/3); sides are whole pixels.
Test(picture_crop, random_parts_have_the_areas_and_ratios_of_torchvision) {
    const iso__picture picture = {400, 300, NULL};
    double mean_area = 0, left = 0, room = 0;
    enum { DRAWS = 2000 };
    for (uint64_t random = 0; random < DRAWS; random++) {
        iso__span x, y;
        iso__picture_draw(&picture, 0.08, random, 10, &x, &y);
        double area = (double)(x.length * y.length) / (400 * 300);
        double ratio = (double)x.length / (double)y.length;
        cr_assert(x.first >= 0 && x.first + x.length <= 400);
        cr_assert(y.first >= 0 && y.first + y.length <= 300);
        cr_assert(area > 0.077 && ratio > 0.73 && ratio < 1.37, "%g %g", area, ratio);
        cr_assert(x.begin == 0 && x.step == (double)x.length / 10);
        mean_area += area / DRAWS;
        left += (double)x.first / DRAWS;
        room += (double)(400 - x.length) / DRAWS;
    }
    cr_assert(mean_area > 0.4 && mean_area < 0.54, "%g",
              mean_area); // less than 0.54: some do not fit
    cr_assert_float_eq(left / room, 0.5, 0.04, "%g", left / room);
}

// No part of an allowed ratio has enough of it.
Test(picture_crop, of_a_narrow_picture_the_middle_is_taken) {
    const iso__picture picture = {900, 30, NULL};
    iso__span x, y;
    iso__picture_draw(&picture, 0.5, 1, 10, &x, &y);
    cr_assert(x.length == 40 && x.first == 430 && y.length == 30 && y.first == 0);
}
