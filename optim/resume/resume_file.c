// SPDX-License-Identifier: MIT
// One file of saved state: a sealed safetensors file that identifies its set, with a checksum of
// every array.
#include "optim/resume/resume_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

// Version 1 has other names for the entries of optimizers.
#define VERSION   "2"
#define VERSION_1 "1"

// ---- Writing ------------------------------------------------------------------------------------

iso_status iso__set_hashes(const iso__array *arrays, int count, uint64_t *hash) {
    for (int i = 0; i < count; i++) {
        void *data;
        ISO_TRY(iso__array_open(&arrays[i], ISO_READ, &data));
        hash[i] = iso__hash(ISO_HASH_START, data, iso__array_bytes(&arrays[i]));
        ISO_TRY(iso__array_close(&arrays[i]));
    }
    return ISO_OK;
}

iso_status iso__set_write(const char *file, const iso__set_head *head, const iso__array *arrays,
                          int count, const uint64_t *hash) {
    char step[24], ranks[16], rank[16], set[ISO__SEAL_DIGITS + 1];
    void *memory;
    ISO_TRY(iso__alloc_zero((size_t)count * ISO__SEAL_DIGITS + 1, &memory));
    char *checksums = memory;
    for (int i = 0; i < count; i++)
        iso__seal_text(hash[i], checksums + (size_t)i * ISO__SEAL_DIGITS);
    snprintf(step, sizeof(step), "%" PRId64, head->step);
    snprintf(ranks, sizeof(ranks), "%d", head->ranks);
    snprintf(rank, sizeof(rank), "%d", head->rank);
    iso__seal_text(head->set, set);
    const iso__note notes[] = {
        {"format", "pt"},
        {"isotherm.version", VERSION},
        {"isotherm.step", step},
        {"isotherm.ranks", ranks},
        {"isotherm.rank", head->rank == ISO__SHARED_FILE ? "shared" : rank},
        {"isotherm.own", head->own ? "yes" : "no"},
        {"isotherm.set", set},
        {"isotherm.checksums", checksums}, // in the order of the data
    };
    iso_status status = iso__safetensors_write(
        file, true, notes, (int)(sizeof(notes) / sizeof(notes[0])), arrays, count);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Reading ------------------------------------------------------------------------------------

static const char *note_of(const iso__safetensors *file, const char *key) {
    const char *value = iso__safetensors_note(file, key);
    return value ? value : "";
}

static bool parse_number(const char *text, int base, uint64_t most, uint64_t *out) {
    char *end;
    *out = strtoull(text, &end, base);
    return end != text && *end == 0 && *out <= most;
}

static iso_status parse_head(const iso__safetensors *file, iso__set_head *out) {
    uint64_t step, ranks, rank = 0, set;
    const char *who = note_of(file, "isotherm.rank");
    bool shared = strcmp(who, "shared") == 0;
    const char *version = note_of(file, "isotherm.version");
    ISO_CHECK(strcmp(version, VERSION) == 0 || strcmp(version, VERSION_1) == 0, ISO_ERR_UNSUPPORTED,
              "%s has version \"%s\" of saved state, but this program reads versions " VERSION_1
              " and " VERSION,
              file->path, version);
    ISO_CHECK(parse_number(note_of(file, "isotherm.step"), 10, INT64_MAX, &step) &&
                  parse_number(note_of(file, "isotherm.ranks"), 10, INT_MAX, &ranks) &&
                  (shared || parse_number(who, 10, INT_MAX, &rank)) &&
                  parse_number(note_of(file, "isotherm.set"), 16, UINT64_MAX, &set),
              ISO_ERR_FORMAT, "%s is damaged: it does not say which set it belongs to", file->path);
    *out = (iso__set_head){.step = (int64_t)step,
                           .ranks = (int)ranks,
                           .rank = shared ? ISO__SHARED_FILE : (int)rank,
                           .own = strcmp(note_of(file, "isotherm.own"), "yes") == 0,
                           .set = set};
    return ISO_OK;
}

// What follows "optimizer/KIND/" in a name, if KIND is an optimizer of version 1; else NULL.
static const char *entry_of_optimizer(const char *name) {
    if (strncmp(name, "optimizer/", 10) != 0) return NULL;
    for (int kind = ISO_SGD; kind <= ISO_LAMB; kind++) {
        const char *text = iso_optimizer_kind_name((iso_optimizer_kind)kind);
        size_t length = strlen(text);
        if (strncmp(name + 10, text, length) == 0 && name[10 + length] == '/')
            return name + 10 + length + 1;
    }
    return NULL;
}

// The name of today for one of version 1: "lr", "group1/lr", "groups", "exp_avg/conv1.weight".
static void rename_entry(const char *old, const char *entry, char *text, size_t room) {
    const char *slash = strchr(entry, '/');
    int before = (int)(entry - old), group = 0, length = 0;
    if (strcmp(entry, "groups") == 0)
        snprintf(text, room, "%.*sparam_groups.params", before, old);
    else if (!slash)
        snprintf(text, room, "%.*sparam_groups.0.%s", before, old, entry);
    else if (sscanf(entry, "group%d/%n", &group, &length) == 1 && length > 0)
        snprintf(text, room, "%.*sparam_groups.%d.%s", before, old, group, entry + length);
    else
        snprintf(text, room, "%.*sstate.%s.%.*s", before, old, slash + 1, (int)(slash - entry),
                 entry);
}

static iso_status rename_entries(iso__safetensors *file) {
    enum { LONGER = 16 }; // than the old name: "param_groups.0." and the end
    size_t bytes = 1;
    for (int i = 0; i < file->header.count; i++)
        bytes += strlen(file->header.stored[i].name) + LONGER;
    ISO_TRY(iso__alloc(bytes, &file->renamed));
    char *at = file->renamed;
    for (int i = 0; i < file->header.count; i++) {
        char **name = &file->header.stored[i].name;
        const char *entry = entry_of_optimizer(*name);
        size_t room = strlen(*name) + LONGER;
        if (!entry) continue;
        rename_entry(*name, entry, at, room);
        *name = at;
        at += room;
    }
    return iso__safetensors_index(file);
}

static iso_status understand_file(iso__safetensors *file, iso__set_head *head) {
    ISO_TRY(parse_head(file, head));
    if (strcmp(note_of(file, "isotherm.version"), VERSION_1) == 0) ISO_TRY(rename_entries(file));
    return ISO_OK;
}

iso_status iso__set_open(const char *path, iso__safetensors *out, iso__set_head *head) {
    iso__safetensors file;
    ISO_TRY(iso__safetensors_open(path, true, &file));
    iso_status status = understand_file(&file, head);
    if (status < 0) {
        iso__safetensors_close(&file);
        return iso__error_frame(status, __func__, __FILE__, __LINE__);
    }
    *out = file;
    return ISO_OK;
}

// The checksums of all arrays, in the order of the data.
static iso_status find_checksums(const iso__safetensors *file, const char **out) {
    *out = note_of(file, "isotherm.checksums");
    ISO_CHECK(strlen(*out) == (size_t)file->header.count * ISO__SEAL_DIGITS, ISO_ERR_FORMAT,
              "%s is damaged: it does not have one checksum per array", file->path);
    return ISO_OK;
}

static iso_status check_sum(const iso__safetensors *file, const iso__stored *stored,
                            const char *checksums, const void *data) {
    char digits[ISO__SEAL_DIGITS + 1];
    ptrdiff_t i = stored - file->header.stored;
    iso__seal_text(iso__hash(ISO_HASH_START, data, (size_t)(stored->end - stored->begin)), digits);
    ISO_CHECK(memcmp(digits, checksums + i * ISO__SEAL_DIGITS, ISO__SEAL_DIGITS) == 0,
              ISO_ERR_FORMAT, "%s is damaged: the contents of %s do not match their checksum",
              file->path, stored->name);
    return ISO_OK;
}

iso_status iso__set_load(iso__safetensors *file) {
    const char *checksums;
    ISO_TRY(find_checksums(file, &checksums));
    ISO_TRY(iso__safetensors_load(file));
    for (int i = 0; i < file->header.count; i++) {
        const iso__stored *stored = &file->header.stored[i];
        ISO_TRY(check_sum(file, stored, checksums, (char *)file->data + stored->begin));
    }
    return ISO_OK;
}

iso_status iso__set_load_one(iso__safetensors *file, const iso__stored *stored, void *data) {
    const char *checksums;
    size_t bytes = (size_t)(stored->end - stored->begin);
    ISO_TRY(find_checksums(file, &checksums));
    bool there = fseeko(file->file, (off_t)stored->begin, SEEK_CUR) == 0;
    bool whole = there && fread(data, 1, bytes, file->file) == bytes;
    ISO_CHECK(there && !ferror(file->file), ISO_ERR_IO, "cannot read %s: %s", file->path,
              strerror(errno));
    ISO_CHECK(whole, ISO_ERR_FORMAT, "%s is damaged: it ends before the end of %s", file->path,
              stored->name);
    return check_sum(file, stored, checksums, data);
}
