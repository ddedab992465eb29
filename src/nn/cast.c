// The layer that changes the element type.
#include "nn/nn_impl.h"

typedef struct cast {
    iso_module base;
    iso_dtype dtype;
} cast;

// Element types are converted in logical layout.
static iso_status convert(iso_module *self, const iso_tensor *from, iso_tensor **between,
                          iso_tensor *to) {
    if (from->layout == ISO_LAYOUT_LOGICAL || from->dtype == to->dtype)
        return iso_tensor_copy(from, to);
    ISO_TRY(iso__call_tensor_of(self, from->dtype, between, from->ndim, from->shape,
                                ISO_LAYOUT_LOGICAL));
    ISO_TRY(iso_tensor_copy(from, *between));
    return iso_tensor_copy(*between, to);
}

static iso_status forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    iso_dtype dtype = iso_container_of(self, cast, base)->dtype;
    *out = in;
    if (in->dtype == dtype) return ISO_OK;
    ISO_TRY(iso__call_tensor_of(self, dtype, &call->out, in->ndim, in->shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    return convert(self, in, &call->aux[0], call->out);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    const iso_tensor *in = call->in;
    *grad_in = grad_out;
    if (in->dtype == grad_out->dtype) return ISO_OK;
    ISO_TRY(iso__call_tensor_of(self, in->dtype, &call->grad_in, in->ndim, in->shape,
                                ISO_LAYOUT_LOGICAL));
    *grad_in = call->grad_in;
    return convert(self, grad_out, &call->aux[1], call->grad_in);
}

static const iso_module_ops cast_ops = {
    .type = "Cast",
    .forward = forward,
    .backward_input = backward_input,
};

iso_status iso_cast_create(iso_device *device, iso_dtype dtype, iso_module **out) {
    ISO_CHECK(dtype == ISO_F32 || dtype == ISO_F64, ISO_ERR_ARG,
              "a Cast to element type %d: use f32 or f64", (int)dtype);
    iso_module *module;
    ISO_TRY(iso__module_new(sizeof(cast), &cast_ops, device, &module));
    iso_container_of(module, cast, base)->dtype = dtype;
    *out = module;
    return ISO_OK;
}
