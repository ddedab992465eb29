// SPDX-License-Identifier: MIT
// Gives a tree of modules another element type, or moves it to another device.
#include "nn/nn_impl.h"

// The optimizer and the wrapper hold on to gradients, their types and their memory.
static iso_status check_free(const iso_module *module, const char *what) {
    char label[ISO_LABEL_ROOM];
    for (int i = 0; i < module->parameter_count; i++)
        ISO_CHECK(iso__parameter_is_free(module->parameter[i]), ISO_ERR_STATE,
                  "%s cannot %s once it is wrapped or given to an optimizer: do it before",
                  iso__module_label(module, label), what);
    for (int i = 0; i < module->child_count; i++) ISO_TRY(check_free(module->child[i], what));
    return ISO_OK;
}

// ---- Element types ------------------------------------------------------------------------------

static iso_status convert_tensor(iso_tensor **slot, iso_dtype dtype) {
    iso_tensor *from = *slot, *to;
    if (from->dtype == dtype || from->dtype == ISO_I64) return ISO_OK;
    ISO_TRY(iso_tensor_create(from->device, dtype, from->ndim, from->shape, &to));
    iso_status status = iso_tensor_copy(from, to);
    if (status < 0) {
        iso_tensor_destroy(&to);
        return status;
    }
    iso_tensor_destroy(slot);
    *slot = to;
    return ISO_OK;
}

// Of 16 bits are the parameters of layers that say so in their table. Others are f32, and compute
// with activations of 16 bits.
static iso_dtype type_for(const iso_module *module, iso_dtype dtype) {
    return iso__is_half(dtype) && !module->ops->half_parameters ? ISO_F32 : dtype;
}

static iso_status convert_all(iso_module *module, iso_dtype type) {
    iso_dtype dtype = type_for(module, type);
    module->dtype = module->activations = dtype;
    module->call_depth = 0; // what forwards saved is of the other type
    for (int i = 0; i < module->parameter_count; i++) {
        iso_parameter *p = module->parameter[i];
        ISO_TRY(convert_tensor(&p->value, dtype));
        ISO_TRY(convert_tensor(&p->grad, iso__gradient_type(dtype)));
        p->grad_valid = false;
    }
    for (int i = 0; i < module->buffer_count; i++)
        ISO_TRY(convert_tensor(&module->buffer[i]->value, iso__gradient_type(dtype)));
    for (int i = 0; i < module->child_count; i++) ISO_TRY(convert_all(module->child[i], type));
    return ISO_OK;
}

typedef struct half_check {
    const iso_module *root;
    iso_dtype dtype;
} half_check;

// A module that uses the parameter, and keeps its parameters f32; NULL: none does.
static const iso_module *find_f32_user(const iso_module *module, const iso_parameter *p) {
    for (int i = 0; i < module->parameter_count && !module->ops->half_parameters; i++)
        if (module->parameter[i] == p) return module;
    const iso_module *found = NULL;
    for (int i = 0; i < module->child_count && !found; i++)
        found = find_f32_user(module->child[i], p);
    return found;
}

// A parameter has one type, whichever layers use it.
static iso_status check_half_ties(const iso_module *module, const half_check *c) {
    char label[ISO_LABEL_ROOM], other[ISO_LABEL_ROOM];
    for (int i = 0; i < module->parameter_count && module->ops->half_parameters; i++) {
        const iso_parameter *p = module->parameter[i];
        const iso_module *user = p->references > 1 ? find_f32_user(c->root, p) : NULL;
        ISO_CHECK(!user, ISO_ERR_TYPE,
                  "%s and %s share a parameter, and only the first one can have it in %s: set "
                  "half_parameters in the table of the second",
                  iso__module_label(module, label), iso__module_label(user, other),
                  iso_dtype_name(c->dtype));
    }
    return ISO_OK;
}

static iso_status check_half_layers(iso_module *module, const char *path, void *user) {
    const half_check *c = user;
    char label[ISO_LABEL_ROOM];
    (void)path;
    ISO_CHECK(module->ops->takes_half || module->ops->half_parameters, ISO_ERR_TYPE,
              "%s cannot be made %s: set takes_half in its table if it computes in 16 bits, or "
              "remove it",
              iso__module_label(module, label), iso_dtype_name(c->dtype));
    return check_half_ties(module, c);
}

iso_status iso_module_to(iso_module *module, iso_dtype dtype) {
    ISO_CHECK(iso__is_real(dtype), ISO_ERR_ARG,
              "a module cannot be made %s: use f32, f64, bf16 or f16", iso_dtype_name(dtype));
    ISO_TRY(iso__device_check_dtype(module->device, dtype));
    half_check check = {.root = module, .dtype = dtype};
    if (iso__is_half(dtype)) ISO_TRY(iso_module_walk(module, check_half_layers, &check));
    ISO_TRY(check_free(module, "change its element type"));
    ISO_TRY(iso__module_check_tied(module, "converted"));
    ISO_TRY(convert_all(module, dtype));
    return ISO_OK;
}

// ---- Devices ------------------------------------------------------------------------------------

// The tensors of a module on the new device. All are there before the first one takes its place.
typedef struct twins {
    iso_device *device;
    iso_parameter_list parameters; // tied ones once
    iso_buffer_list buffers;
    iso_tensor **item; // of each parameter its value and gradient, then of each buffer its value
} twins;

static bool is_there(const iso_module *module, const iso_device *device) {
    bool there = module->device == device;
    for (int i = 0; there && i < module->child_count; i++)
        there = is_there(module->child[i], device);
    return there;
}

static iso_status check_device(iso_module *module, const char *path, void *user) {
    const iso_device *device = user;
    (void)path;
    if (module->ops->runs_on) ISO_TRY(module->ops->runs_on(module, device));
    for (int i = 0; i < module->parameter_count; i++) {
        iso_dtype dtype = module->parameter[i]->value->dtype;
        ISO_TRY(iso__device_check_dtype(device, dtype));
    }
    return ISO_OK;
}

// Without a copy the contents do not matter.
static iso_status make_twin(iso_device *device, const iso_tensor *from, bool copies,
                            iso_tensor **out) {
    if (from->device == device) return ISO_OK;
    ISO_TRY(iso_tensor_create(device, from->dtype, from->ndim, from->shape, out));
    return copies ? iso_tensor_copy(from, *out) : ISO_OK;
}

static int count_twins(const twins *t) { return 2 * t->parameters.count + t->buffers.count; }

static iso_status make_twins(iso_module *module, twins *t) {
    ISO_TRY(iso_module_parameters(module, &t->parameters));
    ISO_TRY(iso_module_buffers(module, &t->buffers));
    ISO_TRY(iso__alloc_zero((size_t)count_twins(t) * sizeof(*t->item), (void **)&t->item));
    iso_tensor **next = t->item;
    for (int i = 0; i < t->parameters.count; i++) {
        const iso_parameter *p = t->parameters.item[i];
        ISO_TRY(make_twin(t->device, p->value, true, next++));
        ISO_TRY(make_twin(t->device, p->grad, p->grad_valid, next++));
    }
    for (int i = 0; i < t->buffers.count; i++)
        ISO_TRY(make_twin(t->device, t->buffers.item[i]->value, true, next++));
    return ISO_OK;
}

static void destroy_twins(twins *t) {
    for (int i = 0; t->item && i < count_twins(t); i++) iso_tensor_destroy(&t->item[i]);
    iso__free(t->item);
    iso_parameter_list_destroy(&t->parameters);
    iso_buffer_list_destroy(&t->buffers);
}

// *twin NULL: the tensor is on the device already. destroy_twins frees the tensor that is replaced.
static void exchange_twin(iso_tensor **slot, iso_tensor **twin) {
    iso_tensor *before = *slot;
    if (!*twin) return;
    *slot = *twin;
    *twin = before;
}

static void take_twins(twins *t) {
    iso_tensor **next = t->item;
    for (int i = 0; i < t->parameters.count; i++) {
        exchange_twin(&t->parameters.item[i]->value, next++);
        exchange_twin(&t->parameters.item[i]->grad, next++);
    }
    for (int i = 0; i < t->buffers.count; i++) exchange_twin(&t->buffers.item[i]->value, next++);
}

// A module that is used in several places is moved at the first one.
static void move_modules(iso_module *module, iso_device *device) {
    if (module->device != device) {
        iso__module_drop_calls(module);
        iso_device_destroy(&module->device);
        module->device = iso_device_retain(device);
        if (module->ops->moved) module->ops->moved(module);
    }
    for (int i = 0; i < module->child_count; i++) move_modules(module->child[i], device);
}

iso_status iso_module_to_device(iso_module *module, iso_device *device) {
    ISO_CHECK(module && device, ISO_ERR_ARG, "moving needs a module and a device");
    twins t = {.device = device};
    if (is_there(module, device)) return ISO_OK;
    ISO_TRY(check_free(module, "move to another device"));
    ISO_TRY(iso__module_check_tied(module, "moved"));
    ISO_TRY(iso_module_walk(module, check_device, device));
    iso_status status = make_twins(module, &t);
    if (status >= 0) take_twins(&t);
    if (status >= 0) move_modules(module, device);
    destroy_twins(&t);
    ISO_TRY(status);
    return ISO_OK;
}
