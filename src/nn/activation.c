// Layers without parameters that act on each element or row: relu and log-softmax.
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
};

iso_status iso_log_softmax_create(iso_device *device, iso_module **out) {
    return iso__module_new(sizeof(iso_module), &log_softmax_ops, device, out);
}
