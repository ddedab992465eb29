// SPDX-License-Identifier: MIT
// Running modules: the stack of calls, hooks, and one trace span per layer and direction.
#include "base/profiler.h"
#include "base/recording.h"
#include "nn/dispatch_checks.h"

#include <isotherm/trace.h>
#include <stdarg.h>
#include <stdatomic.h>

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
    iso_call *call = module->call[module->call_depth];
    if (module->ops->forward_many && !call->many)
        ISO_TRY(iso__alloc_zero(sizeof(iso_call_many), (void **)&call->many));
    module->call_depth++;
    module->backward_failed = false;
    *out = call;
    return ISO_OK;
}

// A backward may skip what has nothing to train. The calls that it skips stay on the stacks of
// their modules, which may also be used elsewhere. So calls are numbered, and a backward undoes
// only those that its own forward made, or that it has made itself to recompute something.
static atomic_uint_fast64_t newest; // the number of the newest call
typedef struct range {
    uint64_t last, again; // calls up to the first, and from the second on
} range;
static _Thread_local range undone = {UINT64_MAX, UINT64_MAX}; // of the backward that runs

iso_call *iso__module_top_call(iso_module *module) {
    int *depth = &module->call_depth;
    for (; *depth > 0; --*depth) {
        iso_call *call = module->call[*depth - 1];
        if (call->first <= undone.last || call->first >= undone.again) return call;
    }
    return NULL;
}

static void begin_call(iso_call *call) {
    call->first = atomic_fetch_add(&newest, 1) + 1;
    if (call->first < undone.again) undone.again = call->first;
}

static void drop_calls(iso_module *module) {
    module->call_depth = 0;
    for (int i = 0; i < module->child_count; i++) drop_calls(module->child[i]);
}

typedef struct traced {
    int64_t start; // 0: nobody records
    char text[64];
} traced;

static __attribute__((noinline)) void open_span(traced *span, const iso_module *module,
                                                const char *what) {
    snprintf(span->text, sizeof(span->text), "%s %s",
             module->name[0] ? module->name : module->ops->type, what);
    span->start = iso_trace_begin(ISO_LANE_COMPUTE, span->text);
}

static inline void trace_begin(traced *span, const iso_module *module, const char *what) {
    span->start = 0;
    if (module->child_count == 0 && iso__spans_wanted()) open_span(span, module, what);
}

static void trace_end(const traced *span) {
    iso__span_end(ISO_LANE_COMPUTE, span->text, span->start);
}

static void copy_tuple(const iso_tensors *from, iso_tensors *to) {
    for (int i = 0; i < from->count; i++) to->item[i] = from->item[i];
    to->count = from->count;
}

// Does not clear the other items, because every layer calls this.
static void set_single(iso_tensors *tuple, iso_tensor *item) {
    tuple->count = 1;
    tuple->item[0] = item;
}

// Calls one function of all hooks of a module; the last argument is theirs.
#define RUN_HOOKS(module, function, ...)                                                           \
    for (int hook_ = 0; hook_ < (module)->hooks_count; hook_++) {                                  \
        const iso_module_hooks *hooks_ = &(module)->hooks[hook_].call;                             \
        if (hooks_->function) ISO_TRY(hooks_->function(__VA_ARGS__, hooks_->user));                \
    }

// ---- Forward -----------------------------------------------------------------------------------

static void set_type(iso_module *module, iso_dtype dtype) {
    module->activations = iso__is_index(dtype) ? module->dtype : dtype;
    if (iso__is_index(dtype)) return;
    if (!iso__has_type(module)) module->dtype = dtype;
}

static iso_status forward_tuple(iso_module *module, iso_call *call) {
    char label[ISO_LABEL_ROOM];
    iso_tensors *result = &call->many->result, out = {.count = 0};
    ISO_TRY(module->ops->forward_many(module, call, &call->many->in, &out));
    ISO_CHECK(out.count >= 1 && out.count <= ISO_MODULE_TENSORS, ISO_ERR_STATE,
              "forward of %s gave %d outputs: it must give 1 to %d",
              iso__module_label(module, label), out.count, ISO_MODULE_TENSORS);
    copy_tuple(&out, result);
    for (int i = 0; i < out.count; i++) ISO_TRY(iso__check_output(module, call, out.item[i]));
    call->result = result->item[0];
    return ISO_OK;
}

static iso_status forward_module(iso_module *module, iso_call *call, const iso_tensors *in) {
    call->in = in->item[0];
    call->result = NULL;
    if (module->ops->forward_many) {
        copy_tuple(in, &call->many->in);
        return forward_tuple(module, call);
    }
    iso_status status = module->ops->forward(module, call, call->in, &call->result);
    return status < 0 ? status : iso__check_output(module, call, call->result);
}

static iso_status run_after_forward(iso_module *module, iso_tensor *in, iso_tensor *result) {
    RUN_HOOKS(module, after_forward, module, in, result);
    return ISO_OK;
}

static iso_status call_module(iso_module *child, iso_activation activation, const iso_tensors *in,
                              iso_tensors *out) {
    ISO_CHECK(activation == ISO_ACT_NONE || child->ops->fuses_relu, ISO_ERR_ARG,
              "%s cannot fuse an activation", child->ops->type);
    ISO_TRY(iso__check_inputs(child, in));
    RUN_HOOKS(child, before_forward, child, in->item[0]);

    iso_call *call = NULL;
    ISO_TRY(push_call(child, &call));
    set_type(child, iso__type_of(in->item, in->count));
    call->activation = activation;
    call->number = child->training ? ++child->forward_number : 0;
    begin_call(call);
    traced span;
    trace_begin(&span, child, "forward");
    iso_status status = forward_module(child, call, in);
    trace_end(&span);
    call->last = atomic_load(&newest);
    if (status == ISO_OK) status = run_after_forward(child, in->item[0], call->result);
    if (status < 0) child->call_depth--; // so that a backward after a failed forward is refused
    ISO_TRY(status);
    if (call->many)
        copy_tuple(&call->many->result, out);
    else
        set_single(out, call->result);
    return ISO_OK;
}

iso_status iso_module_call_many(iso_module *child, iso_activation activation, const iso_tensors *in,
                                iso_tensors *out) {
    iso__alive_step("a forward");
    iso_status status = call_module(child, activation, in, out);
    child->source = NULL; // the source may be destroyed earlier
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_module_call(iso_module *child, iso_activation activation, iso_tensor *in,
                           iso_tensor **out) {
    iso_tensors given, got;
    char label[ISO_LABEL_ROOM];
    set_single(&given, in);
    ISO_TRY(iso_module_call_many(child, activation, &given, &got));
    if (got.count > 1) child->call_depth--;
    ISO_CHECK(got.count == 1, ISO_ERR_ARG,
              "%s gave %d tensors where 1 is expected: see iso_module_forward_many",
              iso__module_label(child, label), got.count);
    *out = got.item[0];
    return ISO_OK;
}

iso_status iso_module_forward(iso_module *module, iso_tensor *in, iso_tensor **out) {
    drop_calls(module);
    return iso_module_call(module, ISO_ACT_NONE, in, out);
}

iso_status iso_module_forward_many(iso_module *module, const iso_tensors *in, iso_tensors *out) {
    drop_calls(module);
    return iso_module_call_many(module, ISO_ACT_NONE, in, out);
}

// ---- Backward ----------------------------------------------------------------------------------

// Checks the gradient against the output that it belongs to. of: which output, such as "output 1".
static iso_status check_gradient(const iso_module *module, const iso_tensor *result, const char *of,
                                 const iso_tensor *given) {
    char label[ISO_LABEL_ROOM], got[128], wanted[128];
    ISO_CHECK(given, ISO_ERR_ARG, "%s got no gradient", iso__module_label(module, label));
    ISO_CHECK(given->device == module->device && given->dtype == result->dtype, ISO_ERR_TYPE,
              "%s expects a gradient of its %s of type %s on its own device",
              iso__module_label(module, label), of, iso_dtype_name(result->dtype));
    ISO_CHECK(iso__tensor_same_shape(given, result), ISO_ERR_SHAPE,
              "the %s of %s has shape %s but got a gradient of shape %s", of,
              iso__module_label(module, label),
              iso__shape_text(result->ndim, result->shape, wanted, sizeof(wanted)),
              iso__shape_text(given->ndim, given->shape, got, sizeof(got)));
    return ISO_OK;
}

// Checks it and brings it into the layout of the output.
static iso_status accept_gradient(iso_module *module, iso_tensor *result, const char *of,
                                  iso_tensor **slot, iso_tensor **grad_out) {
    iso_tensor *given = *grad_out;
    ISO_TRY(check_gradient(module, result, of, given));
    if (given->layout == result->layout) return ISO_OK;
    ISO_TRY(iso__call_tensor_of(module, result->dtype, slot, result->ndim, result->shape,
                                result->layout));
    ISO_TRY(iso_tensor_copy(given, *slot));
    *grad_out = *slot;
    return ISO_OK;
}

static iso_status zero_gradient(iso_module *module, iso_tensor *result, iso_tensor **slot,
                                iso_tensor **grad_out) {
    ISO_TRY(iso__call_tensor_of(module, result->dtype, slot, result->ndim, result->shape,
                                result->layout));
    *grad_out = *slot;
    return iso_tensor_fill(*slot, 0);
}

// Layers may change each gradient in place.
static iso_status check_distinct(const iso_module *module, const iso_tensors *grad_out) {
    char label[ISO_LABEL_ROOM];
    for (int i = 1; i < grad_out->count; i++)
        for (int k = 0; k < i; k++)
            ISO_CHECK(!grad_out->item[i] || grad_out->item[i] != grad_out->item[k], ISO_ERR_ARG,
                      "%s got one tensor as the gradients of its outputs %d and %d: copy it",
                      iso__module_label(module, label), k, i);
    return ISO_OK;
}

// Some outputs of a module may have no gradient; it is then zero.
static iso_status accept_gradients(iso_module *module, iso_call *call, iso_tensors *grad_out) {
    iso_call_many *many = call->many;
    bool any = false;
    ISO_TRY(check_distinct(module, grad_out));
    for (int i = 0; i < grad_out->count; i++) {
        if (iso__is_index(many->result.item[i]->dtype)) grad_out->item[i] = NULL;
        any = any || grad_out->item[i];
    }
    for (int i = 0; i < grad_out->count; i++) {
        iso_tensor *result = many->result.item[i], **slot = &many->grad_out[i];
        if (iso__is_index(result->dtype)) continue;
        bool missing = any && !grad_out->item[i];
        char of[24];
        snprintf(of, sizeof(of), "output %d", i);
        ISO_TRY(missing ? zero_gradient(module, result, slot, &grad_out->item[i])
                        : accept_gradient(module, result, of, slot, &grad_out->item[i]));
    }
    return ISO_OK;
}

// Call it when the gradients of the module's own parameters are written. At the module's last use
// in this backward their exchange starts, before the gradient of the input is computed, so that
// this computation hides the exchange.
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
    char label[ISO_LABEL_ROOM];
    if (ops->backward) {
        ISO_TRY(ops->backward(module, call, grad_out, grad_in));
        return gradients_written(module);
    }
    if (ops->backward_params && (grad_in || iso__module_trains_own(module)))
        ISO_TRY(ops->backward_params(module, call, grad_out));
    ISO_TRY(gradients_written(module));
    if (!grad_in) return ISO_OK;
    ISO_CHECK(ops->backward_input, ISO_ERR_UNSUPPORTED,
              "%s has no gradient with respect to its input", iso__module_label(module, label));
    ISO_TRY(ops->backward_input(module, call, grad_out, grad_in));
    return ISO_OK;
}

static iso_status backward_module(iso_module *module, iso_call *call, const iso_tensors *grad_out,
                                  unsigned wanted, iso_tensors *grad_in) {
    const iso_module_ops *ops = module->ops;
    char label[ISO_LABEL_ROOM];
    if (!ops->forward_many)
        return backward_layer(module, call, grad_out->item[0], wanted ? grad_in->item : NULL);
    ISO_CHECK(ops->backward_many || !wanted, ISO_ERR_UNSUPPORTED,
              "%s has no gradient with respect to its inputs", iso__module_label(module, label));
    if (ops->backward_many) ISO_TRY(ops->backward_many(module, call, grad_out, wanted, grad_in));
    return gradients_written(module);
}

static iso_status run_backward(iso_module *child, iso_call *call, const iso_tensors *grad_out,
                               unsigned wanted, iso_tensors *grad_in) {
    iso_tensors g, given;
    iso_tensor *const *in = iso__call_inputs(call, &given.count);
    iso__alive("a backward");
    set_type(child, iso__type_of(in, given.count)); // its calls may have had different types
    for (int i = 0; i < given.count; i++) given.item[i] = NULL;
    if (grad_out->count != 1 || call->many)
        ISO_TRY(iso__check_gradient_count(child, call, grad_out->count));
    if (!grad_in) wanted = 0;
    if (wanted) ISO_TRY(iso__select_inputs(child, call, &wanted));
    copy_tuple(grad_out, &g);
    if (call->many)
        ISO_TRY(accept_gradients(child, call, &g));
    else
        ISO_TRY(accept_gradient(child, call->result, "output", &call->grad_out, g.item));
    RUN_HOOKS(child, before_backward, child, g.item[0]);
    traced span;
    trace_begin(&span, child, "backward");
    iso_status status = backward_module(child, call, &g, wanted, &given);
    trace_end(&span);
    ISO_TRY(status);
    ISO_TRY(iso__check_gradients(child, call, wanted, &given));
    RUN_HOOKS(child, after_backward, child, given.item[0]);
    if (grad_in) copy_tuple(&given, grad_in);
    return ISO_OK;
}

iso_status iso_module_call_backward_many(iso_module *child, const iso_tensors *grad_out,
                                         unsigned wanted, iso_tensors *grad_in) {
    char label[ISO_LABEL_ROOM];
    iso_call *call = iso__module_top_call(child);
    ISO_CHECK(call, ISO_ERR_STATE, "backward of %s without a forward before it%s",
              iso__module_label(child, label),
              child->backward_failed ? ": the last backward failed, so call forward again" : "");
    range outside = undone;
    undone = (range){call->last, UINT64_MAX};
    child->call_depth--;
    child->backward_failed = true; // reset on success
    iso_status status = run_backward(child, call, grad_out, wanted, grad_in);
    undone = outside;
    ISO_TRY(status);
    child->backward_failed = false;
    return ISO_OK;
}

iso_status iso_module_call_backward(iso_module *child, iso_tensor *grad_out, iso_tensor **grad_in) {
    iso_tensors g, given;
    char label[ISO_LABEL_ROOM];
    int inputs = 1;
    set_single(&g, grad_out);
    const iso_call *call = iso__module_top_call(child);
    if (call) iso__call_inputs(call, &inputs);
    ISO_CHECK(!grad_in || inputs == 1, ISO_ERR_ARG,
              "%s got %d tensors where the gradient of 1 is wanted: see iso_module_backward_many",
              iso__module_label(child, label), inputs);
    ISO_TRY(iso_module_call_backward_many(child, &g, grad_in ? 1 : 0, &given));
    if (grad_in) *grad_in = given.item[0];
    return ISO_OK;
}

static iso_status check_trained(const iso_module *module) {
    char label[ISO_LABEL_ROOM];
    ISO_CHECK(
        module->call_depth == 0 || module->call[module->call_depth - 1]->number > 0, ISO_ERR_STATE,
        "backward of %s, whose last forward was in evaluation mode: call iso_module_train first",
        iso__module_label(module, label));
    return ISO_OK;
}

iso_status iso_module_backward(iso_module *module, iso_tensor *grad_out, iso_tensor **grad_in) {
    ISO_TRY(check_trained(module));
    return iso_module_call_backward(module, grad_out, grad_in);
}

iso_status iso_module_backward_many(iso_module *module, const iso_tensors *grad_out,
                                    unsigned wanted, iso_tensors *grad_in) {
    ISO_TRY(check_trained(module));
    return iso_module_call_backward_many(module, grad_out, wanted, grad_in);
}
