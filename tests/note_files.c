// SPDX-License-Identifier: MIT
// To be preloaded (LD_PRELOAD) into a program: adds a line to the file that NOTE_FILES names for
// each fsync and rename, with the path.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void note(const char *what, const char *path) {
    const char *name = getenv("NOTE_FILES");
    FILE *to = name ? fopen(name, "a") : NULL;
    if (!to) return;
    fprintf(to, "%s %s\n", what, path);
    fclose(to);
}

int fsync(int file) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
    if (readlink(link, path, sizeof(path) - 1) > 0) note("fsync", path);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}

int rename(const char *from, const char *to) {
    note("rename", to);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
