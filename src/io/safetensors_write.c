// SPDX-License-Identifier: MIT
// Writes named arrays as a safetensors file. At any time, the path has either the old file or the
// complete new one.
#include "base/recording.h"
#include "io/durable.h"
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors data are little-endian, written as they are");

// ---- The header ---------------------------------------------------------------------------------

// Text that grows. Appending after a failure does nothing, so that only the end must be checked.
typedef struct text {
    void *data;
    size_t used, room;
    iso_status status;
} text;

static void append_text(text *to, const char *from, size_t bytes) {
    if (to->status < 0) return;
    if (to->room - to->used < bytes) {
        size_t larger = 2 * to->room + bytes + 256;
        to->status = iso__realloc(&to->data, to->used, larger);
        if (to->status < 0) return;
        to->room = larger;
    }
    memcpy((char *)to->data + to->used, from, bytes);
    to->used += bytes;
}

static void append_string(text *to, const char *from) {
    append_text(to, "\"", 1);
    for (; *from; from++) {
        char escape[8];
        int n = snprintf(escape, sizeof(escape), (unsigned char)*from < 0x20 ? "\\u%04x" : "\\%c",
                         *from);
        bool special = (unsigned char)*from < 0x20 || *from == '"' || *from == '\\';
        append_text(to, special ? escape : from, special ? (size_t)n : 1);
    }
    append_text(to, "\"", 1);
}

__attribute__((format(printf, 2, 3))) static void append_format(text *to, const char *format, ...) {
    char piece[128];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(piece, sizeof(piece), format, args);
    va_end(args);
    append_text(to, piece, (size_t)n);
}

static void append_notes(text *to, bool sealed, const iso__note *notes, int count) {
    static const char seal[] = ISO__SEAL_START "0000000000000000\"";
    static const char start[] = "{\"__metadata__\":{";
    append_text(to, sealed ? seal : start, sealed ? sizeof(seal) - 1 : sizeof(start) - 1);
    for (int i = 0; i < count; i++) {
        if (sealed || i > 0) append_text(to, ",", 1);
        append_string(to, notes[i].key);
        append_text(to, ":", 1);
        append_string(to, notes[i].value);
    }
    append_text(to, "}", 1);
}

static void append_array(text *to, const iso__array *array, size_t begin) {
    append_text(to, ",", 1);
    append_string(to, array->name);
    append_format(to, ":{\"dtype\":\"%s\",\"shape\":[", array->dtype);
    for (int d = 0; d < array->ndim; d++)
        append_format(to, d ? ",%" PRId64 : "%" PRId64, array->shape[d]);
    append_format(to, "],\"data_offsets\":[%zu,%zu]}", begin, begin + iso__array_bytes(array));
}

// Writes the seal into the header, which begins behind its length.
static void put_seal(char *header, size_t length) {
    char digits[ISO__SEAL_DIGITS + 1];
    iso__seal_text(iso__seal_of(header, length), digits);
    memcpy(header + strlen(ISO__SEAL_START), digits, ISO__SEAL_DIGITS);
}

static iso_status make_header(bool sealed, const iso__note *notes, int note_count,
                              const iso__array *arrays, int count, text *to) {
    char length[ISO__SAFETENSORS_PREFIX] = {0};
    size_t begin = 0;
    append_text(to, length, ISO__SAFETENSORS_PREFIX);
    append_notes(to, sealed, notes, note_count);
    for (int i = 0; i < count; i++) {
        append_array(to, &arrays[i], begin);
        begin += iso__array_bytes(&arrays[i]);
    }
    append_text(to, "}", 1);
    append_text(to, "        ",
                (ISO__SAFETENSORS_PREFIX - to->used % ISO__SAFETENSORS_PREFIX) %
                    ISO__SAFETENSORS_PREFIX); // so that the data are aligned
    ISO_TRY(to->status);
    size_t bytes = to->used - ISO__SAFETENSORS_PREFIX;
    for (int b = 0; b < ISO__SAFETENSORS_PREFIX; b++)
        ((uint8_t *)to->data)[b] = (uint8_t)((uint64_t)bytes >> 8 * b);
    if (sealed) put_seal((char *)to->data + ISO__SAFETENSORS_PREFIX, bytes);
    return ISO_OK;
}

// ---- The file -----------------------------------------------------------------------------------

enum { PIECE = 1 << 26 }; // bytes of a call: the program makes progress between two of them

static iso_status write_all(int file, const char *path, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        size_t piece = bytes < PIECE ? bytes : PIECE;
        iso__alive("the writing of a checkpoint");
        ssize_t n = write(file, from, piece);
        if (n < 0 && errno == EINTR) continue;
        ISO_CHECK(n >= 0, ISO_ERR_IO, "cannot write checkpoint %s: %s", path, strerror(errno));
        from += n;
        bytes -= (size_t)n;
    }
    return ISO_OK;
}

static iso_status write_array(int file, const char *path, const iso__array *array) {
    void *data;
    ISO_TRY(iso__array_open(array, ISO_READ, &data));
    iso_status status = write_all(file, path, data, iso__array_bytes(array));
    if (status < 0) { // keep its message, not that of closing
        iso__array_close(array);
        return status;
    }
    ISO_TRY(iso__array_close(array));
    return ISO_OK;
}

static iso_status write_file(const char *temporary, const char *path, const text *header,
                             const iso__array *arrays, int count) {
    iso_status status;
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ISO_CHECK(file >= 0, ISO_ERR_IO, "cannot create %s for checkpoint %s: %s", temporary, path,
              strerror(errno));
    ISO_TRY_GOTO(write_all(file, path, header->data, header->used));
    for (int i = 0; i < count; i++) ISO_TRY_GOTO(write_array(file, path, &arrays[i]));
    ISO_CHECK_GOTO(fsync(file) == 0, ISO_ERR_IO, "cannot write checkpoint %s: %s", path,
                   strerror(errno));
    int closed = close(file);
    file = -1;
    ISO_CHECK_GOTO(closed == 0, ISO_ERR_IO, "cannot write checkpoint %s: %s", path,
                   strerror(errno));
    ISO_CHECK_GOTO(rename(temporary, path) == 0, ISO_ERR_IO, "cannot rename %s to %s: %s",
                   temporary, path, strerror(errno));
    return ISO_OK;
fail:
    if (file >= 0) close(file);
    unlink(temporary);
    return status;
}

// Follows a chain of links. The target need not exist. The caller frees *out.
static iso_status follow_links(const char *path, char **out) {
    enum { MOST = 40 }; // as the system follows
    char target[PATH_MAX];
    ISO_TRY(iso__strdup(path, out));
    for (int i = 0; i < MOST; i++) {
        ssize_t length = readlink(*out, target, sizeof(target) - 1);
        if (length < 0) return ISO_OK;
        target[length] = 0;
        const char *slash = target[0] == '/' ? NULL : strrchr(*out, '/');
        text whole = {0};
        if (slash) append_text(&whole, *out, (size_t)(slash - *out) + 1);
        append_text(&whole, target, (size_t)length + 1);
        iso__free(*out);
        *out = whole.data;
        ISO_TRY(whole.status);
    }
    iso__free(*out);
    *out = NULL;
    return ISO_FAIL(ISO_ERR_IO, "cannot write checkpoint %s: too many links", path);
}

iso_status iso__safetensors_write(const char *path, bool sealed, const iso__note *notes,
                                  int note_count, const iso__array *arrays, int count) {
    iso_status status;
    struct stat info;
    char *target = NULL;
    text header = {0}, temporary = {0};
    ISO_TRY(iso__arrays_check(arrays, count));
    ISO_CHECK(stat(path, &info) != 0 || S_ISREG(info.st_mode), ISO_ERR_IO,
              "cannot write checkpoint %s: that name is taken by something that is not a file",
              path);
    ISO_TRY_GOTO(follow_links(path, &target));
    append_text(&temporary, target, strlen(target));
    append_format(&temporary, ".tmp.%ld", (long)getpid());
    append_text(&temporary, "", 1);
    ISO_TRY_GOTO(temporary.status);
    ISO_TRY_GOTO(make_header(sealed, notes, note_count, arrays, count, &header));
    ISO_CHECK_GOTO(
        header.used <= ISO__MOST_HEADER, ISO_ERR_ARG,
        "cannot write checkpoint %s: names and metadata would have %zu bytes, and at most "
        "%d are allowed",
        path, header.used, ISO__MOST_HEADER);
    ISO_TRY_GOTO(write_file(temporary.data, target, &header, arrays, count));
    ISO_TRY_GOTO(iso__sync_folder("checkpoint", target)); // makes the rename durable
    status = ISO_OK;
fail:
    iso__free(header.data);
    iso__free(temporary.data);
    iso__free(target);
    return status;
}
