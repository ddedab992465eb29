// SPDX-License-Identifier: MIT
// IDX files: every element type, gzip, and each way in which a file can be damaged.
#ifdef HAVE_CONFIG_H
#include "common/balance.h"
#include "config.h"
#endif
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef ISO_HAVE_ZLIB
#include <zlib.h>
#endif

static void clean_up(void) {
    scratch_remove();
    balance_check();
}
TestSuite(idx, .fini = clean_up, .timeout = 60);

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

static iso_idx read_bytes(const uint8_t *bytes, size_t count) {
    iso_idx idx;
    iso_status status = iso_idx_read(scratch_write("a.idx", bytes, count), &idx);
    cr_assert_eq(status, ISO_OK, "%s", iso_last_error()->message);
    return idx;
}

// The file must be refused with this code, by a message with its path and `words`; `out` stays as
// it was.
static void expect_refusal(const char *path, iso_status code, const char *words) {
    iso_idx idx = {.ndim = 77}, before = idx;
    iso_status status = iso_idx_read(path, &idx);
    const char *message = iso_last_error()->message;
    cr_assert_eq(status, code, "%s: got %d, message: %s", words, status, message);
    cr_assert(strstr(message, path), "no path in: %s", message);
    cr_assert(strstr(message, words), "no \"%s\" in: %s", words, message);
    cr_assert_eq(memcmp(&idx, &before, sizeof(idx)), 0);
}

static void refuse(const char *words, const uint8_t *bytes, size_t count) {
    expect_refusal(scratch_write("bad.idx", bytes, count), ISO_ERR_FORMAT, words);
}

Test(idx, reads_unsigned_bytes_of_three_dimensions) {
    iso_idx idx =
        read_bytes(BYTES(0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 250, 251, 252));
    cr_assert(idx.type == ISO_IDX_U8 && idx.ndim == 3 && idx.count == 6);
    cr_assert(idx.shape[0] == 2 && idx.shape[1] == 1 && idx.shape[2] == 3);
    cr_assert_eq(memcmp(idx.data, (const uint8_t[]){1, 2, 3, 250, 251, 252}, 6), 0);
    iso_idx_free(&idx);
    cr_assert_null(idx.data);
}

Test(idx, converts_16_bit_integers) {
    iso_idx idx = read_bytes(BYTES(0, 0, 0x0B, 1, 0, 0, 0, 2, 0xFF, 0xFE, 0x12, 0x34));
    cr_assert(((int16_t *)idx.data)[0] == -2 && ((int16_t *)idx.data)[1] == 0x1234);
    iso_idx_free(&idx);
}

Test(idx, converts_32_bit_integers) {
    iso_idx idx = read_bytes(BYTES(0, 0, 0x0C, 1, 0, 0, 0, 2, 0xFF, 0xFF, 0xFF, 0xFD, 1, 2, 3, 4));
    cr_assert(((int32_t *)idx.data)[0] == -3 && ((int32_t *)idx.data)[1] == 0x01020304);
    iso_idx_free(&idx);
}

// IEEE 754: 1.0f is 3f800000, -0.15625f is be200000.
Test(idx, converts_32_bit_floats) {
    iso_idx idx = read_bytes(BYTES(0, 0, 0x0D, 1, 0, 0, 0, 2, 0x3F, 0x80, 0, 0, 0xBE, 0x20, 0, 0));
    cr_assert(((float *)idx.data)[0] == 1.0f && ((float *)idx.data)[1] == -0.15625f);
    iso_idx_free(&idx);
}

// IEEE 754: -2.5 is c004000000000000.
Test(idx, converts_64_bit_floats) {
    iso_idx idx = read_bytes(BYTES(0, 0, 0x0E, 1, 0, 0, 0, 1, 0xC0, 4, 0, 0, 0, 0, 0, 0));
    cr_assert(((double *)idx.data)[0] == -2.5);
    iso_idx_free(&idx);
}

Test(idx, keeps_signed_bytes) {
    iso_idx idx = read_bytes(BYTES(0, 0, 9, 1, 0, 0, 0, 2, 0xFF, 5));
    cr_assert(((int8_t *)idx.data)[0] == -1 && ((int8_t *)idx.data)[1] == 5);
    iso_idx_free(&idx);
}

Test(idx, refuses_a_missing_file) {
    expect_refusal(scratch_path("none"), ISO_ERR_IO, "No such file");
}

Test(idx, refuses_a_folder) { expect_refusal(scratch_folder(), ISO_ERR_IO, "it is a folder"); }

Test(idx, refuses_wrong_headers) {
    refuse("is empty", (const uint8_t *)"", 0);
    refuse("only 1 byte:", BYTES(0));
    refuse("only 3 bytes", BYTES(0, 0, 8));
    refuse("50 4b 03 04", BYTES('P', 'K', 3, 4, 0, 0));
    refuse("unknown IDX element type 0x0a in byte 2", BYTES(0, 0, 0x0A, 1, 0, 0, 0, 1, 5));
    refuse("0 dimensions", BYTES(0, 0, 8, 0, 5));
    refuse("9 dimensions", BYTES(0, 0, 8, 9, 0, 0, 0, 1));
    refuse("ends after 7 of the 12 bytes of its header", BYTES(0, 0, 8, 2, 0, 0, 0));
    refuse("dimension 1 (at byte 8) the size 0", BYTES(0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 0));
    refuse("dimension 0 (at byte 4) the size -1", BYTES(0, 0, 8, 1, 0xFF, 0xFF, 0xFF, 0xFF));
    refuse("overflows at dimension 2",
           BYTES(0, 0, 8, 3, 127, 255, 255, 255, 127, 255, 255, 255, 127, 255, 255, 255));
}

Test(idx, refuses_trailing_bytes) {
    refuse(
        "has trailing bytes: its header promises 10 bytes and more follow: download the file again",
        BYTES(0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3));
}

Test(idx, refuses_a_plain_file_cut_anywhere) {
    const uint8_t whole[] = {0, 0, 0x0B, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8};
    for (size_t n = 0; n < sizeof(whole); n++)
        expect_refusal(scratch_write("cut.idx", whole, n), ISO_ERR_FORMAT, "");
    refuse("promises 4 elements of 2 bytes after the first 12 bytes, but only 7 bytes follow",
           whole, sizeof(whole) - 1);
    refuse("promises 2 elements of 1 byte after the first 8 bytes, but only 1 byte follows",
           BYTES(0, 0, 8, 1, 0, 0, 0, 2, 1));
}

// A header that promises 4 exabytes must not make us ask for them: one block is allocated, for the
// file.
Test(idx, allocates_nothing_for_what_a_plain_file_cannot_hold) {
    const uint8_t huge[] = {0, 0, 8, 2, 127, 255, 255, 255, 127, 255, 255, 255, 1, 2, 3};
    const char *path = scratch_write("huge.idx", huge, sizeof(huge));
    long long before, after;
    iso_memory_balance(NULL, NULL, &before);
    expect_refusal(path, ISO_ERR_FORMAT, "only 3 bytes follow");
    iso_memory_balance(NULL, NULL, &after);
    cr_assert_eq(after - before, 1);
}

#ifdef ISO_HAVE_ZLIB

// One gzip member behind `used` bytes of `to`; returns the new length.
static size_t pack(uint8_t *to, size_t used, size_t room, const uint8_t *from, size_t bytes) {
    z_stream z = {0};
    cr_assert(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    z.next_in = (unsigned char *)from;
    z.avail_in = (unsigned)bytes;
    z.next_out = to + used;
    z.avail_out = (unsigned)(room - used);
    cr_assert(deflate(&z, Z_FINISH) == Z_STREAM_END);
    used = room - z.avail_out;
    deflateEnd(&z);
    return used;
}

static const uint8_t small[] = {0, 0, 8, 1, 0, 0, 0, 12, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};

// More than a first read holds, so that the buffer must grow; in two members, as gzip allows.
Test(idx, reads_gzip_like_plain) {
    size_t count = 5000000, bytes = 8 + count;
    uint8_t *plain = malloc(bytes), *packed = malloc(bytes);
    memcpy(plain, (const uint8_t[]){0, 0, 8, 1, 0, 0x4C, 0x4B, 0x40}, 8);
    for (size_t i = 0; i < count; i++) plain[8 + i] = (uint8_t)(i * i >> 9);
    size_t length = pack(packed, 0, bytes, plain, 3000000);
    length = pack(packed, length, bytes, plain + 3000000, bytes - 3000000);
    iso_idx idx;
    cr_assert_eq(iso_idx_read(scratch_write("a.gz", packed, length), &idx), ISO_OK, "%s",
                 iso_last_error()->message);
    cr_assert(idx.count == (int64_t)count && memcmp(idx.data, plain + 8, count) == 0);
    iso_idx_free(&idx);
    free(plain);
    free(packed);
}

Test(idx, refuses_a_gzip_file_cut_anywhere) {
    uint8_t packed[256];
    size_t length = pack(packed, 0, sizeof(packed), small, sizeof(small));
    for (size_t n = 1; n < length; n++)
        expect_refusal(scratch_write("cut.gz", packed, n), ISO_ERR_FORMAT, "is truncated");
}

// A changed bit is either noticed or harmless (the time stamp in the gzip header).
Test(idx, never_takes_a_damaged_gzip_file_for_other_contents) {
    uint8_t packed[256];
    size_t length = pack(packed, 0, sizeof(packed), small, sizeof(small));
    int noticed = 0;
    for (size_t bit = 16; bit < 8 * length; bit++) {
        packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        iso_idx idx;
        if (iso_idx_read(scratch_write("bad.gz", packed, length), &idx) == ISO_OK) {
            cr_assert(idx.count == 12 && memcmp(idx.data, small + 8, 12) == 0, "bit %zu", bit);
            iso_idx_free(&idx);
        } else {
            cr_assert_eq(iso_last_error()->code, ISO_ERR_FORMAT);
            noticed++;
        }
        packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    cr_assert_gt(noticed, (int)(8 * (length - 10) - 8));
}

Test(idx, names_a_wrong_gzip_checksum) {
    uint8_t packed[256];
    size_t length = pack(packed, 0, sizeof(packed), small, sizeof(small));
    packed[length - 8] ^= 1; // the CRC stands before the four bytes of the length
    expect_refusal(scratch_write("crc.gz", packed, length), ISO_ERR_FORMAT, "incorrect data check");
}

Test(idx, refuses_what_follows_in_a_gzip_file) {
    uint8_t packed[256], longer[sizeof(small) + 1] = {0};
    memcpy(longer, small, sizeof(small));
    size_t length = pack(packed, 0, sizeof(packed), longer, sizeof(longer));
    expect_refusal(scratch_write("long.gz", packed, length), ISO_ERR_FORMAT, "trailing bytes");
    length = pack(packed, 0, sizeof(packed), small, sizeof(small));
    memcpy(packed + length, "garbage", 7);
    // However little of it is there.
    for (size_t n = 1; n <= 7; n++)
        expect_refusal(
            scratch_write("more.gz", packed, length + n), ISO_ERR_FORMAT,
            "has trailing bytes: the bytes after its gzip stream (20 decompressed bytes) "
            "are not gzip data: download the file again, or remove these bytes");
    memset(packed + length, 0, 7);
    expect_refusal(scratch_write("padded.gz", packed, length + 7), ISO_ERR_FORMAT,
                   "has trailing bytes: the bytes after its gzip stream");
}

// The compressed file says nothing of its size, so memory follows what is really read.
Test(idx, allocates_little_for_what_a_gzip_file_does_not_hold) {
    const uint8_t huge[] = {0, 0, 8, 2, 127, 255, 255, 255, 0, 127, 255, 255, 1, 2, 3};
    uint8_t packed[256];
    size_t length = pack(packed, 0, sizeof(packed), huge, sizeof(huge));
    const char *path = scratch_write("huge.gz", packed, length);
    long long before, after;
    iso_memory_balance(NULL, NULL, &before);
    expect_refusal(path, ISO_ERR_FORMAT, "only 3 bytes follow");
    iso_memory_balance(NULL, NULL, &after);
    cr_assert_eq(after - before, 2);
}

#else

Test(idx, refuses_gzip_without_zlib) {
    const uint8_t start[] = {0x1F, 0x8B, 8, 0};
    expect_refusal(scratch_write("a.gz", start, sizeof(start)), ISO_ERR_UNSUPPORTED, "no zlib");
}

#endif
