// SPDX-License-Identifier: MIT
// Reads a picture of any kind that is known.
#include "data/picture.h"

#include "data/data_impl.h"

#include <string.h>

static const int64_t most_bytes = INT64_C(1) << 30;

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
