// SPDX-License-Identifier: MIT
// Finding modules, parameters and buffers by their full names.
#include "nn/nn_impl.h"

#include <string.h>

typedef struct lookup {
    const char *name;   // sought
    iso_module *module; // that has it; NULL: not found yet
    int index;          // of the parameter or buffer there
} lookup;

// The local name that the object sought would have in the module at `path`; NULL: it cannot belong
// to it. Local names have no '.'.
static const char *local_name(const lookup *sought, const char *path) {
    size_t length = strlen(path);
    if (sought->module || strncmp(sought->name, path, length) != 0) return NULL;
    if (length == 0) return sought->name;
    return sought->name[length] == '.' ? sought->name + length + 1 : NULL;
}

static iso_status match_parameter(iso_module *module, const char *path, void *user) {
    lookup *sought = user;
    const char *local = local_name(sought, path);
    for (int i = 0; local && i < module->parameter_count; i++)
        if (strcmp(module->parameter_name[i], local) == 0)
            *sought = (lookup){sought->name, module, i};
    return ISO_OK;
}

static iso_status match_buffer(iso_module *module, const char *path, void *user) {
    lookup *sought = user;
    const char *local = local_name(sought, path);
    for (int i = 0; local && i < module->buffer_count; i++)
        if (strcmp(module->buffer[i]->name, local) == 0)
            *sought = (lookup){sought->name, module, i};
    return ISO_OK;
}

static iso_status match_module(iso_module *module, const char *path, void *user) {
    lookup *sought = user;
    if (!sought->module && strcmp(path, sought->name) == 0) sought->module = module;
    return ISO_OK;
}

static iso_status look_up(iso_module *root, const char *name, iso_module_visit match,
                          const char *what, lookup *out) {
    char label[ISO_LABEL_ROOM];
    lookup sought = {.name = name};
    ISO_CHECK(root && name, ISO_ERR_ARG, "looking up a %s needs a module and a name", what);
    ISO_TRY(iso_module_walk(root, match, &sought));
    ISO_CHECK(sought.module, ISO_ERR_ARG,
              "%s has no %s \"%s\": give its full name, with those of the modules around it",
              iso__module_label(root, label), what, name);
    *out = sought;
    return ISO_OK;
}

iso_status iso__module_find_parameter(iso_module *root, const char *name, iso_module **owner,
                                      int *index) {
    lookup found = {0};
    ISO_TRY(look_up(root, name, match_parameter, "parameter", &found));
    *owner = found.module;
    *index = found.index;
    return ISO_OK;
}

iso_status iso_module_get_parameter(iso_module *module, const char *name, iso_parameter **out) {
    lookup found = {0};
    ISO_TRY(look_up(module, name, match_parameter, "parameter", &found));
    *out = found.module->parameter[found.index];
    return ISO_OK;
}

iso_status iso_module_get_buffer(iso_module *module, const char *name, iso_buffer **out) {
    lookup found = {0};
    ISO_TRY(look_up(module, name, match_buffer, "buffer", &found));
    *out = found.module->buffer[found.index];
    return ISO_OK;
}

iso_status iso_module_get_submodule(iso_module *root, const char *name, iso_module **out) {
    lookup found = {0};
    ISO_TRY(look_up(root, name, match_module, "module", &found));
    *out = found.module;
    return ISO_OK;
}

const char *iso__module_label(const iso_module *module, char *text) {
    if (module->name[0])
        snprintf(text, ISO_LABEL_ROOM, "%s \"%s\"", module->ops->type, module->name);
    else
        snprintf(text, ISO_LABEL_ROOM, "%s", module->ops->type);
    return text;
}
