// SPDX-License-Identifier: MIT
// Keeps two writers from the same checkpoint or sweep folder, because each would delete the other's
// files.
//
// A process that takes over a lock does not remove it but overwrites it, while fcntl keeps others
// from doing the same. If two processes try, one finds the record of the other and is refused.
#include "train_lock.h"

#include "train_error.h"
#include "support/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    RECORD = 256, // bytes of the file, written at once
    PATH_ROOM = 4096,
    TOUCH_S = 10, // from touch to touch
    STALE_S = 60, // after which a lock is left over
    TRIES = 100,
    LOCKS = 2 // that a process may hold
};

typedef struct holder {
    char host[64];
    long pid;
    long long began, touched; // seconds since 1970
    char boot[40];            // of the kernel, and the namespace of pid in it; "-" and 0: unknown
    unsigned long long space;
} holder;

typedef struct held {
    char path[PATH_ROOM], record[RECORD + 1]; // empty path: free
    const char *writer;
    time_t touched;
} held;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; // of the locks
static held locks[LOCKS];

// ---- Records ------------------------------------------------------------------------------------

static void host_name(char out[64]) {
    if (gethostname(out, 64) != 0) snprintf(out, 64, "unknown");
    out[63] = 0;
}

static void find_boot(char out[40]) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!file || fscanf(file, "%39s", out) != 1) snprintf(out, 40, "-");
    if (file) fclose(file);
}

// 0 where /proc shows the processes of another namespace.
static unsigned long long pid_space(void) {
    char text[32];
    struct stat info;
    ssize_t length = readlink("/proc/self", text, sizeof(text) - 1);
    text[length > 0 ? length : 0] = 0;
    if (strtol(text, NULL, 10) != (long)getpid()) return 0;
    return stat("/proc/self/ns/pid", &info) == 0 ? (unsigned long long)info.st_ino : 0;
}

static void make_record(char record[RECORD + 1]) {
    char host[64], boot[40];
    host_name(host);
    find_boot(boot);
    int used = snprintf(record, RECORD + 1, "%s %ld %lld %s %llu", host, (long)getpid(),
                        (long long)time(NULL), boot, pid_space());
    memset(record + used, ' ', (size_t)(RECORD - 1 - used));
    record[RECORD - 1] = '\n';
    record[RECORD] = 0;
}

// Who holds the lock; pid 0: nobody who could be read.
static holder read_holder(int file, char text[RECORD + 1]) {
    holder h = {.boot = "-"};
    struct stat info = {.st_mtime = 0};
    ssize_t size = pread(file, text, RECORD, 0);
    text[size > 0 ? size : 0] = 0;
    if (sscanf(text, "%63s %ld %lld %39s %llu", h.host, &h.pid, &h.began, h.boot, &h.space) < 3)
        h.pid = 0;
    if (fstat(file, &info) == 0) h.touched = (long long)info.st_mtime;
    return h;
}

// Whether its pid means here what it means there. Containers and machines can share a host name.
static bool is_here(const holder *h) {
    char host[64], boot[40];
    host_name(host);
    find_boot(boot);
    return strcmp(h->host, host) == 0 && strcmp(h->boot, "-") != 0 && strcmp(h->boot, boot) == 0 &&
           h->space != 0 && h->space == pid_space();
}

// An ended process stays in the process table until its parent has waited for it.
static bool has_ended(long pid) {
    char path[64], state = 0;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return true;
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool read = fscanf(file, "%*d %*[^)]) %c", &state) == 1; // "PID (NAME) STATE"
    fclose(file);
    return read && (state == 'Z' || state == 'X');
}

// The time by the clock that dates files beside path, possibly that of a file server.
static long long file_time(const char *path) {
    char name[PATH_ROOM + 8];
    struct stat info = {.st_mtime = time(NULL)};
    snprintf(name, sizeof(name), "%s.XXXXXX", path);
    int file = mkstemp(name);
    if (file < 0) return (long long)info.st_mtime;
    fstat(file, &info);
    close(file);
    unlink(name);
    return (long long)info.st_mtime;
}

// Why the lock at path is abandoned; NULL: its holder is alive.
static const char *why_left(const holder *h, const char *path, char text[64]) {
    long long silent = file_time(path) - h->touched;
    bool gone = h->pid > 0 && is_here(h) && (h->pid == (long)getpid() || has_ended(h->pid));
    if (gone) return "which has ended";
    if (silent < STALE_S) return NULL;
    snprintf(text, 64, "which has not touched it for %lld s", silent);
    return text;
}

// ---- Taking -------------------------------------------------------------------------------------

// On a file system without such locks, two processes could both take over an abandoned lock.
static void keep_others_out(int file) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (int i = 0; i < TRIES; i++) {
        if (fcntl(file, F_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES)) return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

static bool is_still_there(int file, const char *path) {
    struct stat here, there;
    return fstat(file, &here) == 0 && stat(path, &there) == 0 && here.st_ino == there.st_ino &&
           here.st_dev == there.st_dev;
}

// False: another run's.
static bool is_ours(int file, const held *own) {
    char found[RECORD + 1];
    read_holder(file, found);
    return strcmp(found, own->record) == 0;
}

static iso_status refuse_lock(const train_lock *lock, const holder *h) {
    long long since = (long long)time(NULL) - h->began; // by the clocks of two hosts
    if (h->pid == 0)
        return train_error(ISO_ERR_STATE,
                           "another %s has just begun to write %s: give another %s (if there is "
                           "no such %s, remove %s)",
                           lock->writer, lock->target, lock->option, lock->writer, lock->path);
    return train_error(ISO_ERR_STATE,
                       "another %s writes %s: process %ld on host %s, for %lld s by now: wait "
                       "until it ends, stop it, or give another %s (if there is no such process, "
                       "remove %s)",
                       lock->writer, lock->target, h->pid, h->host, since > 0 ? since : 0,
                       lock->option, lock->path);
}

static void warn_of_takeover(const char *path, const holder *h, const char *why) {
    const char *program = train_error_name();
    if (h->pid > 0)
        fprintf(stderr, "%s: warning: took over %s of process %ld on host %s, %s\n", program, path,
                h->pid, h->host, why);
    else
        fprintf(stderr, "%s: warning: took over %s of a process that it does not name, %s\n",
                program, path, why);
}

// Takes the lock of an open file. made: this process created it. ISO_PENDING: it was removed.
static iso_status claim_lock(int file, bool made, const train_lock *lock, held *own) {
    char found[RECORD + 1], text[64];
    const char *path = lock->path;
    keep_others_out(file);
    if (!is_still_there(file, path)) return ISO_PENDING;
    if (own != locks && is_ours(file, locks))
        return train_error(ISO_ERR_ARG, "two outputs would go to %s: give another %s", lock->target,
                           lock->option);
    holder h = read_holder(file, found);
    const char *why = made && h.pid == 0 ? "" : why_left(&h, path, text);
    if (!why) return refuse_lock(lock, &h);
    if (h.pid > 0 || !made) warn_of_takeover(path, &h, why);
    make_record(own->record);
    if (pwrite(file, own->record, RECORD, 0) != RECORD)
        return train_error(ISO_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    futimens(file, NULL);
    return ISO_OK;
}

static iso_status open_and_claim(const train_lock *lock, held *own) {
    const char *path = lock->path;
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool made = file >= 0;
    if (!made && errno == EEXIST) {
        file = open(path, O_RDWR | O_CLOEXEC);
        if (file < 0 && errno == ENOENT) return ISO_PENDING;
    }
    if (file < 0) return train_error(ISO_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    iso_status status = claim_lock(file, made, lock, own);
    if (status == ISO_ERR_IO && made) unlink(path);
    close(file); // and with it what keeps others out
    return status;
}

// ---- While it is held ---------------------------------------------------------------------------

static _Noreturn void give_up(const held *own, const holder *h) {
    fprintf(stderr,
            "%s: %s was taken over by process %ld on host %s, because this %s did not touch it for "
            "a minute: stopping, so that the two do not delete each other's files\n",
            train_error_name(), own->path, h->pid, h->host, own->writer);
    _exit(EXIT_FAILURE);
}

static void touch_lock(held *own) {
    char found[RECORD + 1];
    time_t now = time(NULL);
    if (!own->path[0] || (now - own->touched < TOUCH_S && now >= own->touched)) return;
    own->touched = now;
    int file = open(own->path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    holder h = read_holder(file, found);
    if (strcmp(found, own->record) != 0 && h.pid > 0) give_up(own, &h);
    futimens(file, NULL);
    close(file);
}

// Runs in the thread of watch.h, also right after a stopped process continues.
static void touch_locks(void) {
    pthread_mutex_lock(&guard);
    for (int i = 0; i < LOCKS; i++) touch_lock(&locks[i]);
    pthread_mutex_unlock(&guard);
}

iso_status train_lock_take(const train_lock *lock) {
    iso_status status = ISO_PENDING;
    held *own = locks[0].path[0] ? &locks[1] : &locks[0];
    if (strlen(lock->path) >= PATH_ROOM)
        return train_error(ISO_ERR_ARG, "the value of %s is too long: %.80s...", lock->option,
                           lock->target);
    pthread_mutex_lock(&guard);
    for (int i = 0; i < TRIES && status == ISO_PENDING; i++) status = open_and_claim(lock, own);
    if (status == ISO_PENDING)
        status = train_error(ISO_ERR_IO, "%s appears and disappears: give another %s", lock->path,
                             lock->option);
    if (status == ISO_OK) {
        strcpy(own->path, lock->path);
        own->writer = lock->writer;
        own->touched = time(NULL);
    }
    pthread_mutex_unlock(&guard);
    watch_every_second(touch_locks);
    watch_at_end(train_lock_release);
    return status;
}

static void release_lock(held *own) {
    int file = own->path[0] ? open(own->path, O_RDWR | O_CLOEXEC) : -1;
    if (file >= 0) {
        keep_others_out(file);
        if (is_ours(file, own) && is_still_there(file, own->path)) unlink(own->path);
        close(file);
    }
    own->path[0] = 0;
}

int train_lock_held(void) {
    int count = 0;
    while (count < LOCKS && locks[count].path[0]) count++;
    return count;
}

void train_lock_release_beyond(int kept) {
    pthread_mutex_lock(&guard);
    for (int i = kept; i < LOCKS; i++) release_lock(&locks[i]);
    pthread_mutex_unlock(&guard);
}

void train_lock_release(void) { train_lock_release_beyond(0); }
