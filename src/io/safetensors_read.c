// SPDX-License-Identifier: MIT
// Reads a safetensors file: its header and its data; compares it with the caller's arrays.
#include "base/recording.h"
#include "io/safetensors.h"
#include "tensor/tensor_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static iso_status read_exactly(iso__safetensors *self, void *to, size_t bytes) {
    iso__alive("the reading of a checkpoint");
    size_t got = fread(to, 1, bytes, self->file);
    ISO_CHECK(!ferror(self->file), ISO_ERR_IO, "cannot read %s: %s", self->path, strerror(errno));
    ISO_CHECK(got == bytes, ISO_ERR_FORMAT, "%s ends %zu byte%s early", self->path, bytes - got,
              ISO_PLURAL(bytes - got));
    return ISO_OK;
}

// ---- The header ---------------------------------------------------------------------------------

static iso_status open_regular(const char *path, FILE **out) {
    struct stat info;
    // Opening a pipe would wait for its other end.
    ISO_CHECK(stat(path, &info) != 0 || S_ISREG(info.st_mode), ISO_ERR_IO,
              "cannot read checkpoint %s: it is not a file", path);
    *out = fopen(path, "rb");
    ISO_CHECK(*out, ISO_ERR_IO, "cannot open checkpoint %s: %s", path, strerror(errno));
    return ISO_OK;
}

static iso_status open_file(iso__safetensors *self, int64_t *size) {
    struct stat info;
    ISO_TRY(open_regular(self->path, &self->file));
    ISO_CHECK(fstat(fileno(self->file), &info) == 0, ISO_ERR_IO, "cannot examine %s: %s",
              self->path, strerror(errno));
    *size = (int64_t)info.st_size;
    return ISO_OK;
}

// People mistake PyTorch's own formats for safetensors: say so.
static iso_status check_start(const char *path, const uint8_t start[ISO__SAFETENSORS_PREFIX]) {
    ISO_CHECK(memcmp(start, "PK\3\4", 4) != 0, ISO_ERR_FORMAT,
              "%s is a PyTorch zip archive: save the model as safetensors instead", path);
    ISO_CHECK(!(start[0] == 0x80 && start[1] >= 2 && start[1] <= 5 && start[7] != 0),
              ISO_ERR_FORMAT, "%s is a Python pickle: save the model as safetensors instead", path);
    return ISO_OK;
}

static iso_status read_text(iso__safetensors *self, size_t *out) {
    int64_t size = 0;
    uint8_t start[ISO__SAFETENSORS_PREFIX];
    uint64_t length = 0;
    ISO_TRY(open_file(self, &size));
    ISO_CHECK(size > ISO__SAFETENSORS_PREFIX, ISO_ERR_FORMAT,
              "%s has only %lld byte%s: it is truncated or not a safetensors file", self->path,
              (long long)size, ISO_PLURAL(size));
    ISO_TRY(read_exactly(self, start, ISO__SAFETENSORS_PREFIX));
    ISO_TRY(check_start(self->path, start));
    for (int b = ISO__SAFETENSORS_PREFIX - 1; b >= 0; b--) length = length << 8 | start[b];
    ISO_CHECK(length <= ISO__MOST_HEADER, ISO_ERR_FORMAT,
              "%s is not a safetensors file: its header should have %llu bytes, and at most %d are "
              "allowed",
              self->path, (unsigned long long)length, ISO__MOST_HEADER);
    ISO_CHECK(length <= (uint64_t)size - ISO__SAFETENSORS_PREFIX, ISO_ERR_FORMAT,
              "%s is truncated or not a safetensors file: its header "
              "should have %llu byte%s, and the file ends after %lld",
              self->path, (unsigned long long)length, ISO_PLURAL(length),
              (long long)(size - ISO__SAFETENSORS_PREFIX));
    ISO_TRY(iso__alloc((size_t)length, &self->text));
    ISO_TRY(read_exactly(self, self->text, (size_t)length));
    self->data_bytes = size - ISO__SAFETENSORS_PREFIX - (int64_t)length;
    *out = (size_t)length;
    return ISO_OK;
}

static iso_status check_seal(const iso__safetensors *self, size_t length) {
    size_t start = strlen(ISO__SEAL_START);
    char digits[ISO__SEAL_DIGITS + 1], *text = self->text;
    ISO_CHECK(length > start + ISO__SEAL_DIGITS && memcmp(text, ISO__SEAL_START, start) == 0,
              ISO_ERR_FORMAT, "%s is damaged or not a saved state: its header has no seal",
              self->path);
    iso__seal_text(iso__seal_of(text, length), digits);
    ISO_CHECK(memcmp(digits, text + start, ISO__SEAL_DIGITS) == 0, ISO_ERR_FORMAT,
              "%s is damaged: its header does not fit its seal", self->path);
    return ISO_OK;
}

iso_status iso__safetensors_open(const char *path, bool sealed, iso__safetensors *out) {
    iso_status status;
    iso__safetensors self = {0};
    size_t length = 0;
    ISO_TRY_GOTO(iso__strdup(path, &self.path));
    ISO_TRY_GOTO(read_text(&self, &length));
    if (sealed) ISO_TRY_GOTO(check_seal(&self, length));
    ISO_TRY_GOTO(
        iso__safetensors_parse(path, self.text, (int64_t)length, self.data_bytes, &self.header));
    ISO_TRY_GOTO(iso__safetensors_index(&self));
    *out = self;
    return ISO_OK;
fail:
    iso__safetensors_close(&self);
    return status;
}

void iso__safetensors_close(iso__safetensors *self) {
    if (self->file) fclose(self->file);
    iso__free(self->path);
    iso__free(self->text);
    iso__free(self->header.stored);
    iso__free(self->header.note);
    iso__free(self->data);
    iso__free(self->renamed);
    iso__index_free(&self->named);
    *self = (iso__safetensors){0};
}

const char *iso__safetensors_note(const iso__safetensors *self, const char *key) {
    for (int i = 0; i < self->header.note_count; i++)
        if (strcmp(self->header.note[i].key, key) == 0) return self->header.note[i].value;
    return NULL;
}

// ---- Comparing ----------------------------------------------------------------------------------

iso_status iso__safetensors_index(iso__safetensors *self) {
    iso__index_free(&self->named);
    for (int i = 0; i < self->header.count; i++)
        ISO_TRY(iso__index_add(&self->named, iso__name_key(self->header.stored[i].name), i));
    return ISO_OK;
}

const iso__stored *iso__safetensors_find(const iso__safetensors *self, const char *name) {
    int i = 0;
    for (size_t at = 0; i >= 0;) {
        i = iso__index_next(&self->named, iso__name_key(name), &at);
        if (i >= 0 && strcmp(self->header.stored[i].name, name) == 0)
            return &self->header.stored[i];
    }
    return NULL;
}

// Which of the file's arrays the caller has: [header.count].
static void mark_given(const iso__safetensors *self, const iso__array *arrays, int count,
                       bool *given) {
    for (int i = 0; i < count; i++) {
        const iso__stored *stored = iso__safetensors_find(self, arrays[i].name);
        if (stored) given[stored - self->header.stored] = true;
    }
}

#define NAMES_SHOWN 3

// Adds the n-th missing or unexpected name to the list in `text`, which shows only the first few.
static void list_name(char *text, size_t room, int n, const char *name) {
    size_t used = strlen(text);
    if (n < NAMES_SHOWN) snprintf(text + used, room - used, "%s%.48s", n ? ", " : " ", name);
    if (n == NAMES_SHOWN) snprintf(text + used, room - used, ", ...");
}

static iso_status match_names(const iso__safetensors *self, const iso__array *arrays, int count,
                              const bool *given) {
    char missing[256] = "", unexpected[256] = "";
    int missing_count = 0, unexpected_count = 0;
    for (int i = 0; i < count; i++)
        if (!arrays[i].optional && !iso__safetensors_find(self, arrays[i].name))
            list_name(missing, sizeof(missing), missing_count++, arrays[i].name);
    for (int i = 0; i < self->header.count; i++)
        if (!given[i])
            list_name(unexpected, sizeof(unexpected), unexpected_count++,
                      self->header.stored[i].name);
    ISO_CHECK(
        missing_count + unexpected_count == 0, ISO_ERR_MISMATCH,
        "%s is a checkpoint of another model: %d tensor%s missing%s%s and %d %s unexpected%s%s",
        self->path, missing_count, missing_count == 1 ? " is" : "s are", missing_count ? ":" : "",
        missing, unexpected_count, unexpected_count == 1 ? "is" : "are",
        unexpected_count ? ":" : "", unexpected);
    return ISO_OK;
}

static iso_status match_array(const char *path, const iso__array *array,
                              const iso__stored *stored) {
    char here[100], there[100];
    ISO_CHECK(array->ndim == stored->ndim &&
                  memcmp(array->shape, stored->shape, (size_t)array->ndim * sizeof(int64_t)) == 0,
              ISO_ERR_MISMATCH,
              "%s is a checkpoint of another model: tensor %s has shape %s there and %s here", path,
              array->name, iso__shape_text(stored->ndim, stored->shape, there, sizeof(there)),
              iso__shape_text(array->ndim, array->shape, here, sizeof(here)));
    ISO_CHECK(strcmp(array->dtype, stored->dtype) == 0, ISO_ERR_MISMATCH,
              "%s does not fit: tensor %s has element type %s there and %s here", path, array->name,
              stored->dtype, array->dtype);
    return ISO_OK;
}

iso_status iso__safetensors_match(const iso__safetensors *self, const iso__array *arrays,
                                  int count) {
    bool *given;
    ISO_TRY(iso__alloc_zero((size_t)self->header.count + 1, (void **)&given));
    mark_given(self, arrays, count, given);
    iso_status status = match_names(self, arrays, count, given);
    iso__free(given);
    ISO_TRY(status);
    for (int i = 0; i < count; i++) {
        const iso__stored *stored = iso__safetensors_find(self, arrays[i].name);
        if (stored) ISO_TRY(match_array(self->path, &arrays[i], stored));
    }
    return ISO_OK;
}

iso_status iso__safetensors_load(iso__safetensors *self) {
    ISO_TRY(iso__alloc((size_t)self->data_bytes, &self->data));
    ISO_TRY(read_exactly(self, self->data, (size_t)self->data_bytes));
    return ISO_OK;
}

// ---- Checksum -----------------------------------------------------------------------------------

#define CHUNK ((size_t)1 << 20)

iso_status iso_checkpoint_checksum(const char *path, uint64_t *out) {
    FILE *file;
    void *chunk = NULL;
    uint64_t sum = ISO_HASH_START;
    ISO_TRY(open_regular(path, &file));
    iso_status status = iso__alloc(CHUNK, &chunk);
    for (size_t got = CHUNK; status >= 0 && got == CHUNK;) {
        iso__alive("the reading of a checkpoint");
        got = fread(chunk, 1, CHUNK, file);
        sum = iso__checksum(sum, chunk, got);
    }
    if (status >= 0 && ferror(file))
        status = ISO_FAIL(ISO_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    fclose(file);
    iso__free(chunk);
    ISO_TRY(status);
    *out = sum;
    return ISO_OK;
}
