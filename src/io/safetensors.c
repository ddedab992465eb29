// SPDX-License-Identifier: MIT
// Parses the JSON header of a safetensors file, strictly: any bytes that are not a valid header are
// refused.
#include "io/safetensors.h"

#include <string.h>

// ---- JSON ---------------------------------------------------------------------------------------

typedef struct parser {
    const char *path;
    char *text;
    int64_t at, length;
} parser;

static iso_status fail_header(const parser *self, const char *what) {
    return ISO_FAIL(ISO_ERR_FORMAT, "%s is damaged or not a safetensors file: %s at byte %lld",
                    self->path, what, (long long)(8 + self->at));
}
#define WANT(cond, what)                                                                           \
    do {                                                                                           \
        if (!(cond)) return fail_header(self, what);                                               \
    } while (0)

static void skip_space(parser *self) {
    while (self->at < self->length && self->text[self->at] &&
           strchr(" \t\n\r", self->text[self->at]))
        self->at++;
}

static bool accept_character(parser *self, char c) {
    skip_space(self);
    if (self->at >= self->length || self->text[self->at] != c) return false;
    self->at++;
    return true;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// The four digits after "\u".
static iso_status parse_hex(parser *self, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, self->at++) {
        WANT(self->at < self->length && hex_digit(self->text[self->at]) >= 0, "a bad \\u escape");
        *out = *out << 4 | (uint32_t)hex_digit(self->text[self->at]);
    }
    return ISO_OK;
}

static char *put_utf8(char *to, uint32_t c) {
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    *to++ = (char)((0x780 >> more & 0xFF) | c >> 6 * more);
    while (more-- > 0) *to++ = (char)(0x80 | (c >> 6 * more & 0x3F));
    return to;
}

static iso_status parse_unicode(parser *self, char **to) {
    uint32_t c, low;
    ISO_TRY(parse_hex(self, &c));
    WANT(c != 0, "a zero byte in a string");
    WANT(c < 0xDC00 || c > 0xDFFF, "half a surrogate pair");
    if (c >= 0xD800 && c < 0xDC00) {
        WANT(self->at + 2 <= self->length && memcmp(self->text + self->at, "\\u", 2) == 0,
             "half a surrogate pair");
        self->at += 2;
        ISO_TRY(parse_hex(self, &low));
        WANT(low >= 0xDC00 && low <= 0xDFFF, "half a surrogate pair");
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    *to = put_utf8(*to, c);
    return ISO_OK;
}

// Decodes in place: an escape is never shorter than what it stands for. The closing quote becomes
// the 0.
static iso_status parse_string(parser *self, char **out) {
    static const char from[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
    WANT(accept_character(self, '"'), "no string where one belongs");
    char *start = self->text + self->at, *to = start;
    for (;;) {
        WANT(self->at < self->length, "a string without end");
        char c = self->text[self->at++];
        if (c == '"') break;
        WANT((unsigned char)c >= 0x20, "a control character in a string");
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        WANT(self->at < self->length, "a string without end");
        c = self->text[self->at++];
        if (c == 'u') {
            ISO_TRY(parse_unicode(self, &to));
            continue;
        }
        const char *found = c ? strchr(from, c) : NULL;
        WANT(found, "an unknown escape in a string");
        *to++ = meaning[found - from];
    }
    *to = 0;
    *out = start;
    return ISO_OK;
}

static iso_status parse_integer(parser *self, int64_t *out) {
    skip_space(self);
    int64_t value = 0, start = self->at;
    for (; self->at < self->length && self->text[self->at] >= '0' && self->text[self->at] <= '9';
         self->at++) {
        WANT(!__builtin_mul_overflow(value, 10, &value) &&
                 !__builtin_add_overflow(value, self->text[self->at] - '0', &value),
             "a number that overflows");
    }
    WANT(self->at > start, "no whole number where one belongs");
    WANT(self->text[start] != '0' || self->at == start + 1, "a number with leading zeros");
    *out = value;
    return ISO_OK;
}

static iso_status parse_integers(parser *self, int most, int64_t *out, int *count) {
    WANT(accept_character(self, '['), "no list where one belongs");
    *count = 0;
    if (accept_character(self, ']')) return ISO_OK;
    do {
        WANT(*count < most, "a list that is too long");
        ISO_TRY(parse_integer(self, &out[(*count)++]));
    } while (accept_character(self, ','));
    WANT(accept_character(self, ']'), "a list without end");
    return ISO_OK;
}

// ---- Members of the header ----------------------------------------------------------------------

// {"key": "value", ...}
static iso_status parse_metadata(parser *self, iso__header *out) {
    int room = 0;
    WANT(accept_character(self, '{'), "no object where one belongs");
    if (accept_character(self, '}')) return ISO_OK;
    do {
        char *key, *value;
        ISO_TRY(parse_string(self, &key));
        WANT(accept_character(self, ':'), "no colon after a key");
        ISO_TRY(parse_string(self, &value));
        void *notes = out->note;
        WANT(out->note_count < ISO__MOST_NOTES, "more than 10000 entries of metadata");
        ISO_TRY(iso__grow(&notes, out->note_count, &room, sizeof(iso__note)));
        out->note = notes;
        out->note[out->note_count++] = (iso__note){key, value};
    } while (accept_character(self, ','));
    WANT(accept_character(self, '}'), "an object without end");
    return ISO_OK;
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

static iso_status parse_field(parser *self, iso__stored *tensor, int64_t *bits, int *has) {
    char *key, *name;
    int count, field;
    ISO_TRY(parse_string(self, &key));
    WANT(accept_character(self, ':'), "no colon after a key");
    if (strcmp(key, "dtype") == 0) {
        field = HAS_DTYPE;
        ISO_TRY(parse_string(self, &name));
        tensor->dtype = iso__safetensors_dtype_named(name, bits);
        WANT(tensor->dtype, "an unknown element type");
    } else if (strcmp(key, "shape") == 0) {
        field = HAS_SHAPE;
        ISO_TRY(parse_integers(self, ISO__SAFETENSORS_MAX_DIMS, tensor->shape, &tensor->ndim));
    } else {
        int64_t offsets[2];
        WANT(strcmp(key, "data_offsets") == 0, "an unknown key of a tensor");
        field = HAS_OFFSETS;
        ISO_TRY(parse_integers(self, 2, offsets, &count));
        WANT(count == 2, "data_offsets that are not two numbers");
        tensor->begin = offsets[0];
        tensor->end = offsets[1];
    }
    WANT(!(*has & field), "a key given twice");
    *has |= field;
    return ISO_OK;
}

static iso_status parse_tensor(parser *self, int64_t data_bytes, iso__stored *tensor) {
    int64_t bits = 0;
    int has = 0;
    WANT(accept_character(self, '{'), "no object where one belongs");
    do {
        ISO_TRY(parse_field(self, tensor, &bits, &has));
    } while (accept_character(self, ','));
    WANT(accept_character(self, '}'), "an object without end");
    WANT(has == HAS_ALL, "a tensor without dtype, shape or data_offsets");
    for (int d = 0; d < tensor->ndim; d++)
        WANT(!__builtin_mul_overflow(bits, tensor->shape[d], &bits), "a shape that overflows");
    WANT(tensor->begin <= tensor->end && tensor->end <= data_bytes,
         "data_offsets outside the file");
    WANT(bits % 8 == 0 && tensor->end - tensor->begin == bits / 8,
         "data_offsets that do not fit the shape");
    return ISO_OK;
}

// ---- The whole header ---------------------------------------------------------------------------

static int by_offset(const void *a, const void *b) {
    const iso__stored *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const iso__stored *)a)->name, ((const iso__stored *)b)->name);
}

static iso_status check_names_and_cover(const parser *self, iso__stored *tensors, int count,
                                        int64_t data_bytes) {
    int64_t end = 0;
    if (count > 0) qsort(tensors, (size_t)count, sizeof(*tensors), by_name);
    for (int i = 1; i < count; i++)
        ISO_CHECK(strcmp(tensors[i - 1].name, tensors[i].name) != 0, ISO_ERR_FORMAT,
                  "%s is damaged: it has tensor %s twice", self->path, tensors[i].name);
    if (count > 0) qsort(tensors, (size_t)count, sizeof(*tensors), by_offset);
    for (int i = 0; i < count; i++) {
        ISO_CHECK(
            tensors[i].begin == end, ISO_ERR_FORMAT,
            "%s is damaged: tensor %s starts at data byte %lld, but the one before it ends at %lld",
            self->path, tensors[i].name, (long long)tensors[i].begin, (long long)end);
        end = tensors[i].end;
    }
    ISO_CHECK(end == data_bytes, ISO_ERR_FORMAT,
              "%s is damaged: its tensors end after %lld data bytes, but it has %lld", self->path,
              (long long)end, (long long)data_bytes);
    return ISO_OK;
}

static iso_status parse_members(parser *self, int64_t data_bytes, iso__header *out) {
    int room = 0;
    bool metadata = false;
    WANT(accept_character(self, '{'), "no { at the start of the header");
    if (accept_character(self, '}')) return ISO_OK;
    do {
        char *name;
        ISO_TRY(parse_string(self, &name));
        WANT(accept_character(self, ':'), "no colon after a key");
        if (strcmp(name, "__metadata__") == 0) {
            WANT(!metadata, "__metadata__ given twice");
            metadata = true;
            ISO_TRY(parse_metadata(self, out));
            continue;
        }
        void *tensors = out->stored;
        ISO_TRY(iso__grow(&tensors, out->count, &room, sizeof(iso__stored)));
        out->stored = tensors;
        iso__stored *tensor = &out->stored[out->count];
        *tensor = (iso__stored){.name = name};
        ISO_TRY(parse_tensor(self, data_bytes, tensor));
        out->count++;
    } while (accept_character(self, ','));
    WANT(accept_character(self, '}'), "an object without end");
    return ISO_OK;
}

iso_status iso__safetensors_parse(const char *path, char *text, int64_t length, int64_t data_bytes,
                                  iso__header *out) {
    iso_status status;
    parser self = {path, text, 0, length};
    iso__header found = {0};
    ISO_TRY_GOTO(parse_members(&self, data_bytes, &found));
    skip_space(&self);
    if (self.at != length) {
        status = fail_header(&self, "more after the end of the header");
        goto fail;
    }
    ISO_TRY_GOTO(check_names_and_cover(&self, found.stored, found.count, data_bytes));
    *out = found;
    return ISO_OK;
fail:
    iso__free(found.stored);
    iso__free(found.note);
    return status;
}
