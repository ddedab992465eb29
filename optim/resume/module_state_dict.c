// SPDX-License-Identifier: MIT
// The state_dict of a module: its parameters and buffers by name.
#include "nn/nn_impl.h"
#include "optim/resume/state_dict_impl.h"

enum { NAME_ROOM = 768 };

static iso_status add_tensor(iso_state_dict *dict, const char *path, const char *name,
                             iso_tensor *tensor) {
    char text[NAME_ROOM];
    snprintf(text, sizeof(text), "%s%s%s", path, path[0] ? "." : "", name);
    ISO_TRY(iso_state_dict_add(dict, text, tensor));
    return ISO_OK;
}

static iso_status add_module(iso_module *module, const char *path, void *user) {
    for (int i = 0; i < module->parameter_count; i++) {
        iso_tensor *value;
        ISO_TRY(iso_parameter_value(module->parameter[i], &value)); // completes what is pending
        ISO_TRY(add_tensor(user, path, module->parameter_name[i], value));
    }
    for (int i = 0; i < module->buffer_count; i++)
        if (module->buffer[i]->persistent)
            ISO_TRY(add_tensor(user, path, module->buffer[i]->name, module->buffer[i]->value));
    return ISO_OK;
}

iso_status iso_module_state_dict(iso_module *module, iso_state_dict *out) {
    iso_state_dict dict = {0};
    iso_status status = iso_module_walk(module, add_module, &dict);
    if (status < 0) {
        iso_state_dict_destroy(&dict);
        return iso__error_frame(status, __func__, __FILE__, __LINE__);
    }
    *out = dict;
    return ISO_OK;
}

iso_status iso_module_load_state_dict(iso_module *module, const iso_state_dict *dict, bool strict,
                                      iso_incompatible_keys *keys) {
    iso_state_dict own;
    iso_incompatible_keys found = {0};
    iso_status status;
    ISO_TRY(iso_module_state_dict(module, &own));
    ISO_TRY_GOTO(iso__state_dict_match(&own, dict, "model", strict, &found));
    ISO_TRY_GOTO(iso__state_dict_copy(&own, dict));
    if (keys) {
        *keys = found;
        found = (iso_incompatible_keys){0};
    }
    status = ISO_OK;
fail:
    iso_incompatible_keys_destroy(&found);
    iso_state_dict_destroy(&own);
    return status;
}
