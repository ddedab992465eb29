// SPDX-License-Identifier: MIT
// Writes JPEG and PNG files.
#ifndef TESTS_PICTURE_WRITER_H
#define TESTS_PICTURE_WRITER_H

#include <stdbool.h>
#include <stdint.h>

typedef enum picture_kind {
    PICTURE_PNG, // of 8 bits, in colour
    PICTURE_PNG_GREY,
    PICTURE_PNG_DEEP,       // 16 bits
    PICTURE_PNG_CLEAR,      // with transparency
    PICTURE_PNG_INTERLACED, // in colour
    PICTURE_PNG_PALETTE,    // of 2 bits, three grey ones and a red one
    PICTURE_JPEG,
    PICTURE_JPEG_GREY,
    PICTURE_JPEG_PROGRESSIVE, // in colour
    PICTURE_JPEG_PRINT,       // cyan, magenta, yellow, black, as Adobe writes them
    PICTURE_KINDS
} picture_kind;

// Whether this build can read and write such files.
bool pictures_are_there(void);
// The values of a pixel in a file of that kind.
int picture_channels(picture_kind kind);
// Writes a file. pixels: [height][width][channels] values of 8 bits (0 to 3 of a palette). Aborts
// if it cannot.
void picture_write(const char *path, picture_kind kind, int width, int height,
                   const uint8_t *pixels);

#endif
