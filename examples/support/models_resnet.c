// SPDX-License-Identifier: MIT
// Builds ResNet-18 and ResNet-50 (He et al., CVPR 2016) with torchvision's structure, names and
// initial values.
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

static iso_status add_relu(const builder *b, iso_module *to, const char *name) {
    iso_module *relu;
    TRY(iso_relu_create(b->device, &relu));
    return iso_sequential_add_take(to, name, relu);
}

// ---- Blocks -------------------------------------------------------------------------------------

// The first block of a stage has its stride; the other ones change no shape.
typedef struct block_shape {
    int64_t in, width, stride;
    int64_t expansion; // channels of its result for each of `width`
} block_shape;

// BasicBlock: two 3x3 convolutions.
static iso_status fill_basic(const builder *b, iso_module *body, block_shape s) {
    TRY(add_conv(b, body, "conv1", (conv_shape){s.in, s.width, 3, s.stride}));
    TRY(add_norm(b, body, "bn1", s.width));
    TRY(add_relu(b, body, "relu"));
    TRY(add_conv(b, body, "conv2", (conv_shape){s.width, s.width, 3, 1}));
    return add_norm(b, body, "bn2", s.width);
}

// Bottleneck: 1x1, 3x3 and 1x1. The stride is in the 3x3 convolution, as in torchvision (the paper
// has it in the first one).
static iso_status fill_bottleneck(const builder *b, iso_module *body, block_shape s) {
    int64_t out = s.width * s.expansion;
    TRY(add_conv(b, body, "conv1", (conv_shape){s.in, s.width, 1, 1}));
    TRY(add_norm(b, body, "bn1", s.width));
    TRY(add_relu(b, body, "relu"));
    TRY(add_conv(b, body, "conv2", (conv_shape){s.width, s.width, 3, s.stride}));
    TRY(add_norm(b, body, "bn2", s.width));
    TRY(add_relu(b, body, "relu2"));
    TRY(add_conv(b, body, "conv3", (conv_shape){s.width, out, 1, 1}));
    return add_norm(b, body, "bn3", out);
}

static iso_status fill_body(const builder *b, iso_module *body, block_shape s) {
    return s.expansion == 1 ? fill_basic(b, body, s) : fill_bottleneck(b, body, s);
}

static iso_status fill_shortcut(const builder *b, iso_module *shortcut, block_shape s) {
    int64_t out = s.width * s.expansion;
    TRY(add_conv(b, shortcut, "0", (conv_shape){s.in, out, 1, s.stride}));
    return add_norm(b, shortcut, "1", out);
}

// A body and a shortcut, which is a projection where the shape changes.
static iso_status add_block(const builder *b, iso_module *to, block_shape s) {
    iso_module *body = NULL, *shortcut = NULL, *block = NULL;
    bool projects = s.stride != 1 || s.in != s.width * s.expansion;
    iso_status status = iso_sequential_create(b->device, &body);
    if (status >= 0 && projects) status = iso_sequential_create(b->device, &shortcut);
    if (status >= 0) status = fill_body(b, body, s);
    if (status >= 0 && projects) status = fill_shortcut(b, shortcut, s);
    if (status < 0) {
        iso_module_destroy(&body);
        iso_module_destroy(&shortcut);
        return status;
    }
    TRY(iso_residual_create_take(b->device, body, shortcut, true, &block));
    return iso_sequential_add_take(to, NULL, block);
}

static iso_status add_stage(const builder *b, iso_module *net, const char *name, int blocks,
                            block_shape s) {
    iso_module *stage;
    TRY(iso_sequential_create(b->device, &stage));
    iso_status status = ISO_OK;
    for (int i = 0; i < blocks && status >= 0; i++) {
        status = add_block(b, stage, s);
        s.in = s.width * s.expansion;
        s.stride = 1;
    }
    if (status < 0) {
        iso_module_destroy(&stage);
        return status;
    }
    return iso_sequential_add_take(net, name, stage);
}

// ---- The network --------------------------------------------------------------------------------

// For images of at least 64 pixels, torchvision's stem. For smaller ones, that of the paper's
// section on CIFAR-10: one 3x3 convolution that keeps the size.
static iso_status add_stem(const builder *b, iso_module *net, const iso_dataset_info *data) {
    bool large = data->height >= 64 && data->width >= 64;
    conv_shape first = {data->channels, 64, large ? 7 : 3, large ? 2 : 1};
    TRY(add_conv(b, net, "conv1", first));
    TRY(add_norm(b, net, "bn1", 64));
    TRY(add_relu(b, net, "relu"));
    if (!large) return ISO_OK;
    iso_pool2d_config config = {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    iso_module *pool;
    TRY(iso_pool2d_create(b->device, ISO_POOL_MAX, &config, &pool));
    return iso_sequential_add_take(net, "maxpool", pool);
}

static iso_status add_head(const builder *b, iso_module *net, int64_t features, int classes) {
    iso_module *layer;
    TRY(iso_adaptive_avg_pool2d_create(b->device, 1, 1, &layer));
    TRY(iso_sequential_add_take(net, "avgpool", layer));
    TRY(iso_flatten_create(b->device, &layer));
    TRY(iso_sequential_add_take(net, "flatten", layer));
    TRY(iso_linear_create(b->device, features, classes, true, b->rng, &layer));
    return iso_sequential_add_take(net, "fc", layer);
}

typedef struct resnet_kind {
    int blocks[4]; // of each stage
    int64_t expansion;
} resnet_kind;

static iso_status add_layers(const builder *b, iso_module *net, const resnet_kind *kind,
                             const iso_dataset_info *data) {
    static const char *const stages[] = {"layer1", "layer2", "layer3", "layer4"};
    int64_t in = 64, width = 64;
    TRY(add_stem(b, net, data));
    for (int i = 0; i < 4; i++, width *= 2) {
        block_shape first = {in, width, i > 0 ? 2 : 1, kind->expansion};
        TRY(add_stage(b, net, stages[i], kind->blocks[i], first));
        in = width * kind->expansion;
    }
    return add_head(b, net, in, data->classes);
}

static iso_status create_resnet(const builder *b, const resnet_kind *kind,
                                const iso_dataset_info *data, iso_module **out) {
    iso_module *net;
    TRY(iso_sequential_create(b->device, &net));
    iso_status status = add_layers(b, net, kind, data);
    if (status < 0) {
        iso_module_destroy(&net);
        return status;
    }
    *out = net;
    return ISO_OK;
}

iso_status model_resnet18(iso_device *device, const iso_dataset_info *data, iso_rng *rng,
                          iso_module **out) {
    return create_resnet(&(builder){device, rng}, &(resnet_kind){{2, 2, 2, 2}, 1}, data, out);
}

iso_status model_resnet50(iso_device *device, const iso_dataset_info *data, iso_rng *rng,
                          iso_module **out) {
    return create_resnet(&(builder){device, rng}, &(resnet_kind){{3, 4, 6, 3}, 4}, data, out);
}
