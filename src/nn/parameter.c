// SPDX-License-Identifier: MIT
// Access to parameters from outside, and the walks over parameters and buffers of a tree of
// modules.
#include "base/index.h"
#include "nn/nn_impl.h"

#include <string.h>

#define NAME_ROOM 512

static iso_status complete_pending(iso_parameter *parameter) {
    if (parameter->complete) ISO_TRY(parameter->complete(parameter->complete_user, parameter));
    return ISO_OK;
}

iso_status iso_parameter_value(iso_parameter *parameter, iso_tensor **out) {
    ISO_TRY(complete_pending(parameter));
    if (parameter->gather) ISO_TRY(parameter->gather(parameter->complete_user, parameter));
    *out = parameter->value;
    return ISO_OK;
}

// grad_valid stays false: looking at a gradient changes nothing for the next backward or update.
iso_status iso_parameter_grad(iso_parameter *parameter, iso_tensor **out) {
    ISO_TRY(complete_pending(parameter));
    if (!parameter->grad_valid) ISO_TRY(iso_tensor_fill(parameter->grad, 0));
    *out = parameter->grad;
    return ISO_OK;
}

void iso_module_zero_grad(iso_module *module) {
    for (int i = 0; i < module->parameter_count; i++) module->parameter[i]->grad_valid = false;
    for (int i = 0; i < module->child_count; i++) iso_module_zero_grad(module->child[i]);
}

// ---- The walk ----------------------------------------------------------------------------------

// `path` holds the name of a module, `length` characters; a name is appended to it.
static iso_status append_name(char *path, size_t length, const char *name, size_t *joined) {
    int n = snprintf(path + length, NAME_ROOM - length, "%s%s", length && name[0] ? "." : "", name);
    ISO_CHECK(n >= 0 && length + (size_t)n < NAME_ROOM, ISO_ERR_ARG,
              "the name of a module or parameter is longer than %d characters: \"%.60s...\"",
              NAME_ROOM - 1, path);
    *joined = length + (size_t)n;
    return ISO_OK;
}

static iso_status walk_modules(iso_module *module, char *path, size_t length,
                               iso_module_visit visit, void *user) {
    ISO_TRY(visit(module, path, user));
    for (int i = 0; i < module->child_count; i++) {
        size_t joined = length;
        ISO_TRY(append_name(path, length, module->child_name[i], &joined));
        ISO_TRY(walk_modules(module->child[i], path, joined, visit, user));
        path[length] = 0;
    }
    return ISO_OK;
}

iso_status iso_module_walk(iso_module *root, iso_module_visit visit, void *user) {
    char path[NAME_ROOM] = "";
    return walk_modules(root, path, 0, visit, user);
}

int iso__module_count(const iso_module *root) {
    int n = 1;
    for (int i = 0; i < root->child_count; i++) n += iso__module_count(root->child[i]);
    return n;
}

// The full name of `name` in the module at `path`; to be freed.
static iso_status full_name(const char *path, const char *name, char **out) {
    char text[NAME_ROOM];
    size_t length = strlen(path), joined = 0;
    memcpy(text, path, length + 1);
    ISO_TRY(append_name(text, length, name, &joined));
    return iso__strdup(text, out);
}

// ---- Lists of parameters -----------------------------------------------------------------------

// Counts shared parameters once per module: an upper bound.
static iso_status count_parameters(iso_module *module, const char *path, void *count) {
    (void)path;
    *(int *)count += module->parameter_count;
    return ISO_OK;
}

typedef struct parameter_walk {
    iso_parameter_list list;
    iso__index listed; // of list.item
} parameter_walk;

static iso_status collect_parameters(iso_module *module, const char *path, void *user) {
    parameter_walk *walk = user;
    iso_parameter_list *list = &walk->list;
    for (int i = 0; i < module->parameter_count; i++) {
        iso_parameter *p = module->parameter[i];
        if (iso__index_of(&walk->listed, p) >= 0) continue;
        ISO_TRY(iso__index_add(&walk->listed, iso__pointer_key(p), list->count));
        ISO_TRY(full_name(path, module->parameter_name[i], &list->name[list->count]));
        list->item[list->count] = p;
        list->owner[list->count++] = module;
    }
    return ISO_OK;
}

// An entry of a list of parameters or of buffers.
typedef struct listed {
    int64_t place;
    int number; // in the order of registration, in which entries of equal places stay
    void *item;
    char *name;
    iso_module *owner;
} listed;

static int by_place(const void *a, const void *b) {
    const listed *x = a, *y = b;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

// Most lists are in order.
static bool are_placed(const iso_parameter_list *list) {
    for (int i = 1; i < list->count; i++)
        if (list->item[i - 1]->place > list->item[i]->place) return false;
    return true;
}

static iso_status order_parameters(iso_parameter_list *list) {
    listed *entry;
    if (are_placed(list)) return ISO_OK;
    ISO_TRY(iso__alloc((size_t)list->count * sizeof(*entry), (void **)&entry));
    for (int i = 0; i < list->count; i++)
        entry[i] = (listed){list->item[i]->place, i, list->item[i], list->name[i], list->owner[i]};
    qsort(entry, (size_t)list->count, sizeof(*entry), by_place);
    for (int i = 0; i < list->count; i++) {
        list->item[i] = entry[i].item;
        list->name[i] = entry[i].name;
        list->owner[i] = entry[i].owner;
    }
    iso__free(entry);
    return ISO_OK;
}

iso_status iso_module_parameters(iso_module *module, iso_parameter_list *out) {
    parameter_walk walk = {.list = {0}};
    int room = 0;
    ISO_TRY(iso_module_walk(module, count_parameters, &room));
    void *memory[3] = {NULL};
    iso_status status = ISO_OK;
    for (int i = 0; i < 3; i++)
        ISO_TRY_GOTO(iso__alloc_zero((size_t)room * sizeof(void *), &memory[i]));
    walk.list = (iso_parameter_list){.item = memory[0], .name = memory[1], .owner = memory[2]};
    ISO_TRY_GOTO(iso_module_walk(module, collect_parameters, &walk));
    ISO_TRY_GOTO(order_parameters(&walk.list));
    iso__index_free(&walk.listed);
    *out = walk.list;
    return ISO_OK;
fail:
    iso__index_free(&walk.listed);
    for (int i = 0; i < walk.list.count; i++) iso__free(walk.list.name[i]);
    for (int i = 0; i < 3; i++) iso__free(memory[i]);
    return status;
}

void iso_parameter_list_destroy(iso_parameter_list *list) {
    if (!list) return;
    for (int i = 0; i < list->count; i++) iso__free(list->name[i]);
    iso__free(list->item);
    iso__free(list->name);
    iso__free(list->owner);
    *list = (iso_parameter_list){0};
}

int64_t iso_module_parameter_count(iso_module *module) {
    iso_parameter_list list;
    if (iso_module_parameters(module, &list) < 0) return -1;
    int64_t count = 0;
    for (int i = 0; i < list.count; i++) count += list.item[i]->value->count;
    iso_parameter_list_destroy(&list);
    return count;
}

// ---- Lists of buffers --------------------------------------------------------------------------

static iso_status count_buffers(iso_module *module, const char *path, void *count) {
    (void)path;
    *(int *)count += module->buffer_count;
    return ISO_OK;
}

typedef struct buffer_walk {
    iso_buffer_list list;
    iso__index listed; // of list.item
} buffer_walk;

static iso_status collect_buffers(iso_module *module, const char *path, void *user) {
    buffer_walk *walk = user;
    iso_buffer_list *list = &walk->list;
    for (int i = 0; i < module->buffer_count; i++) {
        iso_buffer *b = module->buffer[i];
        if (iso__index_of(&walk->listed, b) >= 0) continue;
        ISO_TRY(iso__index_add(&walk->listed, iso__pointer_key(b), list->count));
        ISO_TRY(full_name(path, b->name, &list->name[list->count]));
        list->item[list->count++] = b;
    }
    return ISO_OK;
}

static iso_status order_buffers(iso_buffer_list *list) {
    listed *entry;
    bool placed = true;
    for (int i = 1; i < list->count; i++)
        placed = placed && list->item[i - 1]->place <= list->item[i]->place;
    if (placed) return ISO_OK;
    ISO_TRY(iso__alloc((size_t)list->count * sizeof(*entry), (void **)&entry));
    for (int i = 0; i < list->count; i++)
        entry[i] = (listed){list->item[i]->place, i, list->item[i], list->name[i], NULL};
    qsort(entry, (size_t)list->count, sizeof(*entry), by_place);
    for (int i = 0; i < list->count; i++) {
        list->item[i] = entry[i].item;
        list->name[i] = entry[i].name;
    }
    iso__free(entry);
    return ISO_OK;
}

iso_status iso_module_buffers(iso_module *module, iso_buffer_list *out) {
    buffer_walk walk = {.list = {0}};
    int room = 0;
    ISO_TRY(iso_module_walk(module, count_buffers, &room));
    void *memory[2] = {NULL};
    iso_status status = ISO_OK;
    for (int i = 0; i < 2; i++)
        ISO_TRY_GOTO(iso__alloc_zero((size_t)room * sizeof(void *), &memory[i]));
    walk.list = (iso_buffer_list){.item = memory[0], .name = memory[1]};
    ISO_TRY_GOTO(iso_module_walk(module, collect_buffers, &walk));
    ISO_TRY_GOTO(order_buffers(&walk.list));
    iso__index_free(&walk.listed);
    *out = walk.list;
    return ISO_OK;
fail:
    iso__index_free(&walk.listed);
    for (int i = 0; i < walk.list.count; i++) iso__free(walk.list.name[i]);
    for (int i = 0; i < 2; i++) iso__free(memory[i]);
    return status;
}

void iso_buffer_list_destroy(iso_buffer_list *list) {
    if (!list) return;
    for (int i = 0; i < list->count; i++) iso__free(list->name[i]);
    iso__free(list->item);
    iso__free(list->name);
    *list = (iso_buffer_list){0};
}

bool iso__parameter_is_free(const iso_parameter *p) {
    return !p->complete && p->grad->capacity > 0 && p->optimizers == 0;
}
