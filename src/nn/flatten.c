// SPDX-License-Identifier: MIT
// Turns each sample into a row: a view if memory is in logical order, else a copy.
#include "nn/nn_impl.h"

#include <string.h>

// Lays another shape over the buffer of `from`, which outlives this use by the contract of a call.
// The tensor object is kept and redirected, since the buffer and the batch size may have changed;
// nothing is allocated after the first time.
static iso_status set_view(iso_tensor **slot, const iso_tensor *from, int ndim,
                           const int64_t *shape, iso_layout layout) {
    if (!*slot)
        ISO_TRY(iso_tensor_borrow(from->device, from->dtype, ndim, shape, from->data, slot));
    iso_tensor *v = *slot;
    v->dtype = from->dtype;
    v->ndim = ndim;
    memcpy(v->shape, shape, (size_t)ndim * sizeof(*shape));
    v->count = from->count;
    v->data = from->data;
    v->layout = layout;
    return ISO_OK;
}

static iso_status forward_flatten(iso_module *self, iso_call *call, iso_tensor *in,
                                  iso_tensor **out) {
    ISO_CHECK(in->ndim > 0, ISO_ERR_SHAPE, "Flatten expects [N, ...], not a scalar");
    int64_t shape[2] = {in->shape[0], in->count / in->shape[0]};
    if (self->device->ops->is_in_order(self->device, in)) {
        ISO_TRY(set_view(&call->aux[0], in, 2, shape, ISO_LAYOUT_LOGICAL));
        *out = call->aux[0];
        return ISO_OK;
    }
    ISO_TRY(iso_call_tensor(self, &call->out, 2, shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    return self->device->ops->copy(self->device, in, call->out);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    const iso_tensor *in = call->in;
    if (self->device->ops->is_in_order(self->device, in)) {
        ISO_TRY(set_view(&call->aux[1], grad_out, in->ndim, in->shape, in->layout));
        *grad_in = call->aux[1];
        return ISO_OK;
    }
    ISO_TRY(iso_call_tensor(self, &call->grad_in, in->ndim, in->shape, in->layout));
    *grad_in = call->grad_in;
    return self->device->ops->copy(self->device, grad_out, call->grad_in);
}

static const iso_module_ops flatten_ops = {
    .type = "Flatten",
    .forward = forward_flatten,
    .backward_input = backward_input,
    .takes_half = true,
    .keeps_parameters = true,
};

iso_status iso_flatten_create(iso_device *device, iso_module **out) {
    return iso__module_new(sizeof(iso_module), &flatten_ops, device, out);
}
