// SPDX-License-Identifier: MIT
// Private to src/data: reads JPEG and PNG files, and brings pictures to one size.
#ifndef ISO_PICTURE_H
#define ISO_PICTURE_H

#include "base/base.h"

#include <stdbool.h>

// A decoded picture, in colour.
typedef struct iso__picture {
    int64_t width, height;
    uint8_t *pixels; // [height][width][3]; owned
} iso__picture;

// The bytes of a file, to be decoded.
typedef struct iso__picture_file {
    const char *path; // for messages
    const uint8_t *bytes;
    size_t size;
    // A decoder may reduce a picture whose shorter side stays at least twice this long.
    int64_t least;
} iso__picture_file;

// Reads a file; its first bytes, not its name, tell JPEG from PNG. Grey becomes colour with equal
// channels, 16 bits become 8, transparency is dropped. ISO_ERR_IO: missing or unreadable;
// ISO_ERR_FORMAT: neither kind, truncated, damaged, or too large; ISO_ERR_UNSUPPORTED: this build
// lacks the library. Each message names the file. Threads may call it at the same time.
iso_status iso__picture_read(const char *path, int64_t least, iso__picture *out);
void iso__picture_free(iso__picture *picture);

// ---- Of one kind: called by iso__picture_read ----

iso_status iso__jpeg_decode(const iso__picture_file *file, iso__picture *out);
iso_status iso__png_decode(const iso__picture_file *file, iso__picture *out);
// Allocates the pixels of a picture of a file. ISO_ERR_FORMAT: it has too many.
iso_status iso__picture_alloc(const iso__picture_file *file, int64_t width, int64_t height,
                              iso__picture *out);
// Refuses sizes that no picture of a data set has, before anything is allocated.
iso_status iso__picture_check(const iso__picture_file *file, int64_t width, int64_t height);

// ---- To one size: picture_crop.c ----

// The part of one side of a picture that becomes a side of the result. Only pixels
// [first, first + length) are used.
typedef struct iso__span {
    // Pixel i of the result covers [begin + i * step, begin + (i + 1) * step), counted from
    // `first`.
    double begin, step;
    int64_t first, length;
} iso__span;
// The spans of the square of `size` pixels in the middle of the picture, after resizing it so that
// its shorter side has `shorter` pixels (torchvision: Resize and CenterCrop).
void iso__picture_centre(const iso__picture *picture, int64_t shorter, int64_t size, iso__span *x,
                         iso__span *y);
// The spans of a random part (torchvision: RandomResizedCrop) with at least `least` of the area and
// a ratio of sides from 3/4 to 4/3. `random` decides.
void iso__picture_draw(const iso__picture *picture, double least, uint64_t random, int64_t size,
                       iso__span *x, iso__span *y);
// Writes [3][size][size] bytes. Each pixel is an average with triangular weights, two pixels of the
// result wide, or two of the picture if it is enlarged. This is Pillow's resize with BILINEAR, bit
// for bit if Pillow begins with the rows. All sums are of integers, so the bits are the same on
// every machine.
iso_status iso__picture_crop(const iso__picture *picture, const iso__span *x, const iso__span *y,
                             int64_t size, uint8_t *out);

#endif
