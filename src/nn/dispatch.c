// SPDX-License-Identifier: MIT
// Running modules: the stack of calls, hooks, and one trace span per layer and direction.
#include "nn/nn_impl.h"

#include <isotherm/trace.h>
#include <stdarg.h>

// ---- What layers use ---------------------------------------------------------------------------

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

// ---- Calls -------------------------------------------------------------------------------------

// Calls and their tensors are kept when they are popped, so that a step allocates nothing once
// every shape and every depth has been seen. Evaluation pushes too: a module used twice needs two
// outputs.
static iso_status push_call(iso_module *module, iso_call **out) {
    if (module->call_depth == module->call_capacity) {
        size_t old = (size_t)module->call_capacity * sizeof(void *);
        void *array = module->call, *call;
        ISO_TRY(iso__realloc(&array, old, old + sizeof(void *)));
        module->call = array;
        ISO_TRY(iso__alloc_zero(sizeof(iso_call), &call));
        module->call[module->call_capacity++] = call;
    }
    *out = module->call[module->call_depth++];
    return ISO_OK;
}

static void drop_calls(iso_module *module) {
    module->call_depth = 0;
    for (int i = 0; i < module->child_count; i++) drop_calls(module->child[i]);
}

static int64_t trace_start(const iso_module *module) {
    return module->child_count == 0 && iso_trace_on() ? iso_now() : 0;
}

static void trace_end(const iso_module *module, const char *what, int64_t start) {
    if (!start) return;
    char text[64];
    snprintf(text, sizeof(text), "%s %s", module->name[0] ? module->name : module->ops->type, what);
    iso_trace_span(ISO_LANE_COMPUTE, text, start, iso_now());
}

// Calls one function of all hooks of a module; the last argument is theirs.
#define RUN_HOOKS(module, function, ...)                                                           \
    for (int hook_ = 0; hook_ < (module)->hooks_count; hook_++) {                                  \
        const iso_module_hooks *hooks_ = &(module)->hooks[hook_].call;                             \
        if (hooks_->function) ISO_TRY(hooks_->function(__VA_ARGS__, hooks_->user));                \
    }

// ---- Forward -----------------------------------------------------------------------------------

static bool has_type(const iso_module *module) {
    return module->parameter_count > 0 || module->buffer_count > 0;
}

bool iso__is_index(iso_dtype dtype) { return dtype == ISO_I32 || dtype == ISO_I64; }

// Containers pass indices on.
static iso_status check_indices(const iso_module *module, iso_dtype dtype) {
    char label[ISO_LABEL_ROOM];
    bool wanted = module->ops->takes_indices, given = iso__is_index(dtype);
    bool container = module->child_count > 0 && !has_type(module);
    ISO_CHECK(given || !wanted, ISO_ERR_TYPE, "%s takes indices, i32 or i64, but got %s",
              iso__module_label(module, label), iso_dtype_name(dtype));
    ISO_CHECK(!given || wanted || container, ISO_ERR_TYPE,
              "%s does not take indices but got %s: put an Embedding in front of it",
              iso__module_label(module, label), iso_dtype_name(dtype));
    return ISO_OK;
}

// Layers that set takes_bf16 accept bf16 activations although their parameters are f32.
static iso_status check_type(const iso_module *module, iso_dtype dtype) {
    char label[ISO_LABEL_ROOM];
    bool low = dtype == ISO_BF16;
    ISO_TRY(check_indices(module, dtype));
    if (iso__is_index(dtype)) return ISO_OK;
    if (low) ISO_TRY(iso__device_check_dtype(module->device, dtype));
    ISO_CHECK(!low || module->ops->takes_bf16, ISO_ERR_TYPE,
              "%s does not take bf16: put it between an iso_cast_create to f32 and one to bf16, or "
              "set takes_bf16 in its table",
              iso__module_label(module, label));
    ISO_CHECK(!has_type(module) || module->dtype == (low ? ISO_F32 : dtype), ISO_ERR_TYPE,
              "%s is %s but got %s: see iso_module_to and iso_cast_create",
              iso__module_label(module, label), iso_dtype_name(module->dtype),
              iso_dtype_name(dtype));
    return iso__device_check_dtype(module->device, dtype);
}

static void set_type(iso_module *module, iso_dtype dtype) {
    module->activations = iso__is_index(dtype) ? module->dtype : dtype;
    if (iso__is_index(dtype)) return;
    if (!has_type(module)) module->dtype = dtype;
}

static iso_status check_input(const iso_module *module, const iso_tensor *in) {
    char label[ISO_LABEL_ROOM];
    ISO_CHECK(in, ISO_ERR_ARG, "%s got no input", iso__module_label(module, label));
    ISO_CHECK(in->device == module->device, ISO_ERR_ARG,
              "%s is on device %s but its input is on another", iso__module_label(module, label),
              iso_device_name(module->device));
    ISO_TRY(check_type(module, in->dtype));
    return ISO_OK;
}

// A type may change inside a container.
static bool gives_type(const iso_module *module, const iso_call *call) {
    iso_dtype dtype = call->result->dtype;
    if (dtype == call->in->dtype || iso__module_is_cast(module)) return true;
    if (module->ops->takes_indices) return dtype == module->dtype;
    for (int i = 0; i < module->child_count; i++) {
        const iso_module *child = module->child[i];
        if (child->call_depth > 0 && child->call[child->call_depth - 1]->result->dtype == dtype)
            return true;
    }
    return false;
}

// Checks the output of a user's layer here; otherwise the next layer would be blamed.
static iso_status check_output(const iso_module *module, const iso_call *call) {
    char label[ISO_LABEL_ROOM];
    ISO_CHECK(call->result, ISO_ERR_STATE, "forward of %s gave no output",
              iso__module_label(module, label));
    ISO_CHECK(call->result->device == module->device, ISO_ERR_TYPE,
              "forward of %s gave an output that is not on its own device: make it by "
              "iso_call_tensor",
              iso__module_label(module, label));
    ISO_CHECK(gives_type(module, call), ISO_ERR_TYPE,
              "forward of %s gave an output of %s for an input of %s: make it by iso_call_tensor, "
              "which gives it the type of the input",
              iso__module_label(module, label), iso_dtype_name(call->result->dtype),
              iso_dtype_name(call->in->dtype));
    return ISO_OK;
}

static iso_status call_module(iso_module *child, iso_activation activation, iso_tensor *in,
                              iso_tensor **out) {
    ISO_CHECK(activation == ISO_ACT_NONE || child->ops->fuses_relu, ISO_ERR_ARG,
              "%s cannot fuse an activation", child->ops->type);
    ISO_TRY(check_input(child, in));
    RUN_HOOKS(child, before_forward, child, in);

    iso_call *call = NULL;
    ISO_TRY(push_call(child, &call));
    set_type(child, in->dtype);
    call->in = in;
    call->activation = activation;
    call->result = NULL;
    call->number = child->training ? ++child->forward_number : 0;
    int64_t start = trace_start(child);
    iso_status status = child->ops->forward(child, call, in, &call->result);
    if (status >= 0) status = check_output(child, call);
    if (status < 0) {
        child->call_depth--; // so that a backward after a failed forward is refused
        return iso__error_frame(status, __func__, __FILE__, __LINE__);
    }
    trace_end(child, "forward", start);
    RUN_HOOKS(child, after_forward, child, in, call->result);
    *out = call->result;
    return ISO_OK;
}

iso_status iso_module_call(iso_module *child, iso_activation activation, iso_tensor *in,
                           iso_tensor **out) {
    iso_status status = call_module(child, activation, in, out);
    child->source = NULL; // it may not live as long
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_module_forward(iso_module *module, iso_tensor *in, iso_tensor **out) {
    drop_calls(module);
    return iso_module_call(module, ISO_ACT_NONE, in, out);
}

// ---- Backward ----------------------------------------------------------------------------------

// Checks the gradient against the output that it belongs to and brings it into the same layout.
static iso_status accept_gradient(iso_module *module, iso_call *call, iso_tensor **grad_out) {
    iso_tensor *given = *grad_out, *result = call->result;
    char label[ISO_LABEL_ROOM], got[128], wanted[128];
    ISO_CHECK(given, ISO_ERR_ARG, "%s got no gradient", iso__module_label(module, label));
    ISO_CHECK(given->device == module->device && given->dtype == result->dtype, ISO_ERR_TYPE,
              "%s expects a gradient of type %s on its own device",
              iso__module_label(module, label), iso_dtype_name(result->dtype));
    ISO_CHECK(iso__tensor_same_shape(given, result), ISO_ERR_SHAPE,
              "%s gave an output of shape %s but got a gradient of shape %s",
              iso__module_label(module, label),
              iso__shape_text(result->ndim, result->shape, wanted, sizeof(wanted)),
              iso__shape_text(given->ndim, given->shape, got, sizeof(got)));
    if (given->layout == result->layout) return ISO_OK;
    ISO_TRY(iso__call_tensor_of(module, result->dtype, &call->grad_out, result->ndim, result->shape,
                                result->layout));
    ISO_TRY(iso_tensor_copy(given, call->grad_out));
    *grad_out = call->grad_out;
    return ISO_OK;
}

// The gradients of the module's own parameters are written. They leave for the exchange at the last
// use of the module in this backward, before the gradient of its input is computed, which is what
// hides the exchange.
static iso_status gradients_written(iso_module *module) {
    bool any = false;
    for (int i = 0; i < module->parameter_count; i++) {
        if (!module->parameter[i]->requires_grad) continue;
        module->parameter[i]->grad_valid = true;
        any = true;
    }
    if (any && module->call_depth == 0) RUN_HOOKS(module, gradient_ready, module);
    return ISO_OK;
}

static iso_status backward_layer(iso_module *module, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    const iso_module_ops *ops = module->ops;
    if (ops->backward_params && (grad_in || iso__module_trains_own(module)))
        ISO_TRY(ops->backward_params(module, call, grad_out));
    ISO_TRY(gradients_written(module));
    if (!grad_in) return ISO_OK;
    ISO_CHECK(ops->backward_input, ISO_ERR_UNSUPPORTED,
              "%s has no gradient with respect to its input", ops->type);
    ISO_TRY(ops->backward_input(module, call, grad_out, grad_in));
    return ISO_OK;
}

static iso_status check_gradient(const iso_module *module, const iso_tensor *in,
                                 const iso_tensor *grad_in) {
    char label[ISO_LABEL_ROOM], got[128], wanted[128];
    ISO_CHECK(grad_in, ISO_ERR_STATE, "backward of %s gave no gradient of its input",
              iso__module_label(module, label));
    ISO_CHECK(grad_in->device == module->device, ISO_ERR_TYPE,
              "backward of %s gave a gradient of its input that is not on its own device: make it "
              "by iso_call_tensor",
              iso__module_label(module, label));
    ISO_CHECK(grad_in->dtype == in->dtype, ISO_ERR_TYPE,
              "backward of %s gave a gradient of %s for an input of %s: make it by "
              "iso_call_tensor, which gives it the type of the input",
              iso__module_label(module, label), iso_dtype_name(grad_in->dtype),
              iso_dtype_name(in->dtype));
    ISO_CHECK(iso__tensor_same_shape(grad_in, in), ISO_ERR_SHAPE,
              "backward of %s gave a gradient of shape %s for an input of shape %s",
              iso__module_label(module, label),
              iso__shape_text(grad_in->ndim, grad_in->shape, got, sizeof(got)),
              iso__shape_text(in->ndim, in->shape, wanted, sizeof(wanted)));
    return ISO_OK;
}

iso_status iso_module_call_backward(iso_module *child, iso_tensor *grad_out, iso_tensor **grad_in) {
    iso_tensor *given = NULL, **wanted = grad_in ? &given : NULL;
    char label[ISO_LABEL_ROOM];
    ISO_CHECK(child->call_depth > 0, ISO_ERR_STATE, "backward of %s without a forward before it",
              iso__module_label(child, label));
    iso_call *call = child->call[--child->call_depth];
    set_type(child, call->in->dtype); // its calls may have had different types
    ISO_TRY(accept_gradient(child, call, &grad_out));
    RUN_HOOKS(child, before_backward, child, grad_out);
    int64_t start = trace_start(child);
    if (child->ops->backward) {
        ISO_TRY(child->ops->backward(child, call, grad_out, wanted));
        ISO_TRY(gradients_written(child));
    } else {
        ISO_TRY(backward_layer(child, call, grad_out, wanted));
    }
    trace_end(child, "backward", start);
    if (grad_in) ISO_TRY(check_gradient(child, call->in, given));
    RUN_HOOKS(child, after_backward, child, given);
    if (grad_in) *grad_in = given;
    return ISO_OK;
}

iso_status iso_module_backward(iso_module *module, iso_tensor *grad_out, iso_tensor **grad_in) {
    char label[ISO_LABEL_ROOM];
    ISO_CHECK(
        module->call_depth == 0 || module->call[module->call_depth - 1]->number > 0, ISO_ERR_STATE,
        "backward of %s, whose last forward was in evaluation mode: call iso_module_train first",
        iso__module_label(module, label));
    return iso_module_call_backward(module, grad_out, grad_in);
}
