// SPDX-License-Identifier: MIT
// Builds the example networks by their names.
#include "models.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_LAYERS = 16 };

enum { MOST_FUNCTIONS = 16 };

typedef struct layer_list {
    iso_layer item[MOST_LAYERS];
    int count;
    iso_layer function[MOST_FUNCTIONS]; // of hidden layers
    int functions, acts;                // 0 functions: relu; the activations so far
    char act[MOST_LAYERS][16];          // their names
} layer_list;

// Another function than relu is a layer of its own, or a Choice of several.
static void add_function(layer_list *list) {
    char *name = list->act[list->acts++];
    snprintf(name, sizeof(list->act[0]), "act%d", list->acts);
    iso_layer layer = list->function[0];
    if (list->functions > 1)
        layer = (iso_layer){.kind = ISO_CHOICE,
                            .alternatives = list->function,
                            .alternative_count = list->functions};
    layer.name = name;
    list->item[list->count++] = layer;
}

static void add_layer(layer_list *list, iso_layer layer) {
    bool replaced = layer.relu && list->functions > 0;
    layer.relu = layer.relu && !replaced;
    list->item[list->count++] = layer;
    if (replaced) add_function(list);
}

static void add_conv(layer_list *list, const char *name, int64_t channels, int64_t size) {
    add_layer(
        list,
        (iso_layer){.kind = ISO_CONV2D, .out = channels, .size = size, .relu = true, .name = name});
}

static void add_pool(layer_list *list, const char *name) {
    add_layer(list, (iso_layer){.kind = ISO_MAX_POOL2D, .size = 2, .name = name});
}

static void add_flatten(layer_list *list) {
    add_layer(list, (iso_layer){.kind = ISO_FLATTEN, .name = "flatten"});
}

static void add_linear(layer_list *list, const char *name, int64_t features, bool relu) {
    add_layer(list, (iso_layer){.kind = ISO_LINEAR, .out = features, .relu = relu, .name = name});
}

static void list_mlp(layer_list *list, const iso_dataset_info *data, bool dropout) {
    (void)dropout;
    add_flatten(list);
    add_linear(list, "fc1", 512, true);
    add_linear(list, "fc2", 512, true);
    add_linear(list, "fc3", data->classes, false);
}

static void list_cnn(layer_list *list, const iso_dataset_info *data, bool dropout) {
    add_conv(list, "conv1", 32, 3);
    add_conv(list, "conv2", 64, 3);
    add_pool(list, "pool");
    if (dropout) add_layer(list, (iso_layer){.kind = ISO_DROPOUT, .p = 0.25, .name = "dropout1"});
    add_flatten(list);
    add_linear(list, "fc1", 128, true);
    if (dropout) add_layer(list, (iso_layer){.kind = ISO_DROPOUT, .p = 0.5, .name = "dropout2"});
    add_linear(list, "fc2", data->classes, false);
}

static void list_lenet(layer_list *list, const iso_dataset_info *data, bool dropout) {
    (void)dropout;
    add_conv(list, "conv1", 6, 5);
    add_pool(list, "pool1");
    add_conv(list, "conv2", 16, 5);
    add_pool(list, "pool2");
    add_flatten(list);
    add_linear(list, "fc1", 120, true);
    add_linear(list, "fc2", 84, true);
    add_linear(list, "fc3", data->classes, false);
}

// ---- Activations --------------------------------------------------------------------------------

static const struct {
    const char *name;
    iso_layer_kind kind;
} functions[] = {{"relu", ISO_RELU},      {"leaky_relu", ISO_LEAKY_RELU},
                 {"elu", ISO_ELU},        {"silu", ISO_SILU},
                 {"gelu", ISO_GELU},      {"tanh", ISO_TANH},
                 {"sigmoid", ISO_SIGMOID}};
enum { FUNCTIONS = sizeof(functions) / sizeof(functions[0]) };

static int find_function(const char *name, size_t length) {
    for (int i = 0; i < FUNCTIONS; i++)
        if (strlen(functions[i].name) == length && strncmp(functions[i].name, name, length) == 0)
            return i;
    return -1;
}

bool model_activations_fit(const char *text) {
    bool given[FUNCTIONS] = {false};
    for (;; text++) {
        size_t length = strcspn(text, ",");
        int i = find_function(text, length);
        if (i < 0 || given[i]) return false;
        given[i] = true;
        text += length;
        if (!*text) return true;
    }
}

// Alternatives are named as in the list, so checkpoints say what a choice means.
static iso_status list_functions(layer_list *list, const char *text) {
    if (!model_activations_fit(text))
        return iso_error_set(ISO_ERR_ARG, "activations %s: give " MODEL_ACTIVATIONS_RULE, text);
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        int i = find_function(at, length);
        list->function[list->functions++] =
            (iso_layer){.kind = functions[i].kind, .name = functions[i].name};
        at += length;
        if (!*at) return ISO_OK;
    }
}

typedef struct activations_text {
    char *text;
    size_t room, used;
} activations_text;

static iso_status add_choice(iso_module *module, const char *name, void *user) {
    activations_text *t = user;
    int index;
    if (strcmp(module->ops->type, "Choice") != 0) return ISO_OK;
    iso_status status = iso_choice_get(module, &index);
    if (status < 0) return status;
    int more = snprintf(t->text + t->used, t->room - t->used, "%s%s %s", t->used ? ", " : "", name,
                        module->child_name[index]);
    t->used = t->used + (size_t)more < t->room ? t->used + (size_t)more : t->room - 1;
    return ISO_OK;
}

iso_status model_activations_text(iso_module *model, char *text, size_t room) {
    activations_text t = {text, room, 0};
    text[0] = 0;
    return iso_module_walk(model, add_choice, &t);
}

bool model_choices_fit(iso_module *model) {
    char text[256];
    return model_activations_text(model, text, sizeof(text)) >= 0;
}

// ---- By name ------------------------------------------------------------------------------------

typedef struct model_kind {
    const char *name;
    void (*list)(layer_list *list, const iso_dataset_info *data, bool dropout);
    // Instead of a list of layers.
    iso_status (*create)(iso_device *device, const iso_dataset_info *data, iso_rng *rng,
                         iso_module **out);
    int64_t smallest; // the smallest side of an image for which its layers have an output
} model_kind;

static const model_kind kinds[] = {
    {"mlp", list_mlp, NULL, 1},
    {"cnn", list_cnn, NULL, 6},
    {"lenet", list_lenet, NULL, 16},
    {"resnet18", NULL, model_resnet18, 1},
    {"resnet50", NULL, model_resnet50, 1},
};
enum { KIND_COUNT = sizeof(kinds) / sizeof(kinds[0]) };

static const model_kind *find_kind(const char *name) {
    for (int i = 0; i < KIND_COUNT; i++)
        if (strcmp(kinds[i].name, name) == 0) return &kinds[i];
    return NULL;
}

bool model_fits(const char *name, const iso_dataset_info *data) {
    const model_kind *kind = find_kind(name);
    return !kind || (data->height >= kind->smallest && data->width >= kind->smallest);
}

iso_status model_create_with(const model_options *options, iso_device *device,
                             const iso_dataset_info *data, iso_rng *rng, iso_module **out) {
    const char *name = options->name, *activations = options->activations;
    const model_kind *kind = find_kind(name);
    layer_list list = {.count = 0};
    int64_t sample[3] = {data->channels, data->height, data->width};
    if (!kind) return iso_error_set(ISO_ERR_ARG, "unknown model %s: use " MODEL_NAMES, name);
    if (kind->create && activations)
        return iso_error_set(ISO_ERR_ARG, "the activations of %s cannot be chosen", name);
    if (kind->create) return kind->create(device, data, rng, out);
    iso_status status = activations ? list_functions(&list, activations) : ISO_OK;
    if (status < 0) return status;
    kind->list(&list, data, options->dropout);
    return iso_sequential_build(device, sample, list.item, list.count, rng, out);
}

iso_status model_create(const char *name, iso_device *device, const iso_dataset_info *data,
                        bool dropout, iso_rng *rng, iso_module **out) {
    model_options options = {.name = name, .dropout = dropout};
    return model_create_with(&options, device, data, rng, out);
}

// A number of 16 bits is not finite if all bits of its exponent are set.
static bool is_finite_at(iso_dtype type, const void *data, int64_t i) {
    unsigned exponent = type == ISO_BF16 ? 0x7f80 : 0x7c00;
    if (type == ISO_F64) return isfinite(((const double *)data)[i]);
    if (type == ISO_F32) return isfinite(((const float *)data)[i]);
    return (((const uint16_t *)data)[i] & exponent) != exponent;
}

static iso_status is_finite(iso_tensor *t, bool *finite) {
    void *data;
    iso_status status = iso_tensor_map(t, ISO_READ, &data);
    if (status < 0) return status;
    *finite = true;
    for (int64_t i = 0; i < iso_tensor_count(t) && *finite; i++)
        *finite = is_finite_at(iso_tensor_dtype(t), data, i);
    return iso_tensor_unmap(t);
}

iso_status model_find_not_finite(iso_module *model, char *name, size_t room) {
    iso_parameter_list list;
    iso_status status = iso_module_parameters(model, &list);
    if (status < 0) return status;
    bool finite = true;
    name[0] = 0;
    for (int i = 0; i < list.count && status >= 0 && finite; i++) {
        iso_tensor *value;
        status = iso_parameter_value(list.item[i], &value);
        if (status >= 0) status = is_finite(value, &finite);
        if (status >= 0 && !finite) snprintf(name, room, "%s", list.name[i]);
    }
    iso_parameter_list_destroy(&list);
    return status;
}
