// SPDX-License-Identifier: MIT
// Builds a sequential from a list of layers, working out what each takes in.
#include "nn/nn_impl.h"

#include <string.h>

// What a layer gives for one sample.
typedef struct extent {
    bool flat;
    int64_t features;                // flat
    int64_t channels, height, width; // not flat
} extent;

static iso_status fail_misfit(int i, const char *type, const extent *in) {
    const char *article = strchr("AEIOU", type[0]) ? "an" : "a";
    if (in->flat)
        return ISO_FAIL(ISO_ERR_SHAPE,
                        "layer %d, %s %s, cannot take %lld feature%s: it takes images", i, article,
                        type, (long long)in->features, ISO_PLURAL(in->features));
    return ISO_FAIL(ISO_ERR_SHAPE, "layer %d, %s %s, cannot take %lld x %lld x %lld", i, article,
                    type, (long long)in->channels, (long long)in->height, (long long)in->width);
}

static iso_status make_linear(iso_device *device, const iso_layer *layer, int i, extent *x,
                              iso_rng *rng, iso_module **out) {
    if (!x->flat) return fail_misfit(i, "Linear", x);
    int64_t in = x->features;
    x->features = layer->out;
    return iso_linear_create(device, in, layer->out, true, rng, out);
}

// How often a kernel or window fits along a side.
static int64_t count_places(const iso_layer *layer, int64_t side, int64_t stride) {
    return (side + 2 * layer->padding - layer->size) / stride + 1;
}

static bool does_fit(const iso_layer *layer, const extent *x) {
    int64_t least = layer->size - 2 * layer->padding;
    return !x->flat && x->height >= least && x->width >= least;
}

static iso_status make_conv2d(iso_device *device, const iso_layer *layer, int i, extent *x,
                              iso_rng *rng, iso_module **out) {
    int64_t size = layer->size, stride = layer->stride ? layer->stride : 1;
    if (!does_fit(layer, x)) return fail_misfit(i, "Conv2d", x);
    iso_conv2d_config config = {x->channels, layer->out, .kernel_size = {size, size},
                                .stride = {stride, stride},
                                .padding = {layer->padding, layer->padding}};
    ISO_TRY(iso_conv2d_create(device, &config, rng, out));
    x->channels = layer->out;
    x->height = count_places(layer, x->height, stride);
    x->width = count_places(layer, x->width, stride);
    return ISO_OK;
}

static iso_status make_pool2d(iso_device *device, const iso_layer *layer, int i, extent *x,
                              iso_module **out) {
    bool max = layer->kind == ISO_MAX_POOL2D;
    int64_t size = layer->size, stride = layer->stride ? layer->stride : size;
    if (!does_fit(layer, x)) return fail_misfit(i, max ? "MaxPool2d" : "AvgPool2d", x);
    iso_pool2d_config config = {.kernel_size = {size, size},
                                .stride = {stride, stride},
                                .padding = {layer->padding, layer->padding}};
    ISO_TRY(iso_pool2d_create(device, max ? ISO_POOL_MAX : ISO_POOL_AVG, &config, out));
    x->height = count_places(layer, x->height, stride);
    x->width = count_places(layer, x->width, stride);
    return ISO_OK;
}

static iso_status make_adaptive_avg_pool2d(iso_device *device, const iso_layer *layer, int i,
                                           extent *x, iso_module **out) {
    if (x->flat) return fail_misfit(i, "AdaptiveAvgPool2d", x);
    x->height = x->width = layer->size;
    return iso_adaptive_avg_pool2d_create(device, layer->size, layer->size, out);
}

static iso_status make_flatten(iso_device *device, extent *x, iso_module **out) {
    if (!x->flat) x->features = x->channels * x->height * x->width;
    x->flat = true;
    return iso_flatten_create(device, out);
}

static iso_status make_batch_norm(iso_device *device, const extent *x, iso_module **out) {
    iso_batch_norm_config config = {.num_features = x->flat ? x->features : x->channels};
    return x->flat ? iso_batch_norm1d_create(device, &config, out)
                   : iso_batch_norm2d_create(device, &config, out);
}

static iso_status make_layer_norm(iso_device *device, const extent *x, iso_module **out) {
    iso_layer_norm_config flat = {.ndim = 1, .normalized_shape = {x->features}};
    iso_layer_norm_config image = {.ndim = 3,
                                   .normalized_shape = {x->channels, x->height, x->width}};
    return iso_layer_norm_create(device, x->flat ? &flat : &image, out);
}

static iso_status make_layer(iso_device *device, const iso_layer *layer, int i, extent *x,
                             iso_rng *rng, iso_module **out);

static bool same_extent(const extent *a, const extent *b) {
    if (a->flat || b->flat) return a->flat && b->flat && a->features == b->features;
    return a->channels == b->channels && a->height == b->height && a->width == b->width;
}

static iso_status add_alternatives(iso_device *device, const iso_layer *layer, int i, extent *x,
                                   iso_rng *rng, iso_module *choice) {
    const extent before = *x;
    for (int k = 0; k < layer->alternative_count; k++) {
        const iso_layer *one = &layer->alternatives[k];
        extent after = before;
        iso_module *module;
        ISO_CHECK(!one->relu, ISO_ERR_ARG,
                  "layer %d, a Choice, has an alternative %d with a relu: add it as a layer behind "
                  "the Choice",
                  i, k);
        ISO_TRY(make_layer(device, one, i, &after, rng, &module));
        ISO_TRY(iso_choice_add_take(choice, one->name, module));
        ISO_CHECK(k == 0 || same_extent(&after, x), ISO_ERR_SHAPE,
                  "layer %d, a Choice, has alternatives of different shapes: number %d does not "
                  "give that of number 0",
                  i, k);
        *x = after;
    }
    return ISO_OK;
}

static iso_status make_choice(iso_device *device, const iso_layer *layer, int i, extent *x,
                              iso_rng *rng, iso_module **out) {
    iso_module *choice;
    ISO_CHECK(layer->alternative_count > 0 && layer->alternatives, ISO_ERR_ARG,
              "layer %d, a Choice, has no alternatives", i);
    ISO_TRY(iso_choice_create(device, &choice));
    iso_status status = add_alternatives(device, layer, i, x, rng, choice);
    if (status < 0) iso_module_destroy(&choice);
    ISO_TRY(status);
    *out = choice;
    return ISO_OK;
}

static iso_status make_layer(iso_device *device, const iso_layer *layer, int i, extent *x,
                             iso_rng *rng, iso_module **out) {
    switch (layer->kind) {
    case ISO_LINEAR: return make_linear(device, layer, i, x, rng, out);
    case ISO_CONV2D: return make_conv2d(device, layer, i, x, rng, out);
    case ISO_MAX_POOL2D:
    case ISO_AVG_POOL2D: return make_pool2d(device, layer, i, x, out);
    case ISO_ADAPTIVE_AVG_POOL2D: return make_adaptive_avg_pool2d(device, layer, i, x, out);
    case ISO_FLATTEN: return make_flatten(device, x, out);
    case ISO_DROPOUT: return iso_dropout_create(device, layer->p, rng, out);
    case ISO_BATCH_NORM: return make_batch_norm(device, x, out);
    case ISO_LAYER_NORM: return make_layer_norm(device, x, out);
    case ISO_TANH: return iso_tanh_create(device, out);
    case ISO_SIGMOID: return iso_sigmoid_create(device, out);
    case ISO_GELU: return iso_gelu_create(device, false, out);
    case ISO_SILU: return iso_silu_create(device, out);
    case ISO_LEAKY_RELU: return iso_leaky_relu_create(device, 0.01, out);
    case ISO_ELU: return iso_elu_create(device, 1, out);
    case ISO_RELU: return iso_relu_create(device, out);
    case ISO_CHOICE: return make_choice(device, layer, i, x, rng, out);
    }
    return ISO_FAIL(ISO_ERR_ARG, "layer %d has a kind that does not exist (%d)", i,
                    (int)layer->kind);
}

iso_status iso_sequential_build(iso_device *device, const int64_t sample[3],
                                const iso_layer *layers, int count, iso_rng *rng,
                                iso_module **out) {
    iso_status status;
    iso_module *net;
    extent x = {.channels = sample[0], .height = sample[1], .width = sample[2]};
    ISO_TRY(iso_sequential_create(device, &net));
    for (int i = 0; i < count; i++) {
        iso_module *layer;
        ISO_TRY_GOTO(make_layer(device, &layers[i], i, &x, rng, &layer));
        ISO_TRY_GOTO(iso_sequential_add_take(net, layers[i].name, layer));
        if (!layers[i].relu) continue;
        ISO_TRY_GOTO(iso_relu_create(device, &layer));
        ISO_TRY_GOTO(iso_sequential_add_take(net, NULL, layer));
    }
    *out = net;
    return ISO_OK;
fail:
    iso_module_destroy(&net);
    return status;
}
