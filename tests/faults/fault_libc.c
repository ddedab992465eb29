// SPDX-License-Identifier: MIT
// The functions of the C library that the library and its programs call for memory and files. Of
// stdio, the call that the program makes fails, not the write to the file that follows from it.
#include "fault_shim.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- Memory: glibc's own functions under a second name, as dlsym itself allocates ------------------

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes) {
    return FAULT_DUE(FAULT_ALLOC, "malloc") ? NULL : __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes) {
    return FAULT_DUE(FAULT_ALLOC, "calloc") ? NULL : __libc_calloc(count, bytes);
}
void *realloc(void *block, size_t bytes) {
    return FAULT_DUE(FAULT_ALLOC, "realloc") ? NULL : __libc_realloc(block, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    return FAULT_DUE(FAULT_ALLOC, "aligned_alloc") ? NULL : __libc_memalign(alignment, bytes);
}
int posix_memalign(void **out, size_t alignment, size_t bytes) {
    void *block =
        FAULT_DUE(FAULT_ALLOC, "posix_memalign") ? NULL : __libc_memalign(alignment, bytes);
    if (!block) return ENOMEM;
    *out = block;
    return 0;
}

// ---- The rest: the next function of the name -------------------------------------------------------

#define WRAP(kind, bad, type, name, parameters, arguments)                                         \
    type name parameters {                                                                         \
        static type(*real) parameters;                                                             \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                      \
        if (FAULT_DUE(kind, #name)) return bad;                                                    \
        return real arguments;                                                                     \
    }

WRAP(FAULT_OPEN, NULL, FILE *, fopen, (const char *name, const char *mode), (name, mode))
WRAP(FAULT_OPEN, NULL, FILE *, fdopen, (int file, const char *mode), (file, mode))
WRAP(FAULT_OPEN, NULL, DIR *, opendir, (const char *name), (name))
WRAP(FAULT_OPEN, -1, int, mkdir, (const char *name, mode_t mode), (name, mode))
WRAP(FAULT_OPEN, -1, int, mkstemp, (char *name), (name))
WRAP(FAULT_READ, -1, ssize_t, read, (int file, void *data, size_t bytes), (file, data, bytes))
WRAP(FAULT_READ, -1, ssize_t, pread, (int file, void *data, size_t bytes, off_t at),
     (file, data, bytes, at))
WRAP(FAULT_READ, -1, int, fseeko, (FILE * file, off_t to, int from), (file, to, from))
WRAP(FAULT_READ, -1, int, stat, (const char *name, struct stat *out), (name, out))
WRAP(FAULT_READ, -1, int, fstat, (int file, struct stat *out), (file, out))
WRAP(FAULT_READ, NULL, struct dirent *, readdir, (DIR * folder), (folder))
WRAP(FAULT_WRITE, -1, ssize_t, write, (int file, const void *data, size_t bytes),
     (file, data, bytes))
WRAP(FAULT_WRITE, -1, ssize_t, pwrite, (int file, const void *data, size_t bytes, off_t at),
     (file, data, bytes, at))
WRAP(FAULT_WRITE, -1, int, ftruncate, (int file, off_t bytes), (file, bytes))
WRAP(FAULT_RENAME, -1, int, rename, (const char *from, const char *to), (from, to))
WRAP(FAULT_RENAME, -1, int, unlink, (const char *name), (name))
WRAP(FAULT_RENAME, -1, int, unlinkat, (int folder, const char *name, int flags),
     (folder, name, flags))
WRAP(FAULT_SYNC, -1, int, fsync, (int file), (file))
WRAP(FAULT_SYNC, -1, int, fdatasync, (int file), (file))
WRAP(FAULT_MAP, MAP_FAILED, void *, mmap,
     (void *at, size_t bytes, int protection, int flags, int file, off_t from),
     (at, bytes, protection, flags, file, from))
WRAP(FAULT_MAP, -1, int, shm_open, (const char *name, int flags, mode_t mode), (name, flags, mode))
WRAP(FAULT_MAP, ENOSPC, int, posix_fallocate, (int file, off_t from, off_t bytes),
     (file, from, bytes))
WRAP(FAULT_THREAD, EAGAIN, int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *how, void *(*run)(void *), void *user),
     (thread, how, run, user))

int open(const char *name, int flags, ...) {
    static int (*real)(const char *, int, ...);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "open");
    return FAULT_DUE(FAULT_OPEN, "open") ? -1 : real(name, flags, mode);
}

// ---- Streams, which remember that a call failed ----------------------------------------------------

#define ERROR_SEEN 0x20 // glibc's flag, which ferror reads

#define WRAP_STREAM(kind, bad, type, name, parameters, arguments)                                  \
    type name parameters {                                                                         \
        static type(*real) parameters;                                                             \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                      \
        if (file == stderr || !FAULT_DUE(kind, #name)) return real arguments;                      \
        file->_flags |= ERROR_SEEN;                                                                \
        return bad;                                                                                \
    }

WRAP_STREAM(FAULT_READ, 0, size_t, fread, (void *data, size_t each, size_t count, FILE *file),
            (data, each, count, file))
WRAP_STREAM(FAULT_READ, NULL, char *, fgets, (char *text, int room, FILE *file), (text, room, file))
WRAP_STREAM(FAULT_READ, EOF, int, getc, (FILE * file), (file))
WRAP_STREAM(FAULT_TEXT, 0, size_t, fwrite,
            (const void *data, size_t each, size_t count, FILE *file), (data, each, count, file))
WRAP_STREAM(FAULT_TEXT, EOF, int, fputs, (const char *text, FILE *file), (text, file))
WRAP_STREAM(FAULT_TEXT, EOF, int, fputc, (int c, FILE *file), (c, file))
WRAP_STREAM(FAULT_TEXT, EOF, int, putc, (int c, FILE *file), (c, file))
WRAP_STREAM(FAULT_WRITE, EOF, int, fflush, (FILE * file), (file))

int fclose(FILE *file) {
    static int (*real)(FILE *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "fclose");
    bool bad = FAULT_DUE(FAULT_WRITE, "fclose");
    int result = real(file); // it is closed, as after an error
    if (!bad) return result;
    errno = ENOSPC;
    return EOF;
}

int puts(const char *text) {
    if (!FAULT_DUE(FAULT_TEXT, "puts")) return fprintf(stdout, "%s\n", text);
    stdout->_flags |= ERROR_SEEN;
    return EOF;
}

int fprintf(FILE *file, const char *format, ...) {
    va_list rest;
    if (file != stderr && FAULT_DUE(FAULT_TEXT, "fprintf")) {
        file->_flags |= ERROR_SEEN;
        return -1;
    }
    va_start(rest, format);
    int result = vfprintf(file, format, rest);
    va_end(rest);
    return result;
}

int printf(const char *format, ...) {
    va_list rest;
    if (FAULT_DUE(FAULT_TEXT, "printf")) {
        stdout->_flags |= ERROR_SEEN;
        return -1;
    }
    va_start(rest, format);
    int result = vprintf(format, rest);
    va_end(rest);
    return result;
}
