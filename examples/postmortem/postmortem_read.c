// SPDX-License-Identifier: MIT
// Reads the flight records of a folder, and refuses what is no record.
#include "postmortem.h"

#include "support/try.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MOST = 1 << 20, STACKS_MOST = 1 << 20 };

// ---- One file -------------------------------------------------------------------------------------

static iso_status check_file(const iso_recorder_file *f, const char *path) {
    bool is_record = memcmp(f->magic, ISO_RECORDER_MAGIC, sizeof(f->magic)) == 0;
    if (!is_record) return iso_error_set(ISO_ERR_FORMAT, "%s is not a flight record", path);
    if (f->bytes != sizeof(*f))
        return iso_error_set(
            ISO_ERR_FORMAT, "%s was written by another version of Isotherm: use its iso-postmortem",
            path);
    if (f->size < 1 || f->size > RANKS_MOST || f->rank < 0 || f->rank >= f->size)
        return iso_error_set(ISO_ERR_FORMAT, "%s is damaged: it is of rank %d of %d", path,
                             (int)f->rank, (int)f->size);
    if (f->count > INT64_MAX)
        return iso_error_set(ISO_ERR_FORMAT, "%s is damaged: it has a wild number of entries",
                             path);
    return ISO_OK;
}

// For damaged files: ends the text within its room, and replaces control characters, which a
// terminal would obey.
static void end_text(char *text, size_t room) {
    text[room - 1] = 0;
    for (; *text; text++)
        if (iscntrl((unsigned char)*text)) *text = '?';
}

static void end_texts(iso_recorder_file *f) {
    end_text(f->host, sizeof(f->host));
    end_text(f->reason, sizeof(f->reason));
    for (int i = 0; i < ISO_RECORDER_STREAMS; i++)
        end_text(f->stream[i].name, sizeof(f->stream[i].name));
    for (int i = 0; i < ISO_RECORDER_RECORDS; i++)
        end_text(f->entry[i].name, sizeof(f->entry[i].name));
}

static iso_status read_stream(FILE *from, const char *path, size_t behind, process *out) {
    out->file = malloc(sizeof(*out->file));
    out->stacks = calloc(1, behind + 1);
    if (!out->file || !out->stacks) return iso_error_set(ISO_ERR_NOMEM, "out of memory");
    size_t got = fread(out->file, 1, sizeof(*out->file), from);
    if (ferror(from)) return iso_error_set(ISO_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    if (got < sizeof(*out->file))
        return iso_error_set(ISO_ERR_FORMAT, "%s has %zu bytes: a flight record has %zu", path, got,
                             sizeof(*out->file));
    TRY(check_file(out->file, path));
    end_texts(out->file);
    (void)fread(out->stacks, 1, behind, from);
    return ISO_OK;
}

static void free_process(process *p) {
    free(p->file);
    free(p->stacks);
    *p = (process){0};
}

static iso_status read_process(const char *path, process *out) {
    struct stat info;
    *out = (process){0};
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return iso_error_set(ISO_ERR_IO, "%s is not a file", path);
    FILE *from = fopen(path, "rb");
    if (!from) return iso_error_set(ISO_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    size_t bytes = (size_t)info.st_size, fixed = sizeof(*out->file);
    size_t behind = bytes > fixed ? bytes - fixed : 0;
    iso_status status = read_stream(from, path, behind < STACKS_MOST ? behind : STACKS_MOST, out);
    fclose(from);
    if (status < 0) free_process(out);
    return status;
}

// ---- Entries --------------------------------------------------------------------------------------

bool job_is_of_stream(const process *p, const iso_recorder_entry *e) {
    return e->number > p->file->stream[e->stream].since;
}

const iso_recorder_entry *job_entry(const process *p, uint64_t n) {
    const iso_recorder_entry *e = &p->file->entry[(n - 1) % ISO_RECORDER_RECORDS];
    bool known = e->event >= ISO_RECORDER_POSTED && e->event <= ISO_RECORDER_WARN;
    return n > 0 && e->number == n && known && e->stream < ISO_RECORDER_STREAMS ? e : NULL;
}

// The entries that the ring still holds are first..count.
static uint64_t first_of(const process *p) {
    uint64_t count = p->file->count;
    return count > ISO_RECORDER_RECORDS ? count - ISO_RECORDER_RECORDS + 1 : 1;
}

static void take_entry(process *p, const iso_recorder_entry *e) {
    if (e->time_ns > p->last_ns) p->last_ns = e->time_ns;
    if (e->event == ISO_RECORDER_NOTE) p->note = *e;
    if (e->event == ISO_RECORDER_WAIT) p->waiting = *e;
    if (e->event == ISO_RECORDER_WOKE) p->waiting = (iso_recorder_entry){0};
}

// Reads the entries up to the end.
static void take_entries(process *p, int64_t end_ns) {
    p->last_ns = p->file->started_ns;
    for (int i = 0; i < ISO_RECORDER_STREAMS; i++) {
        p->started[i][0] = p->file->stream[i].posted;
        p->started[i][1] = p->file->stream[i].called;
    }
    for (uint64_t n = first_of(p); n <= p->file->count; n++) {
        const iso_recorder_entry *e = job_entry(p, n);
        if (!e) continue;
        bool is_call = e->event == ISO_RECORDER_CALL, is_post = e->event == ISO_RECORDER_POSTED;
        uint32_t *started = &p->started[e->stream][is_call];
        if (e->time_ns <= end_ns)
            take_entry(p, e);
        else if ((is_call || is_post) && *started > 0 && job_is_of_stream(p, e))
            --*started;
    }
}

static int64_t newest_entry(const process *p) {
    int64_t newest = p->file->started_ns;
    for (uint64_t n = first_of(p); n <= p->file->count; n++) {
        const iso_recorder_entry *e = job_entry(p, n);
        if (e && e->time_ns > newest) newest = e->time_ns;
    }
    return newest;
}

// The state of a process that has not ended by itself, if it is on this host.
static char find_state(const iso_recorder_file *f) {
    char host[sizeof(f->host)] = "", path[64], text[512] = "";
    if (f->ended_ns || f->failed_ns || gethostname(host, sizeof(host) - 1) != 0) return 0;
    if (strcmp(host, f->host) != 0) return 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)f->pid);
    FILE *from = fopen(path, "r");
    if (!from) return 'X';
    size_t got = fread(text, 1, sizeof(text) - 1, from);
    fclose(from);
    const char *name_end = got > 0 ? strrchr(text, ')') : NULL; // the name may contain anything
    return name_end && name_end[1] ? name_end[2] : 'X';
}

static void find_states(job *j) {
    for (int r = 0; r < j->size; r++) {
        if (!j->rank[r].file) continue;
        j->rank[r].live = find_state(j->rank[r].file);
        j->runs = j->runs || (j->rank[r].live && j->rank[r].live != 'X' && j->rank[r].live != 'Z');
    }
}

static int64_t time_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t find_end(const job *j) {
    int64_t failed = INT64_MAX, newest = j->runs ? time_now() : 0;
    for (int r = 0; r < j->size; r++) {
        const process *p = &j->rank[r];
        if (!p->file) continue;
        if (p->file->failed_ns > 0 && p->file->failed_ns < failed) failed = p->file->failed_ns;
        if (newest_entry(p) > newest) newest = newest_entry(p);
    }
    return failed < INT64_MAX ? failed : newest;
}

const iso_recorder_entry *job_find(const process *p, uint16_t stream, bool call,
                                   uint32_t sequence) {
    iso_recorder_event wanted = call ? ISO_RECORDER_CALL : ISO_RECORDER_POSTED;
    for (uint64_t n = p->file->count; n >= first_of(p); n--) {
        const iso_recorder_entry *e = job_entry(p, n);
        if (e && e->event == wanted && e->stream == stream && e->sequence == sequence &&
            job_is_of_stream(p, e))
            return e;
    }
    return NULL;
}

// ---- All files ------------------------------------------------------------------------------------

static bool is_record_name(const char *name) {
    size_t n = strlen(name);
    return strncmp(name, "rank-", 5) == 0 && n > 9 && strcmp(name + n - 4, ".rec") == 0;
}

typedef struct pile { // of what was read, in no order
    process *at;
    int count, room;
} pile;

static iso_status add_process(pile *all, process p) {
    if (all->count == all->room) {
        int room = all->room ? 2 * all->room : 16;
        process *more = realloc(all->at, (size_t)room * sizeof(process));
        if (!more) return iso_error_set(ISO_ERR_NOMEM, "out of memory");
        all->at = more;
        all->room = room;
    }
    all->at[all->count++] = p;
    return ISO_OK;
}

static iso_status read_all(const char *folder, pile *all) {
    char path[PATH_MAX];
    DIR *files = opendir(folder);
    if (!files)
        return iso_error_set(ISO_ERR_IO, "cannot read the folder %s: %s", folder, strerror(errno));
    iso_status status = ISO_OK;
    for (const struct dirent *at; status >= 0 && (at = readdir(files));) {
        process p;
        if (!is_record_name(at->d_name)) continue;
        snprintf(path, sizeof(path), "%s/%s", folder, at->d_name);
        if (read_process(path, &p) >= 0)
            status = add_process(all, p);
        else
            fprintf(stderr, "postmortem: warning: %s\n", iso_last_error()->message);
    }
    closedir(files);
    return status;
}

// The process whose job started last decides which job is meant.
static const process *newest_of(const pile *all) {
    const process *newest = NULL;
    for (int i = 0; i < all->count; i++)
        if (!newest || all->at[i].file->started_ns > newest->file->started_ns) newest = &all->at[i];
    return newest;
}

// Moves the processes of one job from the pile.
static iso_status sort_processes(pile *all, job *out) {
    const process *newest = newest_of(all);
    uint64_t wanted = newest->file->job;
    int others = 0;
    out->size = newest->file->size;
    out->rank = calloc((size_t)out->size, sizeof(process));
    if (!out->rank) return iso_error_set(ISO_ERR_NOMEM, "out of memory");
    for (int i = 0; i < all->count; i++) {
        process *p = &all->at[i];
        bool same = p->file->job == wanted && p->file->size == out->size;
        others += !same;
        if (!same || out->rank[p->file->rank].file) continue;
        out->found++;
        out->rank[p->file->rank] = *p;
        *p = (process){0};
    }
    if (others > 0)
        fprintf(stderr, "postmortem: warning: ignored %d record%s of earlier jobs\n", others,
                others == 1 ? "" : "s");
    return ISO_OK;
}

iso_status job_read(const char *folder, job *out) {
    pile all = {0};
    *out = (job){0};
    iso_status status = read_all(folder, &all);
    if (status >= 0 && all.count == 0)
        status = iso_error_set(ISO_ERR_IO,
                               "%s has no flight records (rank-N.rec): start the job with "
                               "ISO_RECORDER=FOLDER",
                               folder);
    if (status >= 0) status = sort_processes(&all, out);
    for (int i = 0; i < all.count; i++) free_process(&all.at[i]);
    free(all.at);
    if (status < 0) {
        job_free(out);
        return status;
    }
    find_states(out);
    out->end_ns = find_end(out);
    for (int r = 0; r < out->size; r++)
        if (out->rank[r].file) take_entries(&out->rank[r], out->end_ns);
    return ISO_OK;
}

void job_free(job *j) {
    for (int r = 0; r < j->size && j->rank; r++) free_process(&j->rank[r]);
    free(j->rank);
    *j = (job){0};
}
