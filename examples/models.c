// Builds the two example networks, "mlp" and "cnn".
#include "models.h"

#include <string.h>

// A sequential under construction. After the first failure nothing more is added, so only the end
// is checked.
typedef struct builder {
    iso_module *net;
    iso_device *device;
    iso_rng *rng;
    iso_status status;
} builder;

static void add(builder *b, const char *name, iso_status created, iso_module *layer) {
    if (created == ISO_OK) created = iso_sequential_add_take(b->net, name, layer);
    if (b->status == ISO_OK) b->status = created;
}

static void add_linear(builder *b, const char *name, int64_t in, int64_t out) {
    iso_module *layer = NULL;
    if (b->status != ISO_OK) return;
    iso_status created = iso_linear_create(b->device, in, out, true, b->rng, &layer);
    add(b, name, created, layer);
}

static void add_conv3x3(builder *b, const char *name, int64_t in, int64_t out) {
    iso_module *layer = NULL;
    if (b->status != ISO_OK) return;
    iso_conv2d_config config = {.in_channels = in, .out_channels = out, .kernel_size = {3, 3}};
    iso_status created = iso_conv2d_create(b->device, &config, b->rng, &layer);
    add(b, name, created, layer);
}

static void add_relu(builder *b, const char *name) {
    iso_module *layer = NULL;
    if (b->status != ISO_OK) return;
    iso_status created = iso_relu_create(b->device, &layer);
    add(b, name, created, layer);
}

static void add_dropout(builder *b, const char *name, double p) {
    iso_module *layer = NULL;
    if (b->status != ISO_OK) return;
    iso_status created = iso_dropout_create(b->device, p, b->rng, &layer);
    add(b, name, created, layer);
}

static void add_flatten(builder *b) {
    iso_module *layer = NULL;
    if (b->status != ISO_OK) return;
    iso_status created = iso_flatten_create(b->device, &layer);
    add(b, "flatten", created, layer);
}

static void add_max_pool2(builder *b) {
    iso_module *layer = NULL;
    if (b->status != ISO_OK) return;
    iso_status created = iso_max_pool2d_create(b->device, 2, 2, &layer);
    add(b, "pool", created, layer);
}

static void build_mlp(builder *b, const iso_dataset_info *data) {
    add_flatten(b);
    add_linear(b, "fc1", data->channels * data->height * data->width, 512);
    add_relu(b, "relu1");
    add_linear(b, "fc2", 512, 512);
    add_relu(b, "relu2");
    add_linear(b, "fc3", 512, data->classes);
}

static void build_cnn(builder *b, const iso_dataset_info *data, bool dropout) {
    add_conv3x3(b, "conv1", data->channels, 32);
    add_relu(b, "relu1");
    add_conv3x3(b, "conv2", 32, 64);
    add_relu(b, "relu2");
    add_max_pool2(b);
    if (dropout) add_dropout(b, "dropout1", 0.25);
    add_flatten(b);
    add_linear(b, "fc1", 64 * ((data->height - 4) / 2) * ((data->width - 4) / 2), 128);
    add_relu(b, "relu3");
    if (dropout) add_dropout(b, "dropout2", 0.5);
    add_linear(b, "fc2", 128, data->classes);
}

// Two 3x3 convolutions and a pooling of 2 leave nothing of less than 6 pixels.
bool model_fits(const char *name, const iso_dataset_info *data) {
    return strcmp(name, "cnn") != 0 || (data->height >= 6 && data->width >= 6);
}

iso_status model_create(const char *name, iso_device *device, const iso_dataset_info *data,
                        bool dropout, iso_rng *rng, iso_module **out) {
    bool cnn = strcmp(name, "cnn") == 0;
    if (!cnn && strcmp(name, "mlp") != 0) return ISO_ERR_ARG;
    if (!model_fits(name, data)) return ISO_ERR_SHAPE;
    builder b = {.device = device, .rng = rng};
    b.status = iso_sequential_create(device, &b.net);
    if (b.status == ISO_OK && cnn) build_cnn(&b, data, dropout);
    if (b.status == ISO_OK && !cnn) build_mlp(&b, data);
    if (b.status == ISO_OK)
        *out = b.net;
    else
        iso_module_destroy(&b.net);
    return b.status;
}
