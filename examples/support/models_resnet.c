// SPDX-License-Identifier: MIT
// Builds ResNet-18 (He et al., CVPR 2016) with torchvision's structure, names and initial values.
#include "models.h"
#include "try.h"

// What every part of the network is built with.
typedef struct builder {
    iso_device *device;
    iso_rng *rng;
} builder;

// ---- Layers -------------------------------------------------------------------------------------

typedef struct conv_shape {
    int64_t in, out, size, stride;
} conv_shape;

static iso_status add_conv(const builder *b, iso_module *to, const char *name, conv_shape shape) {
    int64_t padding = (shape.size - 1) / 2;
    iso_conv2d_config config = {.in_channels = shape.in,
                                .out_channels = shape.out,
                                .kernel_size = {shape.size, shape.size},
                                .stride = {shape.stride, shape.stride},
                                .padding = {padding, padding},
                                .no_bias = true};
    iso_module *conv;
    TRY(iso_conv2d_create(b->device, &config, b->rng, &conv));
    iso_status status = iso_init_kaiming_normal(conv->parameter[0], ISO_FAN_OUT, b->rng);
    if (status < 0) {
        iso_module_destroy(&conv);
        return status;
    }
    return iso_sequential_add_take(to, name, conv);
}

static iso_status add_norm(const builder *b, iso_module *to, const char *name, int64_t channels) {
    iso_batch_norm_config config = {.num_features = channels};
    iso_module *norm;
    TRY(iso_batch_norm2d_create(b->device, &config, &norm));
    return iso_sequential_add_take(to, name, norm);
}

static iso_status add_relu(const builder *b, iso_module *to) {
    iso_module *relu;
    TRY(iso_relu_create(b->device, &relu));
    return iso_sequential_add_take(to, "relu", relu);
}

// ---- Blocks -------------------------------------------------------------------------------------

static iso_status fill_body(const builder *b, iso_module *body, conv_shape first) {
    conv_shape second = {first.out, first.out, 3, 1};
    TRY(add_conv(b, body, "conv1", first));
    TRY(add_norm(b, body, "bn1", first.out));
    TRY(add_relu(b, body));
    TRY(add_conv(b, body, "conv2", second));
    return add_norm(b, body, "bn2", first.out);
}

static iso_status fill_shortcut(const builder *b, iso_module *shortcut, conv_shape first) {
    conv_shape projection = {first.in, first.out, 1, first.stride};
    TRY(add_conv(b, shortcut, "0", projection));
    return add_norm(b, shortcut, "1", first.out);
}

// BasicBlock: two convolutions and a shortcut, which is a projection where the shape changes.
static iso_status add_block(const builder *b, iso_module *to, conv_shape first) {
    iso_module *body = NULL, *shortcut = NULL, *block = NULL;
    bool projects = first.stride != 1 || first.in != first.out;
    iso_status status = iso_sequential_create(b->device, &body);
    if (status >= 0 && projects) status = iso_sequential_create(b->device, &shortcut);
    if (status >= 0) status = fill_body(b, body, first);
    if (status >= 0 && projects) status = fill_shortcut(b, shortcut, first);
    if (status < 0) {
        iso_module_destroy(&body);
        iso_module_destroy(&shortcut);
        return status;
    }
    TRY(iso_residual_create_take(b->device, body, shortcut, true, &block));
    return iso_sequential_add_take(to, NULL, block);
}

static iso_status add_stage(const builder *b, iso_module *net, const char *name, conv_shape first) {
    iso_module *stage;
    conv_shape second = {first.out, first.out, 3, 1};
    TRY(iso_sequential_create(b->device, &stage));
    iso_status status = add_block(b, stage, first);
    if (status >= 0) status = add_block(b, stage, second);
    if (status < 0) {
        iso_module_destroy(&stage);
        return status;
    }
    return iso_sequential_add_take(net, name, stage);
}

// ---- The network --------------------------------------------------------------------------------

// Of torchvision for images of 64 pixels and more; of the paper's section on CIFAR-10, one 3x3
// convolution that keeps the size, for smaller ones.
static iso_status add_stem(const builder *b, iso_module *net, const iso_dataset_info *data) {
    bool large = data->height >= 64 && data->width >= 64;
    conv_shape first = {data->channels, 64, large ? 7 : 3, large ? 2 : 1};
    TRY(add_conv(b, net, "conv1", first));
    TRY(add_norm(b, net, "bn1", 64));
    TRY(add_relu(b, net));
    if (!large) return ISO_OK;
    iso_pool2d_config config = {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    iso_module *pool;
    TRY(iso_pool2d_create(b->device, ISO_POOL_MAX, &config, &pool));
    return iso_sequential_add_take(net, "maxpool", pool);
}

static iso_status add_head(const builder *b, iso_module *net, int classes) {
    iso_module *layer;
    TRY(iso_adaptive_avg_pool2d_create(b->device, 1, 1, &layer));
    TRY(iso_sequential_add_take(net, "avgpool", layer));
    TRY(iso_flatten_create(b->device, &layer));
    TRY(iso_sequential_add_take(net, "flatten", layer));
    TRY(iso_linear_create(b->device, 512, classes, true, b->rng, &layer));
    return iso_sequential_add_take(net, "fc", layer);
}

static iso_status add_layers(const builder *b, iso_module *net, const iso_dataset_info *data) {
    TRY(add_stem(b, net, data));
    TRY(add_stage(b, net, "layer1", (conv_shape){64, 64, 3, 1}));
    TRY(add_stage(b, net, "layer2", (conv_shape){64, 128, 3, 2}));
    TRY(add_stage(b, net, "layer3", (conv_shape){128, 256, 3, 2}));
    TRY(add_stage(b, net, "layer4", (conv_shape){256, 512, 3, 2}));
    return add_head(b, net, data->classes);
}

iso_status model_resnet18(iso_device *device, const iso_dataset_info *data, iso_rng *rng,
                          iso_module **out) {
    builder b = {device, rng};
    iso_module *net;
    TRY(iso_sequential_create(device, &net));
    iso_status status = add_layers(&b, net, data);
    if (status < 0) {
        iso_module_destroy(&net);
        return status;
    }
    *out = net;
    return ISO_OK;
}
