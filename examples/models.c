// Builds the two example networks, "mlp" and "cnn".
#include "models.h"

#include <string.h>

enum { MOST_LAYERS = 8 };

typedef struct layer_list {
    iso_layer item[MOST_LAYERS];
    int count;
} layer_list;

static void add(layer_list *list, iso_layer layer) { list->item[list->count++] = layer; }

static void list_mlp(layer_list *list, int classes) {
    add(list, (iso_layer){.kind = ISO_FLATTEN, .name = "flatten"});
    add(list, (iso_layer){.kind = ISO_LINEAR, .out = 512, .relu = true, .name = "fc1"});
    add(list, (iso_layer){.kind = ISO_LINEAR, .out = 512, .relu = true, .name = "fc2"});
    add(list, (iso_layer){.kind = ISO_LINEAR, .out = classes, .name = "fc3"});
}

static void list_cnn(layer_list *list, int classes, bool dropout) {
    add(list, (iso_layer){.kind = ISO_CONV2D, .out = 32, .size = 3, .relu = true, .name = "conv1"});
    add(list, (iso_layer){.kind = ISO_CONV2D, .out = 64, .size = 3, .relu = true, .name = "conv2"});
    add(list, (iso_layer){.kind = ISO_MAX_POOL2D, .size = 2, .name = "pool"});
    if (dropout) add(list, (iso_layer){.kind = ISO_DROPOUT, .p = 0.25, .name = "dropout1"});
    add(list, (iso_layer){.kind = ISO_FLATTEN, .name = "flatten"});
    add(list, (iso_layer){.kind = ISO_LINEAR, .out = 128, .relu = true, .name = "fc1"});
    if (dropout) add(list, (iso_layer){.kind = ISO_DROPOUT, .p = 0.5, .name = "dropout2"});
    add(list, (iso_layer){.kind = ISO_LINEAR, .out = classes, .name = "fc2"});
}

// Two 3x3 convolutions and a pooling of 2 leave nothing of less than 6 pixels.
bool model_fits(const char *name, const iso_dataset_info *data) {
    return strcmp(name, "cnn") != 0 || (data->height >= 6 && data->width >= 6);
}

iso_status model_create(const char *name, iso_device *device, const iso_dataset_info *data,
                        bool dropout, iso_rng *rng, iso_module **out) {
    layer_list list = {.count = 0};
    int64_t sample[3] = {data->channels, data->height, data->width};
    if (strcmp(name, "cnn") == 0)
        list_cnn(&list, data->classes, dropout);
    else if (strcmp(name, "mlp") == 0)
        list_mlp(&list, data->classes);
    else
        return iso_error_set(ISO_ERR_ARG, "there is no model %s: use mlp or cnn", name);
    return iso_sequential_build(device, sample, list.item, list.count, rng, out);
}
