// Builds a sequential from a list of layers, working out what each takes in.
#include "nn/nn_impl.h"

// What a layer gives for one sample.
typedef struct extent {
    bool flat;
    int64_t features;                // flat
    int64_t channels, height, width; // not flat
} extent;

static iso_status misfit(int i, const char *type, const extent *in) {
    if (in->flat)
        return ISO_FAIL(ISO_ERR_SHAPE, "layer %d, a %s, cannot take %lld features: it takes images",
                        i, type, (long long)in->features);
    return ISO_FAIL(ISO_ERR_SHAPE, "layer %d, a %s, cannot take %lld x %lld x %lld", i, type,
                    (long long)in->channels, (long long)in->height, (long long)in->width);
}

static iso_status make_linear(iso_device *device, const iso_layer *layer, int i, extent *x,
                              iso_rng *rng, iso_module **out) {
    if (!x->flat) return misfit(i, "Linear", x);
    int64_t in = x->features;
    x->features = layer->out;
    return iso_linear_create(device, in, layer->out, true, rng, out);
}

static iso_status make_conv2d(iso_device *device, const iso_layer *layer, int i, extent *x,
                              iso_rng *rng, iso_module **out) {
    int64_t size = layer->size;
    if (x->flat || x->height < size || x->width < size) return misfit(i, "Conv2d", x);
    iso_conv2d_config config = {x->channels, layer->out, .kernel_size = {size, size}};
    x->channels = layer->out;
    x->height -= size - 1;
    x->width -= size - 1;
    return iso_conv2d_create(device, &config, rng, out);
}

static iso_status make_max_pool2d(iso_device *device, const iso_layer *layer, int i, extent *x,
                                  iso_module **out) {
    int64_t size = layer->size;
    if (x->flat || x->height < size || x->width < size) return misfit(i, "MaxPool2d", x);
    ISO_TRY(iso_max_pool2d_create(device, size, size, out));
    x->height /= size;
    x->width /= size;
    return ISO_OK;
}

static iso_status make_flatten(iso_device *device, extent *x, iso_module **out) {
    if (!x->flat) x->features = x->channels * x->height * x->width;
    x->flat = true;
    return iso_flatten_create(device, out);
}

static iso_status make(iso_device *device, const iso_layer *layer, int i, extent *x, iso_rng *rng,
                       iso_module **out) {
    switch (layer->kind) {
    case ISO_LINEAR: return make_linear(device, layer, i, x, rng, out);
    case ISO_CONV2D: return make_conv2d(device, layer, i, x, rng, out);
    case ISO_MAX_POOL2D: return make_max_pool2d(device, layer, i, x, out);
    case ISO_FLATTEN: return make_flatten(device, x, out);
    case ISO_DROPOUT: return iso_dropout_create(device, layer->p, rng, out);
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
        ISO_TRY_GOTO(make(device, &layers[i], i, &x, rng, &layer));
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
