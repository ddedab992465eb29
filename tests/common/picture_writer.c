// SPDX-License-Identifier: MIT
// Writes JPEG and PNG files.
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "common/picture_writer.h"

#include <stdio.h>
#include <stdlib.h>

int picture_channels(picture_kind kind) {
    if (kind == PICTURE_PNG_CLEAR || kind == PICTURE_JPEG_PRINT) return 4;
    return kind == PICTURE_PNG_GREY || kind == PICTURE_PNG_PALETTE || kind == PICTURE_JPEG_GREY ? 1
                                                                                                : 3;
}

#if defined(ISO_HAVE_JPEG) && defined(ISO_HAVE_PNG)

#include <jpeglib.h>
#include <png.h>

bool pictures_are_there(void) { return true; }

// ---- PNG ----------------------------------------------------------------------------------------

static int png_colour(picture_kind kind) {
    if (kind == PICTURE_PNG_PALETTE) return PNG_COLOR_TYPE_PALETTE;
    if (kind == PICTURE_PNG_CLEAR) return PNG_COLOR_TYPE_RGB_ALPHA;
    return kind == PICTURE_PNG_GREY ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB;
}

static void set_kind(png_structp png, png_infop info, picture_kind kind, int width, int height) {
    static const png_color colours[] = {{0, 0, 0}, {100, 100, 100}, {255, 255, 255}, {200, 10, 0}};
    int bits = kind == PICTURE_PNG_DEEP ? 16 : kind == PICTURE_PNG_PALETTE ? 2 : 8;
    png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, bits, png_colour(kind),
                 kind == PICTURE_PNG_INTERLACED ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (kind == PICTURE_PNG_PALETTE) png_set_PLTE(png, info, colours, 4);
}

// A value of 16 bits has its upper 8 bits twice.
static void write_png(FILE *file, picture_kind kind, int width, int height, const uint8_t *pixels) {
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    size_t values = (size_t)(width * picture_channels(kind));
    uint8_t *row = malloc(2 * values);
    if (!row || setjmp(png_jmpbuf(png))) abort();
    png_init_io(png, file);
    set_kind(png, info, kind, width, height);
    png_write_info(png, info);
    png_set_packing(png);
    int passes = png_set_interlace_handling(png);
    for (int y = 0; y < passes * height; y++) {
        const uint8_t *from = pixels + (size_t)(y % height) * values;
        for (size_t i = 0; i < values; i++)
            if (kind == PICTURE_PNG_DEEP)
                row[2 * i] = row[2 * i + 1] = from[i];
            else
                row[i] = from[i];
        png_write_row(png, row);
    }
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    free(row);
}

// ---- JPEG ---------------------------------------------------------------------------------------

static void write_jpeg(FILE *file, picture_kind kind, int width, int height,
                       const uint8_t *pixels) {
    struct jpeg_compress_struct info;
    struct jpeg_error_mgr errors;
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    jpeg_stdio_dest(&info, file);
    info.image_width = (JDIMENSION)width;
    info.image_height = (JDIMENSION)height;
    info.input_components = picture_channels(kind);
    info.in_color_space = kind == PICTURE_JPEG_PRINT  ? JCS_CMYK
                          : kind == PICTURE_JPEG_GREY ? JCS_GRAYSCALE
                                                      : JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, 95, TRUE);
    if (kind == PICTURE_JPEG_PRINT) info.write_Adobe_marker = TRUE;
    if (kind == PICTURE_JPEG_PROGRESSIVE) jpeg_simple_progression(&info);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
        JSAMPROW row = (uint8_t *)(uintptr_t)pixels +
                       (size_t)info.next_scanline * (size_t)(width * info.input_components);
        jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
}

void picture_write(const char *path, picture_kind kind, int width, int height,
                   const uint8_t *pixels) {
    FILE *file = fopen(path, "wb");
    if (!file) abort();
    if (kind < PICTURE_JPEG)
        write_png(file, kind, width, height, pixels);
    else
        write_jpeg(file, kind, width, height, pixels);
    if (fclose(file) != 0) abort();
}

#else

bool pictures_are_there(void) { return false; }

void picture_write(const char *path, picture_kind kind, int width, int height,
                   const uint8_t *pixels) {
    (void)path, (void)kind, (void)width, (void)height, (void)pixels;
    abort();
}

#endif
