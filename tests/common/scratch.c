// SPDX-License-Identifier: MIT
// Files of a test: a folder of its own that it removes at its end.
#define _GNU_SOURCE // nftw
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATHS 64
static char folder[256];
static char *paths[PATHS];
static int path_count;

const char *scratch_folder(void) {
    if (!folder[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(folder, sizeof(folder), "%.200s/isotherm-test-XXXXXX", base ? base : "/tmp");
        cr_assert(mkdtemp(folder), "no temporary folder %s", folder);
    }
    return folder;
}

const char *scratch_path(const char *name) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", scratch_folder(), name);
    for (int i = 0; i < path_count; i++)
        if (strcmp(paths[i], path) == 0) return paths[i];
    cr_assert(path_count < PATHS);
    paths[path_count] = strdup(path);
    return paths[path_count++];
}

const char *scratch_write(const char *name, const void *data, size_t bytes) {
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "wb");
    cr_assert(file, "cannot create %s", path);
    cr_assert(fwrite(data, 1, bytes, file) == bytes);
    cr_assert(fclose(file) == 0);
    return path;
}

char *scratch_read(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    cr_assert(file, "cannot open %s", path);
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *data = calloc(size + 1, 1);
    cr_assert(fread(data, 1, size, file) == size);
    fclose(file);
    if (bytes) *bytes = size;
    return data;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    return remove(path);
}

static int visit(int remove_too) {
    int count = 0;
    DIR *dir = opendir(scratch_folder());
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char path[600];
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (remove_too) nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS); // folders, too
        count++;
    }
    closedir(dir);
    return count;
}

int scratch_count(void) { return visit(0); }

void scratch_remove(void) {
    if (folder[0]) {
        visit(1);
        rmdir(folder);
        folder[0] = 0;
    }
    while (path_count > 0) free(paths[--path_count]);
}

static int own_stderr;

void scratch_take_stderr(void) {
    int file = open(scratch_path("printed"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    own_stderr = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    close(file);
}

bool scratch_release_stderr(void) {
    struct stat printed;
    dup2(own_stderr, STDERR_FILENO);
    close(own_stderr);
    return stat(scratch_path("printed"), &printed) == 0 && printed.st_size > 0;
}
