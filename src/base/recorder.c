// SPDX-License-Identifier: MIT
// The flight recorder: a ring of the last operations, in memory that a file can hold.
#define _GNU_SOURCE
#include "base/recording.h"

#include <isotherm/trace.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ATOMIC(field) ((_Atomic uint64_t *)(field))

_Static_assert(sizeof(iso_recorder_entry) == 64, "the format of the file");

const char *_Atomic iso__alive_at;
atomic_bool iso__stepping;
static iso_recorder_file at_start; // until a file is open, and without one
static iso_recorder_file *_Atomic memory = &at_start;
static _Atomic int64_t epoch_ns; // of iso_now(): its difference to the time since 1970; 0: not read
static int stacks = -1;          // descriptor for stacks; -1: no file
enum { WELL, SURVIVABLE, FINAL };
static atomic_int failed;                                 // one of these
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; // of opening, and of new streams

// ---- Recording ------------------------------------------------------------------------------------

static int64_t read_time(void) {
    int64_t epoch = atomic_load_explicit(&epoch_ns, memory_order_relaxed);
    if (epoch == 0) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        epoch = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - iso_now();
        atomic_store_explicit(&epoch_ns, epoch, memory_order_relaxed);
    }
    return epoch + iso_now();
}

static void copy_name(char *to, size_t room, const char *name) {
    size_t n = name ? strnlen(name, room - 1) : 0;
    memcpy(to, name ? name : "", n);
    memset(to + n, 0, room - n);
}

// What the program begins with an event. Others may come from threads of the library.
static const char *const began[ISO_RECORDER_WARN + 1] = {
    [ISO_RECORDER_POSTED] = "an exchange",
    [ISO_RECORDER_CALL] = "a collective",
    [ISO_RECORDER_WAIT] = "a wait for other ranks",
    [ISO_RECORDER_NOTE] = "a note in the flight recorder"};

static void write_entry(iso_recorder_event event, uint16_t stream, uint32_t sequence,
                        uint64_t bytes, const char *name) {
    if (began[event]) iso__alive(began[event]);
    iso_recorder_file *file = atomic_load_explicit(&memory, memory_order_relaxed);
    uint64_t n = atomic_fetch_add_explicit(ATOMIC(&file->count), 1, memory_order_relaxed);
    iso_recorder_entry *e = &file->entry[n % ISO_RECORDER_RECORDS];
    atomic_store_explicit(ATOMIC(&e->number), 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    e->time_ns = read_time();
    e->bytes = bytes;
    e->sequence = sequence;
    e->event = (uint16_t)event;
    e->stream = stream;
    copy_name(e->name, sizeof(e->name), name);
    atomic_store_explicit(ATOMIC(&e->number), n + 1, memory_order_release);
}

void iso__record(iso_recorder_event event, uint32_t sequence, const char *name) {
    write_entry(event, 0, sequence, 0, name);
}

void iso__record_posted(uint16_t stream, uint32_t sequence, uint64_t bytes, const char *name) {
    atomic_load(&memory)->stream[stream].posted = sequence;
    write_entry(ISO_RECORDER_POSTED, stream, sequence, bytes, name);
}

void iso__record_done(uint16_t stream, uint32_t sequence, uint64_t bytes, const char *name) {
    atomic_load(&memory)->stream[stream].done++;
    write_entry(ISO_RECORDER_DONE, stream, sequence, bytes, name);
}

void iso__record_call(uint16_t stream, const char *name) {
    uint32_t sequence = ++atomic_load(&memory)->stream[stream].called;
    write_entry(ISO_RECORDER_CALL, stream, sequence, 0, name);
}

void iso_recorder_note(const char *text, uint32_t number) {
    iso__record(ISO_RECORDER_NOTE, number, text);
}

void iso_recorder_wait(const char *what) { iso__record(ISO_RECORDER_WAIT, 0, what); }
void iso_recorder_woke(const char *what) { iso__record(ISO_RECORDER_WOKE, 0, what); }

const iso_recorder_file *iso_recorder_memory(void) { return atomic_load(&memory); }

// ---- Streams --------------------------------------------------------------------------------------

enum { REST = ISO_RECORDER_STREAMS - 1 };
static uint64_t closed[REST], closings; // when a stream was closed, as a number; 0: it is open
static struct {
    uint64_t id;
    uint32_t made;
} groups[REST]; // and the number of their streams so far

// The next ordinal of a group; NULL: there are too many groups.
static uint32_t *find_ordinal(uint64_t group) {
    for (int i = 0; i < REST; i++) {
        if (groups[i].id == 0) groups[i].id = group;
        if (groups[i].id == group) return &groups[i].made;
    }
    return NULL;
}

// An unused place, else that of the stream that was closed first, else REST.
static uint16_t find_place(const iso_recorder_stream *all) {
    uint16_t best = REST;
    for (uint16_t at = 0; at < REST; at++) {
        if (all[at].group == 0) return at;
        if (closed[at] && (best == REST || closed[at] < closed[best])) best = at;
    }
    return best;
}

uint16_t iso__recorder_stream(uint64_t group, int rank, int size, const char *name) {
    pthread_mutex_lock(&guard);
    iso_recorder_file *file = atomic_load(&memory);
    uint32_t *ordinal = find_ordinal(group);
    uint16_t at = ordinal ? find_place(file->stream) : REST;
    if (ordinal) ++*ordinal; // even without a place, so that ranks agree
    if (at < REST) {
        uint64_t count = atomic_load_explicit(ATOMIC(&file->count), memory_order_relaxed);
        uint64_t since = file->stream[at].group ? count : 0;
        file->stream[at] = (iso_recorder_stream){
            .ordinal = *ordinal - 1, .rank = rank, .size = size, .since = since};
        copy_name(file->stream[at].name, sizeof(file->stream[at].name), name);
        file->stream[at].group = group;
        closed[at] = 0;
    }
    pthread_mutex_unlock(&guard);
    return at;
}

void iso__recorder_close(uint16_t stream) {
    pthread_mutex_lock(&guard);
    if (stream < REST) closed[stream] = ++closings;
    pthread_mutex_unlock(&guard);
}

// ---- The end --------------------------------------------------------------------------------------

static void write_text(const char *text) {
    ssize_t written = write(stacks, text, strlen(text));
    (void)written; // there is nobody left to tell
}

// Whether to keep this reason: it is the first one, or it is final and comes after a time-out that
// the program has survived.
static bool takes_over(int code) {
    int now = code == ISO_ERR_TIMEOUT ? SURVIVABLE : FINAL, before = atomic_load(&failed);
    while (before < now)
        if (atomic_compare_exchange_weak(&failed, &before, now)) return true;
    return false;
}

// Also called by the handler of signals: calls only what may be called there.
static void keep_reason(int code, const char *reason) {
    void *frames[64];
    iso_recorder_file *file = atomic_load(&memory);
    if (!takes_over(code)) return;
    copy_name(file->reason, sizeof(file->reason), reason);
    file->failed_code = code;
    file->failed_ns = read_time();
    if (stacks < 0) return;
    write_text("stack at: ");
    write_text(file->reason);
    write_text("\n");
    backtrace_symbols_fd(frames, backtrace(frames, 64), stacks);
}

void iso_recorder_fail(iso_status status, const char *reason) { keep_reason((int)status, reason); }

void iso__recorder_end(void) { atomic_load(&memory)->ended_ns = read_time(); }

static const struct fatal {
    int code;
    const char *name;
} fatal[] = {{SIGSEGV, "SIGSEGV"},
             {SIGBUS, "SIGBUS"},
             {SIGFPE, "SIGFPE"},
             {SIGILL, "SIGILL"},
             {SIGABRT, "SIGABRT"}};
enum { FATAL = sizeof(fatal) / sizeof(fatal[0]) };
static struct sigaction before[FATAL];

static void handle_fatal(int code, siginfo_t *info, void *context) {
    (void)context;
    bool own = atomic_load(&memory)->pid == (int32_t)getpid(); // not a child that shares the file
    for (int i = 0; i < FATAL; i++) {
        if (fatal[i].code != code) continue;
        if (own) keep_reason(code, fatal[i].name);
        sigaction(code, &before[i], NULL);
    }
    if (info->si_code <= 0) raise(code); // a fault recurs by itself when this handler returns
}

static void watch_signals(void) {
    void *frame;
    backtrace(&frame, 1); // loads what it needs: a handler must not
    for (int i = 0; i < FATAL; i++) {
        struct sigaction action = {.sa_sigaction = handle_fatal,
                                   .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&action.sa_mask);
        sigaction(fatal[i].code, &action, &before[i]);
    }
}

// ---- The file -------------------------------------------------------------------------------------

// A process holds the lock of its file as long as it lives. Where there are no locks nobody is
// refused.
static iso_status refuse_used(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool used = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    ISO_CHECK(!used, ISO_ERR_STATE,
              "%s belongs to a job that still runs: give each job a folder of its own "
              "(ISO_RECORDER)",
              path);
    return ISO_OK;
}

// Replaces the file of an earlier job instead of truncating it, because somebody may be reading it.
static iso_status map_file(const char *path, int *descriptor, void **out) {
    size_t bytes = sizeof(iso_recorder_file);
    ISO_TRY(refuse_used(path));
    (void)unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    ISO_CHECK(fd >= 0, ISO_ERR_IO, "cannot write %s (ISO_RECORDER): %s", path, strerror(errno));
    int rc = posix_fallocate(fd, 0, (off_t)bytes); // detects a full disk now, not by SIGBUS
    void *map = rc == 0
                    ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0)
                    : MAP_FAILED;
    if (map == MAP_FAILED) {
        rc = rc ? rc : errno;
        close(fd);
        (void)unlink(path);
        return ISO_FAIL(ISO_ERR_IO, "cannot write %s (ISO_RECORDER): %s", path, strerror(rc));
    }
    (void)flock(fd, LOCK_EX | LOCK_NB);
    *descriptor = fd;
    *out = map;
    return ISO_OK;
}

// Hashes a variable that is equal on all ranks of a job, and differs between jobs. Uses only the
// first variable that is set, because some ranks of a job may lack the others.
static uint64_t hash_job(void) {
    static const char *const name[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID",
                                       "SLURM_JOB_ID"};
    const char *value = NULL;
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]) && !value; i++) value = getenv(name[i]);
    return value ? iso__hash(ISO_HASH_START, value, strlen(value)) : 0;
}

static iso_status open_file(const char *folder, int rank, int size) {
    char path[PATH_MAX];
    void *map = NULL;
    int fd = -1;
    iso_status made = iso__make_folders(folder);
    ISO_CHECK(made == ISO_OK, made, "%s (ISO_RECORDER)", iso_last_error()->message);
    snprintf(path, sizeof(path), "%s/rank-%d.rec", folder, rank);
    ISO_TRY(map_file(path, &fd, &map));
    iso_recorder_file *file = map;
    memcpy(file, &at_start, sizeof(*file));
    memcpy(file->magic, ISO_RECORDER_MAGIC, sizeof(file->magic));
    file->bytes = sizeof(*file);
    file->rank = rank;
    file->size = size;
    file->pid = (int32_t)getpid();
    file->started_ns = read_time();
    file->job = hash_job();
    (void)gethostname(file->host, sizeof(file->host) - 1);
    stacks = fd;
    atomic_store(&memory, file);
    watch_signals();
    return ISO_OK;
}

iso_status iso__recorder_open(int rank, int size) {
    const char *folder = iso__env_string(ISO_ENV_RECORDER);
    pthread_mutex_lock(&guard);
    iso_status status = folder && stacks < 0 ? open_file(folder, rank, size) : ISO_OK;
    pthread_mutex_unlock(&guard);
    return status;
}
