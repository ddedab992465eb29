// SPDX-License-Identifier: MIT
// Models for a trainer of f64, of both types, and with a layer that has parameters of both.
#include "common/types_fixture.h"

#include "common/daso_fixture.h"
#include "nn/nn_impl.h"

#include <string.h>

static iso_status add_cast(iso_module *net, iso_device *device) {
    iso_module *cast;
    ISO_TRY(iso_cast_create(device, ISO_F64, &cast));
    return iso_sequential_add_take(net, "cast", cast);
}

typedef iso_status (*builder)(iso_device *device, bool dropout, iso_module **out);

// A network again, with a cast in front of the child called `first` and f64 from there on.
static iso_status build(iso_device *device, bool dropout, builder network, const char *first,
                        iso_module **out) {
    iso_module *net, *whole;
    bool wide = false;
    ISO_TRY(network(device, dropout, &whole));
    ISO_TRY(iso_sequential_create(device, &net));
    for (int i = 0; i < whole->child_count; i++) {
        if (strcmp(whole->child_name[i], first) == 0) {
            ISO_TRY(add_cast(net, device));
            wide = true;
        }
        if (wide) ISO_TRY(iso_module_to(whole->child[i], ISO_F64));
        ISO_TRY(
            iso_sequential_add_take(net, whole->child_name[i], iso_module_retain(whole->child[i])));
    }
    iso_module_destroy(&whole);
    *out = net;
    return ISO_OK;
}

iso_status build_wide(iso_device *device, bool dropout, iso_module **out) {
    return build(device, dropout, build_small_cnn, "conv1", out);
}

iso_status build_mixed(iso_device *device, bool dropout, iso_module **out) {
    return build(device, dropout, build_small_cnn, "pool", out);
}

iso_status build_smooth_wide(iso_device *device, bool dropout, iso_module **out) {
    return build(device, dropout, build_smooth, "conv1", out);
}

iso_status build_smooth_mixed(iso_device *device, bool dropout, iso_module **out) {
    return build(device, dropout, build_smooth, "flatten", out);
}

// ---- A layer of both types ------------------------------------------------------------------------

enum { FEATURES = 16 };

typedef struct affine {
    iso_module base;
    iso_parameter *scale, *shift;
} affine;

static iso_status forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    affine *l = iso_container_of(self, affine, base);
    const float *x = in->data, *scale = l->scale->value->data;
    const double *shift = l->shift->value->data;
    ISO_TRY(iso_call_tensor(self, &call->out, 2, in->shape, ISO_LAYOUT_LOGICAL));
    float *y = call->out->data;
    for (int64_t i = 0; i < in->count; i++)
        y[i] = (float)((double)x[i] * (double)scale[i % FEATURES] + shift[i % FEATURES]);
    *out = call->out;
    return ISO_OK;
}

static iso_status backward_params(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    affine *l = iso_container_of(self, affine, base);
    const float *x = call->in->data, *g = grad_out->data;
    float *scale = l->scale->grad->data;
    double *shift = l->shift->grad->data;
    for (int k = 0; k < FEATURES; k++) {
        scale[k] = l->scale->grad_valid ? scale[k] : 0;
        shift[k] = l->shift->grad_valid ? shift[k] : 0;
    }
    for (int64_t i = 0; i < grad_out->count; i++) {
        scale[i % FEATURES] += x[i] * g[i];
        shift[i % FEATURES] += (double)g[i];
    }
    return ISO_OK;
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    (void)call;
    const float *scale = iso_container_of(self, affine, base)->scale->value->data;
    float *g = grad_out->data;
    for (int64_t i = 0; i < grad_out->count; i++) g[i] *= scale[i % FEATURES];
    *grad_in = grad_out;
    return ISO_OK;
}

static const iso_module_ops affine_ops = {
    .type = "Affine",
    .forward = forward,
    .backward_params = backward_params,
    .backward_input = backward_input,
};

// As an author does it: other tensors in place of those that were made.
static iso_status make_wide(iso_device *device, iso_parameter *parameter) {
    iso_tensor **tensor[2] = {&parameter->value, &parameter->grad};
    for (int i = 0; i < 2; i++) {
        iso_tensor_destroy(tensor[i]);
        ISO_TRY(iso_tensor_create(device, ISO_F64, 1, (int64_t[]){FEATURES}, tensor[i]));
        ISO_TRY(iso_tensor_fill(*tensor[i], 0));
    }
    return ISO_OK;
}

static iso_status create_affine(iso_device *device, iso_module **out) {
    ISO_TRY(iso__module_new(sizeof(affine), &affine_ops, device, out));
    affine *l = iso_container_of(*out, affine, base);
    int64_t features = FEATURES;
    ISO_TRY(iso_module_add_parameter(*out, "scale", 1, &features, &l->scale));
    ISO_TRY(iso_module_add_parameter(*out, "shift", 1, &features, &l->shift));
    ISO_TRY(iso_tensor_fill(l->scale->value, 1));
    return make_wide(device, l->shift);
}

static iso_status add(iso_module *net, iso_status made, const char *name, iso_module **layer) {
    ISO_TRY(made);
    return iso_sequential_add_take(net, name, *layer);
}

iso_status build_both(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *net, *m = NULL;
    int64_t pixels = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(add(net, iso_flatten_create(device, &m), "flatten", &m));
    ISO_TRY(add(net, iso_linear_create(device, pixels, FEATURES, true, &rng, &m), "fc1", &m));
    ISO_TRY(add(net, create_affine(device, &m), "affine", &m));
    ISO_TRY(add(net, iso_relu_create(device, &m), "relu", &m));
    ISO_TRY(
        add(net, iso_linear_create(device, FEATURES, TRAINER_CLASSES, true, &rng, &m), "fc2", &m));
    *out = net;
    return ISO_OK;
}
