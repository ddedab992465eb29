// SPDX-License-Identifier: MIT
// Layers that change the element type: Cast, for the layers after it, and Autocast, for the module
// inside it.
#include "nn/nn_impl.h"

// Conversion keeps the layout; on a device with host memory the layout must be logical.
static iso_status as_type(iso_module *self, iso_dtype dtype, iso_tensor **slot,
                          iso_tensor **between, iso_tensor *x, iso_tensor **out) {
    *out = x;
    if (x->dtype == dtype) return ISO_OK;
    if (self->device->ops->host_memory)
        ISO_TRY(iso__call_layout(self, between, ISO_LAYOUT_LOGICAL, x, &x));
    ISO_TRY(iso__call_tensor_of(self, dtype, slot, x->ndim, x->shape, x->layout));
    *out = *slot;
    return iso_tensor_copy(x, *slot);
}

// ---- Cast ---------------------------------------------------------------------------------------

typedef struct cast {
    iso_module base;
    iso_dtype dtype;
    bool keeps_output; // Autocast: in training, the output keeps the type that the child gave it
} cast;

static iso_dtype dtype_of(const iso_module *self) {
    return iso_container_of(self, const cast, base)->dtype;
}

static iso_status forward_cast(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    return as_type(self, dtype_of(self), &call->out, &call->aux[0], in, out);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    return as_type(self, call->in->dtype, &call->grad_in, &call->aux[1], grad_out, grad_in);
}

static const iso_module_ops cast_ops = {
    .type = "Cast",
    .forward = forward_cast,
    .backward_input = backward_input,
    .takes_bf16 = true,
    .keeps_parameters = true,
};

bool iso__module_is_cast(const iso_module *module) { return module->ops == &cast_ops; }

iso_status iso_cast_create(iso_device *device, iso_dtype dtype, iso_module **out) {
    iso_module *module;
    ISO_CHECK(dtype == ISO_F32 || dtype == ISO_F64 || dtype == ISO_BF16, ISO_ERR_ARG,
              "a Cast to element type %s: use f32 or f64, on a GPU also bf16",
              iso_dtype_name(dtype));
    ISO_TRY(iso__module_new(sizeof(cast), &cast_ops, device, &module));
    iso_status status = iso__device_check_dtype(device, dtype);
    if (status < 0) iso_module_destroy(&module);
    ISO_TRY(status);
    iso_container_of(module, cast, base)->dtype = dtype;
    *out = module;
    return ISO_OK;
}

// ---- Autocast -----------------------------------------------------------------------------------
// A call keeps the input in aux[0] and the gradient of the output in aux[1], as the child sees
// them.

// The input and all weights below at once.
static iso_status round_all(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **x) {
    iso__roundings r = {.device = self->device};
    if (in->dtype == ISO_F32) {
        ISO_TRY(
            iso__call_tensor_of(self, ISO_BF16, &call->aux[0], in->ndim, in->shape, in->layout));
        ISO_TRY(iso__roundings_add(&r, in, *x = call->aux[0]));
    } else {
        ISO_TRY(as_type(self, ISO_BF16, &call->aux[0], NULL, in, x));
    }
    ISO_TRY(iso__roundings_add_below(&r, self->child[0]));
    return iso__roundings_flush(&r);
}

static iso_status autocast_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                   iso_tensor **out) {
    iso_tensor *x = NULL, *y = NULL;
    ISO_CHECK(!iso__is_index(in->dtype), ISO_ERR_TYPE,
              "an Autocast takes no indices but got %s: put the Embedding in front of it",
              iso_dtype_name(in->dtype));
    iso_status status = round_all(self, call, in, &x);
    if (status >= 0) status = iso_module_call(self->child[0], ISO_ACT_NONE, x, &y);
    iso__roundings_drop(self->child[0]);
    ISO_TRY(status);
    bool keeps = self->training && iso_container_of(self, cast, base)->keeps_output;
    return as_type(self, keeps ? y->dtype : in->dtype, &call->out, NULL, y, out);
}

// The type of the child's output in its last call.
static iso_dtype type_given(const iso_module *child) {
    return child->call_depth > 0 ? child->call[child->call_depth - 1]->result->dtype : ISO_BF16;
}

static iso_status autocast_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                    iso_tensor **grad_in) {
    iso_module *child = self->child[0];
    iso_tensor *g, *dx;
    ISO_TRY(as_type(self, type_given(child), &call->aux[1], NULL, grad_out, &g));
    ISO_TRY(iso_module_call_backward(child, g, grad_in ? &dx : NULL));
    if (!grad_in) return ISO_OK;
    return as_type(self, call->in->dtype, &call->grad_in, NULL, dx, grad_in);
}

static const iso_module_ops autocast_ops = {
    .type = "Autocast",
    .forward = autocast_forward,
    .backward = autocast_backward,
    .takes_bf16 = true,
    .keeps_parameters = true,
};

static iso_status check_autocast(const iso_module *module, iso_dtype dtype) {
    ISO_CHECK(module, ISO_ERR_ARG, "no module was given to an Autocast");
    ISO_CHECK(dtype == ISO_BF16, ISO_ERR_ARG, "an Autocast to element type %s: use bf16",
              iso_dtype_name(dtype));
    return iso__device_check_dtype(module->device, dtype);
}

// Layers without parameters and buffers, such as a relu, take any type. data_parallel must be
// outside the Autocast: it must see the whole module, and the optimizer is tied to it.
static iso_status check_below(iso_module *module, const char *path, void *user) {
    char label[ISO_LABEL_ROOM];
    (void)path, (void)user;
    bool typed = module->parameter_count > 0 || module->buffer_count > 0;
    ISO_CHECK(!typed || module->dtype == ISO_F32, ISO_ERR_TYPE,
              "%s is %s, and an Autocast takes modules of f32", iso__module_label(module, label),
              iso_dtype_name(module->dtype));
    for (int i = 0; i < module->parameter_count; i++)
        ISO_CHECK(!module->parameter[i]->complete, ISO_ERR_STATE,
                  "%s is data-parallel already: create the Autocast first, and data_parallel "
                  "around it",
                  iso__module_label(module, label));
    return ISO_OK;
}

iso_status iso_autocast_create_take(iso_module *child, iso_dtype dtype, iso_module **out) {
    iso_module *module = NULL, *taken;
    iso_status status;
    ISO_TRY_GOTO(check_autocast(child, dtype));
    ISO_TRY_GOTO(iso_module_walk(child, check_below, NULL));
    ISO_TRY_GOTO(iso__module_new(sizeof(cast), &autocast_ops, child->device, &module));
    iso_container_of(module, cast, base)->dtype = dtype;
    taken = child;
    child = NULL;
    ISO_TRY_GOTO(iso__module_add_wrapped_take(module, taken));
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&child);
    iso_module_destroy(&module);
    *out = NULL;
    return status;
}

iso_status iso_autocast_keep_output(iso_module *module, bool keep) {
    ISO_CHECK(module && module->ops == &autocast_ops, ISO_ERR_ARG,
              "iso_autocast_keep_output takes what iso_autocast_create_take made, not a %s",
              module ? module->ops->type : "NULL");
    iso_container_of(module, cast, base)->keeps_output = keep;
    return ISO_OK;
}
