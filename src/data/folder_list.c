// SPDX-License-Identifier: MIT
// Lists the pictures in class folders, in an order that only their names decide.
#include "data/folder_list.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { PATH_ROOM = 4096, MOST_DEPTH = 16 };

// ---- Texts --------------------------------------------------------------------------------------

const char *iso__texts_at(const iso__texts *texts, int64_t i) {
    return texts->text + texts->start[i];
}

void iso__texts_free(iso__texts *texts) {
    iso__free(texts->text);
    iso__free(texts->start);
    *texts = (iso__texts){0};
}

static iso_status add_text(iso__texts *to, const char *text) {
    size_t bytes = strlen(text) + 1;
    if (to->bytes + bytes > to->room) {
        size_t room = 2 * to->room + bytes;
        void *memory = to->text;
        ISO_TRY(iso__realloc(&memory, to->bytes, room));
        to->text = memory;
        to->room = room;
    }
    if (to->count == to->places) {
        size_t size = sizeof(*to->start);
        void *memory = to->start;
        int64_t places = 2 * to->places + 16;
        ISO_TRY(iso__realloc(&memory, (size_t)to->count * size, (size_t)places * size));
        to->start = memory;
        to->places = places;
    }
    memcpy(to->text + to->bytes, text, bytes);
    to->start[to->count++] = (int64_t)to->bytes;
    to->bytes += bytes;
    return ISO_OK;
}

// ---- Folders ------------------------------------------------------------------------------------

bool iso__is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

// Skips names that begin with a point: systems add such files to folders.
static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

// Compares bytes. The order of alphasort depends on the user's locale.
static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

// Sorted; frees with free_names.
static iso_status read_names(const char *folder, struct dirent ***out, int *count) {
    *count = scandir(folder, out, is_visible, compare_names);
    ISO_CHECK(*count >= 0, ISO_ERR_IO,
              "cannot list the folder %s: %s: make it a folder that you may read, with a folder of "
              "pictures for each class",
              folder, strerror(errno));
    return ISO_OK;
}

static void free_names(struct dirent **names, int count) {
    for (int i = 0; i < count; i++) free(names[i]);
    free(names);
}

static iso_status join_path(const char *folder, const char *name, char path[PATH_ROOM]) {
    int length = snprintf(path, PATH_ROOM, "%s/%s", folder, name);
    ISO_CHECK(length < PATH_ROOM, ISO_ERR_ARG, "the path of a picture is too long: %.100s...",
              folder);
    return ISO_OK;
}

// d_type saves a call of stat on many file systems.
static bool holds_folder(const struct dirent *entry, const char *path) {
    if (entry->d_type == DT_REG) return false;
    return entry->d_type == DT_DIR || iso__is_folder(path);
}

// ---- Kinds of files -----------------------------------------------------------------------------

static bool has_ending(const char *name, const char *const *endings) {
    const char *end = strrchr(name, '.');
    for (; end && *endings; endings++)
        if (strcasecmp(end, *endings) == 0) return true;
    return false;
}

static bool is_picture(const char *name) {
    static const char *const endings[] = {".jpg", ".jpeg", ".png", NULL};
    return has_ending(name, endings);
}

// Pictures of a kind that is not read are errors, not skipped silently. Other files, such as lists
// and notes, are ignored.
static bool is_other_picture(const char *name) {
    static const char *const endings[] = {".bmp", ".gif", ".heic", ".heif", ".jp2",  ".pgm",
                                          ".ppm", ".tif", ".tiff", ".webp", ".avif", NULL};
    return has_ending(name, endings);
}

// ---- A class ------------------------------------------------------------------------------------

static iso_status add_label(iso__folder_list *list, int32_t label) {
    int64_t count = list->paths.count - 1;
    if (count == list->places) {
        int64_t places = 2 * list->places + 16;
        ISO_TRY(iso__realloc(&list->labels, (size_t)count * sizeof(label),
                             (size_t)places * sizeof(label)));
        list->places = places;
    }
    ((int32_t *)list->labels)[count] = label;
    return ISO_OK;
}

static iso_status list_folder(iso__folder_list *list, const char *root, const char *below,
                              int32_t label, int depth);

// below: the path from `root`.
static iso_status list_entry(iso__folder_list *list, const char *root, const char *below,
                             const struct dirent *entry, int32_t label, int depth) {
    char inner[PATH_ROOM], path[PATH_ROOM];
    ISO_TRY(join_path(below, entry->d_name, inner));
    ISO_TRY(join_path(root, inner, path));
    if (holds_folder(entry, path)) return list_folder(list, root, inner, label, depth + 1);
    ISO_CHECK(!is_other_picture(entry->d_name), ISO_ERR_FORMAT,
              "%s is a picture of a kind that is not read: convert it to JPEG or PNG, or remove it",
              path);
    if (!is_picture(entry->d_name)) return ISO_OK;
    ISO_TRY(add_text(&list->paths, inner));
    return add_label(list, label);
}

static iso_status list_folder(iso__folder_list *list, const char *root, const char *below,
                              int32_t label, int depth) {
    char path[PATH_ROOM];
    struct dirent **names;
    int count;
    iso_status status = ISO_OK;
    ISO_TRY(join_path(root, below, path));
    ISO_CHECK(depth < MOST_DEPTH, ISO_ERR_FORMAT,
              "folders are nested more than %d deep in %s: remove the link that leads back",
              MOST_DEPTH, path);
    ISO_TRY(read_names(path, &names, &count));
    for (int i = 0; i < count && status >= 0; i++)
        status = list_entry(list, root, below, names[i], label, depth);
    free_names(names, count);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- All classes --------------------------------------------------------------------------------

static iso_status add_class(const char *folder, const struct dirent *entry, iso__texts *to) {
    char path[PATH_ROOM];
    ISO_TRY(join_path(folder, entry->d_name, path));
    if (holds_folder(entry, path)) ISO_TRY(add_text(to, entry->d_name));
    return ISO_OK;
}

static iso_status list_classes(const char *folder, iso__texts *out) {
    struct dirent **names;
    int count;
    iso_status status = ISO_OK;
    ISO_TRY(read_names(folder, &names, &count));
    for (int i = 0; i < count && status >= 0; i++) status = add_class(folder, names[i], out);
    free_names(names, count);
    ISO_TRY(status);
    ISO_CHECK(out->count > 0 && out->count <= INT32_MAX, ISO_ERR_FORMAT,
              "%s holds no folders: put the pictures of each class into a folder there", folder);
    return ISO_OK;
}

// Names are sorted; -1: not there.
static int64_t find_class(const iso__texts *classes, const char *name) {
    for (int64_t low = 0, high = classes->count; low < high;) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, iso__texts_at(classes, middle));
        if (order == 0) return middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

// own: the classes are those of `folder` itself.
static iso_status list_class(iso__folder_list *list, const char *folder, const char *classes_of,
                             const char *name, bool own) {
    int64_t label = find_class(&list->classes, name), before = list->paths.count;
    ISO_CHECK(label >= 0, ISO_ERR_FORMAT,
              "the folder %s/%s is none of the classes of %s: give it the name of one", folder,
              name, classes_of);
    ISO_TRY(list_folder(list, folder, name, (int32_t)label, 0));
    ISO_CHECK(!own || list->paths.count > before, ISO_ERR_FORMAT,
              "the class folder %s/%s holds no JPEG or PNG file: fill or remove it", folder, name);
    return ISO_OK;
}

static iso_status fill_list(iso__folder_list *list, const char *folder, const char *classes_of) {
    bool own = strcmp(folder, classes_of) == 0;
    iso__texts there = {0};
    ISO_TRY(list_classes(classes_of, &list->classes));
    iso_status status = list_classes(folder, &there);
    for (int64_t c = 0; c < there.count && status >= 0; c++)
        status = list_class(list, folder, classes_of, iso__texts_at(&there, c), own);
    iso__texts_free(&there);
    ISO_TRY(status);
    ISO_CHECK(list->paths.count > 0, ISO_ERR_FORMAT,
              "the class folders of %s hold no JPEG or PNG file", folder);
    return ISO_OK;
}

iso_status iso__folder_list_create(const char *folder, const char *classes_of,
                                   iso__folder_list *out) {
    *out = (iso__folder_list){.places = 0};
    iso_status status = fill_list(out, folder, classes_of);
    if (status < 0) iso__folder_list_free(out);
    ISO_TRY(status);
    return ISO_OK;
}

void iso__folder_list_free(iso__folder_list *list) {
    iso__texts_free(&list->classes);
    iso__texts_free(&list->paths);
    iso__free(list->labels);
    list->labels = NULL;
}

// ---- Which layout -------------------------------------------------------------------------------

static bool holds_picture(const char *folder) {
    DIR *stream = opendir(folder);
    const struct dirent *entry;
    bool found = false;
    while (stream && !found && (entry = readdir(stream)))
        found = is_visible(entry) && is_picture(entry->d_name);
    if (stream) closedir(stream);
    return found;
}

bool iso__has_folders(const char *path, bool pictures) {
    DIR *stream = opendir(path);
    const struct dirent *entry;
    bool found = false;
    char inner[PATH_ROOM];
    while (stream && !found && (entry = readdir(stream)))
        found = is_visible(entry) && join_path(path, entry->d_name, inner) >= 0 &&
                holds_folder(entry, inner) && (!pictures || holds_picture(inner));
    if (stream) closedir(stream);
    return found;
}
