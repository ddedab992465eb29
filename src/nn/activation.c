// SPDX-License-Identifier: MIT
// Layers without parameters that act on each element or row: relu, tanh, sigmoid, gelu, softmax and
// its logarithm.
#include "nn/nn_impl.h"

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
    .takes_bf16 = true,
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
    .takes_bf16 = true,
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
    .takes_bf16 = true,
    .keeps_parameters = true,
};

iso_status iso_softmax_create(iso_device *device, iso_module **out) {
    return iso__module_new(sizeof(iso_module), &softmax_ops, device, out);
}

// ---- Tanh, sigmoid, gelu ------------------------------------------------------------------------

typedef struct unary {
    iso_module base;
    iso__unary function;
} unary;

static iso__unary function_of(const iso_module *self) {
    return iso_container_of(self, unary, base)->function;
}

static iso_status unary_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                iso_tensor **out) {
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim, in->shape, in->layout));
    *out = call->out;
    return iso__kernels(in)->unary_forward(self->device, function_of(self), in, call->out);
}

static iso_status unary_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                       iso_tensor **grad_in) {
    iso__unary function = function_of(self);
    bool from_input = function == ISO__GELU || function == ISO__GELU_TANH;
    *grad_in = grad_out; // in place: grad_out is ours to consume
    return iso__kernels(call->in)->unary_backward(
        self->device, function, from_input ? call->in : call->out, grad_out, grad_out);
}

#define UNARY_OPS(name)                                                                            \
    {                                                                                              \
        .type = (name), .forward = unary_forward, .backward_input = unary_backward_input,          \
        .takes_bf16 = true, .keeps_parameters = true                                               \
    }
static const iso_module_ops tanh_ops = UNARY_OPS("Tanh");
static const iso_module_ops sigmoid_ops = UNARY_OPS("Sigmoid");
static const iso_module_ops gelu_ops = UNARY_OPS("GELU");

static iso_status create_unary(iso_device *device, const iso_module_ops *ops, iso__unary function,
                               iso_module **out) {
    iso_module *module;
    ISO_TRY(iso__module_new(sizeof(unary), ops, device, &module));
    iso_container_of(module, unary, base)->function = function;
    *out = module;
    return ISO_OK;
}

iso_status iso_tanh_create(iso_device *device, iso_module **out) {
    return create_unary(device, &tanh_ops, ISO__TANH, out);
}

iso_status iso_sigmoid_create(iso_device *device, iso_module **out) {
    return create_unary(device, &sigmoid_ops, ISO__SIGMOID, out);
}

iso_status iso_gelu_create(iso_device *device, bool approximate, iso_module **out) {
    return create_unary(device, &gelu_ops, approximate ? ISO__GELU_TANH : ISO__GELU, out);
}
