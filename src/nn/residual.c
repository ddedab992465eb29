// SPDX-License-Identifier: MIT
// The residual container: the sum of what a body and a shortcut make of the same input.
#include "base/profiler.h"
#include "nn/nn_impl.h"

#include <isotherm/trace.h>

#include <string.h>

typedef struct residual {
    iso_module base; // children: body, then shortcut if there is one
    bool relu;
} residual;

static iso_module *body_of(const iso_module *self) { return self->child[0]; }
static iso_module *shortcut_of(const iso_module *self) { // NULL: the input itself
    return self->child_count > 1 ? self->child[1] : NULL;
}

// ---- Forward -----------------------------------------------------------------------------------

static iso_status check_sum(const iso_module *self, const iso_tensor *a, const iso_tensor *b) {
    char label[ISO_LABEL_ROOM], body[128], shortcut[128];
    ISO_CHECK(iso__tensor_same_shape(a, b), ISO_ERR_SHAPE,
              "%s: its body gives %s but its shortcut %s: a projection must bring them together",
              iso__module_label(self, label),
              iso__shape_text(a->ndim, a->shape, body, sizeof(body)),
              iso__shape_text(b->ndim, b->shape, shortcut, sizeof(shortcut)));
    ISO_CHECK(a->dtype == b->dtype, ISO_ERR_TYPE, "%s: its body gives %s but its shortcut %s",
              iso__module_label(self, label), iso_dtype_name(a->dtype), iso_dtype_name(b->dtype));
    return ISO_OK;
}

static iso_status add_tensors(iso_module *self, const iso_tensor *a, const iso_tensor *b,
                              iso_activation act, iso_tensor *sum, const char *what) {
    int64_t start = iso__span_begin(ISO_LANE_COMPUTE, what);
    iso_status status = iso__kernels(a)->add(self->device, a, b, act, sum);
    iso__span_end(ISO_LANE_COMPUTE, what, start);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status forward_residual(iso_module *self, iso_call *call, iso_tensor *in,
                                   iso_tensor **out) {
    residual *r = iso_container_of(self, residual, base);
    iso_tensor *a, *b = in;
    ISO_TRY(iso_module_call(body_of(self), ISO_ACT_NONE, in, &a));
    if (shortcut_of(self)) ISO_TRY(iso_module_call(shortcut_of(self), ISO_ACT_NONE, in, &b));
    ISO_TRY(check_sum(self, a, b));
    ISO_TRY(iso__call_tensor_of(self, a->dtype, &call->out, a->ndim, a->shape, a->layout));
    ISO_TRY(iso__call_layout(self, &call->aux[0], a->layout, b, &b));
    *out = call->out;
    return add_tensors(self, a, b, r->relu ? ISO_ACT_RELU : ISO_ACT_NONE, call->out,
                       "residual forward");
}

// ---- Backward ----------------------------------------------------------------------------------

// The dispatcher copies a gradient that is not in the layout of the child's output.
static bool copied_anyway(iso_module *child, const iso_tensor *grad) {
    const iso_call *last = iso__module_top_call(child);
    return last && last->result->layout != grad->layout;
}

// Children may overwrite their gradient, so this makes a second one if both need one. With a relu,
// both are first multiplied by its derivative.
static iso_status split_gradient(iso_module *self, iso_call *call, iso_tensor *grad_out, bool both,
                                 iso_tensor **second) {
    residual *r = iso_container_of(self, residual, base);
    const iso_kernel_ops *kernels = iso__kernels(grad_out);
    iso_device *device = self->device;
    *second = grad_out;
    if (!both)
        return r->relu ? kernels->relu_backward(device, call->out, grad_out, grad_out) : ISO_OK;
    ISO_TRY(iso__call_tensor_of(self, grad_out->dtype, &call->aux[1], grad_out->ndim,
                                grad_out->shape, grad_out->layout));
    *second = call->aux[1];
    if (r->relu) return kernels->relu_backward_copy(device, call->out, grad_out, call->aux[1]);
    return device->ops->copy(device, grad_out, call->aux[1]);
}

// The sum of both gradients of the input, in its layout.
static iso_status join_gradients(iso_module *self, iso_call *call, iso_tensor *a, iso_tensor *b,
                                 iso_tensor **grad_in) {
    const iso_layout layout = call->in->layout;
    ISO_TRY(iso__call_layout(self, &call->grad_in, layout, b, &b));
    ISO_TRY(iso__call_layout(self, &call->aux[0], layout, a, &a));
    *grad_in = a;
    return add_tensors(self, a, b, ISO_ACT_NONE, a, "residual backward");
}

// The shortcut comes first: its parameters were registered last, and gradients leave in the reverse
// of that order.
static iso_status backward_residual(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                    iso_tensor **grad_in) {
    iso_module *body = body_of(self), *shortcut = shortcut_of(self);
    bool through_body = grad_in || iso__module_trains(body);
    bool through_shortcut = grad_in || (shortcut && iso__module_trains(shortcut));
    bool both = through_body && through_shortcut;
    if (both && shortcut && copied_anyway(shortcut, grad_out)) both = false;
    iso_tensor *rest, *a = NULL, *b = NULL;
    ISO_TRY(split_gradient(self, call, grad_out, both, &rest));
    if (shortcut && through_shortcut)
        ISO_TRY(iso_module_call_backward(shortcut, rest, grad_in ? &b : NULL));
    else
        b = rest;
    if (through_body) ISO_TRY(iso_module_call_backward(body, grad_out, grad_in ? &a : NULL));
    if (!grad_in) return ISO_OK;
    return join_gradients(self, call, a, b, grad_in);
}

// ---- Creation ----------------------------------------------------------------------------------

static const iso_module_ops residual_ops = {
    .type = "Residual",
    .forward = forward_residual,
    .backward = backward_residual,
    .takes_half = true,
    .keeps_parameters = true,
};

static iso_status check_children(const iso_module *body, const iso_module *shortcut) {
    ISO_CHECK(body, ISO_ERR_ARG, "a Residual needs a body");
    for (int i = 0; shortcut && i < body->child_count; i++)
        ISO_CHECK(strcmp(body->child_name[i], "downsample") != 0, ISO_ERR_ARG,
                  "the body of a Residual has a child named \"downsample\", which is the name of "
                  "the shortcut");
    return ISO_OK;
}

iso_status iso_residual_create_take(iso_device *device, iso_module *body, iso_module *shortcut,
                                    bool relu, iso_module **out) {
    iso_module *module = NULL, *taken;
    iso_status status;
    *out = NULL; // often the caller's pointer to the body
    ISO_TRY_GOTO(check_children(body, shortcut));
    ISO_TRY_GOTO(iso__module_new(sizeof(residual), &residual_ops, device, &module));
    iso_container_of(module, residual, base)->relu = relu;
    taken = body;
    body = NULL;
    ISO_TRY_GOTO(iso__module_add_wrapped_take(module, taken));
    taken = shortcut;
    shortcut = NULL;
    if (taken) ISO_TRY_GOTO(iso_module_add_child_take(module, "downsample", taken));
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&body);
    iso_module_destroy(&shortcut);
    iso_module_destroy(&module);
    return status;
}
