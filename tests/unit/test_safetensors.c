// SPDX-License-Identifier: MIT
// Files of named arrays: all types of saved state, notes, and the seal of a header.
#include "io/safetensors.h"

#include "common/balance.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <string.h>

static void clean_up(void) {
    scratch_remove();
    balance_check();
}
TestSuite(safetensors, .fini = clean_up, .timeout = 60);

#define cr_ok(expr) cr_assert((expr) >= 0, "%s: %s", #expr, iso_last_error()->message)

// One array of each type of saved state, and one without elements.
typedef struct arrays {
    float f32[6];
    double f64[2];
    int64_t i64[3];
    uint8_t u8[5];
    iso__array item[5];
} arrays;

static arrays *create_arrays(bool filled) {
    static const int64_t shape[][2] = {{2, 3}, {2}, {3}, {5}, {0}};
    static const arrays content = {.f32 = {0, 0.5f, -1, 1e30f, -0.0f, 3},
                                   .f64 = {1.0 / 3, -1e300},
                                   .i64 = {INT64_MIN, -1, INT64_MAX},
                                   .u8 = {0, 1, 127, 128, 255}};
    arrays *a = calloc(1, sizeof(*a));
    if (filled) *a = content;
    iso__array item[5] = {
        {.name = "u8", .dtype = "U8", .ndim = 1, .shape = shape[3], .data = a->u8},
        {.name = "f32", .dtype = "F32", .ndim = 2, .shape = shape[0], .data = a->f32},
        {.name = "i64", .dtype = "I64", .ndim = 1, .shape = shape[2], .data = a->i64},
        {.name = "none", .dtype = "F64", .ndim = 1, .shape = shape[4], .data = NULL},
        {.name = "f64", .dtype = "F64", .ndim = 1, .shape = shape[1], .data = a->f64}};
    memcpy(a->item, item, sizeof(item));
    return a;
}

static const iso__note notes[] = {{"format", "pt"}, {"quote \"\n", "\xC3\xA9 \\"}};

static const char *save(const char *name, bool sealed) {
    arrays *a = create_arrays(true);
    const char *path = scratch_path(name);
    cr_ok(iso__safetensors_write(path, sealed, notes, 2, a->item, 5));
    free(a);
    return path;
}

static void expect_contents(const char *path, bool sealed) {
    arrays *wanted = create_arrays(true);
    iso__safetensors file;
    cr_ok(iso__safetensors_open(path, sealed, &file));
    cr_ok(iso__safetensors_match(&file, wanted->item, 5));
    cr_ok(iso__safetensors_load(&file));
    for (int i = 0; i < 5; i++) {
        const iso__stored *stored = iso__safetensors_find(&file, wanted->item[i].name);
        size_t bytes = iso__array_bytes(&wanted->item[i]);
        cr_assert_eq((size_t)(stored->end - stored->begin), bytes);
        if (bytes > 0)
            cr_assert_eq(memcmp((char *)file.data + stored->begin, wanted->item[i].data, bytes), 0);
    }
    cr_assert_str_eq(iso__safetensors_note(&file, notes[1].key), notes[1].value);
    cr_assert_null(iso__safetensors_note(&file, "other"));
    iso__safetensors_close(&file);
    free(wanted);
}

Test(safetensors, every_type_reads_back) {
    expect_contents(save("plain", false), false);
    expect_contents(save("sealed", true), true);
    expect_contents(scratch_path("sealed"), false); // a seal is a note for others
}

// By the format's description, with nothing but Python's own library.
Test(safetensors, every_type_is_what_the_format_says) {
    char command[2000];
    snprintf(command, sizeof(command),
             "python3 -c 'import sys, struct, json\n"
             "b = open(sys.argv[1], \"rb\").read()\n"
             "n, = struct.unpack(\"<Q\", b[:8])\n"
             "assert n %% 8 == 0\n"
             "h = json.loads(b[8:8 + n].decode(\"utf-8\"))\n"
             "m = h.pop(\"__metadata__\")\n"
             "assert m.pop(\"seal\") and m == {\"format\": \"pt\","
             " \"quote \\\"\\n\": \"\\u00e9 \\\\\"}, m\n"
             "c = {\"F32\": \"f\", \"F64\": \"d\", \"I64\": \"q\", \"U8\": \"B\"}\n"
             "def get(k, shape):\n"
             "    t = h.pop(k); x, y = t[\"data_offsets\"]\n"
             "    assert t[\"shape\"] == shape, t\n"
             "    d = b[8 + n + x:8 + n + y]; f = c[t[\"dtype\"]]\n"
             "    return list(struct.unpack(\"<%%d%%s\" %% (len(d) // struct.calcsize(f), f), d))\n"
             "assert get(\"f32\", [2, 3])[:3] == [0, 0.5, -1]\n"
             "assert get(\"f64\", [2]) == [1 / 3, -1e300]\n"
             "assert get(\"i64\", [3]) == [-2**63, -1, 2**63 - 1]\n"
             "assert get(\"u8\", [5]) == [0, 1, 127, 128, 255]\n"
             "assert get(\"none\", [0]) == [] and not h' %s",
             save("a", true));
    if (system("python3 -c 0 2>/dev/null") != 0) cr_skip_test("there is no python3");
    cr_assert_eq(system(command), 0);
}

Test(safetensors, a_file_may_hold_no_array) {
    iso__safetensors file;
    const char *path = scratch_path("empty");
    cr_ok(iso__safetensors_write(path, true, notes, 2, NULL, 0));
    cr_ok(iso__safetensors_open(path, true, &file));
    cr_ok(iso__safetensors_match(&file, NULL, 0));
    cr_ok(iso__safetensors_load(&file));
    cr_assert_eq(file.header.count, 0);
    iso__safetensors_close(&file);
}

// Python's json escapes all that is not ASCII. First and last of each length in UTF-8 (RFC 3629).
Test(safetensors, escapes_become_utf8) {
    static const char escaped[] =
        "\\u007f \\u0080 \\u07ff \\u0800 \\uffff \\ud800\\udc00 \\udbff\\udfff";
    static const char wanted[] = "\x7f \xc2\x80 \xdf\xbf \xe0\xa0\x80 \xef\xbf\xbf "
                                 "\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf";
    char text[200];
    iso__header header;
    int length = snprintf(text, sizeof(text), "{\"__metadata__\":{\"a\":\"%s\"}}", escaped);
    cr_ok(iso__safetensors_parse("a", text, length, 0, &header));
    cr_assert_str_eq(header.note[0].value, wanted);
    iso__free(header.note);
}

Test(safetensors, types_and_shapes_must_match) {
    static const int64_t other[2] = {3, 2};
    arrays *a = create_arrays(false);
    iso__safetensors file;
    cr_ok(iso__safetensors_open(save("a", true), true, &file));
    a->item[2].dtype = "F64";
    cr_assert_eq(iso__safetensors_match(&file, a->item, 5), ISO_ERR_MISMATCH);
    cr_assert(strstr(iso_last_error()->message, "i64 has element type I64 there and F64 here"));
    a->item[2].dtype = "I64";
    a->item[1].shape = other;
    cr_assert_eq(iso__safetensors_match(&file, a->item, 5), ISO_ERR_MISMATCH);
    cr_assert(strstr(iso_last_error()->message, "f32 has shape [2, 3] there and [3, 2] here"));
    iso__safetensors_close(&file);
    free(a);
}

Test(safetensors, an_unsealed_file_is_not_a_sealed_one) {
    iso__safetensors file;
    const char *path = save("a", false);
    cr_assert_eq(iso__safetensors_open(path, true, &file), ISO_ERR_FORMAT);
    cr_assert(strstr(iso_last_error()->message, "has no seal"), "%s", iso_last_error()->message);
}

// Names, shapes, notes, the seal itself: no bit of length and header can change unnoticed.
Test(safetensors, a_seal_notices_every_changed_bit, .timeout = 120) {
    size_t size, data_bytes = 5 + 24 + 24 + 16;
    char *bytes = scratch_read(save("a", true), &size);
    for (size_t bit = 0; bit < 8 * (size - data_bytes); bit++) {
        iso__safetensors file;
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
        const char *path = scratch_write("changed", bytes, size);
        cr_assert_eq(iso__safetensors_open(path, true, &file), ISO_ERR_FORMAT, "bit %zu", bit);
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
    }
    free(bytes);
}
