// SPDX-License-Identifier: MIT
// Checkpoints: what is written is read back, by others too; damaged and foreign files change
// nothing.
#include "common/balance.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <isotherm/checkpoint.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static iso_device *device;

static void open_device(void) { cr_assert_eq(iso_device_create("cpu", &device), ISO_OK); }

static void clean_up(void) {
    iso_device_destroy(&device);
    scratch_remove();
    balance_check();
}
TestSuite(checkpoint, .init = open_device, .fini = clean_up, .timeout = 60);

// The model of these tests: a weight [2, 3] of f32 and a bias [2] of f64.
typedef struct model {
    iso_named_tensor tensors[2];
} model;

static iso_tensor *tensor(iso_dtype dtype, int ndim, int64_t a, int64_t b, double value) {
    iso_tensor *out;
    cr_assert_eq(iso_tensor_create(device, dtype, ndim, (int64_t[]){a, b}, &out), ISO_OK);
    for (int64_t i = 0; i < iso_tensor_count(out); i++) {
        if (dtype == ISO_F64)
            ((double *)iso_tensor_data(out))[i] = value;
        else
            ((float *)iso_tensor_data(out))[i] = (float)value;
    }
    return out;
}

static model create(double value) {
    return (model){{{"fc.weight", tensor(ISO_F32, 2, 2, 3, value)},
                    {"fc.bias", tensor(ISO_F64, 1, 2, 0, value)}}};
}

static void destroy(model *m) {
    for (int i = 0; i < 2; i++) iso_tensor_destroy(&m->tensors[i].tensor);
}

// Weight 0, 0.1, 0.2 ...; bias 0, 1/3.
static model create_counted(void) {
    model m = create(0);
    float *weight = iso_tensor_data(m.tensors[0].tensor);
    double *bias = iso_tensor_data(m.tensors[1].tensor);
    for (int i = 0; i < 6; i++) weight[i] = (float)i / 10;
    bias[1] = 1.0 / 3;
    return m;
}

static bool equal(const model *a, const model *b) {
    return memcmp(iso_tensor_data(a->tensors[0].tensor), iso_tensor_data(b->tensors[0].tensor),
                  24) == 0 &&
           memcmp(iso_tensor_data(a->tensors[1].tensor), iso_tensor_data(b->tensors[1].tensor),
                  16) == 0;
}

static const char *save(const char *name, const model *m) {
    const char *path = scratch_path(name);
    cr_assert_eq(iso_checkpoint_save(path, m->tensors, 2), ISO_OK, "%s", iso_last_error()->message);
    return path;
}

// Loading must give this error with path and words, and leave the model as it was.
static void expect_refusal(const char *path, iso_status code, const char *words) {
    model m = create(42), before = create(42);
    iso_status status = iso_checkpoint_load(path, m.tensors, 2);
    const char *message = iso_last_error()->message;
    cr_assert_eq(status, code, "%s: got %d, message: %s", words, status, message);
    cr_assert(strstr(message, path), "no path in: %s", message);
    cr_assert(strstr(message, words), "no \"%s\" in: %s", words, message);
    cr_assert(equal(&m, &before));
    destroy(&m);
    destroy(&before);
}

// A file with this header and data.
static const char *compose(const char *header, size_t data_bytes) {
    size_t length = strlen(header);
    uint8_t bytes[2048] = {(uint8_t)length, (uint8_t)(length >> 8)};
    memcpy(bytes + 8, header, length);
    return scratch_write("composed", bytes, 8 + length + data_bytes);
}

static void refuse_header(const char *words, const char *header, size_t data_bytes) {
    expect_refusal(compose(header, data_bytes), ISO_ERR_FORMAT, words);
}

Test(checkpoint, reads_back_what_was_written) {
    model written = create_counted(), read = create(7);
    const char *path = save("a", &written);
    iso_named_tensor other_order[] = {read.tensors[1], read.tensors[0]};
    cr_assert_eq(iso_checkpoint_load(path, other_order, 2), ISO_OK, "%s",
                 iso_last_error()->message);
    cr_assert(equal(&written, &read));
    destroy(&written);
    destroy(&read);
}

// Once to a file that is there, by a relative and by an absolute link, and once to one that is not.
Test(checkpoint, a_link_stays_a_link) {
    model m = create_counted(), read = create(7);
    const char *to = save("to", &m), *link = scratch_path("link"), *second = scratch_path("second");
    struct stat info;
    cr_assert_eq(symlink("to", link), 0);
    cr_assert_eq(symlink(link, second), 0);
    for (int round = 0; round < 2; round++) {
        if (round == 1) unlink(to);
        save("second", &m);
        cr_assert(lstat(second, &info) == 0 && S_ISLNK(info.st_mode));
        cr_assert(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
        cr_assert(lstat(to, &info) == 0 && S_ISREG(info.st_mode));
        cr_assert_eq(scratch_count(), 3);
    }
    cr_assert_eq(iso_checkpoint_load(to, read.tensors, 2), ISO_OK);
    cr_assert(equal(&m, &read));
    unlink(link);
    cr_assert_eq(symlink("second", link), 0); // in a circle
    cr_assert_eq(iso_checkpoint_save(second, m.tensors, 2), ISO_ERR_IO);
    destroy(&m);
    destroy(&read);
}

// By the format's description: 8 bytes of length, a JSON header that ends on a multiple of 8, the
// data.
Test(checkpoint, writes_the_bytes_of_the_format) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"fc.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"fc.bias\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[24,40]}}";
    model m = create_counted();
    size_t size;
    char *bytes = scratch_read(save("a", &m), &size);
    size_t length = (sizeof(header) - 1 + 7) / 8 * 8;
    cr_assert_eq(size, 8 + length + 40);
    cr_assert_eq((uint8_t)bytes[0], length);
    cr_assert_eq(memcmp(bytes + 1, "\0\0\0\0\0\0\0", 7), 0);
    cr_assert_eq(memcmp(bytes + 8, header, sizeof(header) - 1), 0);
    for (size_t i = sizeof(header) - 1; i < length; i++) cr_assert_eq(bytes[8 + i], ' ');
    cr_assert_eq(memcmp(bytes + 8 + length, iso_tensor_data(m.tensors[0].tensor), 24), 0);
    cr_assert_eq(memcmp(bytes + 8 + length + 24, iso_tensor_data(m.tensors[1].tensor), 16), 0);
    free(bytes);
    destroy(&m);
}

Test(checkpoint, is_readable_by_the_safetensors_package) {
    char command[1500];
    const char *python = NULL, *candidates[] = {"python3", "/usr/bin/python3"};
    for (int i = 0; i < 2 && !python; i++) {
        snprintf(command, sizeof(command), "%s -c 'import safetensors, numpy' 2>/dev/null",
                 candidates[i]);
        if (system(command) == 0) python = candidates[i];
    }
    if (!python) cr_skip_test("Python's safetensors package is not installed");
    model m = create_counted();
    m.tensors[0].name = "strange \"\\\n\xC3\xA9 name";
    const char *path = save("a", &m);
    snprintf(command, sizeof(command),
             "%s -c 'import sys, numpy as n; from safetensors.numpy import load_file\n"
             "t = load_file(sys.argv[1])\n"
             "assert set(t) == {\"strange \\\"\\\\\\n\\u00e9 name\", \"fc.bias\"}, t\n"
             "w = t.pop(\"strange \\\"\\\\\\n\\u00e9 name\"); b = t[\"fc.bias\"]\n"
             "assert w.dtype == n.float32 and b.dtype == n.float64\n"
             "assert (w == (n.arange(6, dtype=n.float32) / n.float32(10)).reshape(2, 3)).all()\n"
             "assert (b == n.array([0, 1 / 3])).all()' %s",
             python, path);
    cr_assert_eq(system(command), 0);
    destroy(&m);
}

Test(checkpoint, replaces_a_file_and_leaves_no_other) {
    model first = create(1), second = create(2), read = create(0);
    save("a", &first);
    const char *path = save("a", &second);
    cr_assert_eq(iso_checkpoint_load(path, read.tensors, 2), ISO_OK);
    cr_assert(equal(&read, &second));
    cr_assert_eq(scratch_count(), 1);
    destroy(&first);
    destroy(&second);
    destroy(&read);
}

// A file-size limit stands for a full disk: the old file stays, and nothing else.
Test(checkpoint, keeps_the_old_file_when_the_disk_is_full) {
    model old = create(1), fresh = create(2), read = create(0);
    const char *path = save("a", &old);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {200, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    iso_status status = iso_checkpoint_save(path, fresh.tensors, 2);
    setrlimit(RLIMIT_FSIZE, &none);
    cr_assert_eq(status, ISO_ERR_IO);
    cr_assert(strstr(iso_last_error()->message, "File too large"), "%s", iso_last_error()->message);
    cr_assert_eq(scratch_count(), 1);
    cr_assert_eq(iso_checkpoint_load(path, read.tensors, 2), ISO_OK);
    cr_assert(equal(&read, &old));
    destroy(&old);
    destroy(&fresh);
    destroy(&read);
}

Test(checkpoint, refuses_places_that_cannot_be_written) {
    model m = create(1);
    char path[600];
    snprintf(path, sizeof(path), "%s/none/a", scratch_folder());
    cr_assert_eq(iso_checkpoint_save(path, m.tensors, 2), ISO_ERR_IO);
    cr_assert(strstr(iso_last_error()->message, "No such file"), "%s", iso_last_error()->message);
    cr_assert_eq(iso_checkpoint_save(scratch_folder(), m.tensors, 2), ISO_ERR_IO);
    cr_assert_eq(iso_checkpoint_save("/dev/null", m.tensors, 2), ISO_ERR_IO);
    cr_assert_eq(scratch_count(), 0);
    destroy(&m);
}

Test(checkpoint, refuses_two_tensors_of_one_name) {
    model m = create(1);
    m.tensors[1].name = "fc.weight";
    cr_assert_eq(iso_checkpoint_save(scratch_path("a"), m.tensors, 2), ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "fc.weight"));
    cr_assert_eq(iso_checkpoint_save(scratch_path("a"), m.tensors, 0), ISO_ERR_ARG);
    cr_assert_eq(scratch_count(), 0);
    destroy(&m);
}

// ---- Other models -------------------------------------------------------------------------------

Test(checkpoint, names_missing_and_unexpected_tensors) {
    model other = create(1);
    other.tensors[0].name = "conv1.weight";
    const char *path = save("a", &other);
    expect_refusal(path, ISO_ERR_MISMATCH, "1 tensor is missing: fc.weight");
    expect_refusal(path, ISO_ERR_MISMATCH, "1 is unexpected: conv1.weight");
    destroy(&other);
}

Test(checkpoint, shows_both_shapes_that_differ) {
    model other = create(1);
    iso_tensor_destroy(&other.tensors[0].tensor);
    other.tensors[0].tensor = tensor(ISO_F32, 2, 3, 2, 1);
    expect_refusal(save("a", &other), ISO_ERR_MISMATCH,
                   "fc.weight has shape [3, 2] there and [2, 3] here");
    destroy(&other);
}

Test(checkpoint, shows_both_types_that_differ) {
    model other = create(1);
    iso_tensor_destroy(&other.tensors[1].tensor);
    other.tensors[1].tensor = tensor(ISO_F32, 1, 2, 0, 1);
    expect_refusal(save("a", &other), ISO_ERR_MISMATCH,
                   "fc.bias has element type F32 there and F64 here");
    destroy(&other);
}

// ---- Damaged and foreign files ------------------------------------------------------------------

Test(checkpoint, refuses_missing_files_and_folders) {
    expect_refusal(scratch_path("none"), ISO_ERR_IO, "No such file");
    expect_refusal(scratch_folder(), ISO_ERR_IO, "it is not a file");
}

Test(checkpoint, refuses_foreign_files) {
    expect_refusal(scratch_write("a", "PK\3\4aaaaaaaaaaaaaa", 18), ISO_ERR_FORMAT,
                   "a PyTorch zip archive");
    expect_refusal(scratch_write("a", "\x80\2}q\0X\2\1aaaaaa", 14), ISO_ERR_FORMAT,
                   "a Python pickle");
    expect_refusal(scratch_write("a", "epoch,loss\n1,2.5\n", 17), ISO_ERR_FORMAT,
                   "not a safetensors file");
    expect_refusal(scratch_write("a", "", 0), ISO_ERR_FORMAT, "only 0 bytes");
    expect_refusal(scratch_write("a", "{", 1), ISO_ERR_FORMAT, "only 1 byte:");
}

Test(checkpoint, refuses_a_file_cut_anywhere) {
    model m = create_counted();
    size_t size;
    char *bytes = scratch_read(save("a", &m), &size);
    for (size_t n = 0; n < size; n++)
        expect_refusal(scratch_write("cut", bytes, n), ISO_ERR_FORMAT, "");
    free(bytes);
    destroy(&m);
}

Test(checkpoint, refuses_trailing_bytes) {
    model m = create_counted();
    size_t size;
    char *bytes = scratch_read(save("a", &m), &size); // with a 0 behind
    expect_refusal(scratch_write("longer", bytes, size + 1), ISO_ERR_FORMAT,
                   "tensors end after 40 data bytes");
    free(bytes);
    destroy(&m);
}

// Whatever a byte of length or header becomes, loading either refuses the file and changes nothing,
// or (in the metadata, say) reads the right numbers.
Test(checkpoint, survives_every_change_of_a_header_byte, .timeout = 120) {
    model m = create_counted(), read = create(42), before = create(42);
    size_t size, tried = 0;
    char *bytes = scratch_read(save("a", &m), &size);
    for (size_t i = 0; i < size - 40; i++) {
        char old = bytes[i];
        for (int value = i % 5; value < 256; value += 5, tried++) {
            bytes[i] = (char)value;
            iso_status status =
                iso_checkpoint_load(scratch_write("bad", bytes, size), read.tensors, 2);
            cr_assert(status == ISO_OK ? equal(&read, &m) : equal(&read, &before), "byte %zu = %d",
                      i, value);
            cr_assert(status == ISO_OK || status == ISO_ERR_FORMAT || status == ISO_ERR_MISMATCH);
            if (status == ISO_OK) {
                destroy(&read);
                read = create(42);
            }
        }
        bytes[i] = old;
    }
    cr_assert_gt(tried, 5000);
    free(bytes);
    destroy(&m);
    destroy(&read);
    destroy(&before);
}

Test(checkpoint, survives_random_bytes) {
    uint32_t state = 1;
    for (int round = 0; round < 3000; round++) {
        char bytes[256];
        static const char alphabet[] = "{}[]\":,\\0123456789 dtypeshapedata_offsetsF32u\n";
        size_t length = 1 + (size_t)(round % 200);
        for (size_t i = 0; i < length; i++) {
            state = state * 1664525 + 1013904223;
            bytes[8 + i] =
                round % 2 ? alphabet[(state >> 8) % (sizeof(alphabet) - 1)] : (char)(state >> 24);
        }
        bytes[8] = '{';
        memcpy(bytes, (const char[]){(char)length, 0, 0, 0, 0, 0, 0, 0}, 8);
        expect_refusal(scratch_write("noise", bytes, 8 + length), ISO_ERR_FORMAT, "");
    }
}

Test(checkpoint, refuses_a_header_longer_than_the_file) {
    const uint8_t huge[] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}', 0, 0};
    expect_refusal(scratch_write("a", huge, sizeof(huge)), ISO_ERR_FORMAT,
                   "its header should have 18446744073709551615 bytes");
}

Test(checkpoint, refuses_headers_that_are_not_right) {
#define F32(shape, offsets) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    refuse_header("has tensor a twice",
                  "{\"a\":" F32("[1]", "[0,4]") ",\"a\":" F32("[1]", "[4,8]") "}", 8);
    refuse_header("outside the file", "{\"a\":" F32("[2]", "[0,8]") "}", 4);
    refuse_header("do not fit the shape", "{\"a\":" F32("[2]", "[0,4]") "}", 4);
    refuse_header("starts at data byte 0",
                  "{\"a\":" F32("[1]", "[0,4]") ",\"b\":" F32("[1]", "[0,4]") "}", 8);
    refuse_header("starts at data byte 8",
                  "{\"a\":" F32("[1]", "[0,4]") ",\"b\":" F32("[1]", "[8,12]") "}", 12);
    refuse_header("end after 4 data bytes", "{\"a\":" F32("[1]", "[0,4]") "}", 5);
    refuse_header("a shape that overflows", "{\"a\":" F32("[9000000000000000000]", "[0,4]") "}", 4);
    refuse_header("a number that overflows", "{\"a\":" F32("[9300000000000000000]", "[0,4]") "}",
                  4);
    refuse_header("no whole number", "{\"a\":" F32("[-1]", "[0,4]") "}", 4);
    refuse_header("leading zeros", "{\"a\":" F32("[01]", "[0,4]") "}", 4);
    refuse_header("a list that is too long",
                  "{\"a\":" F32("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4);
    refuse_header("not two numbers", "{\"a\":" F32("[1]", "[0]") "}", 4);
    refuse_header("an unknown element type",
                  "{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    refuse_header("without dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    refuse_header("given twice",
                  "{\"a\":{\"shape\":[1],\"shape\":[1],\"dtype\":\"F32\",\"data_offsets\":[0,4]}}",
                  4);
    refuse_header("an unknown key", "{\"a\":{\"shape\":[1],\"size\":[1]}}", 4);
    refuse_header("a zero byte", "{\"a\\u0000b\":" F32("[1]", "[0,4]") "}", 4);
    refuse_header("half a surrogate pair", "{\"\\ud800\":" F32("[1]", "[0,4]") "}", 4);
    refuse_header("a bad \\u escape", "{\"\\u12g4\":" F32("[1]", "[0,4]") "}", 4);
    refuse_header("an unknown escape", "{\"\\x\":" F32("[1]", "[0,4]") "}", 4);
    refuse_header("a control character", "{\"\n\":" F32("[1]", "[0,4]") "}", 4);
    refuse_header("more after the end", "{\"a\":" F32("[1]", "[0,4]") "}x", 4);
    refuse_header("no string where one belongs", "{\"a\":" F32("[1]", "[0,4]") ",}", 4);
    refuse_header("__metadata__ given twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 1);
    refuse_header("no { at the start", "[]", 4);
}

// Spaces, escapes and any order of keys are JSON too.
Test(checkpoint, reads_headers_written_by_others) {
    const char *path = compose(
        "{ \"f\\u0063.weight\" : {\"data_offsets\":[16, 40],\n\"shape\":[ 2 ,3],\"dtype\":\"F32\"},"
        "\"fc.bias\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]}}  ",
        40);
    model m = create(3), zeros = create(0);
    cr_assert_eq(iso_checkpoint_load(path, m.tensors, 2), ISO_OK, "%s", iso_last_error()->message);
    cr_assert(equal(&m, &zeros));
    destroy(&m);
    destroy(&zeros);
}

// More than one piece of reading, with a last one of an odd length.
Test(checkpoint, a_byte_that_differs_shows_in_the_checksum) {
    static uint8_t bytes[(2 << 20) + 3];
    uint64_t before, after;
    const char *path = scratch_write("file", bytes, sizeof(bytes));
    cr_assert_eq(iso_checkpoint_checksum(path, &before), ISO_OK);
    for (size_t at = 0; at < sizeof(bytes); at += sizeof(bytes) / 2) {
        bytes[at] = 1;
        cr_assert_eq(iso_checkpoint_checksum(scratch_write("file", bytes, sizeof(bytes)), &after),
                     ISO_OK);
        cr_assert_neq(after, before);
        bytes[at] = 0;
    }
    cr_assert_eq(iso_checkpoint_checksum(scratch_write("other", bytes, sizeof(bytes)), &after),
                 ISO_OK);
    cr_assert_eq(after, before);
    cr_assert_eq(iso_checkpoint_checksum("nowhere", &after), ISO_ERR_IO);
}
