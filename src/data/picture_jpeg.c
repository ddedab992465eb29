// SPDX-License-Identifier: MIT
// Decodes JPEG files: all calls of libjpeg are here.
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "data/picture.h"

#ifdef ISO_HAVE_JPEG

#include <setjmp.h>
#include <stdio.h>
#include <string.h>
// After stdio.h, which it needs.
#include <jpeglib.h>

#include <jerror.h> // after jpeglib.h, whose settings it follows

// A progressive file may repeat its scans, which each go over the whole picture: a few kilobytes
// could take minutes. Programs write about ten.
enum { MOST_SCANS = 500 };

typedef struct decoder {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    char text[JMSG_LENGTH_MAX];
    iso__picture picture;
    void *row; // of a picture for printing: cyan, magenta, yellow, black
} decoder;

// ---- Errors -------------------------------------------------------------------------------------

// libjpeg's own function ends the program.
static void stop_decoding(j_common_ptr info) {
    decoder *self = iso_container_of(info->err, decoder, errors);
    info->err->format_message(info, self->text);
    longjmp(self->back, 1);
}

#ifdef D_ARITH_CODING_SUPPORTED
#define BAD_ARITHMETIC_CODE JWRN_ARITH_BAD_CODE
#else
#define BAD_ARITHMETIC_CODE JWRN_HUFF_BAD_CODE // such pictures are refused
#endif

// Warnings after which libjpeg invents pixels are errors. After others it only skips bytes.
static void judge_message(j_common_ptr info, int level) {
    int code = info->err->msg_code;
    if (level < 0 &&
        (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE ||
         code == BAD_ARITHMETIC_CODE || code == JWRN_MUST_RESYNC))
        stop_decoding(info);
}

static void count_scans(j_common_ptr info) {
    decoder *self = iso_container_of(info->progress, decoder, progress);
    if (self->info.input_scan_number <= MOST_SCANS) return;
    snprintf(self->text, sizeof(self->text), "more than %d scans", MOST_SCANS);
    longjmp(self->back, 1);
}

static void print_nothing(j_common_ptr info) { (void)info; }

// ---- Pixels -------------------------------------------------------------------------------------

static bool is_for_printing(const decoder *self) {
    return self->info.jpeg_color_space == JCS_CMYK || self->info.jpeg_color_space == JCS_YCCK;
}

static void set_output(decoder *self, int64_t least) {
    int64_t width = self->info.image_width, height = self->info.image_height;
    int64_t shorter = width < height ? width : height;
    self->info.out_color_space = is_for_printing(self) ? JCS_CMYK : JCS_RGB;
    self->info.scale_num = self->info.scale_denom = 1;
    while (self->info.scale_denom < 8 && shorter / (2 * self->info.scale_denom) >= 2 * least)
        self->info.scale_denom *= 2;
}

// Adobe writes the complements. In light, a colour is what both ink and black let through.
static void convert_row(const decoder *self, uint8_t *to) {
    const uint8_t *from = self->row;
    int flip = self->info.saw_Adobe_marker ? 0 : 255;
    for (int64_t x = 0; x < self->picture.width; x++, from += 4, to += 3)
        for (int c = 0; c < 3; c++)
            to[c] = (uint8_t)(((from[c] ^ flip) * (from[3] ^ flip) + 127) / 255);
}

static void read_rows(decoder *self) {
    while (self->info.output_scanline < self->info.output_height) {
        uint8_t *to =
            self->picture.pixels + (size_t)self->info.output_scanline * 3 * self->info.output_width;
        JSAMPROW row = self->row ? self->row : to;
        jpeg_read_scanlines(&self->info, &row, 1);
        if (self->row) convert_row(self, to);
    }
}

// Leaves by longjmp on an error of libjpeg.
static iso_status read_picture(decoder *self, const iso__picture_file *file) {
    jpeg_create_decompress(&self->info);
    self->info.progress = &self->progress;
    jpeg_mem_src(&self->info, (unsigned char *)(uintptr_t)file->bytes, (unsigned long)file->size);
    jpeg_read_header(&self->info, TRUE);
    ISO_TRY(iso__picture_check(file, self->info.image_width, self->info.image_height));
    set_output(self, file->least);
    jpeg_start_decompress(&self->info);
    ISO_TRY(iso__picture_alloc(file, self->info.output_width, self->info.output_height,
                               &self->picture));
    if (is_for_printing(self)) ISO_TRY(iso__alloc((size_t)4 * self->info.output_width, &self->row));
    read_rows(self);
    jpeg_finish_decompress(&self->info);
    return ISO_OK;
}

iso_status iso__jpeg_decode(const iso__picture_file *file, iso__picture *out) {
    decoder self = {.progress.progress_monitor = count_scans};
    iso_status status;
    self.info.err = jpeg_std_error(&self.errors);
    self.errors.error_exit = stop_decoding;
    self.errors.emit_message = judge_message;
    self.errors.output_message = print_nothing;
    if (setjmp(self.back) == 0)
        status = read_picture(&self, file);
    else
        status = ISO_FAIL(ISO_ERR_FORMAT,
                          "the JPEG file %s is truncated or damaged (%s): replace or remove it",
                          file->path, self.text);
    jpeg_destroy_decompress(&self.info);
    iso__free(self.row);
    if (status < 0) iso__picture_free(&self.picture);
    ISO_TRY(status);
    *out = self.picture;
    return ISO_OK;
}

#else

iso_status iso__jpeg_decode(const iso__picture_file *file, iso__picture *out) {
    (void)out;
    return ISO_FAIL(ISO_ERR_UNSUPPORTED,
                    "the JPEG file %s cannot be read, because this build has no libjpeg: configure "
                    "with --with-jpeg (Debian: libjpeg-dev)",
                    file->path);
}

#endif
