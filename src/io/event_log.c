// SPDX-License-Identifier: MIT
// Writes event files of TensorBoard. A file is a sequence of records (TFRecord), each an Event in
// the encoding of protocol buffers (tensorflow/core/util/event.proto, framework/summary.proto).
#include "event_log.h"
#include "durable.h"

#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <isotherm/metrics.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "events.out.tfevents."

typedef struct bytes {
    uint8_t *data;
    size_t size, room;
} bytes;

struct iso_event_log {
    FILE *file;
    char *path;
    int error;            // errno of the first write that failed
    bool placed;          // its name is on disk
    int64_t step;         // of the event that is being written
    bytes summary, value; // its values so far; the one that is being added
    bytes event;
};

// ---- The encoding of protocol buffers -----------------------------------------------------------

enum { VARINT = 0, FIXED64 = 1, BLOCK = 2, FIXED32 = 5 }; // wire types

static void note_error(iso_event_log *self, int error) {
    if (!self->error) self->error = error ? error : EIO;
}

// Room grows with the first events and then suffices.
static void put_bytes(iso_event_log *self, bytes *to, const void *data, size_t size) {
    size_t room = to->room ? to->room : 256;
    while (room < to->size + size) room *= 2;
    if (room > to->room) {
        void *longer = to->data;
        if (iso__realloc(&longer, to->size, room) < 0) {
            note_error(self, ENOMEM);
            return;
        }
        to->data = longer;
        to->room = room;
    }
    memcpy(to->data + to->size, data, size);
    to->size += size;
}

static int varint_size(uint64_t value) {
    int size = 1;
    while (value >>= 7) size++;
    return size;
}

static void put_varint(iso_event_log *self, bytes *to, uint64_t value) {
    uint8_t text[10];
    int size = varint_size(value);
    for (int i = 0; i < size; i++, value >>= 7)
        text[i] = (uint8_t)((value & 0x7F) | (i + 1 < size ? 0x80 : 0));
    put_bytes(self, to, text, (size_t)size);
}

static void put_key(iso_event_log *self, bytes *to, unsigned field, unsigned wire) {
    put_varint(self, to, field << 3 | wire);
}

// The lowest byte first.
static void store_little(uint8_t *to, uint64_t value, int size) {
    for (int i = 0; i < size; i++) to[i] = (uint8_t)(value >> (8 * i));
}

static void put_double(iso_event_log *self, bytes *to, unsigned field, double value) {
    uint64_t bits;
    uint8_t text[8];
    memcpy(&bits, &value, sizeof(bits));
    store_little(text, bits, 8);
    put_key(self, to, field, FIXED64);
    put_bytes(self, to, text, 8);
}

static void put_float(iso_event_log *self, bytes *to, unsigned field, float value) {
    uint32_t bits;
    uint8_t text[4];
    memcpy(&bits, &value, sizeof(bits));
    store_little(text, bits, 4);
    put_key(self, to, field, FIXED32);
    put_bytes(self, to, text, 4);
}

static void put_block(iso_event_log *self, bytes *to, unsigned field, const void *data,
                      size_t size) {
    put_key(self, to, field, BLOCK);
    put_varint(self, to, size);
    put_bytes(self, to, data, size);
}

// ---- Records ------------------------------------------------------------------------------------

uint32_t iso__crc32c(const void *data, size_t size) {
    const uint8_t *at = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82F63B78) : 0);
    }
    return ~crc;
}

// The masked checksum of TFRecord: a CRC of data that contain CRCs would be weak.
static void store_masked(uint8_t to[4], const void *data, size_t size) {
    uint32_t crc = iso__crc32c(data, size);
    store_little(to, (crc >> 15 | crc << 17) + UINT32_C(0xA282EAD8), 4);
}

// Length, its checksum, the event, its checksum. Readers see whole records only.
static void write_record(iso_event_log *self) {
    uint8_t head[12], tail[4];
    if (self->error) return; // nothing can follow half a record
    store_little(head, self->event.size, 8);
    store_masked(head + 8, head, 8);
    store_masked(tail, self->event.data, self->event.size);
    errno = 0;
    fwrite(head, 1, sizeof(head), self->file);
    fwrite(self->event.data, 1, self->event.size, self->file);
    fwrite(tail, 1, sizeof(tail), self->file);
    if (fflush(self->file) != 0 || ferror(self->file)) note_error(self, errno);
}

// An event with one more field, which is a block.
static void write_event(iso_event_log *self, int64_t step, unsigned field, const void *data,
                        size_t size) {
    struct timespec now;
    bytes *event = &self->event;
    clock_gettime(CLOCK_REALTIME, &now);
    event->size = 0;
    put_double(self, event, 1, (double)now.tv_sec + (double)now.tv_nsec / 1e9);
    if (step != 0) put_key(self, event, 2, VARINT); // 0 is the default
    if (step != 0) put_varint(self, event, (uint64_t)step);
    put_block(self, event, field, data, size);
    write_record(self);
}

// ---- The file -----------------------------------------------------------------------------------

// Names sort by the time of creation, which is the order in which TensorBoard reads the files.
static iso_status open_new(iso_event_log *self, const char *folder) {
    char host[256] = "", path[PATH_MAX];
    if (gethostname(host, sizeof(host) - 1) != 0 || !host[0]) strcpy(host, "localhost");
    for (int number = 0; !self->file; number++) {
        int length = snprintf(path, sizeof(path), "%s/" PREFIX "%010lld.%s.%ld.%d", folder,
                              (long long)time(NULL), host, (long)getpid(), number);
        ISO_CHECK(length < PATH_MAX, ISO_ERR_ARG,
                  "the name of a folder of event files is too long: %.80s...", folder);
        int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file < 0 && errno == EEXIST) continue;
        if (file >= 0) self->file = fdopen(file, "w");
        if (file >= 0 && !self->file) {
            close(file);
            unlink(path);
        }
        ISO_CHECK(self->file, ISO_ERR_IO, "cannot create an event file in %s: %s", folder,
                  strerror(errno));
        (void)iso__claim_file(file); // it is new
    }
    return iso__strdup(path, &self->path);
}

static void free_log(iso_event_log *self) {
    iso__free(self->summary.data);
    iso__free(self->value.data);
    iso__free(self->event.data);
    iso__free(self->path);
    iso__free(self);
}

iso_status iso_event_log_create(const char *folder, iso_event_log **out) {
    static const char version[] = "brain.Event:2";
    iso_status status;
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_event_log), &memory));
    iso_event_log *self = memory;
    ISO_TRY_GOTO(iso__make_folders(folder));
    ISO_TRY_GOTO(open_new(self, folder));
    write_event(self, 0, 3, version, sizeof(version) - 1);
    *out = self;
    return ISO_OK;
fail:
    if (self->file) fclose(self->file);
    free_log(self);
    return status;
}

static iso_status check_written(const iso_event_log *self) {
    ISO_CHECK(!self->error, ISO_ERR_IO, "cannot write the event file %s: %s", self->path,
              strerror(self->error));
    return ISO_OK;
}

iso_status iso_event_log_sync(iso_event_log *log) {
    if (!log) return ISO_OK;
    ISO_TRY(check_written(log));
    iso_status status = iso__sync_stream(log->file, "the event file", log->path, &log->placed);
    if (status < 0) note_error(log, errno);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_event_log_close(iso_event_log **log) {
    iso_event_log *self = log ? *log : NULL;
    if (!self) return ISO_OK;
    errno = 0;
    if (fclose(self->file) != 0) note_error(self, errno);
    iso_status status = check_written(self);
    free_log(self);
    *log = NULL;
    return status;
}

// ---- What is in a folder ------------------------------------------------------------------------

typedef iso_status (*visitor)(int folder, const char *path, const char *name);

// Counts the event files of the folder. visit: what to do with each of them; NULL: nothing.
static iso_status walk_files(const char *folder, visitor visit, int64_t *count) {
    DIR *from = opendir(folder);
    const struct dirent *entry;
    *count = 0;
    ISO_CHECK(from || errno == ENOENT || errno == ENOTDIR, ISO_ERR_IO,
              "cannot read the folder %s: %s", folder, strerror(errno));
    iso_status status = ISO_OK;
    while (from && status >= 0 && (entry = readdir(from))) {
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0) continue;
        ++*count;
        if (visit) status = visit(dirfd(from), folder, entry->d_name);
    }
    if (from) closedir(from);
    return status;
}

static iso_status refuse_written(int folder, const char *path, const char *name) {
    int file = openat(folder, name, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    bool free = file < 0 || iso__claim_file(file);
    if (file >= 0) close(file);
    ISO_CHECK(free, ISO_ERR_STATE,
              "cannot remove %s/%s: another process writes it: wait until it ends, or give another "
              "folder (if there is no such process, remove the file)",
              path, name);
    return ISO_OK;
}

static iso_status remove_file(int folder, const char *path, const char *name) {
    ISO_CHECK(unlinkat(folder, name, 0) == 0, ISO_ERR_IO, "cannot remove %s/%s: %s", path, name,
              strerror(errno));
    return ISO_OK;
}

iso_status iso_event_log_count(const char *folder, int64_t *out) {
    int64_t count;
    ISO_TRY(walk_files(folder, NULL, &count));
    *out = count;
    return ISO_OK;
}

iso_status iso_event_log_remove(const char *folder) {
    int64_t count;
    ISO_TRY(walk_files(folder, refuse_written, &count));
    return walk_files(folder, remove_file, &count);
}

// ---- Events -------------------------------------------------------------------------------------

void iso_event_begin(iso_event_log *log, int64_t step) {
    if (!log) return;
    log->step = step;
    log->summary.size = 0;
}

void iso_event_number(iso_event_log *log, const char *tag, double number) {
    if (!log || !isfinite(number)) return;
    log->value.size = 0;
    put_block(log, &log->value, 1, tag, strlen(tag));
    put_float(log, &log->value, 2, (float)number);
    put_block(log, &log->summary, 1, log->value.data, log->value.size);
}

// What is not UTF-8 becomes a question mark.
static void put_text(iso_event_log *self, bytes *to, const char *text, size_t size) {
    const unsigned char *at = (const unsigned char *)text, *end = at + size;
    while (at < end) {
        int n = iso__utf8_length(at);
        put_bytes(self, to, n ? (const char *)at : "?", n ? (size_t)n : 1);
        at += n ? n : 1;
    }
}

// A tensor of one string, for the plugin that shows texts.
void iso_event_text(iso_event_log *log, const char *tag, const char *text) {
    static const uint8_t plugin[] = {0x0A, 6, 0x0A, 4, 't', 'e', 'x', 't'}; // SummaryMetadata
    static const uint8_t strings[] = {0x08, 7, 0x12, 4, 0x12, 2, 0x08, 1};  // DT_STRING, shape (1)
    if (!log) return;
    bytes *value = &log->value;
    size_t size = strlen(text), tensor = sizeof(strings) + 1 + (size_t)varint_size(size) + size;
    value->size = 0;
    put_block(log, value, 1, tag, strlen(tag));
    put_block(log, value, 9, plugin, sizeof(plugin));
    put_key(log, value, 8, BLOCK);
    put_varint(log, value, tensor);
    put_bytes(log, value, strings, sizeof(strings));
    put_key(log, value, 8, BLOCK);
    put_varint(log, value, size);
    put_text(log, value, text, size);
    put_block(log, &log->summary, 1, value->data, value->size);
}

void iso_event_end(iso_event_log *log) {
    if (!log || log->summary.size == 0) return;
    write_event(log, log->step, 5, log->summary.data, log->summary.size);
    log->summary.size = 0;
}

void iso_event_restart(iso_event_log *log, int64_t step) {
    static const uint8_t start[] = {0x08, 1}; // SessionLog with status START
    if (log) write_event(log, step, 7, start, sizeof(start));
}
