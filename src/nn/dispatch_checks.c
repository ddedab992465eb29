// SPDX-License-Identifier: MIT
// What the dispatcher checks before and after a layer runs: numbers, devices, types and shapes of
// inputs, outputs and gradients. Every message names the layer.
#include "nn/dispatch_checks.h"

// ---- Inputs ------------------------------------------------------------------------------------

iso_status iso__count_error(const iso_module *module, int count, const char *expected) {
    char label[ISO_LABEL_ROOM], from[ISO_LABEL_ROOM];
    return ISO_FAIL(ISO_ERR_ARG, "%s takes %s but got %d%s%s", iso__module_label(module, label),
                    expected, count, module->source ? " from " : "",
                    module->source ? iso__module_label(module->source, from) : "");
}

// Containers pass indices on.
static iso_status check_indices(const iso_module *module, iso_dtype dtype) {
    char label[ISO_LABEL_ROOM];
    bool wanted = module->ops->takes_indices, given = iso__is_index(dtype);
    bool container = module->child_count > 0 && !iso__has_type(module);
    ISO_CHECK(given || !wanted || module->ops->forward_many, ISO_ERR_TYPE,
              "%s takes indices, i32 or i64, but got %s", iso__module_label(module, label),
              iso_dtype_name(dtype));
    ISO_CHECK(!given || wanted || container, ISO_ERR_TYPE,
              "%s does not take indices but got %s: put an Embedding in front of it",
              iso__module_label(module, label), iso_dtype_name(dtype));
    return ISO_OK;
}

// Layers that set takes_half accept activations of 16 bits with f32 parameters, too.
static iso_status check_type(const iso_module *module, iso_dtype dtype) {
    char label[ISO_LABEL_ROOM];
    bool low = iso__is_half(dtype);
    ISO_TRY(check_indices(module, dtype));
    if (iso__is_index(dtype)) return ISO_OK;
    if (low) ISO_TRY(iso__device_check_dtype(module->device, dtype));
    ISO_CHECK(!low || module->ops->takes_half, ISO_ERR_TYPE,
              "%s does not take %s: put it between an iso_cast_create to f32 and one to %s, or set "
              "takes_half in its table",
              iso__module_label(module, label), iso_dtype_name(dtype), iso_dtype_name(dtype));
    bool fits = module->dtype == dtype || (low && module->dtype == ISO_F32);
    ISO_CHECK(!iso__has_type(module) || fits, ISO_ERR_TYPE,
              "%s is %s but got %s: see iso_module_to and iso_cast_create",
              iso__module_label(module, label), iso_dtype_name(module->dtype),
              iso_dtype_name(dtype));
    return iso__device_check_dtype(module->device, dtype);
}

static iso_status check_input(const iso_module *module, const iso_tensor *in) {
    char label[ISO_LABEL_ROOM];
    ISO_CHECK(in, ISO_ERR_ARG, "%s got no input", iso__module_label(module, label));
    ISO_CHECK(in->device == module->device || module->ops->moves_inputs, ISO_ERR_ARG,
              "%s is on device %s but its input is on another", iso__module_label(module, label),
              iso_device_name(module->device));
    ISO_TRY(check_type(module, in->dtype));
    return ISO_OK;
}

static iso_status check_count(const iso_module *module, int count) {
    const iso_module_ops *ops = module->ops;
    int wanted = ops->forward_many ? ops->inputs : 1; // 0: any number
    char text[32];
    if (wanted > 0 ? count == wanted : count >= 1 && count <= ISO_MODULE_TENSORS) return ISO_OK;
    if (wanted > 0)
        snprintf(text, sizeof(text), "%d tensor%s", wanted, ISO_PLURAL(wanted));
    else
        snprintf(text, sizeof(text), "1 to %d tensors", ISO_MODULE_TENSORS);
    return iso__count_error(module, count, text);
}

// Only inside a container may inputs have several types.
iso_status iso__check_inputs(const iso_module *module, const iso_tensors *in) {
    char label[ISO_LABEL_ROOM];
    ISO_TRY(check_count(module, in->count));
    for (int i = 0; i < in->count; i++) ISO_TRY(check_input(module, in->item[i]));
    bool container = module->child_count > 0 && !iso__has_type(module);
    if (in->count == 1 || container) return ISO_OK;
    iso_dtype first = iso__type_of(in->item, in->count);
    for (int i = 0; i < in->count; i++)
        ISO_CHECK(iso__is_index(in->item[i]->dtype) || in->item[i]->dtype == first, ISO_ERR_TYPE,
                  "%s got inputs of %s and %s: see iso_cast_create",
                  iso__module_label(module, label), iso_dtype_name(first),
                  iso_dtype_name(in->item[i]->dtype));
    return ISO_OK;
}

// ---- Outputs -----------------------------------------------------------------------------------

static bool has_dtype(iso_tensor *const *item, int count, iso_dtype dtype) {
    for (int i = 0; i < count; i++)
        if (item[i]->dtype == dtype) return true;
    return false;
}

// A type may change inside a container.
static bool gives_type(const iso_module *module, const iso_call *call, iso_dtype dtype) {
    int count;
    iso_tensor *const *item = iso__call_inputs(call, &count);
    if (has_dtype(item, count, dtype) || module->ops->changes_type) return true;
    if (module->ops->takes_indices) return dtype == module->dtype;
    for (int i = 0; i < module->child_count; i++) {
        const iso_module *child = module->child[i];
        if (child->call_depth == 0) continue;
        item = iso__call_results(child->call[child->call_depth - 1], &count);
        if (has_dtype(item, count, dtype)) return true;
    }
    return false;
}

// Checks an output of a user's layer here; otherwise the next layer would be blamed.
iso_status iso__check_output(const iso_module *module, const iso_call *call,
                             const iso_tensor *result) {
    char label[ISO_LABEL_ROOM];
    ISO_CHECK(result, ISO_ERR_STATE, "forward of %s gave no output",
              iso__module_label(module, label));
    ISO_CHECK(result->device == module->device, ISO_ERR_TYPE,
              "forward of %s gave an output that is not on its own device: make it by "
              "iso_call_tensor",
              iso__module_label(module, label));
    ISO_CHECK(gives_type(module, call, result->dtype), ISO_ERR_TYPE,
              "forward of %s gave an output of %s for an input of %s: make it by iso_call_tensor, "
              "which gives it the type of the input",
              iso__module_label(module, label), iso_dtype_name(result->dtype),
              iso_dtype_name(call->in->dtype));
    return ISO_OK;
}

// ---- Gradients ---------------------------------------------------------------------------------

iso_status iso__check_gradient_count(const iso_module *module, const iso_call *call, int count) {
    char label[ISO_LABEL_ROOM];
    int results;
    iso__call_results(call, &results);
    ISO_CHECK(count == results, ISO_ERR_ARG, "%s gave %d tensor%s but got %d gradient%s",
              iso__module_label(module, label), results, ISO_PLURAL(results), count,
              ISO_PLURAL(count));
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

// Items may be modified in place by the modules that receive them.
static iso_status check_distinct(const iso_module *module, const iso_tensors *grad_in) {
    char label[ISO_LABEL_ROOM];
    for (int i = 1; i < grad_in->count; i++)
        for (int k = 0; k < i; k++)
            ISO_CHECK(!grad_in->item[i] || grad_in->item[i] != grad_in->item[k], ISO_ERR_STATE,
                      "backward of %s gave one tensor as the gradient of its inputs %d and %d: "
                      "copy it",
                      iso__module_label(module, label), k, i);
    return ISO_OK;
}

// Keeps the bits of inputs that exist. ISO_WANT_ALL does not include indices. A container leaves it
// to its children to refuse a bit for indices.
iso_status iso__select_inputs(const iso_module *module, const iso_call *call, unsigned *wanted) {
    char label[ISO_LABEL_ROOM];
    unsigned exist = 0, indices = 0;
    int count;
    iso_tensor *const *in = iso__call_inputs(call, &count);
    for (int i = 0; i < count; i++) *(iso__is_index(in[i]->dtype) ? &indices : &exist) |= 1u << i;
    if (*wanted != ISO_WANT_ALL) exist |= indices;
    *wanted &= exist;
    ISO_CHECK(!call->many || !(*wanted & indices) || module->child_count > 0, ISO_ERR_UNSUPPORTED,
              "%s has no gradient with respect to indices", iso__module_label(module, label));
    return ISO_OK;
}

// Checks those that are wanted, and drops the others.
iso_status iso__check_gradients(const iso_module *module, const iso_call *call, unsigned wanted,
                                iso_tensors *grad_in) {
    int count;
    iso_tensor *const *in = iso__call_inputs(call, &count);
    grad_in->count = count;
    for (int i = 0; i < count; i++) {
        if (wanted >> i & 1)
            ISO_TRY(check_gradient(module, in[i], grad_in->item[i]));
        else
            grad_in->item[i] = NULL;
    }
    return count > 1 ? check_distinct(module, grad_in) : ISO_OK;
}
