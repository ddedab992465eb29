// SPDX-License-Identifier: MIT
// Status texts and the thread-local record of the last error with its call trail.
#include "base/base.h"
#include "base/recording.h"

#include <stdarg.h>
#include <string.h>

static _Thread_local iso_error last;

const char *iso_status_string(iso_status status) {
    switch (status) {
#define ISO_STATUS_CASE(name, value, text)                                                         \
    case name: return text;
        ISO_STATUS_LIST(ISO_STATUS_CASE)
#undef ISO_STATUS_CASE
    }
    return "unknown status";
}

static iso_status write_record(iso_status code, const char *format, va_list args) {
    // A message may quote the record it replaces, so it is formatted elsewhere first.
    char message[sizeof(last.message)];
    vsnprintf(message, sizeof(message), format, args);
    memcpy(last.message, message, sizeof(message));
    last.code = code;
    last.rank = iso__log_rank();
    last.frame_count = 0;
    iso__record(ISO_RECORDER_ERROR, (uint32_t)-code, message);
    if (code == ISO_ERR_TIMEOUT) iso_recorder_fail(code, message);
    return code;
}

iso_status iso_error_set(iso_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    write_record(code, format, args);
    va_end(args);
    return code;
}

iso_status iso_error_set_text(iso_status code, const char *text) {
    return iso_error_set(code, "%s", text);
}

iso_status iso__error(iso_status code, const char *function, const char *file, int line,
                      const char *format, ...) {
    va_list args;
    va_start(args, format);
    write_record(code, format, args);
    va_end(args);
    return iso__error_frame(code, function, file, line);
}

iso_status iso__error_frame(iso_status status, const char *function, const char *file, int line) {
    if (last.frame_count < ISO_ERROR_FRAMES) {
        last.frame[last.frame_count].function = function;
        last.frame[last.frame_count].file = file;
        last.frame[last.frame_count].line = line;
        last.frame_count++;
    }
    return status;
}

void iso__error_restore(const iso_error *record) { last = *record; }

const iso_error *iso_last_error(void) { return &last; }

bool iso__names_rank(const char *message) {
    return strncmp(message, "rank ", 5) == 0 && message[5] >= '0' && message[5] <= '9';
}

static void add_frames(char *to, size_t room) {
    int n = 0;
    for (int i = 0; i < last.frame_count && (size_t)n < room; i++)
        n += snprintf(to + n, room - (size_t)n, "  %s %s (%s:%d)\n", i ? "from" : "in",
                      last.frame[i].function, last.frame[i].file, last.frame[i].line);
}

// In one call, which an unbuffered stream makes one write, so that lines of ranks sharing a
// terminal do not mix.
void iso_error_print(FILE *to) {
    if (!to) to = stderr;
    const char *said = last.message[0] ? last.message : iso_status_string(last.code);
    char text[4096], where[32] = "";
    if (last.rank > 0 && !iso__names_rank(said))
        snprintf(where, sizeof(where), " on rank %d", last.rank);
    int n = snprintf(text, sizeof(text), "error%s: %s\n", where, said);
    if (iso__log_level() == ISO_LOG_DEBUG) add_frames(text + n, sizeof(text) - (size_t)n);
    fputs(text, to);
    fflush(to);
}
