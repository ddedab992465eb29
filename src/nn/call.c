// SPDX-License-Identifier: MIT
// What layers use in a call: its tensors, their layouts and shapes, and errors about them.
#include "nn/nn_impl.h"

#include <stdarg.h>

iso_status iso__call_tensor_of(iso_module *module, iso_dtype dtype, iso_tensor **slot, int ndim,
                               const int64_t *shape, iso_layout layout) {
    if (*slot && (*slot)->dtype != dtype) iso_tensor_destroy(slot);
    if (!*slot) ISO_TRY(iso_tensor_create(module->device, dtype, ndim, shape, slot));
    return iso_tensor_resize(*slot, ndim, shape, layout);
}

iso_status iso_call_tensor(iso_module *module, iso_tensor **slot, int ndim, const int64_t *shape,
                           iso_layout layout) {
    return iso__call_tensor_of(module, module->activations, slot, ndim, shape, layout);
}

iso_status iso__call_layout(iso_module *module, iso_tensor **slot, iso_layout layout, iso_tensor *x,
                            iso_tensor **out) {
    *out = x;
    if (x->layout == layout) return ISO_OK;
    ISO_TRY(iso__call_tensor_of(module, x->dtype, slot, x->ndim, x->shape, layout));
    *out = *slot;
    return x->device->ops->copy(x->device, x, *slot);
}

iso_status iso__shape_error(const iso_module *module, const iso_tensor *in, const char *expected,
                            ...) {
    char label[ISO_LABEL_ROOM], from[ISO_LABEL_ROOM], got[128], wanted[160];
    va_list arguments;
    va_start(arguments, expected);
    vsnprintf(wanted, sizeof(wanted), expected, arguments);
    va_end(arguments);
    return ISO_FAIL(ISO_ERR_SHAPE, "%s expects %s but got %s%s%s", iso__module_label(module, label),
                    wanted, iso__shape_text(in->ndim, in->shape, got, sizeof(got)),
                    module->source ? " from " : "",
                    module->source ? iso__module_label(module->source, from) : "");
}

iso_status iso__check_kernel(const iso_device *device, bool has, const char *type) {
    ISO_CHECK(has, ISO_ERR_UNSUPPORTED, "the %s device has no %s: use device cpu",
              iso_device_name(device), type);
    return ISO_OK;
}

iso_tensor iso__rows_of(const iso_tensor *x) {
    iso_tensor rows = *x;
    rows.ndim = 2;
    rows.shape[1] = x->shape[x->ndim - 1];
    rows.shape[0] = x->count / rows.shape[1];
    return rows;
}

iso_tensor iso__matrix_of(const iso_tensor *x, int64_t rows) {
    iso_tensor matrix = *x;
    matrix.ndim = 2;
    matrix.shape[0] = rows;
    matrix.shape[1] = x->count / rows;
    return matrix;
}

iso_status iso__undo_activation(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    if (call->activation == ISO_ACT_NONE) return ISO_OK;
    return iso__kernels(call->in)->relu_backward(self->device, call->out, grad_out, grad_out);
}

iso_status iso__undo_activation_and_bias(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                         const iso_parameter *bias, iso_tensor **db) {
    const iso_kernel_ops *kernels = iso__kernels(call->in);
    *db = bias && bias->requires_grad ? bias->grad : NULL;
    if (!*db || call->activation == ISO_ACT_NONE || !kernels->relu_backward_bias)
        return iso__undo_activation(self, call, grad_out);
    iso_tensor *out = *db;
    *db = NULL;
    return kernels->relu_backward_bias(self->device, call->out, grad_out, out, bias->grad_valid);
}
