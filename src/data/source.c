// SPDX-License-Identifier: MIT
// Reads a file as bytes, decompresses gzip files, and distinguishes truncation from damage.
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "base/recording.h"
#include "data/data_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#ifdef ISO_HAVE_ZLIB
#include <zlib.h>
#endif

struct iso__source {
    const char *path;
    FILE *file;
    int64_t size; // -1: unknown
    bool gzip;
#ifdef ISO_HAVE_ZLIB
    z_stream z;
    bool member_done;  // between members of the gzip file, or after the last
    int64_t members;   // that are done
    int64_t produced;  // decompressed bytes, for messages
    int64_t at_member; // of these, before the member that is read
    unsigned char input[1 << 16];
#endif
};

static iso_status open_file(iso__source *self) {
    struct stat info;
    ISO_CHECK(stat(self->path, &info) == 0, ISO_ERR_IO, "cannot open %s: %s", self->path,
              strerror(errno));
    ISO_CHECK(!S_ISDIR(info.st_mode), ISO_ERR_IO, "cannot read %s: it is a folder, give a file",
              self->path);
    // Opening a pipe would wait for its other end.
    ISO_CHECK(S_ISREG(info.st_mode), ISO_ERR_IO, "cannot read %s: it is not a regular file",
              self->path);
    self->file = fopen(self->path, "rb");
    ISO_CHECK(self->file, ISO_ERR_IO, "cannot open %s: %s", self->path, strerror(errno));
    // Of the file that is open now, which may have taken the place of that one.
    ISO_CHECK(fstat(fileno(self->file), &info) == 0, ISO_ERR_IO, "cannot read %s: %s", self->path,
              strerror(errno));
    self->size = (int64_t)info.st_size;
    return ISO_OK;
}

// A gzip file starts with 1f 8b; the magic of an IDX file starts with a zero byte.
static bool starts_like_gzip(FILE *file) {
    int first = getc(file);
    if (first != EOF) ungetc(first, file);
    return first == 0x1f;
}

#ifdef ISO_HAVE_ZLIB

static iso_status start_gzip(iso__source *self) {
    // 15 + 16: the largest window, gzip header and checksum required.
    ISO_CHECK(inflateInit2(&self->z, 15 + 16) == Z_OK, ISO_ERR_NOMEM,
              "zlib could not be set up to read %s: %s", self->path,
              self->z.msg ? self->z.msg : "out of memory");
    self->gzip = true;
    self->size = -1;
    return ISO_OK;
}

static void stop_gzip(iso__source *self) {
    if (self->gzip) inflateEnd(&self->z);
}

// Whether the rest of the input follows the last member and begins no other member.
static bool is_behind_the_end(const iso__source *self) {
    return self->members > 0 && self->produced == self->at_member;
}

static iso_status fail_behind_the_end(const iso__source *self) {
    return ISO_FAIL(ISO_ERR_FORMAT,
                    "%s has trailing bytes: the bytes after its gzip stream (%lld decompressed "
                    "bytes) are not gzip data: download the file again, or remove these bytes",
                    self->path, (long long)self->produced);
}

// Gets more compressed bytes; *more is false at the proper end of the file.
static iso_status refill_input(iso__source *self, bool *more) {
    *more = true;
    if (self->z.avail_in > 0) return ISO_OK;
    size_t got = fread(self->input, 1, sizeof(self->input), self->file);
    ISO_CHECK(!ferror(self->file), ISO_ERR_IO, "cannot read %s: %s", self->path, strerror(errno));
    self->z.next_in = self->input;
    self->z.avail_in = (unsigned)got;
    if (got > 0) return ISO_OK;
    if (!self->member_done && is_behind_the_end(self)) return fail_behind_the_end(self);
    ISO_CHECK(self->member_done, ISO_ERR_FORMAT,
              "%s is truncated: its gzip stream breaks off after %lld decompressed bytes: download "
              "the file again",
              self->path, (long long)self->produced);
    *more = false;
    return ISO_OK;
}

static iso_status read_gzip(iso__source *self, void *to, size_t bytes, size_t *got) {
    size_t done = 0;
    while (done < bytes) {
        bool more;
        ISO_TRY(refill_input(self, &more));
        if (!more) break;
        if (self->member_done) { // a gzip file may be several, end to end
            inflateReset(&self->z);
            self->members++;
            self->at_member = self->produced;
        }
        self->member_done = false;
        size_t room =
            bytes - done < (1u << 30) ? bytes - done : (1u << 30); // zlib counts in unsigned int
        self->z.next_out = (unsigned char *)to + done;
        self->z.avail_out = (unsigned)room;
        int result = inflate(&self->z, Z_NO_FLUSH);
        size_t made = room - self->z.avail_out;
        done += made;
        self->produced += (int64_t)made;
        self->member_done = result == Z_STREAM_END;
        if (result == Z_DATA_ERROR && is_behind_the_end(self)) return fail_behind_the_end(self);
        ISO_CHECK(result == Z_OK || result == Z_STREAM_END, ISO_ERR_FORMAT,
                  "%s is damaged: its gzip stream is wrong after %lld decompressed bytes (%s): "
                  "download the file again",
                  self->path, (long long)self->produced, self->z.msg ? self->z.msg : "no details");
    }
    *got = done;
    return ISO_OK;
}

#else

static iso_status start_gzip(iso__source *self) {
    return ISO_FAIL(ISO_ERR_UNSUPPORTED,
                    "%s is gzip-compressed and this build has no zlib: unpack it with gunzip",
                    self->path);
}
static void stop_gzip(iso__source *self) { (void)self; }
static iso_status read_gzip(iso__source *self, void *to, size_t bytes, size_t *got) {
    (void)to, (void)bytes, (void)got;
    return start_gzip(self);
}

#endif

static iso_status open_source(const char *path, bool plain, iso__source **out) {
    iso_status status;
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso__source), &memory));
    iso__source *self = memory;
    self->path = path;
    ISO_TRY_GOTO(open_file(self));
    if (!plain && starts_like_gzip(self->file)) ISO_TRY_GOTO(start_gzip(self));
    *out = self;
    return ISO_OK;
fail:
    iso__source_close(&self);
    return status;
}

iso_status iso__source_open(const char *path, iso__source **out) {
    return open_source(path, false, out);
}

iso_status iso__source_open_plain(const char *path, iso__source **out) {
    return open_source(path, true, out);
}

void iso__source_close(iso__source **source) {
    iso__source *self = *source;
    if (!self) return;
    stop_gzip(self);
    if (self->file) fclose(self->file);
    iso__free(self);
    *source = NULL;
}

iso_status iso__source_read(iso__source *self, void *to, size_t bytes, size_t *got) {
    iso__alive("the reading of data");
    if (self->gzip) return read_gzip(self, to, bytes, got);
    *got = fread(to, 1, bytes, self->file);
    ISO_CHECK(!ferror(self->file), ISO_ERR_IO, "cannot read %s: %s", self->path, strerror(errno));
    return ISO_OK;
}

iso_status iso__source_skip(iso__source *self, int64_t bytes) {
    ISO_CHECK(fseeko(self->file, (off_t)bytes, SEEK_CUR) == 0, ISO_ERR_IO, "cannot read %s: %s",
              self->path, strerror(errno));
    return ISO_OK;
}

int64_t iso__source_size(const iso__source *self) { return self->size; }
