// SPDX-License-Identifier: MIT
// Decodes PNG files: all calls of libpng are here.
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "data/picture.h"

#ifdef ISO_HAVE_PNG

#include <png.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_ROOM = 200 };

typedef struct decoder {
    png_structp png;
    png_infop info;
    const iso__picture_file *file;
    size_t at; // bytes that were read
    iso__picture picture;
    void *rows; // [height], pointers into the pixels
    char text[TEXT_ROOM];
} decoder;

// ---- Calls of libpng ----------------------------------------------------------------------------

static void stop_decoding(png_structp png, png_const_charp text) {
    decoder *self = png_get_error_ptr(png);
    snprintf(self->text, sizeof(self->text), "%s", text);
    png_longjmp(png, 1);
}

// Warnings are about data that the pixels do not need.
static void ignore_warning(png_structp png, png_const_charp text) { (void)png, (void)text; }

static void take_bytes(png_structp png, png_bytep to, size_t bytes) {
    decoder *self = png_get_io_ptr(png);
    if (bytes > self->file->size - self->at) png_error(png, "the file ends too early");
    memcpy(to, self->file->bytes + self->at, bytes);
    self->at += bytes;
}

// Whatever the file holds becomes three channels of 8 bits.
static void set_output(const decoder *self) {
    png_set_palette_to_rgb(self->png);
    png_set_expand_gray_1_2_4_to_8(self->png);
    png_set_scale_16(self->png);
    png_set_strip_alpha(self->png);
    png_set_gray_to_rgb(self->png);
    png_set_interlace_handling(self->png);
    png_read_update_info(self->png, self->info);
}

static iso_status list_rows(decoder *self) {
    size_t height = (size_t)self->picture.height, bytes = (size_t)self->picture.width * 3;
    ISO_TRY(iso__alloc(height * sizeof(png_bytep), &self->rows));
    for (size_t y = 0; y < height; y++)
        ((png_bytep *)self->rows)[y] = self->picture.pixels + y * bytes;
    return ISO_OK;
}

// Leaves by longjmp on an error of libpng.
static iso_status read_picture(decoder *self) {
    const iso__picture_file *file = self->file;
    png_set_read_fn(self->png, self, take_bytes);
    png_set_user_limits(self->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); // checked next
    png_read_info(self->png, self->info);
    int64_t width = png_get_image_width(self->png, self->info);
    int64_t height = png_get_image_height(self->png, self->info);
    ISO_TRY(iso__picture_check(file, width, height));
    set_output(self);
    ISO_CHECK(png_get_rowbytes(self->png, self->info) == (size_t)width * 3, ISO_ERR_FORMAT,
              "the PNG file %s holds pixels of an unknown kind: convert it", file->path);
    ISO_TRY(iso__picture_alloc(file, width, height, &self->picture));
    ISO_TRY(list_rows(self));
    png_read_image(self->png, self->rows);
    png_read_end(self->png, NULL);
    return ISO_OK;
}

static iso_status decode_guarded(decoder *self) {
    if (setjmp(png_jmpbuf(self->png)) == 0) {
        ISO_TRY(read_picture(self));
        return ISO_OK;
    }
    return ISO_FAIL(ISO_ERR_FORMAT,
                    "the PNG file %s is truncated or damaged (%s): replace or remove it",
                    self->file->path, self->text);
}

iso_status iso__png_decode(const iso__picture_file *file, iso__picture *out) {
    decoder self = {.file = file};
    iso_status status = ISO_ERR_NOMEM;
    self.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &self, stop_decoding, ignore_warning);
    if (self.png) self.info = png_create_info_struct(self.png);
    if (self.info)
        status = decode_guarded(&self);
    else
        ISO_FAIL(status, "out of memory for the PNG file %s", file->path);
    png_destroy_read_struct(&self.png, &self.info, NULL);
    iso__free(self.rows);
    if (status < 0) iso__picture_free(&self.picture);
    ISO_TRY(status);
    *out = self.picture;
    return ISO_OK;
}

#else

iso_status iso__png_decode(const iso__picture_file *file, iso__picture *out) {
    (void)out;
    return ISO_FAIL(ISO_ERR_UNSUPPORTED,
                    "the PNG file %s cannot be read, because this build has no libpng: configure "
                    "with --with-png (Debian: libpng-dev)",
                    file->path);
}

#endif
