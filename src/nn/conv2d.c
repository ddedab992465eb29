// SPDX-License-Identifier: MIT
// The two-dimensional convolution layer.
#include "nn/nn_impl.h"

typedef struct conv2d {
    iso_module base;
    iso_conv2d_config config;     // with stride, dilation and groups filled in
    iso_parameter *weight, *bias; // bias NULL: none
    // The parameters in 16 bits, of the latest forwards in these. On a device with memory of its
    // own the weight has the layout of the output.
    iso__rounded rounded;
} conv2d;

// How far the kernel reaches along an axis.
static int64_t kernel_reach(const iso_conv2d_config *c, int axis) {
    return c->dilation[axis] * (c->kernel_size[axis] - 1) + 1;
}

static int64_t out_size(const iso_conv2d_config *c, const iso_tensor *in, int axis) {
    int64_t room = in->shape[2 + axis] + 2 * c->padding[axis] - kernel_reach(c, axis);
    return room < 0 ? 0 : room / c->stride[axis] + 1;
}

static iso_status shape_error(iso_module *self, const iso_tensor *in) {
    const iso_conv2d_config *c = &iso_container_of(self, conv2d, base)->config;
    int64_t h = kernel_reach(c, 0) - 2 * c->padding[0], w = kernel_reach(c, 1) - 2 * c->padding[1];
    if (in->ndim != 4 || in->shape[1] != c->in_channels)
        return iso__shape_error(self, in, "[N, %lld, H, W]", (long long)c->in_channels);
    return iso__shape_error(self, in, "[N, %lld, H, W] with H at least %lld and W at least %lld",
                            (long long)c->in_channels, (long long)(h > 1 ? h : 1),
                            (long long)(w > 1 ? w : 1));
}

static iso_status forward_conv2d(iso_module *self, iso_call *call, iso_tensor *in,
                                 iso_tensor **out) {
    conv2d *l = iso_container_of(self, conv2d, base);
    const iso_conv2d_config *c = &l->config;
    iso_device *device = self->device;
    if (in->ndim != 4 || in->shape[1] != c->in_channels) return shape_error(self, in);
    int64_t shape[4] = {in->shape[0], c->out_channels, out_size(c, in, 0), out_size(c, in, 1)};
    if (shape[2] < 1 || shape[3] < 1) return shape_error(self, in);
    ISO_TRY(iso_call_tensor(self, &call->out, 4, shape,
                            device->ops->preferred_layout(device, in->dtype, 4, shape)));
    *out = call->out;
    iso__values v;
    iso_layout layout = device->ops->host_memory ? ISO_LAYOUT_LOGICAL : call->out->layout;
    ISO_TRY(iso__call_values(self, layout, l->weight, l->bias, &l->rounded, &v));
    return iso__kernels(in)->conv2d_forward(device, c, in, v.weight, v.bias, call->activation,
                                            call->out);
}

static iso_status backward_params(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    conv2d *l = iso_container_of(self, conv2d, base);
    iso_parameter *w = l->weight, *b = l->bias;
    iso_tensor *dw = w->requires_grad ? w->grad : NULL, *db = NULL;
    ISO_TRY(iso__undo_activation_and_bias(self, call, grad_out, b, &db));
    if (!dw && !db) return ISO_OK;
    return iso__kernels(call->in)->conv2d_backward_params(
        self->device, &l->config, call->in, grad_out, dw, w->grad_valid, db, b && b->grad_valid);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    conv2d *l = iso_container_of(self, conv2d, base);
    ISO_TRY(iso_call_tensor(self, &call->grad_in, 4, call->in->shape, call->in->layout));
    *grad_in = call->grad_in;
    const iso_tensor *w = iso__called_weight(self, l->weight, &l->rounded);
    return iso__kernels(call->in)->conv2d_backward_input(self->device, &l->config, grad_out, w,
                                                         call->grad_in);
}

static void take_tied(iso_module *self) {
    conv2d *l = iso_container_of(self, conv2d, base);
    l->weight = self->parameter[0];
    if (l->bias) l->bias = self->parameter[1];
}

static void drop_rounded(iso_module *self) {
    iso__rounded_destroy(&iso_container_of(self, conv2d, base)->rounded);
}

static const iso_module_ops conv2d_ops = {
    .type = "Conv2d",
    .forward = forward_conv2d,
    .backward_params = backward_params,
    .backward_input = backward_input,
    .tied = take_tied,
    .moved = drop_rounded,
    .destroy = drop_rounded,
    .fuses_relu = true,
    .takes_half = true,
    .half_parameters = true,
    .keeps_parameters = true,
};

iso__rounded *iso__conv2d_rounded(iso_module *module) {
    if (module->ops != &conv2d_ops) return NULL;
    return &iso_container_of(module, conv2d, base)->rounded;
}

static iso_status check_config(const iso_conv2d_config *c) {
    ISO_CHECK(c->in_channels > 0 && c->out_channels > 0, ISO_ERR_ARG,
              "a Conv2d of %lld to %lld channels: both must be at least 1",
              (long long)c->in_channels, (long long)c->out_channels);
    for (int i = 0; i < 2; i++)
        ISO_CHECK(
            c->kernel_size[i] > 0 && c->stride[i] >= 0 && c->padding[i] >= 0 && c->dilation[i] >= 0,
            ISO_ERR_ARG,
            "a Conv2d with kernel size %lld, stride %lld, padding %lld and dilation %lld: the "
            "kernel size must be at least 1, the others must not be negative",
            (long long)c->kernel_size[i], (long long)c->stride[i], (long long)c->padding[i],
            (long long)c->dilation[i]);
    ISO_CHECK(c->groups >= 0, ISO_ERR_ARG, "a Conv2d in %lld groups: it takes at least 1",
              (long long)c->groups);
    ISO_CHECK(c->groups <= 1 ||
                  (c->in_channels % c->groups == 0 && c->out_channels % c->groups == 0),
              ISO_ERR_ARG,
              "a Conv2d of %lld to %lld channels in %lld groups: both numbers of channels must be "
              "divisible by the number of groups",
              (long long)c->in_channels, (long long)c->out_channels, (long long)c->groups);
    return ISO_OK;
}

iso_status iso_conv2d_create(iso_device *device, const iso_conv2d_config *config, iso_rng *rng,
                             iso_module **out) {
    ISO_TRY(check_config(config));
    ISO_CHECK(rng, ISO_ERR_ARG, "a Conv2d needs a source of random numbers for its initial values");
    iso_module *module = NULL;
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(iso__module_new(sizeof(conv2d), &conv2d_ops, device, &module));
    conv2d *l = iso_container_of(module, conv2d, base);
    l->config = *config;
    iso_conv2d_config *c = &l->config;
    for (int i = 0; i < 2; i++) {
        if (c->stride[i] == 0) c->stride[i] = 1;
        if (c->dilation[i] == 0) c->dilation[i] = 1;
    }
    if (c->groups == 0) c->groups = 1;
    int64_t shape[4] = {c->out_channels, c->in_channels / c->groups, c->kernel_size[0],
                        c->kernel_size[1]};
    int64_t fan_in = shape[1] * shape[2] * shape[3];
    ISO_TRY_GOTO(iso_module_add_parameter(module, "weight", 4, shape, &l->weight));
    ISO_TRY_GOTO(iso__init_uniform(l->weight, fan_in, rng));
    if (!c->no_bias) {
        ISO_TRY_GOTO(iso_module_add_parameter(module, "bias", 1, shape, &l->bias));
        ISO_TRY_GOTO(iso__init_uniform(l->bias, fan_in, rng));
    }
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}
