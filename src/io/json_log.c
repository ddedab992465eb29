// SPDX-License-Identifier: MIT
// Writes JSON lines for other programs, and measures the memory of the process.
#include "durable.h"
#include "event_log.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <isotherm/metrics.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct iso_json_log {
    FILE *file;
    char *path;
    int error;      // errno of the first write that failed
    bool placed;    // its name is on disk
    char event[64]; // that is being written
    iso_json_watch watch;
    void *user;
};

// The bytes up to and with the last line break.
static iso_status whole_lines(int file, off_t size, const char *path, off_t *out) {
    char block[4096];
    for (off_t end = size; end > 0;) {
        off_t start = end > (off_t)sizeof(block) ? end - (off_t)sizeof(block) : 0;
        ssize_t n = pread(file, block, (size_t)(end - start), start);
        if (n < 0 && errno == EINTR) continue;
        ISO_CHECK(n == end - start, ISO_ERR_IO, "cannot read log %s: %s", path,
                  n < 0 ? strerror(errno) : "it became shorter meanwhile");
        for (; n > 0; n--) {
            if (block[n - 1] != '\n') continue;
            *out = start + n;
            return ISO_OK;
        }
        end = start;
    }
    *out = 0;
    return ISO_OK;
}

// Removes half a line at the end, which a stopped program left. Refuses to cut anything else.
static iso_status drop_half_line(int file, const char *path) {
    static const char begin[] = "{\"event\":";
    char found[sizeof(begin) - 1];
    struct stat info;
    off_t whole = 0;
    ISO_CHECK(fstat(file, &info) == 0, ISO_ERR_IO, "cannot examine log %s: %s", path,
              strerror(errno));
    if (!S_ISREG(info.st_mode)) return ISO_OK;
    ISO_TRY(whole_lines(file, info.st_size, path, &whole));
    ssize_t n = pread(file, found, sizeof(found), whole);
    ISO_CHECK(n >= 0, ISO_ERR_IO, "cannot read log %s: %s", path, strerror(errno));
    ISO_CHECK(
        memcmp(found, begin, (size_t)n) == 0, ISO_ERR_FORMAT,
        "cannot append to log %s: its last line is not the beginning of an event: give another "
        "file",
        path);
    ISO_CHECK(whole == info.st_size || ftruncate(file, whole) == 0, ISO_ERR_IO,
              "cannot shorten log %s: %s", path, strerror(errno));
    return ISO_OK;
}

// Empties a file that nobody else writes.
static iso_status start_empty(int file, const char *path) {
    struct stat info;
    ISO_CHECK(iso__claim_file(file), ISO_ERR_STATE,
              "cannot write log %s: another process writes it: wait until it ends, or give another "
              "file (if there is no such process, remove %s)",
              path, path);
    bool good = fstat(file, &info) == 0 && (!S_ISREG(info.st_mode) || ftruncate(file, 0) == 0);
    ISO_CHECK(good && fcntl(file, F_SETFL, O_APPEND) == 0, ISO_ERR_IO, "cannot create log %s: %s",
              path, strerror(errno));
    return ISO_OK;
}

// Opening a pipe would wait for a reader, who may never come.
static iso_status open_anew(const char *path, FILE **out) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
    ISO_CHECK(file >= 0 || errno != ENXIO, ISO_ERR_IO,
              "cannot write log %s: nobody reads this pipe: start its reader first", path);
    ISO_CHECK(file >= 0, ISO_ERR_IO, "cannot create log %s: %s", path, strerror(errno));
    iso_status status = start_empty(file, path);
    if (status >= 0 && !(*out = fdopen(file, "a")))
        status = ISO_FAIL(ISO_ERR_IO, "cannot create log %s: %s", path, strerror(errno));
    if (status < 0) close(file);
    return status;
}

static iso_status open_to_append(const char *path, FILE **out) {
    int file = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ISO_CHECK(file >= 0, ISO_ERR_IO, "cannot open log %s: %s", path, strerror(errno));
    (void)iso__claim_file(file); // lines of several writers follow each other
    iso_status status = drop_half_line(file, path);
    if (status >= 0 && !(*out = fdopen(file, "a")))
        status = ISO_FAIL(ISO_ERR_IO, "cannot open log %s: %s", path, strerror(errno));
    if (status < 0) close(file);
    return status;
}

static iso_status open_log(const char *path, bool append, iso_json_log **out) {
    iso_status status;
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_json_log), &memory));
    iso_json_log *self = memory;
    if (!path) path = "/dev/null";
    ISO_TRY_GOTO(iso__strdup(path, &self->path));
    ISO_TRY_GOTO(append ? open_to_append(path, &self->file) : open_anew(path, &self->file));
    *out = self;
    return ISO_OK;
fail:
    iso__free(self->path);
    iso__free(self);
    return status;
}

iso_status iso_json_log_create(const char *path, iso_json_log **out) {
    return open_log(path, false, out);
}

void iso_json_log_watch(iso_json_log *log, iso_json_watch watch, void *user) {
    if (!log) return;
    log->watch = watch;
    log->user = user;
}

iso_status iso_json_log_append(const char *path, iso_json_log **out) {
    return open_log(path, true, out);
}

static void note_error(iso_json_log *self, bool good) {
    if (!good && !self->error) self->error = errno ? errno : EIO;
}

static iso_status check_written(const iso_json_log *self) {
    ISO_CHECK(!self->error, ISO_ERR_IO, "cannot write log %s: %s", self->path,
              strerror(self->error));
    return ISO_OK;
}

iso_status iso_json_log_sync(iso_json_log *log) {
    if (!log) return ISO_OK;
    errno = 0;
    note_error(log, fflush(log->file) == 0 && !ferror(log->file));
    ISO_TRY(check_written(log));
    iso_status status = iso__sync_stream(log->file, "log", log->path, &log->placed);
    if (status < 0) note_error(log, false);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_json_log_close(iso_json_log **log) {
    iso_json_log *self = log ? *log : NULL;
    if (!self) return ISO_OK;
    note_error(self, !ferror(self->file));
    note_error(self, fclose(self->file) == 0);
    iso_status status = check_written(self);
    iso__free(self->path);
    iso__free(self);
    *log = NULL;
    return status;
}

// By table 3-7 of the Unicode standard.
int iso__utf8_length(const unsigned char *from) {
    unsigned char c = from[0], low = 0x80, high = 0xBF;
    int more = c >= 0xC2 && c <= 0xDF   ? 1
               : c >= 0xE0 && c <= 0xEF ? 2
               : c >= 0xF0 && c <= 0xF4 ? 3
                                        : 0;
    if (c < 0x80) return 1;
    if (c == 0xE0) low = 0xA0; // no overlong forms, no surrogates, nothing beyond U+10FFFF
    if (c == 0xED) high = 0x9F;
    if (c == 0xF0) low = 0x90;
    if (c == 0xF4) high = 0x8F;
    for (int i = 1; i <= more; i++, low = 0x80, high = 0xBF)
        if (from[i] < low || from[i] > high) return 0;
    return more ? more + 1 : 0;
}

static void write_string(FILE *to, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    putc('"', to);
    while (*at) {
        int n = iso__utf8_length(at);
        if (n == 0)
            fputs("\\ufffd", to); // JSON is Unicode, a path need not be
        else if (*at < 0x20)
            fprintf(to, "\\u%04x", *at);
        else if (*at == '"' || *at == '\\')
            fprintf(to, "\\%c", *at);
        else
            fwrite(at, 1, (size_t)n, to);
        at += n ? n : 1;
    }
    putc('"', to);
}

static void write_key(FILE *to, const char *key) {
    putc(',', to);
    write_string(to, key);
    putc(':', to);
}

void iso_json_begin(iso_json_log *log, const char *event) {
    if (!log) return;
    snprintf(log->event, sizeof(log->event), "%s", event);
    fputs("{\"event\":", log->file);
    write_string(log->file, event);
}

void iso_json_string(iso_json_log *log, const char *key, const char *value) {
    if (!log) return;
    write_key(log->file, key);
    if (value)
        write_string(log->file, value);
    else
        fputs("null", log->file);
}

void iso_json_double(iso_json_log *log, const char *key, double value) {
    if (!log) return;
    char text[40] = "null";
    // The shortest text that reads back the same; 17 digits always do.
    for (int digits = 15; isfinite(value) && digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    char *comma = strchr(text, ','); // the decimal point of the program's locale
    if (comma) *comma = '.';
    write_key(log->file, key);
    fputs(text, log->file);
    if (log->watch) log->watch(log->event, key, value, log->user);
}

void iso_json_int(iso_json_log *log, const char *key, int64_t value) {
    if (!log) return;
    write_key(log->file, key);
    fprintf(log->file, "%lld", (long long)value);
    if (log->watch) log->watch(log->event, key, (double)value, log->user);
}

void iso_json_end(iso_json_log *log) {
    if (!log) return;
    errno = 0;
    fputs("}\n", log->file);
    note_error(log, fflush(log->file) == 0);
    if (log->watch) log->watch(log->event, NULL, NAN, log->user);
}

double iso_peak_rss_mb(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return (double)usage.ru_maxrss * 1024 / 1e6; // Linux counts in KiB
}
