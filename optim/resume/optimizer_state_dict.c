// SPDX-License-Identifier: MIT
// The state_dict of an optimizer: its state by names of parameters, and its hyperparameters.
#include "optim/dp_state.h"
#include "optim/resume/resume_impl.h"
#include "optim/resume/state_dict_impl.h"

#include <string.h>

enum { NAME_ROOM = 768 };

// ---- Names --------------------------------------------------------------------------------------
// Optimizers list their saved state, and the dict is made from that list. The names of the list are
// "optimizer/KIND/" followed by those of the dict.

static const char *dict_name(const iso__array *array) {
    const char *slash = strchr(array->name, '/');
    return strchr(slash + 1, '/') + 1;
}

// State of a parameter, which is memory of the device.
static bool is_moment(const iso__array *array) { return array->tensor != NULL; }

// ---- Numbers ------------------------------------------------------------------------------------

// A switch, one byte, is 0 or 1 as i64.
static bool is_switch(const iso__array *array) { return strcmp(array->dtype, "U8") == 0; }

static iso_dtype number_type(const iso__array *array) {
    return strcmp(array->dtype, "F64") == 0 ? ISO_F64 : ISO_I64;
}

static iso_status number_get(const iso__array *array, iso_tensor *to) {
    void *host;
    ISO_TRY(iso_tensor_map(to, ISO_WRITE, &host));
    if (is_switch(array))
        *(int64_t *)host = *(const uint8_t *)array->data != 0;
    else
        memcpy(host, array->data, iso__array_bytes(array));
    return iso_tensor_unmap(to);
}

static iso_status number_set(const iso__array *array, iso_tensor *from) {
    void *host;
    ISO_TRY(iso_tensor_map(from, ISO_READ, &host));
    if (is_switch(array))
        *(uint8_t *)array->data = *(const int64_t *)host != 0;
    else
        memcpy(array->data, host, iso__array_bytes(array));
    return iso_tensor_unmap(from);
}

// ---- The whole ----------------------------------------------------------------------------------

static iso_status add_number(iso_device *device, const iso__array *array, iso_state_dict *dict) {
    iso_tensor *tensor;
    const char *name = dict_name(array);
    bool list = strcmp(name, "param_groups.params") == 0;
    ISO_TRY(iso_tensor_create(device, number_type(array), list ? array->ndim : 0, array->shape,
                              &tensor));
    iso_status status = number_get(array, tensor);
    if (status >= 0) status = iso_state_dict_add(dict, name, tensor);
    iso_tensor_destroy(&tensor);
    return status;
}

// Lists the state of the innermost optimizer, after completing pending updates.
static iso_status list_state(iso_optimizer *optimizer, iso__base_optimizer **core,
                             iso_state **out) {
    iso_tensor *value;
    iso_state *state = NULL;
    *core = iso__optimizer_innermost(optimizer);
    ISO_CHECK(*core, ISO_ERR_UNSUPPORTED, "a %s optimizer has no state_dict", optimizer->ops->name);
    for (int i = 0; i < (*core)->count; i++)
        ISO_TRY(iso_parameter_value((*core)->slot[i].parameter, &value));
    iso_status status = iso__dp_state_agree(*core, iso_state_create(&state));
    if (status == ISO_OK) status = (*core)->base.ops->state(&(*core)->base, state);
    if (status < 0) iso_state_destroy(&state);
    ISO_TRY(status);
    *out = state;
    return ISO_OK;
}

static iso_status make_dict(iso_device *device, const iso_state *state, iso_state_dict *out) {
    iso_state_dict dict = {0};
    iso_status status = ISO_OK;
    for (int i = 0; i < state->count[ISO_STATE_SHARED] && status >= 0; i++) {
        const iso__array *array = &state->array[ISO_STATE_SHARED][i];
        status = is_moment(array) ? iso_state_dict_add(&dict, dict_name(array), array->tensor)
                                  : add_number(device, array, &dict);
    }
    if (status < 0) {
        iso_state_dict_destroy(&dict);
        return status;
    }
    *out = dict;
    return ISO_OK;
}

iso_status iso_optimizer_state_dict(iso_optimizer *optimizer, iso_state_dict *out) {
    iso__base_optimizer *core;
    iso_state *state;
    ISO_TRY(list_state(optimizer, &core, &state));
    iso_status status = make_dict(core->module->device, state, out);
    iso_state_destroy(&state);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Steps of parameters ------------------------------------------------------------------------
// Only these entries, and maximize, may be missing. own: the optimizer's own dict, in the order of
// its list.

static bool counts_updates(const iso__array *array) { return array->optional && !is_switch(array); }

static bool is_step(const iso_state *state, const iso_state_dict *own, const char *name) {
    int i = iso__state_dict_index(own, name);
    return i >= 0 && counts_updates(&state->array[ISO_STATE_SHARED][i]);
}

static iso_status read_step(const iso_named_tensor *from, int64_t *out) {
    void *host;
    iso_dtype dtype = iso_tensor_dtype(from->tensor);
    ISO_TRY(iso_tensor_map(from->tensor, ISO_READ, &host));
    double value = dtype == ISO_I64   ? (double)*(const int64_t *)host
                   : dtype == ISO_F64 ? *(const double *)host
                                      : (double)*(const float *)host;
    ISO_TRY(iso_tensor_unmap(from->tensor));
    ISO_CHECK(value >= 0 && value < 0x1p53, ISO_ERR_ARG,
              "%s is %g in the state_dict: give a number of steps", from->name, value);
    *out = (int64_t)value;
    return ISO_OK;
}

static iso_status add_i64(iso_device *device, const char *name, int64_t number,
                          iso_state_dict *to) {
    iso_tensor *tensor;
    void *host;
    ISO_TRY(iso_tensor_create(device, ISO_I64, 0, NULL, &tensor));
    iso_status status = iso_tensor_map(tensor, ISO_WRITE, &host);
    if (status >= 0) {
        *(int64_t *)host = number;
        status = iso_tensor_unmap(tensor);
    }
    if (status >= 0) status = iso_state_dict_add(to, name, tensor);
    iso_tensor_destroy(&tensor);
    return status;
}

// Of a parameter that has no master weights here, because it is f32 or f64.
static bool is_spare_master(const iso_state_dict *own, const char *name) {
    static const char end[] = ".master_param";
    size_t length = strlen(name), most = sizeof(end) - 1;
    bool master = length > most && strcmp(name + length - most, end) == 0;
    return master && !iso_state_dict_find(own, name);
}

// Copies the entries of dict, with steps as i64, because PyTorch counts in f32. Adds the number of
// steps found to *steps.
static iso_status take_entries(iso_device *device, const iso_state *state,
                               const iso_state_dict *own, const iso_state_dict *dict,
                               iso_state_dict *out, int *steps) {
    for (int i = 0; i < dict->count; i++) {
        const iso_named_tensor *item = &dict->item[i];
        if (is_spare_master(own, item->name)) continue;
        iso_dtype dtype = iso_tensor_dtype(item->tensor);
        bool number = dtype == ISO_I64 || dtype == ISO_F64 || dtype == ISO_F32;
        bool step = is_step(state, own, item->name);
        int64_t value = 0;
        *steps += step;
        if (step && number && iso_tensor_ndim(item->tensor) == 0) {
            ISO_TRY(read_step(item, &value));
            ISO_TRY(add_i64(device, item->name, value, out));
        } else {
            ISO_TRY(iso_state_dict_add(out, item->name, item->tensor));
        }
    }
    return ISO_OK;
}

// A number of dict; `otherwise` where it has none of that name.
static iso_status read_number(const iso_state_dict *dict, const char *name, double otherwise,
                              double *out) {
    iso_tensor *tensor = iso_state_dict_find(dict, name);
    void *host;
    *out = otherwise;
    if (!tensor || iso_tensor_count(tensor) != 1) return ISO_OK;
    iso_dtype dtype = iso_tensor_dtype(tensor);
    ISO_TRY(iso_tensor_map(tensor, ISO_READ, &host));
    if (dtype == ISO_I64) *out = (double)*(const int64_t *)host;
    if (dtype == ISO_F64) *out = *(const double *)host;
    if (dtype == ISO_F32) *out = (double)*(const float *)host;
    return iso_tensor_unmap(tensor);
}

// PyTorch counts no steps of SGD. Its first update with momentum overwrites the buffer. So there
// was one if a buffer is loaded, and none if the buffer becomes zeros.
static iso_status presume_sgd_step(iso__base_optimizer *core, const iso__slot *slot,
                                   const iso_state_dict *given, double group_step, int64_t *step) {
    char name[NAME_ROOM];
    double momentum = iso__group_hyper(core, slot->group)->momentum;
    snprintf(name, sizeof(name), "param_groups.%d.momentum", slot->group);
    ISO_TRY(read_number(given, name, momentum, &momentum));
    snprintf(name, sizeof(name), "state.%s.momentum_buffer", slot->name);
    bool buffer = iso_state_dict_find(given, name) != NULL;
    if (buffer && group_step < 1 && slot->step < 1) *step = 1;
    if (!buffer && momentum == 0) *step = 0;
    return ISO_OK;
}

// For a dict without steps, from a version that did not count them: -1 stands for the step of the
// group. If dict lacks that too, steps stay as they are.
static iso_status presume_steps(iso__base_optimizer *core, const iso_state *state,
                                const iso_state_dict *own, iso_state_dict *given) {
    char name[NAME_ROOM];
    for (int i = 0, k = 0; i < own->count; i++) {
        const iso_named_tensor *item = &own->item[i];
        if (!counts_updates(&state->array[ISO_STATE_SHARED][i])) continue;
        const iso__slot *slot = &core->slot[k++];
        double group_step;
        snprintf(name, sizeof(name), "param_groups.%d.step", slot->group);
        ISO_TRY(read_number(given, name, 0, &group_step));
        int64_t step = iso_state_dict_find(given, name) ? -1 : slot->step;
        if (iso__rule_of(core) == &iso__rule_sgd)
            ISO_TRY(presume_sgd_step(core, slot, given, group_step, &step));
        ISO_TRY(add_i64(core->module->device, item->name, step, given));
    }
    return ISO_OK;
}

static iso_status accept_steps(iso__base_optimizer *core, const iso_state *state,
                               const iso_state_dict *own, const iso_state_dict *dict,
                               iso_state_dict *out) {
    int steps = 0;
    ISO_TRY(take_entries(core->module->device, state, own, dict, out, &steps));
    if (steps == 0) ISO_TRY(presume_steps(core, state, own, out));
    return ISO_OK;
}

// ---- maximize -----------------------------------------------------------------------------------

// Earlier versions listed it only if it was true, beside all other hyperparameters.
static iso_status presume_maximize(iso__base_optimizer *core, iso_state_dict *given) {
    char name[NAME_ROOM];
    for (int g = 0; g < core->groups; g++) {
        snprintf(name, sizeof(name), "param_groups.%d.lr", g);
        bool group = iso_state_dict_find(given, name) != NULL;
        snprintf(name, sizeof(name), "param_groups.%d.maximize", g);
        if (group && !iso_state_dict_find(given, name))
            ISO_TRY(add_i64(core->module->device, name, false, given));
    }
    return ISO_OK;
}

// ---- State that no update uses ------------------------------------------------------------------
// For example momentum_buffer of SGD without momentum: PyTorch has no such entry, this library
// zeros.

// The group's hyperparameters after dict is loaded; only those by which rules choose their state.
static iso_status coming_hyper(iso__base_optimizer *core, int group, const iso_state_dict *dict,
                               iso_hyper *out) {
    char name[NAME_ROOM];
    double centered;
    *out = *iso__group_hyper(core, group);
    snprintf(name, sizeof(name), "param_groups.%d.momentum", group);
    ISO_TRY(read_number(dict, name, out->momentum, &out->momentum));
    snprintf(name, sizeof(name), "param_groups.%d.centered", group);
    ISO_TRY(read_number(dict, name, out->centered, &centered));
    out->centered = centered != 0;
    return ISO_OK;
}

static iso_status add_zeros(const iso__slot *slot, const char *name, iso_state_dict *to) {
    const iso_tensor *value = slot->parameter->value;
    iso_dtype type = iso__state_type(slot);
    iso_tensor *zeros;
    ISO_TRY(iso_tensor_create(value->device, type, value->ndim, value->shape, &zeros));
    iso_status status = iso_tensor_fill(zeros, 0);
    if (status >= 0) status = iso_state_dict_add(to, name, zeros);
    iso_tensor_destroy(&zeros);
    return status;
}

// Adds state that dict lacks: zeros if the hyperparameters it brings do not use that state, and the
// optimizer's own master weights.
static iso_status presume_unused(iso__base_optimizer *core, const iso_state_dict *own,
                                 iso_state_dict *dict) {
    const iso__rule *rule = iso__rule_of(core);
    char name[NAME_ROOM];
    for (int i = 0; i < core->count; i++) {
        const iso__slot *slot = &core->slot[i];
        iso_hyper hyper;
        ISO_TRY(coming_hyper(core, slot->group, dict, &hyper));
        for (int k = 0; k < ISO_OPTIMIZER_STATES; k++) {
            bool unused = rule->needs_state && !rule->needs_state(k, &hyper);
            if (!iso__slot_has(core, slot, k)) continue;
            snprintf(name, sizeof(name), "state.%s.%s", slot->name, iso__state_name(core, k));
            if (iso_state_dict_find(dict, name)) continue;
            if (k == ISO_STATE_MASTER)
                ISO_TRY(iso_state_dict_add(dict, name, iso_state_dict_find(own, name)));
            else if (unused)
                ISO_TRY(add_zeros(slot, name, dict));
        }
    }
    return ISO_OK;
}

// ---- Loading ------------------------------------------------------------------------------------

// Writes the numbers of `own` (hyperparameters, steps and groups) back to the optimizer.
static iso_status put_numbers(const iso_state *state, const iso_state_dict *own) {
    for (int i = 0; i < own->count; i++) {
        const iso__array *array = &state->array[ISO_STATE_SHARED][i];
        if (!is_moment(array)) ISO_TRY(number_set(array, own->item[i].tensor));
    }
    return ISO_OK;
}

// The entries of `from` that are numbers, or that are state.
static iso_status part_of(const iso_state *state, const iso_state_dict *from, bool of_parameters,
                          iso_state_dict *out) {
    for (int i = 0; i < from->count; i++)
        if (is_moment(&state->array[ISO_STATE_SHARED][i]) == of_parameters)
            ISO_TRY(iso_state_dict_add(out, from->item[i].name, from->item[i].tensor));
    return ISO_OK;
}

// Loads numbers first. If the optimizer refuses them, the old ones are put back.
static iso_status load_entries(iso__base_optimizer *core, const iso_state *state,
                               const iso_state_dict *own, const iso_state_dict *dict) {
    iso_state_dict numbers = {0}, moments = {0}, before = {0};
    iso_status status;
    ISO_TRY_GOTO(make_dict(core->module->device, state, &before));
    ISO_TRY_GOTO(part_of(state, own, false, &numbers));
    ISO_TRY_GOTO(part_of(state, own, true, &moments));
    ISO_TRY_GOTO(iso__state_dict_copy(&numbers, dict));
    ISO_TRY_GOTO(put_numbers(state, own));
    status = core->base.ops->loaded(&core->base);
    if (status < 0) {
        put_numbers(state, &before);
        goto fail;
    }
    ISO_TRY_GOTO(iso__state_dict_copy(&moments, dict));
    if (core->shards) ISO_TRY_GOTO(iso__dp_state_take(core));
    status = ISO_OK;
fail:
    iso_state_dict_destroy(&numbers);
    iso_state_dict_destroy(&moments);
    iso_state_dict_destroy(&before);
    return status;
}

iso_status iso_optimizer_load_state_dict(iso_optimizer *optimizer, const iso_state_dict *dict,
                                         bool strict, iso_incompatible_keys *keys) {
    iso__base_optimizer *core;
    iso_state *state;
    iso_state_dict own = {0}, given = {0};
    iso_incompatible_keys found = {0};
    iso_status status;
    ISO_TRY(list_state(optimizer, &core, &state));
    ISO_TRY_GOTO(make_dict(core->module->device, state, &own));
    ISO_TRY_GOTO(accept_steps(core, state, &own, dict, &given));
    if (strict) ISO_TRY_GOTO(presume_maximize(core, &given));
    ISO_TRY_GOTO(presume_unused(core, &own, &given));
    ISO_TRY_GOTO(iso__state_dict_match(&own, &given, "optimizer", strict, &found));
    ISO_TRY_GOTO(load_entries(core, state, &own, &given));
    if (keys) {
        *keys = found;
        found = (iso_incompatible_keys){0};
    }
    status = ISO_OK;
fail:
    iso_incompatible_keys_destroy(&found);
    iso_state_dict_destroy(&given);
    iso_state_dict_destroy(&own);
    iso_state_destroy(&state);
    return status;
}
