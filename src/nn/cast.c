// SPDX-License-Identifier: MIT
// Layers that change the element type: Cast, for the layers after it, and Autocast, for the module
// inside it.
#include "nn/dispatch_checks.h"

// Conversion keeps the layout. In host memory f64 has only the logical one.
static iso_status as_type(iso_module *self, iso_dtype dtype, iso_tensor **slot, iso_tensor *x,
                          iso_tensor **out) {
    bool flat = dtype == ISO_F64 && self->device->ops->host_memory;
    *out = x;
    if (x->dtype == dtype) return ISO_OK;
    ISO_TRY(iso__call_tensor_of(self, dtype, slot, x->ndim, x->shape,
                                flat ? ISO_LAYOUT_LOGICAL : x->layout));
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
    return as_type(self, dtype_of(self), &call->out, in, out);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    return as_type(self, call->in->dtype, &call->grad_in, grad_out, grad_in);
}

static iso_status check_device(const iso_module *self, const iso_device *device) {
    return iso__device_check_dtype(device, dtype_of(self));
}

static const iso_module_ops cast_ops = {
    .type = "Cast",
    .forward = forward_cast,
    .backward_input = backward_input,
    .runs_on = check_device,
    .takes_half = true,
    .changes_type = true,
    .keeps_parameters = true,
};

iso_status iso_cast_create(iso_device *device, iso_dtype dtype, iso_module **out) {
    iso_module *module;
    ISO_CHECK(iso__is_real(dtype), ISO_ERR_ARG,
              "a Cast to element type %s: use f32, f64, bf16 or f16", iso_dtype_name(dtype));
    ISO_TRY(iso__module_new(sizeof(cast), &cast_ops, device, &module));
    iso_status status = iso__device_check_dtype(device, dtype);
    if (status < 0) iso_module_destroy(&module);
    ISO_TRY(status);
    iso_container_of(module, cast, base)->dtype = dtype;
    *out = module;
    return ISO_OK;
}

// ---- Autocast -----------------------------------------------------------------------------------
// A call keeps the inputs in aux[0] and the gradients of the outputs in aux[1], as the child sees
// them. Indices pass unchanged.

// An input, in the type of the Autocast.
static iso_status round_input(iso_module *self, iso__roundings *r, iso_tensor *in,
                              iso_tensor **slot, iso_tensor **x) {
    if (iso__is_index(in->dtype)) return ISO_OK;
    if (in->dtype != ISO_F32) return as_type(self, r->dtype, slot, in, x);
    ISO_TRY(iso__call_tensor_of(self, r->dtype, slot, in->ndim, in->shape, in->layout));
    *x = *slot;
    return iso__roundings_add(r, in, *x);
}

// The inputs and all weights below at once.
static iso_status round_all(iso_module *self, iso_call *call, const iso_tensors *in,
                            iso_tensors *x) {
    iso__roundings r = {.device = self->device, .dtype = dtype_of(self)};
    for (int i = 0; i < in->count; i++)
        ISO_TRY(round_input(self, &r, in->item[i], &call->many->aux[0][i], &x->item[i]));
    ISO_TRY(iso__roundings_add_below(&r, self->child[0]));
    return iso__roundings_flush(&r);
}

static iso_status autocast_forward(iso_module *self, iso_call *call, const iso_tensors *in,
                                   iso_tensors *out) {
    iso_tensors x = *in, y;
    iso_dtype dtype = iso__type_of(in->item, in->count);
    ISO_CHECK(!iso__is_index(dtype), ISO_ERR_TYPE,
              "an Autocast takes no indices but got %s: put the Embedding in front of it",
              iso_dtype_name(dtype));
    iso_status status = round_all(self, call, in, &x);
    if (status >= 0) status = iso_module_call_many(self->child[0], ISO_ACT_NONE, &x, &y);
    iso__roundings_drop(self->child[0]);
    ISO_TRY(status);
    bool keeps = self->training && iso_container_of(self, cast, base)->keeps_output;
    out->count = y.count;
    for (int i = 0; i < y.count; i++) {
        iso_dtype given = y.item[i]->dtype, wanted = keeps || iso__is_index(given) ? given : dtype;
        ISO_TRY(as_type(self, wanted, &call->many->out[i], y.item[i], &out->item[i]));
    }
    return ISO_OK;
}

// Converts gradients to the types of the outputs that the child gave in its last call.
static iso_status round_gradients(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                  iso_tensors *g) {
    const iso_call *last = iso__module_top_call(self->child[0]);
    int count = 0;
    iso_tensor *const *given = last ? iso__call_results(last, &count) : NULL;
    *g = *grad_out;
    for (int i = 0; i < grad_out->count; i++) {
        iso_dtype dtype = i < count ? given[i]->dtype : dtype_of(self);
        if (!grad_out->item[i]) continue;
        ISO_TRY(as_type(self, dtype, &call->many->aux[1][i], grad_out->item[i], &g->item[i]));
    }
    return ISO_OK;
}

static iso_status autocast_backward(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                    unsigned wanted, iso_tensors *grad_in) {
    iso_call_many *many = call->many;
    iso_tensors g, dx;
    ISO_TRY(round_gradients(self, call, grad_out, &g));
    ISO_TRY(iso_module_call_backward_many(self->child[0], &g, wanted, &dx));
    for (int i = 0; i < dx.count; i++)
        if (dx.item[i])
            ISO_TRY(as_type(self, many->in.item[i]->dtype, &many->grad_in[i], dx.item[i],
                            &grad_in->item[i]));
    return ISO_OK;
}

static const iso_module_ops autocast_ops = {
    .type = "Autocast",
    .forward_many = autocast_forward,
    .backward_many = autocast_backward,
    .runs_on = check_device,
    .takes_half = true,
    .keeps_parameters = true,
};

static iso_status check_autocast(const iso_module *module, iso_dtype dtype) {
    ISO_CHECK(module, ISO_ERR_ARG, "no module was given to an Autocast");
    ISO_CHECK(iso__is_half(dtype), ISO_ERR_ARG, "an Autocast to element type %s: use bf16 or f16",
              iso_dtype_name(dtype));
    return iso__device_check_dtype(module->device, dtype);
}

// Layers without parameters and buffers, such as a relu, take any type. data_parallel must be
// outside the Autocast: it must see the whole module, and the optimizer is tied to it.
static iso_status check_below(iso_module *module, const char *path, void *user) {
    char label[ISO_LABEL_ROOM];
    iso_dtype half = *(const iso_dtype *)user;
    (void)path;
    bool fits = module->dtype == ISO_F32 || module->dtype == half;
    ISO_CHECK(!iso__has_type(module) || fits, ISO_ERR_TYPE,
              "%s is %s, and an Autocast to %s takes modules of f32 and %s",
              iso__module_label(module, label), iso_dtype_name(module->dtype), iso_dtype_name(half),
              iso_dtype_name(half));
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
    ISO_TRY_GOTO(iso_module_walk(child, check_below, &dtype));
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
