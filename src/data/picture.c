// SPDX-License-Identifier: MIT
// Reads a picture of any kind that is known.
#include "data/picture.h"

#include "data/data_impl.h"

#include <string.h>

// More than any camera takes, and few enough that a file of some bytes cannot take all memory.
static const int64_t most_side = 65535, most_pixels = INT64_C(1) << 27;
static const int64_t most_bytes = INT64_C(1) << 30;

iso_status iso__picture_check(const iso__picture_file *file, int64_t width, int64_t height) {
    ISO_CHECK(
        width >= 1 && height >= 1 && width <= most_side && height <= most_side &&
            width * height <= most_pixels,
        ISO_ERR_FORMAT,
        "%s has %lld x %lld pixels: a picture may have up to %lld in each direction, and %lld "
        "in all",
        file->path, (long long)width, (long long)height, (long long)most_side,
        (long long)most_pixels);
    return ISO_OK;
}

iso_status iso__picture_alloc(const iso__picture_file *file, int64_t width, int64_t height,
                              iso__picture *out) {
    void *memory;
    ISO_TRY(iso__picture_check(file, width, height));
    ISO_TRY(iso__alloc((size_t)(3 * width * height), &memory));
    *out = (iso__picture){width, height, memory};
    return ISO_OK;
}

void iso__picture_free(iso__picture *picture) {
    iso__free(picture->pixels);
    picture->pixels = NULL;
}

// ---- Files --------------------------------------------------------------------------------------

static iso_status decode_bytes(const iso__picture_file *file, iso__picture *out) {
    static const uint8_t jpeg[] = {0xff, 0xd8}, png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 26, '\n'};
    if (file->size >= sizeof(jpeg) && memcmp(file->bytes, jpeg, sizeof(jpeg)) == 0)
        return iso__jpeg_decode(file, out);
    if (file->size >= sizeof(png) && memcmp(file->bytes, png, sizeof(png)) == 0)
        return iso__png_decode(file, out);
    return ISO_FAIL(ISO_ERR_FORMAT,
                    file->size == 0 ? "the picture %s is empty: replace or remove it"
                                    : "%s does not begin as a JPEG or PNG file does: convert or "
                                      "remove it",
                    file->path);
}

static iso_status read_bytes(iso__source *source, const char *path, uint8_t **out, size_t *size) {
    int64_t bytes = iso__source_size(source);
    void *memory;
    ISO_CHECK(bytes >= 0 && bytes <= most_bytes, ISO_ERR_FORMAT,
              "%s is no file of at most %lld bytes: no picture is that large", path,
              (long long)most_bytes);
    ISO_TRY(iso__alloc((size_t)bytes, &memory));
    iso_status status = iso__source_read(source, memory, (size_t)bytes, size);
    if (status < 0) iso__free(memory);
    ISO_TRY(status);
    *out = memory;
    return ISO_OK;
}

iso_status iso__picture_read(const char *path, int64_t least, iso__picture *out) {
    iso__source *source;
    uint8_t *bytes = NULL;
    size_t size = 0;
    ISO_TRY(iso__source_open_plain(path, &source));
    iso_status status = read_bytes(source, path, &bytes, &size);
    iso__source_close(&source);
    ISO_TRY(status);
    const iso__picture_file file = {path, bytes, size, least};
    status = decode_bytes(&file, out);
    iso__free(bytes);
    ISO_TRY(status);
    return ISO_OK;
}
