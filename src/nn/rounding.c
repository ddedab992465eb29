// SPDX-License-Identifier: MIT
// Parameters in the type of activations: layers keep copies in 16 bits of those that are f32.
//
// A layer rounds its own parameters at each call, which is a launch for each layer. So an Autocast
// rounds its input and the parameters of all layers below it in one call, before its forward
// begins. A layer uses a copy that is ready once. Copies that no layer has used are dropped when
// that forward ends. No rounded parameter may change in between. So layers with an outstanding
// update are left out, and if any module or hook might change parameters, all layers are.
#include "nn/nn_impl.h"

iso_status iso__roundings_flush(iso__roundings *r) {
    int count = r->count;
    r->count = 0;
    if (count == 0) return ISO_OK;
    return r->device->kernels[r->dtype]->round_many(r->device, count, r->item);
}

iso_status iso__roundings_add(iso__roundings *r, const iso_tensor *from, iso_tensor *to) {
    if (r->count == ISO__ROUNDINGS) ISO_TRY(iso__roundings_flush(r));
    r->item[r->count++] = (iso__rounding){from, to};
    return ISO_OK;
}

static iso__rounded *rounded_of(iso_module *module) {
    iso__rounded *rounded = iso__linear_rounded(module);
    return rounded ? rounded : iso__conv2d_rounded(module);
}

// Whether the copy that an earlier call left still has the right shape.
static bool may_take(const iso_parameter *parameter, const iso_tensor *low) {
    return low && parameter->value->dtype == ISO_F32 &&
           iso__tensor_same_shape(parameter->value, low);
}

// parameter[]: weight, then bias if there is one.
static bool can_round(const iso_module *module, const iso__rounded_copy *copy) {
    if (!may_take(module->parameter[0], copy->values.weight)) return false;
    return module->parameter_count == 1 || may_take(module->parameter[1], copy->values.bias);
}

static iso_status add_layer(iso__roundings *r, iso_module *module) {
    iso__rounded *rounded = rounded_of(module);
    iso__rounded_copy *copy = rounded ? &rounded->copy[iso__rounded_index(r->dtype)] : NULL;
    if (!copy || copy->ready || !can_round(module, copy)) return ISO_OK;
    iso_tensor *const low[] = {copy->values.weight, copy->values.bias};
    for (int i = 0; i < module->parameter_count; i++)
        ISO_TRY(iso__roundings_add(r, module->parameter[i]->value, low[i]));
    copy->ready = true;
    return ISO_OK;
}

// Hooks, too, may change any parameter, unless they provide is_current.
static bool keeps_parameters(const iso_module *module) {
    bool keeps = module->ops->keeps_parameters;
    for (int i = 0; keeps && i < module->hooks_count; i++)
        keeps = !module->hooks[i].call.before_forward || module->hooks[i].call.is_current;
    for (int i = 0; keeps && i < module->child_count; i++)
        keeps = keeps_parameters(module->child[i]);
    return keeps;
}

// Code that updates a parameter in pieces adds a hook with is_current, which tells whether all
// pieces are up to date.
static bool is_current(const iso_module *module) {
    bool told = false, current = true;
    for (int i = 0; i < module->hooks_count; i++) {
        const iso_module_hooks *hooks = &module->hooks[i].call;
        told = told || hooks->is_current;
        current = current && (!hooks->is_current || hooks->is_current(module, hooks->user));
    }
    for (int i = 0; !told && i < module->parameter_count; i++)
        if (module->parameter[i]->pieces) return false;
    return current;
}

static iso_status add_below(iso__roundings *r, iso_module *module) {
    if (is_current(module)) ISO_TRY(add_layer(r, module));
    for (int i = 0; i < module->child_count; i++) ISO_TRY(add_below(r, module->child[i]));
    return ISO_OK;
}

iso_status iso__roundings_add_below(iso__roundings *r, iso_module *module) {
    return keeps_parameters(module) ? add_below(r, module) : ISO_OK;
}

void iso__roundings_drop(iso_module *module) {
    iso__rounded *rounded = rounded_of(module);
    for (int i = 0; rounded && i < 2; i++) rounded->copy[i].ready = false;
    for (int i = 0; i < module->child_count; i++) iso__roundings_drop(module->child[i]);
}
