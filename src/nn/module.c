// SPDX-License-Identifier: MIT
// The base of every module: creation, children, references, and settings for a whole tree of
// modules.
#include "base/index.h"
#include "nn/nn_impl.h"

#include <string.h>

// ---- Creation and destruction ------------------------------------------------------------------

iso_status iso_module_init(iso_module *module, const iso_module_ops *ops, iso_device *device) {
    ISO_CHECK(ops && ops->type && (ops->forward || ops->forward_many), ISO_ERR_ARG,
              "a module needs a table with at least its type and forward or forward_many");
    ISO_CHECK(device, ISO_ERR_ARG, "%s needs a device", ops->type);
    module->ops = ops;
    module->device = iso_device_retain(device);
    module->name = "";
    module->training = true;
    module->references = 1;
    return ISO_OK;
}

iso_status iso__module_new(size_t bytes, const iso_module_ops *ops, iso_device *device,
                           iso_module **out) {
    iso_module *module =
        calloc(1, bytes); // plain calloc: iso_module_destroy frees users' modules alike
    ISO_CHECK(module, ISO_ERR_NOMEM, "out of memory: could not create a %s", ops->type);
    iso_status status = iso_module_init(module, ops, device);
    if (status < 0) {
        free(module);
        return status;
    }
    *out = module;
    return ISO_OK;
}

static void destroy_parameters(iso_module *module) {
    for (int i = 0; i < module->parameter_count; i++) {
        iso__parameter_release(module->parameter[i]);
        iso__free((void *)module->parameter_name[i]);
    }
    iso__free(module->parameter);
    iso__free(module->parameter_name);
}

static void destroy_buffers(iso_module *module) {
    for (int i = 0; i < module->buffer_count; i++) {
        iso_tensor_destroy(&module->buffer[i]->value);
        iso__free((void *)module->buffer[i]->name);
        iso__free(module->buffer[i]);
    }
    iso__free(module->buffer);
}

static void destroy_tensors(iso_tensor **item, int count) {
    for (int i = 0; i < count; i++) iso_tensor_destroy(&item[i]);
}

void iso__module_drop_calls(iso_module *module) {
    for (int i = 0; i < module->call_capacity; i++) {
        iso_call *call = module->call[i];
        iso_tensor_destroy(&call->out);
        iso_tensor_destroy(&call->grad_in);
        iso_tensor_destroy(&call->grad_out);
        destroy_tensors(call->aux, 2);
        if (call->many) {
            destroy_tensors(call->many->out, ISO_MODULE_TENSORS);
            destroy_tensors(call->many->grad_in, ISO_MODULE_TENSORS);
            for (int k = 0; k < 2; k++) destroy_tensors(call->many->aux[k], ISO_MODULE_TENSORS);
            destroy_tensors(call->many->grad_out, ISO_MODULE_TENSORS);
        }
        iso__free(call->many);
        iso__free(call);
    }
    iso__free(module->call);
    module->call = NULL;
    module->call_depth = module->call_capacity = 0;
}

static void destroy_children(iso_module *module) {
    for (int i = 0; i < module->child_count; i++) {
        iso_module_destroy(&module->child[i]);
        iso__free((void *)module->child_name[i]);
    }
    iso__free(module->child);
    iso__free(module->child_name);
    if (module->child_index) iso__index_free(module->child_index);
    iso__free(module->child_index);
}

iso_module *iso_module_retain(iso_module *module) {
    module->references++;
    return module;
}

void iso_module_destroy(iso_module **slot) {
    iso_module *module = *slot;
    *slot = NULL;
    if (!module || --module->references > 0) return;
    if (module->ops->destroy) module->ops->destroy(module);
    iso__module_drop_calls(module);
    destroy_parameters(module);
    destroy_buffers(module);
    destroy_children(module);
    iso__free(module->hooks);
    if (module->name[0]) iso__free((void *)module->name);
    iso_device_destroy(&module->device);
    free(module);
}

// ---- Parameters and children -------------------------------------------------------------------

static bool has_child(const iso_module *module, const char *name) {
    int i;
    for (size_t at = 0; module->child_index &&
                        (i = iso__index_next(module->child_index, iso__name_key(name), &at)) >= 0;)
        if (i < module->child_count && strcmp(name, module->child_name[i]) == 0) return true;
    return false;
}

static iso_status check_name(const iso_module *module, const char *name) {
    ISO_CHECK(name && name[0] && !strchr(name, '.'), ISO_ERR_ARG,
              "\"%s\" is not a valid name inside a %s: names are not empty and have no '.'",
              name ? name : "", module->ops->type);
    for (int i = 0; i < module->parameter_count; i++)
        ISO_CHECK(strcmp(name, module->parameter_name[i]) != 0, ISO_ERR_ARG,
                  "%s already has a parameter named \"%s\"", module->ops->type, name);
    for (int i = 0; i < module->buffer_count; i++)
        ISO_CHECK(strcmp(name, module->buffer[i]->name) != 0, ISO_ERR_ARG,
                  "%s already has a buffer named \"%s\"", module->ops->type, name);
    ISO_CHECK(!has_child(module, name), ISO_ERR_ARG, "%s already has a child named \"%s\"",
              module->ops->type, name);
    return ISO_OK;
}

static iso_status grow_parameters(iso_module *module) {
    void *array = module->parameter;
    ISO_TRY(iso__grow(&array, module->parameter_count, NULL, sizeof(void *)));
    module->parameter = array;
    array = module->parameter_name;
    ISO_TRY(iso__grow(&array, module->parameter_count, NULL, sizeof(void *)));
    module->parameter_name = array;
    return ISO_OK;
}

iso_status iso__module_add_tensors_take(iso_module *module, const char *name, iso_tensor *value,
                                        iso_tensor *grad, iso_parameter **out) {
    iso_parameter *p = NULL;
    char *copy = NULL, *local = NULL;
    iso_status status;
    ISO_TRY_GOTO(grow_parameters(module));
    ISO_TRY_GOTO(iso__alloc_zero(sizeof(*p), (void **)&p));
    ISO_TRY_GOTO(iso__strdup(name, &local));
    ISO_TRY_GOTO(iso__strdup(name, &copy));
    *p = (iso_parameter){
        .name = copy, .value = value, .grad = grad, .requires_grad = true, .references = 1};
    module->parameter_name[module->parameter_count] = local;
    module->parameter[module->parameter_count++] = p;
    if (out) *out = p;
    return ISO_OK;
fail:
    iso_tensor_destroy(&value);
    iso_tensor_destroy(&grad);
    iso__free(p);
    iso__free(local);
    return status;
}

iso_status iso_module_add_parameter(iso_module *module, const char *name, int ndim,
                                    const int64_t *shape, iso_parameter **out) {
    iso_tensor *value = NULL, *grad = NULL;
    iso_status status;
    ISO_TRY(check_name(module, name));
    ISO_TRY_GOTO(iso_tensor_create(module->device, module->dtype, ndim, shape, &value));
    ISO_TRY_GOTO(
        iso_tensor_create(module->device, iso__gradient_type(module->dtype), ndim, shape, &grad));
    ISO_TRY_GOTO(iso_tensor_fill(value, 0));
    return iso__module_add_tensors_take(module, name, value, grad, out);
fail:
    iso_tensor_destroy(&value);
    iso_tensor_destroy(&grad);
    return status;
}

iso_status iso_module_add_buffer(iso_module *module, const char *name, iso_dtype dtype, int ndim,
                                 const int64_t *shape, iso_buffer **out) {
    ISO_TRY(check_name(module, name));
    ISO_CHECK(dtype == ISO_F32 || dtype == ISO_F64 || dtype == ISO_I64, ISO_ERR_ARG,
              "a buffer cannot be %s: use f32, f64 or i64", iso_dtype_name(dtype));
    void *array = module->buffer, *memory = NULL;
    ISO_TRY(iso__grow(&array, module->buffer_count, NULL, sizeof(void *)));
    module->buffer = array;

    iso_buffer *b = NULL;
    char *copy = NULL;
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(iso__alloc_zero(sizeof(*b), &memory));
    b = memory;
    ISO_TRY_GOTO(iso_tensor_create(module->device, dtype, ndim, shape, &b->value));
    ISO_TRY_GOTO(iso_tensor_fill(b->value, 0));
    ISO_TRY_GOTO(iso__strdup(name, &copy));
    b->name = copy;
    b->persistent = true;
    module->buffer[module->buffer_count++] = b;
    if (out) *out = b;
    return ISO_OK;
fail:
    if (b) iso_tensor_destroy(&b->value);
    iso__free(b);
    return status;
}

static bool contains_module(const iso_module *module, const iso_module *sought) {
    if (module == sought) return true;
    for (int i = 0; i < module->child_count; i++)
        if (contains_module(module->child[i], sought)) return true;
    return false;
}

// Indexes the next child. If adding it fails later, the entry is ignored (number >= child_count).
static iso_status index_child(iso_module *module, const char *name) {
    if (!module->child_index)
        ISO_TRY(iso__alloc_zero(sizeof(*module->child_index), (void **)&module->child_index));
    return iso__index_add(module->child_index, iso__name_key(name), module->child_count);
}

// Takes one reference of child on success only.
static iso_status add_child(iso_module *module, const char *name, iso_module *child) {
    ISO_CHECK(child, ISO_ERR_ARG, "no module was given to add to a %s", module->ops->type);
    ISO_CHECK(child->device == module->device, ISO_ERR_ARG,
              "%s \"%s\" is on another device than the %s it is added to", child->ops->type, name,
              module->ops->type);
    ISO_CHECK(!contains_module(child, module), ISO_ERR_ARG, "a %s cannot be added below itself",
              module->ops->type);
    void *array = module->child;
    ISO_TRY(iso__grow(&array, module->child_count, NULL, sizeof(void *)));
    module->child = array;
    array = module->child_name;
    ISO_TRY(iso__grow(&array, module->child_count, NULL, sizeof(void *)));
    module->child_name = array;
    ISO_TRY(index_child(module, name));

    char *copy;
    ISO_TRY(iso__strdup(name, &copy));
    module->child_name[module->child_count] = copy;
    if (name[0] &&
        !child->name[0]) { // its first container names it; the copy outlives the container
        iso_status status = iso__strdup(name, &copy);
        if (status < 0) {
            iso__free((void *)module->child_name[module->child_count]);
            return status;
        }
        child->name = copy;
    }
    module->child[module->child_count++] = child;
    return ISO_OK;
}

iso_status iso__module_add_wrapped_take(iso_module *wrapper, iso_module *child) {
    iso_status status = add_child(wrapper, "", child);
    if (status < 0) iso_module_destroy(&child);
    return status;
}

iso_status iso_module_add_child_take(iso_module *module, const char *name, iso_module *child) {
    iso_status status = check_name(module, name);
    if (status >= 0) status = add_child(module, name, child);
    if (status < 0) {
        iso_module_destroy(&child);
        return iso__error_frame(status, __func__, __FILE__, __LINE__);
    }
    return ISO_OK;
}

iso_status iso__module_add_numbered_take(iso_module *module, const iso_module_ops *ops,
                                         const char *name, iso_module *child) {
    char number[16];
    snprintf(number, sizeof(number), "%d", module->child_count);
    if (module->ops == ops) return iso_module_add_child_take(module, name ? name : number, child);
    iso_module_destroy(&child);
    return ISO_FAIL(ISO_ERR_ARG, "a %s is not a %s: nothing can be added to it", module->ops->type,
                    ops->type);
}

// ---- Settings for a whole tree of modules ------------------------------------------------------

iso_status iso_module_train(iso_module *module, bool training) {
    module->training = training;
    if (module->ops->train) ISO_TRY(module->ops->train(module, training));
    for (int i = 0; i < module->child_count; i++)
        ISO_TRY(iso_module_train(module->child[i], training));
    return ISO_OK;
}

int iso__module_get_modes(const iso_module *root, bool *modes) {
    int n = 1;
    *modes = root->training;
    for (int i = 0; i < root->child_count; i++)
        n += iso__module_get_modes(root->child[i], modes + n);
    return n;
}

iso_status iso__module_set_modes(iso_module *root, const bool **modes) {
    root->training = *(*modes)++;
    if (root->ops->train) ISO_TRY(root->ops->train(root, root->training));
    for (int i = 0; i < root->child_count; i++)
        ISO_TRY(iso__module_set_modes(root->child[i], modes));
    return ISO_OK;
}

void iso_module_set_first_row(iso_module *module, int64_t first_row) {
    module->first_row = first_row;
    for (int i = 0; i < module->child_count; i++)
        iso_module_set_first_row(module->child[i], first_row);
}

// ---- Questions ---------------------------------------------------------------------------------

bool iso__module_trains_own(const iso_module *module) {
    for (int i = 0; i < module->parameter_count; i++)
        if (module->parameter[i]->requires_grad) return true;
    return false;
}

bool iso__module_trains(const iso_module *module) {
    if (iso__module_trains_own(module)) return true;
    for (int i = 0; i < module->child_count; i++)
        if (iso__module_trains(module->child[i])) return true;
    return false;
}
