// SPDX-License-Identifier: MIT
// Reads IDX files (MNIST's format), plain or gzip, and reports errors in damaged ones.
#include "data/data_impl.h"

#include <string.h>

#define FIRST_READ ((size_t)1 << 20) // of contents whose size is not known beforehand

const char *iso__idx_type_text(int type) {
    switch (type) {
    case ISO_IDX_U8: return "unsigned bytes (0x08)";
    case ISO_IDX_I8: return "signed bytes (0x09)";
    case ISO_IDX_I16: return "16-bit integers (0x0b)";
    case ISO_IDX_I32: return "32-bit integers (0x0c)";
    case ISO_IDX_F32: return "32-bit floats (0x0d)";
    default: return "64-bit floats (0x0e)";
    }
}

static size_t element_size(int type) {
    switch (type) {
    case ISO_IDX_U8:
    case ISO_IDX_I8: return 1;
    case ISO_IDX_I16: return 2;
    case ISO_IDX_I32:
    case ISO_IDX_F32: return 4;
    case ISO_IDX_F64: return 8;
    default: return 0;
    }
}

static iso_status read_magic(iso__source *source, const char *path, iso_idx *idx) {
    uint8_t magic[4];
    size_t got;
    ISO_TRY(iso__source_read(source, magic, sizeof(magic), &got));
    ISO_CHECK(got > 0, ISO_ERR_FORMAT, "%s is empty", path);
    ISO_CHECK(got == sizeof(magic), ISO_ERR_FORMAT,
              "%s has only %zu byte%s: an IDX file starts with 4 magic bytes", path, got,
              ISO_PLURAL(got));
    ISO_CHECK(
        magic[0] == 0 && magic[1] == 0, ISO_ERR_FORMAT,
        "%s is not an IDX file: it starts with the bytes %02x %02x %02x %02x instead of 00 00 "
        "TYPE NDIM",
        path, magic[0], magic[1], magic[2], magic[3]);
    ISO_CHECK(element_size(magic[2]) > 0, ISO_ERR_FORMAT,
              "%s has the unknown IDX element type 0x%02x in byte 2 (known: 08 09 0b 0c 0d 0e)",
              path, magic[2]);
    ISO_CHECK(magic[3] >= 1 && magic[3] <= ISO_IDX_MAX_DIMS, ISO_ERR_FORMAT,
              "%s has %d dimensions according to byte 3; 1 to %d are possible", path, magic[3],
              ISO_IDX_MAX_DIMS);
    idx->type = (iso_idx_type)magic[2];
    idx->ndim = magic[3];
    return ISO_OK;
}

static iso_status read_shape(iso__source *source, const char *path, iso_idx *idx) {
    uint8_t sizes[4 * ISO_IDX_MAX_DIMS];
    size_t wanted = 4 * (size_t)idx->ndim, got;
    ISO_TRY(iso__source_read(source, sizes, wanted, &got));
    ISO_CHECK(got == wanted, ISO_ERR_FORMAT,
              "%s is truncated: it ends after %zu of the %zu bytes of its header", path, 4 + got,
              4 + wanted);
    int64_t bytes = (int64_t)element_size((int)idx->type);
    idx->count = 1;
    for (int d = 0; d < idx->ndim; d++) {
        const uint8_t *at = sizes + 4 * d;
        uint32_t bits =
            (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
        idx->shape[d] = (int32_t)bits;
        ISO_CHECK(idx->shape[d] > 0, ISO_ERR_FORMAT,
                  "%s gives dimension %d (at byte %d) the size %lld", path, d, 4 + 4 * d,
                  (long long)idx->shape[d]);
        ISO_CHECK(!__builtin_mul_overflow(idx->count, idx->shape[d], &idx->count) &&
                      !__builtin_mul_overflow(bytes, idx->shape[d], &bytes),
                  ISO_ERR_FORMAT, "%s gives sizes whose product overflows at dimension %d (%lld)",
                  path, d, (long long)idx->shape[d]);
    }
    return ISO_OK;
}

static iso_status fail_truncated(const char *path, const iso_idx *idx, size_t header, size_t has) {
    size_t element = element_size((int)idx->type);
    return ISO_FAIL(ISO_ERR_FORMAT,
                    "%s is truncated: its header promises %lld element%s of %zu byte%s after the "
                    "first %zu bytes, but only %zu byte%s follow%s",
                    path, (long long)idx->count, ISO_PLURAL(idx->count), element,
                    ISO_PLURAL(element), header, has, ISO_PLURAL(has), has == 1 ? "s" : "");
}

// The elements. Memory is taken for what the file can hold, never just for what a header promises.
static iso_status read_elements(iso__source *source, const char *path, iso_idx *idx) {
    iso_status status;
    size_t header = 4 + 4 * (size_t)idx->ndim, got = 0, room;
    size_t wanted = (size_t)idx->count * element_size((int)idx->type);
    int64_t size = iso__source_size(source);
    size_t has = size > (int64_t)header ? (size_t)size - header : 0;
    if (size >= 0 && has < wanted) return fail_truncated(path, idx, header, has);
    room = size >= 0 || wanted < FIRST_READ ? wanted : FIRST_READ;
    void *data;
    ISO_TRY(iso__alloc(room, &data));
    for (;;) {
        size_t now;
        ISO_TRY_GOTO(iso__source_read(source, (char *)data + got, room - got, &now));
        got += now;
        if (got < room) {
            status = fail_truncated(path, idx, header, got);
            goto fail;
        }
        if (room == wanted) break;
        size_t larger = wanted / 2 > room ? 2 * room : wanted;
        ISO_TRY_GOTO(iso__realloc(&data, got, larger));
        room = larger;
    }
    // Reading on also makes zlib verify the checksum at the end of the stream.
    char more;
    ISO_TRY_GOTO(iso__source_read(source, &more, 1, &got));
    ISO_CHECK_GOTO(got == 0, ISO_ERR_FORMAT,
                   "%s has trailing bytes: its header promises %zu bytes and more follow: download "
                   "the file again, or correct the sizes in its header",
                   path, header + wanted);
    idx->data = data;
    return ISO_OK;
fail:
    iso__free(data);
    return status;
}

static void to_host_order(iso_idx *idx) {
    uint8_t *at = idx->data;
    for (int64_t i = 0; i < idx->count; i++) {
        uint64_t bits = 0;
        switch (element_size((int)idx->type)) {
        case 2: {
            uint16_t half = (uint16_t)(at[2 * i] << 8 | at[2 * i + 1]);
            memcpy(at + 2 * i, &half, 2);
            break;
        }
        case 4: {
            for (int b = 0; b < 4; b++) bits = bits << 8 | at[4 * i + b];
            uint32_t word = (uint32_t)bits;
            memcpy(at + 4 * i, &word, 4);
            break;
        }
        case 8:
            for (int b = 0; b < 8; b++) bits = bits << 8 | at[8 * i + b];
            memcpy(at + 8 * i, &bits, 8);
            break;
        default: return;
        }
    }
}

iso_status iso_idx_read(const char *path, iso_idx *out) {
    iso_status status;
    iso_idx idx = {0};
    iso__source *source;
    ISO_TRY(iso__source_open(path, &source));
    ISO_TRY_GOTO(read_magic(source, path, &idx));
    ISO_TRY_GOTO(read_shape(source, path, &idx));
    ISO_TRY_GOTO(read_elements(source, path, &idx));
    to_host_order(&idx);
    iso__source_close(&source);
    *out = idx;
    return ISO_OK;
fail:
    iso__source_close(&source);
    return status;
}

void iso_idx_free(iso_idx *idx) {
    if (!idx) return;
    iso__free(idx->data);
    *idx = (iso_idx){0};
}
