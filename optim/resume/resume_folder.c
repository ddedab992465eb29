// SPDX-License-Identifier: MIT
// Files of saved state: names, lists and removes them.
#include "optim/resume/resume_impl.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

// ---- Names --------------------------------------------------------------------------------------

static const char *name_of_path(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

iso_status iso__set_path_check(const char *path) {
    ISO_CHECK(path && name_of_path(path)[0], ISO_ERR_ARG,
              "\"%s\" is not a path for saved state: it needs a name after the folder",
              path ? path : "");
    ISO_CHECK(strlen(path) < 4096 && strlen(name_of_path(path)) < 120, ISO_ERR_ARG,
              "the path for saved state is too long: %.80s...", path);
    return ISO_OK;
}

void iso__set_path(const char *path, int64_t step, int rank, const char *suffix,
                   char text[ISO__PATH_ROOM]) {
    if (rank == ISO__SHARED_FILE)
        snprintf(text, ISO__PATH_ROOM, "%s.step-%012" PRId64 "%s", path, step, suffix);
    else
        snprintf(text, ISO__PATH_ROOM, "%s.step-%012" PRId64 ".rank-%05d%s", path, step, rank,
                 suffix);
}

// A number of at least `digits` digits and nothing else before its end; *at moves behind it.
static bool parse_number(const char **at, size_t digits, int64_t most, int64_t *out) {
    size_t n = strspn(*at, "0123456789");
    if (n < digits || n > 18) return false;
    *out = strtoll(*at, NULL, 10);
    *at += n;
    return *out <= most;
}

static bool accept_text(const char **at, const char *text) {
    size_t n = strlen(text);
    if (strncmp(*at, text, n) != 0) return false;
    *at += n;
    return true;
}

// base: the name of the path, without its folder.
static bool parse_name(const char *base, const char *name, iso__set_file *out) {
    int64_t number;
    const char *at = name;
    *out = (iso__set_file){.rank = ISO__SHARED_FILE};
    if (strlen(name) >= sizeof(out->name) || !accept_text(&at, base) ||
        !accept_text(&at, ".step-") || !parse_number(&at, 12, INT64_MAX, &out->step))
        return false;
    if (accept_text(&at, ".rank-")) {
        if (!parse_number(&at, 5, INT_MAX, &number)) return false;
        out->rank = (int)number;
    }
    out->old = accept_text(&at, ".old");
    if (accept_text(&at, ".tmp.")) {
        if (!parse_number(&at, 1, INT_MAX, &number) || number == 0) return false;
        out->pid = (long)number;
    }
    strcpy(out->name, name);
    return *at == 0;
}

// ---- The folder ---------------------------------------------------------------------------------

static void folder_of(const char *path, char text[ISO__PATH_ROOM]) {
    size_t n = (size_t)(name_of_path(path) - path);
    snprintf(text, ISO__PATH_ROOM, "%.*s", (int)n, path);
    if (n == 0) strcpy(text, ".");
}

static iso_status list_folder(DIR *folder, const char *path, iso__set_file **files, int *count) {
    int room = 0;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(folder)); errno = 0) {
        iso__set_file file;
        if (!parse_name(name_of_path(path), entry->d_name, &file)) continue;
        if (*count == room) {
            void *list = *files;
            int larger = room ? 2 * room : 32;
            ISO_TRY(
                iso__realloc(&list, (size_t)room * sizeof(file), (size_t)larger * sizeof(file)));
            *files = list;
            room = larger;
        }
        (*files)[(*count)++] = file;
    }
    ISO_CHECK(errno == 0, ISO_ERR_IO, "cannot read the folder of saved state %s: %s", path,
              strerror(errno));
    return ISO_OK;
}

iso_status iso__set_list(const char *path, iso__set_file **out, int *count) {
    char name[ISO__PATH_ROOM];
    iso__set_file *files = NULL;
    int found = 0;
    folder_of(path, name);
    DIR *folder = opendir(name);
    ISO_CHECK(folder, ISO_ERR_IO, "cannot read the folder of saved state %s: %s", path,
              strerror(errno));
    iso_status status = list_folder(folder, path, &files, &found);
    closedir(folder);
    if (status < 0) {
        iso__free(files);
        return status;
    }
    *out = files;
    *count = found;
    return ISO_OK;
}

void iso__set_remove(const char *path, const iso__set_file *file) {
    char text[ISO__PATH_ROOM];
    snprintf(text, sizeof(text), "%.*s%s", (int)(name_of_path(path) - path), path, file->name);
    if (unlink(text) != 0 && errno != ENOENT)
        iso__log(ISO_LOG_WARN, "cannot remove %s: %s", text, strerror(errno));
}

// ---- Steps --------------------------------------------------------------------------------------

static int highest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

iso_status iso__set_steps(const iso__set_file *files, int count, bool all, int64_t **out,
                          int *step_count) {
    void *memory;
    int found = 0, distinct = 0;
    ISO_TRY(iso__alloc((size_t)count * sizeof(int64_t), &memory));
    int64_t *steps = memory;
    for (int i = 0; i < count; i++)
        if (files[i].pid == 0 && (all || (files[i].rank == ISO__SHARED_FILE && !files[i].old)))
            steps[found++] = files[i].step;
    if (found > 0) qsort(steps, (size_t)found, sizeof(steps[0]), highest_first);
    for (int i = 0; i < found; i++)
        if (i == 0 || steps[i] != steps[i - 1]) steps[distinct++] = steps[i];
    *out = steps;
    *step_count = distinct;
    return ISO_OK;
}
