// SPDX-License-Identifier: MIT
// The transposed two-dimensional convolution. Its forward is a convolution's backward to the input,
// and its backward is that convolution's forward.
#include "nn/nn_impl.h"

typedef struct conv_transpose2d {
    iso_module base;
    iso_conv2d_config conv; // from our output to our input
    int64_t output_padding[2];
    iso_parameter *weight, *bias; // bias NULL: none
    iso__rounded rounded;         // of the latest forwards in 16 bits
} conv_transpose2d;

static int64_t out_size(const conv_transpose2d *l, const iso_tensor *in, int axis) {
    const iso_conv2d_config *c = &l->conv;
    return (in->shape[2 + axis] - 1) * c->stride[axis] - 2 * c->padding[axis] +
           c->dilation[axis] * (c->kernel_size[axis] - 1) + l->output_padding[axis] + 1;
}

static iso_status forward_transposed(iso_module *self, iso_call *call, iso_tensor *in,
                                     iso_tensor **out) {
    conv_transpose2d *l = iso_container_of(self, conv_transpose2d, base);
    const iso_conv2d_config *c = &l->conv;
    if (in->ndim != 4 || in->shape[1] != c->out_channels)
        return iso__shape_error(self, in, "[N, %lld, H, W]", (long long)c->out_channels);
    int64_t shape[4] = {in->shape[0], c->in_channels, out_size(l, in, 0), out_size(l, in, 1)};
    if (shape[2] < 1 || shape[3] < 1)
        return iso__shape_error(self, in, "an input large enough for the padding");
    ISO_TRY(iso_call_tensor(self, &call->out, 4, shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    const iso_kernel_ops *kernels = iso__kernels(in);
    iso__values v;
    ISO_TRY(iso__call_values(self, ISO_LAYOUT_LOGICAL, l->weight, l->bias, &l->rounded, &v));
    ISO_TRY(kernels->conv2d_backward_input(self->device, c, in, v.weight, call->out));
    return v.bias ? kernels->add_bias(self->device, v.bias, call->out) : ISO_OK;
}

static iso_status backward_params(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    const conv_transpose2d *l = iso_container_of(self, conv_transpose2d, base);
    const iso_kernel_ops *kernels = iso__kernels(call->in);
    const iso_parameter *w = l->weight, *b = l->bias;
    if (b && b->requires_grad)
        ISO_TRY(kernels->bias_gradient(self->device, grad_out, b->grad, b->grad_valid));
    if (!w->requires_grad) return ISO_OK;
    return kernels->conv2d_backward_params(self->device, &l->conv, grad_out, call->in, w->grad,
                                           w->grad_valid, NULL, false);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    const conv_transpose2d *l = iso_container_of(self, conv_transpose2d, base);
    ISO_TRY(iso_call_tensor(self, &call->grad_in, 4, call->in->shape, call->in->layout));
    *grad_in = call->grad_in;
    const iso_tensor *w = iso__called_weight(self, l->weight, &l->rounded);
    return iso__kernels(call->in)->conv2d_forward(self->device, &l->conv, grad_out, w, NULL,
                                                  ISO_ACT_NONE, call->grad_in);
}

static void tie_transposed(iso_module *self) {
    conv_transpose2d *l = iso_container_of(self, conv_transpose2d, base);
    l->weight = self->parameter[0];
    if (l->bias) l->bias = self->parameter[1];
}

static void drop_rounded(iso_module *self) {
    iso__rounded_destroy(&iso_container_of(self, conv_transpose2d, base)->rounded);
}

static iso_status check_device(const iso_module *self, const iso_device *device) {
    return iso__check_kernel(device, device->kernels[ISO_F32]->add_bias, self->ops->type);
}

static const iso_module_ops conv_transpose2d_ops = {
    .type = "ConvTranspose2d",
    .forward = forward_transposed,
    .backward_params = backward_params,
    .backward_input = backward_input,
    .tied = tie_transposed,
    .moved = drop_rounded,
    .destroy = drop_rounded,
    .takes_half = true,
    .half_parameters = true,
    .runs_on = check_device,
    .keeps_parameters = true,
};

// ---- Creation -------------------------------------------------------------------------------------

static iso_status check_axis(const iso_conv2d_config *c, int64_t output_padding, int i) {
    ISO_CHECK(
        c->kernel_size[i] > 0 && c->stride[i] >= 0 && c->padding[i] >= 0 && c->dilation[i] >= 0,
        ISO_ERR_ARG,
        "a ConvTranspose2d with kernel size %lld, stride %lld, padding %lld and dilation %lld: the "
        "kernel size must be at least 1, the others must not be negative",
        (long long)c->kernel_size[i], (long long)c->stride[i], (long long)c->padding[i],
        (long long)c->dilation[i]);
    ISO_CHECK(output_padding >= 0 && output_padding < (c->stride[i] ? c->stride[i] : 1),
              ISO_ERR_ARG,
              "a ConvTranspose2d with output padding %lld and stride %lld: the output padding must "
              "be smaller than the stride, and not negative",
              (long long)output_padding, (long long)(c->stride[i] ? c->stride[i] : 1));
    return ISO_OK;
}

static iso_status check_config(const iso_conv_transpose2d_config *config) {
    const iso_conv2d_config *c = &config->conv;
    ISO_CHECK(c->in_channels > 0 && c->out_channels > 0 && c->groups >= 0, ISO_ERR_ARG,
              "a ConvTranspose2d of %lld to %lld channels in %lld groups: each must be at least 1",
              (long long)c->in_channels, (long long)c->out_channels, (long long)c->groups);
    ISO_CHECK(c->groups <= 1 ||
                  (c->in_channels % c->groups == 0 && c->out_channels % c->groups == 0),
              ISO_ERR_ARG,
              "a ConvTranspose2d of %lld to %lld channels in %lld groups: both numbers of channels "
              "must be divisible by the number of groups",
              (long long)c->in_channels, (long long)c->out_channels, (long long)c->groups);
    for (int i = 0; i < 2; i++) ISO_TRY(check_axis(c, config->output_padding[i], i));
    return ISO_OK;
}

// The convolution in the other direction.
static iso_conv2d_config reverse_of(const iso_conv2d_config *config) {
    iso_conv2d_config c = *config;
    c.in_channels = config->out_channels;
    c.out_channels = config->in_channels;
    for (int i = 0; i < 2; i++) {
        if (c.stride[i] == 0) c.stride[i] = 1;
        if (c.dilation[i] == 0) c.dilation[i] = 1;
    }
    if (c.groups == 0) c.groups = 1;
    return c;
}

iso_status iso_conv_transpose2d_create(iso_device *device,
                                       const iso_conv_transpose2d_config *config, iso_rng *rng,
                                       iso_module **out) {
    ISO_TRY(check_config(config));
    ISO_CHECK(rng, ISO_ERR_ARG,
              "a ConvTranspose2d needs a source of random numbers for its initial values");
    ISO_TRY(iso__check_kernel(device, device->kernels[ISO_F32]->add_bias, "ConvTranspose2d"));
    iso_module *module = NULL;
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(iso__module_new(sizeof(conv_transpose2d), &conv_transpose2d_ops, device, &module));
    conv_transpose2d *l = iso_container_of(module, conv_transpose2d, base);
    const iso_conv2d_config *c = &l->conv;
    l->conv = reverse_of(&config->conv);
    for (int i = 0; i < 2; i++) l->output_padding[i] = config->output_padding[i];
    int64_t shape[4] = {c->out_channels, c->in_channels / c->groups, c->kernel_size[0],
                        c->kernel_size[1]};
    int64_t fan_in = shape[1] * shape[2] * shape[3];
    ISO_TRY_GOTO(iso_module_add_parameter(module, "weight", 4, shape, &l->weight));
    ISO_TRY_GOTO(iso__init_uniform(l->weight, fan_in, rng));
    if (!c->no_bias) {
        ISO_TRY_GOTO(iso_module_add_parameter(module, "bias", 1, &c->in_channels, &l->bias));
        ISO_TRY_GOTO(iso__init_uniform(l->bias, fan_in, rng));
    }
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}
