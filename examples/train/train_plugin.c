// SPDX-License-Identifier: MIT
// Loads --plugin, a shared object that registers strategies (isotherm/strategy.h), before the
// options are read, as its settings are options.
#include "train_options.h"

#include "train_error.h"

#include <dlfcn.h>
#include <errno.h>
#include <isotherm.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_ROOM = 4096 };

// NULL: not given, or without a value. The reader of options reports a missing value.
static const char *find_path(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (!option_is(argv[i], "plugin", "=")) continue;
        if (strchr(argv[i], '=')) return strchr(argv[i], '=') + 1;
        return i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0 ? argv[i + 1] : NULL;
    }
    return NULL;
}

// Whether an ELF file is complete. For a truncated one, the loader would end the process with
// SIGBUS. Files of other kinds count as complete: the loader reports what is wrong with them.
static bool is_whole(const char *path) {
    ElfW(Ehdr) head;
    struct stat info;
    FILE *from = fopen(path, "rb");
    bool known =
        from && fstat(fileno(from), &info) == 0 && fread(&head, sizeof(head), 1, from) == 1;
    if (from) fclose(from);
    if (!known || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return true;
    return head.e_shoff + (uint64_t)head.e_shnum * head.e_shentsize <= (uint64_t)info.st_size;
}

// Without a slash, dlopen would search the folders of the loader.
static iso_status open_object(const char *path, void **object) {
    char file[PATH_ROOM];
    snprintf(file, sizeof(file), "%s%s", strchr(path, '/') ? "" : "./", path);
    if (access(file, R_OK) != 0)
        return train_error(ISO_ERR_IO, "cannot read the plugin %s: %s", path, strerror(errno));
    if (!is_whole(file))
        return train_error(ISO_ERR_FORMAT, "the plugin %s is cut off: copy or build it again",
                           path);
    *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (*object) return ISO_OK;
    const char *why = dlerror();
    size_t length = strlen(file);
    if (strncmp(why, file, length) == 0 && strncmp(why + length, ": ", 2) == 0) why += length + 2;
    return train_error(ISO_ERR_FORMAT,
                       "cannot load the plugin %s: %s: build it as the first comment of "
                       "examples/plugin_diloco.c says",
                       path, why);
}

// A plugin for another version would use structs of another size.
static iso_status check_version(const char *path, void *object) {
    const int *version = dlsym(object, "iso_plugin_version");
    if (!version)
        return train_error(ISO_ERR_FORMAT,
                           "the plugin %s does not say for which version of Isotherm it was built: "
                           "write ISO_PLUGIN; in one of its files",
                           path);
    if (version[0] == ISO_VERSION_MAJOR && version[1] == ISO_VERSION_MINOR) return ISO_OK;
    return train_error(ISO_ERR_MISMATCH,
                       "the plugin %s was built for Isotherm %d.%d, and this is Isotherm %d.%d: "
                       "build it again",
                       path, version[0], version[1], ISO_VERSION_MAJOR, ISO_VERSION_MINOR);
}

// A plugin that is linked with another copy of the library registers its strategies there.
static iso_status initialise_plugin(const char *path, void *object) {
    iso_status (*initialise)(void) = NULL;
    void *found = dlsym(object, "iso_plugin_init");
    int before = iso_strategy_count();
    if (!found)
        return train_error(ISO_ERR_FORMAT,
                           "the plugin %s has no function iso_plugin_init: add it (in C++ as "
                           "extern \"C\")",
                           path);
    memcpy(&initialise, &found, sizeof(initialise));
    iso_status status = initialise();
    if (status < 0) {
        const iso_error *error = iso_last_error();
        return train_error(status, "the plugin %s failed to start: %s", path,
                           error->code == status ? error->message : iso_status_string(status));
    }
    if (iso_strategy_count() == before)
        return train_error(ISO_ERR_STATE,
                           "the plugin %s registered no strategy: call iso_strategy_register in "
                           "iso_plugin_init, and link the library that this program uses",
                           path);
    return ISO_OK;
}

// An option of this program hides a setting of that name.
static iso_status check_settings(const char *path, const iso_strategy *strategy) {
    for (int k = 0; k < strategy->setting_count; k++) {
        char line[128];
        snprintf(line, sizeof(line), "--%.100s ", strategy->setting[k].key);
        if (train_option_named(line))
            return train_error(ISO_ERR_ARG,
                               "the plugin %s: setting %s of %s is an option of train already: "
                               "give it another name",
                               path, strategy->setting[k].key, strategy->name);
    }
    return ISO_OK;
}

iso_status train_plugin_load(int argc, char **argv) {
    void *object;
    const char *path = find_path(argc, argv);
    if (!path || !*path) return ISO_OK;
    TRY(open_object(path, &object));
    TRY(check_version(path, object));
    int before = iso_strategy_count();
    TRY(initialise_plugin(path, object)); // for good: strategies are never unregistered
    for (int i = before; i < iso_strategy_count(); i++)
        TRY(check_settings(path, iso_strategy_at(i)));
    if (train_setting_at(TRAIN_SETTINGS - 1))
        return train_error(ISO_ERR_ARG,
                           "with the plugin %s the modes have %d settings or more, and fewer are "
                           "allowed",
                           path, TRAIN_SETTINGS);
    return ISO_OK;
}
