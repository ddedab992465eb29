// SPDX-License-Identifier: MIT
// The two-dimensional pooling layers: maxima, averages, and adaptive averages, whose windows are
// for an output of the given size.
#include "nn/nn_impl.h"

typedef struct pool2d {
    iso_module base;
    iso_pool2d_config config; // with stride filled in; unused by an adaptive pool
    int64_t out_size[2];      // of an adaptive pool
} pool2d;

static pool2d *pool2d_of(iso_module *self) { return iso_container_of(self, pool2d, base); }

// Gives the call an output tensor for windows of the config.
static iso_status make_out(iso_module *self, iso_call *call, const iso_tensor *in) {
    const iso_pool2d_config *c = &pool2d_of(self)->config;
    int64_t shape[4], least[2];
    for (int i = 0; i < 2; i++) {
        least[i] = c->kernel_size[i] - 2 * c->padding[i];
        if (least[i] < 1) least[i] = 1;
    }
    if (in->ndim != 4 || in->shape[2] < least[0] || in->shape[3] < least[1])
        return iso__shape_error(self, in, "[N, C, H, W] with H at least %lld and W at least %lld",
                                (long long)least[0], (long long)least[1]);
    for (int i = 0; i < 2; i++) {
        int64_t room = in->shape[2 + i] + 2 * c->padding[i] - c->kernel_size[i];
        shape[i] = in->shape[i];
        shape[2 + i] = room / c->stride[i] + 1;
    }
    return iso_call_tensor(self, &call->out, 4, shape, in->layout);
}

static iso_status make_grad_in(iso_module *self, iso_call *call, iso_tensor **grad_in) {
    ISO_TRY(iso_call_tensor(self, &call->grad_in, 4, call->in->shape, call->in->layout));
    *grad_in = call->grad_in;
    return ISO_OK;
}

// ---- Maxima -------------------------------------------------------------------------------------

// Gives the call a tensor for the device's notes on where each maximum was.
static iso_status make_workspace(iso_module *self, iso_call *call, void **out) {
    size_t bytes = iso__kernels(call->in)->max_pool2d_workspace(self->device, call->in, call->out);
    int64_t words = (int64_t)(bytes / sizeof(float)) + 1;
    ISO_TRY(iso__call_tensor_of(self, ISO_F32, &call->aux[0], 1, &words, ISO_LAYOUT_LOGICAL));
    *out = call->aux[0]->data;
    return ISO_OK;
}

// Whether the device can fuse a relu into the pooling, in forward and backward.
static bool can_fuse(iso_module *self, const iso_call *call) {
    const iso_pool2d_config *c = &pool2d_of(self)->config;
    return call->activation == ISO_ACT_RELU && iso__kernels(call->in)->max_pool2d_relu_forward &&
           (double)c->kernel_size[0] * (double)c->kernel_size[1] < 65536;
}

static iso_status max_forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    void *notes = NULL;
    ISO_TRY(make_out(self, call, in));
    if (self->training) ISO_TRY(make_workspace(self, call, &notes));
    *out = call->out;
    const iso_kernel_ops *kernels = iso__kernels(in);
    const iso_pool2d_config *c = &pool2d_of(self)->config;
    if (can_fuse(self, call))
        return kernels->max_pool2d_relu_forward(self->device, c, in, call->out, notes);
    ISO_TRY(kernels->max_pool2d_forward(self->device, c, in, call->out, notes));
    if (call->activation == ISO_ACT_NONE) return ISO_OK;
    return kernels->relu_forward(self->device, call->out, call->out);
}

static iso_status max_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                     iso_tensor **grad_in) {
    char label[ISO_LABEL_ROOM];
    ISO_CHECK(call->number > 0, ISO_ERR_STATE,
              "backward of %s, whose forward was in evaluation mode",
              iso__module_label(self, label));
    if (!can_fuse(self, call)) ISO_TRY(iso__undo_activation(self, call, grad_out));
    ISO_TRY(make_grad_in(self, call, grad_in));
    return iso__kernels(call->in)->max_pool2d_backward(self->device, &pool2d_of(self)->config,
                                                       grad_out, call->aux[0]->data, call->grad_in);
}

static const iso_module_ops max_pool2d_ops = {
    .type = "MaxPool2d",
    .forward = max_forward,
    .backward_input = max_backward_input,
    .fuses_relu = true,
    .relu_commutes = true,
    .takes_half = true,
    .keeps_parameters = true,
};

// ---- Averages -----------------------------------------------------------------------------------

static iso_status avg_forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    ISO_TRY(make_out(self, call, in));
    *out = call->out;
    return iso__kernels(in)->avg_pool2d_forward(self->device, &pool2d_of(self)->config, in,
                                                call->out);
}

static iso_status avg_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                     iso_tensor **grad_in) {
    ISO_TRY(make_grad_in(self, call, grad_in));
    return iso__kernels(call->in)->avg_pool2d_backward(self->device, &pool2d_of(self)->config,
                                                       grad_out, call->grad_in);
}

static const iso_module_ops avg_pool2d_ops = {
    .type = "AvgPool2d",
    .forward = avg_forward,
    .backward_input = avg_backward_input,
    .takes_half = true,
    .keeps_parameters = true,
};

static iso_status adaptive_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                   iso_tensor **out) {
    const int64_t *size = pool2d_of(self)->out_size;
    if (in->ndim != 4 || in->shape[2] < 1 || in->shape[3] < 1)
        return iso__shape_error(self, in, "[N, C, H, W]");
    int64_t shape[4] = {in->shape[0], in->shape[1], size[0], size[1]};
    ISO_TRY(iso_call_tensor(self, &call->out, 4, shape, in->layout));
    *out = call->out;
    return iso__kernels(in)->adaptive_avg_pool2d_forward(self->device, in, call->out);
}

static iso_status adaptive_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                          iso_tensor **grad_in) {
    ISO_TRY(make_grad_in(self, call, grad_in));
    return iso__kernels(call->in)->adaptive_avg_pool2d_backward(self->device, grad_out,
                                                                call->grad_in);
}

static const iso_module_ops adaptive_avg_pool2d_ops = {
    .type = "AdaptiveAvgPool2d",
    .forward = adaptive_forward,
    .backward_input = adaptive_backward_input,
    .takes_half = true,
    .keeps_parameters = true,
};

// ---- Creation -----------------------------------------------------------------------------------

static iso_status check_config(const char *what, const iso_pool2d_config *c) {
    for (int i = 0; i < 2; i++) {
        ISO_CHECK(c->kernel_size[i] > 0 && c->stride[i] >= 0 && c->padding[i] >= 0, ISO_ERR_ARG,
                  "%s with window %lld, stride %lld and padding %lld: the window must be at "
                  "least 1, the others must not be negative",
                  what, (long long)c->kernel_size[i], (long long)c->stride[i],
                  (long long)c->padding[i]);
        ISO_CHECK(2 * c->padding[i] <= c->kernel_size[i], ISO_ERR_ARG,
                  "%s with window %lld and padding %lld: the padding must be at most half the "
                  "window",
                  what, (long long)c->kernel_size[i], (long long)c->padding[i]);
    }
    return ISO_OK;
}

iso_status iso_pool2d_create(iso_device *device, iso_pool_kind kind,
                             const iso_pool2d_config *config, iso_module **out) {
    ISO_CHECK(kind == ISO_POOL_MAX || kind == ISO_POOL_AVG, ISO_ERR_ARG,
              "pooling of kind %d does not exist", (int)kind);
    const iso_module_ops *ops = kind == ISO_POOL_MAX ? &max_pool2d_ops : &avg_pool2d_ops;
    iso_module *module;
    ISO_TRY(check_config(kind == ISO_POOL_MAX ? "a MaxPool2d" : "an AvgPool2d", config));
    ISO_TRY(iso__module_new(sizeof(pool2d), ops, device, &module));
    iso_pool2d_config *c = &pool2d_of(module)->config;
    *c = *config;
    for (int i = 0; i < 2; i++)
        if (c->stride[i] == 0) c->stride[i] = c->kernel_size[i];
    *out = module;
    return ISO_OK;
}

iso_status iso_max_pool2d_create(iso_device *device, int64_t window, int64_t stride,
                                 iso_module **out) {
    ISO_CHECK(window > 0 && stride > 0, ISO_ERR_ARG,
              "a MaxPool2d with window %lld and stride %lld: both must be at least 1",
              (long long)window, (long long)stride);
    const iso_pool2d_config config = {.kernel_size = {window, window}, .stride = {stride, stride}};
    return iso_pool2d_create(device, ISO_POOL_MAX, &config, out);
}

iso_status iso_adaptive_avg_pool2d_create(iso_device *device, int64_t out_height, int64_t out_width,
                                          iso_module **out) {
    ISO_CHECK(out_height > 0 && out_width > 0, ISO_ERR_ARG,
              "an AdaptiveAvgPool2d to %lld x %lld: both must be at least 1", (long long)out_height,
              (long long)out_width);
    iso_module *module;
    ISO_TRY(iso__module_new(sizeof(pool2d), &adaptive_avg_pool2d_ops, device, &module));
    pool2d_of(module)->out_size[0] = out_height;
    pool2d_of(module)->out_size[1] = out_width;
    *out = module;
    return ISO_OK;
}
