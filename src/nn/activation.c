// SPDX-License-Identifier: MIT
// Layers without parameters that act on each element or row: relu, tanh, sigmoid, gelu, silu, leaky
// relu, elu, softmax and its logarithm.
#include "nn/nn_impl.h"

#include <math.h>

// ---- ReLU: for places where no layer before it can fuse it -------------------------------------

static iso_status relu_forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim, in->shape, in->layout));
    *out = call->out;
    return iso__kernels(call->in)->relu_forward(self->device, in, call->out);
}

static iso_status relu_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                      iso_tensor **grad_in) {
    *grad_in = grad_out; // in place: grad_out is ours to consume
    return iso__kernels(call->in)->relu_backward(self->device, call->out, grad_out, grad_out);
}

static const iso_module_ops relu_ops = {
    .type = "ReLU",
    .forward = relu_forward,
    .backward_input = relu_backward_input,
    .takes_half = true,
    .keeps_parameters = true,
};

bool iso__module_is_relu(const iso_module *module) { return module->ops == &relu_ops; }

iso_status iso_relu_create(iso_device *device, iso_module **out) {
    return iso__module_new(sizeof(iso_module), &relu_ops, device, out);
}

// ---- LogSoftmax --------------------------------------------------------------------------------

static iso_status log_softmax_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                      iso_tensor **out) {
    if (in->ndim != 2) return iso__shape_error(self, in, "[N, K]");
    ISO_TRY(iso_call_tensor(self, &call->out, 2, in->shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    return iso__kernels(call->in)->log_softmax_forward(self->device, in, call->out);
}

static iso_status log_softmax_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                             iso_tensor **grad_in) {
    ISO_TRY(iso_call_tensor(self, &call->grad_in, 2, call->in->shape, ISO_LAYOUT_LOGICAL));
    *grad_in = call->grad_in;
    return iso__kernels(call->in)->log_softmax_backward(self->device, call->out, grad_out,
                                                        call->grad_in);
}

static const iso_module_ops log_softmax_ops = {
    .type = "LogSoftmax",
    .forward = log_softmax_forward,
    .backward_input = log_softmax_backward_input,
    .takes_half = true,
    .keeps_parameters = true,
};

iso_status iso_log_softmax_create(iso_device *device, iso_module **out) {
    return iso__module_new(sizeof(iso_module), &log_softmax_ops, device, out);
}

// ---- Softmax -----------------------------------------------------------------------------------

static iso_status softmax_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                  iso_tensor **out) {
    iso_tensor *x;
    if (in->ndim < 1) return iso__shape_error(self, in, "[..., K]");
    ISO_TRY(iso__call_layout(self, &call->aux[0], ISO_LAYOUT_LOGICAL, in, &x));
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim, in->shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    return iso__kernels(in)->softmax_forward(self->device, x, call->out);
}

static iso_status softmax_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                         iso_tensor **grad_in) {
    ISO_TRY(iso__kernels(call->in)->softmax_backward(self->device, call->out, grad_out, grad_out));
    return iso__call_layout(self, &call->grad_in, call->in->layout, grad_out, grad_in);
}

static const iso_module_ops softmax_ops = {
    .type = "Softmax",
    .forward = softmax_forward,
    .backward_input = softmax_backward_input,
    .takes_half = true,
    .keeps_parameters = true,
};

iso_status iso_softmax_create(iso_device *device, iso_module **out) {
    return iso__module_new(sizeof(iso_module), &softmax_ops, device, out);
}

// ---- Tanh, sigmoid, gelu, silu, leaky relu, elu -------------------------------------------------

typedef struct unary {
    iso_module base;
    iso__unary function;
    double alpha;
} unary;

static iso_status unary_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                iso_tensor **out) {
    const unary *l = iso_container_of(self, unary, base);
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim, in->shape, in->layout));
    *out = call->out;
    return iso__kernels(in)->unary_forward(self->device, l->function, l->alpha, in, call->out);
}

static iso_status unary_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                       iso_tensor **grad_in) {
    const unary *l = iso_container_of(self, unary, base);
    bool from_output = l->function == ISO__TANH || l->function == ISO__SIGMOID;
    *grad_in = grad_out; // in place: grad_out is ours to consume
    return iso__kernels(call->in)->unary_backward(self->device, l->function, l->alpha,
                                                  from_output ? call->out : call->in, grad_out,
                                                  grad_out);
}

#define UNARY_OPS(name)                                                                            \
    {                                                                                              \
        .type = (name), .forward = unary_forward, .backward_input = unary_backward_input,          \
        .takes_half = true, .keeps_parameters = true                                               \
    }
static const iso_module_ops tanh_ops = UNARY_OPS("Tanh");
static const iso_module_ops sigmoid_ops = UNARY_OPS("Sigmoid");
static const iso_module_ops gelu_ops = UNARY_OPS("GELU");
static const iso_module_ops silu_ops = UNARY_OPS("SiLU");
static const iso_module_ops leaky_relu_ops = UNARY_OPS("LeakyReLU");
static const iso_module_ops elu_ops = UNARY_OPS("ELU");

static iso_status create_unary(iso_device *device, const iso_module_ops *ops, iso__unary function,
                               double alpha, iso_module **out) {
    iso_module *module;
    ISO_CHECK(isfinite(alpha), ISO_ERR_ARG, "the number of a %s is %g: give a finite one",
              ops->type, alpha);
    ISO_TRY(iso__module_new(sizeof(unary), ops, device, &module));
    iso_container_of(module, unary, base)->function = function;
    iso_container_of(module, unary, base)->alpha = alpha;
    *out = module;
    return ISO_OK;
}

iso_status iso_tanh_create(iso_device *device, iso_module **out) {
    return create_unary(device, &tanh_ops, ISO__TANH, 0, out);
}

iso_status iso_sigmoid_create(iso_device *device, iso_module **out) {
    return create_unary(device, &sigmoid_ops, ISO__SIGMOID, 0, out);
}

iso_status iso_gelu_create(iso_device *device, bool approximate, iso_module **out) {
    return create_unary(device, &gelu_ops, approximate ? ISO__GELU_TANH : ISO__GELU, 0, out);
}

iso_status iso_silu_create(iso_device *device, iso_module **out) {
    return create_unary(device, &silu_ops, ISO__SILU, 0, out);
}

iso_status iso_leaky_relu_create(iso_device *device, double negative_slope, iso_module **out) {
    return create_unary(device, &leaky_relu_ops, ISO__LEAKY_RELU, negative_slope, out);
}

iso_status iso_elu_create(iso_device *device, double alpha, iso_module **out) {
    return create_unary(device, &elu_ops, ISO__ELU, alpha, out);
}
