// SPDX-License-Identifier: MIT
// Adds hooks to a module and removes them. A module may have several.
#include "nn/nn_impl.h"

iso_status iso_module_add_hooks(iso_module *module, const iso_module_hooks *hooks, int *handle) {
    ISO_CHECK(module && hooks, ISO_ERR_ARG, "adding hooks needs a module and a table of functions");
    void *array = module->hooks;
    ISO_TRY(iso__grow(&array, module->hooks_count, NULL, sizeof(*module->hooks)));
    module->hooks = array;
    int given = ++module->hooks_handle;
    module->hooks[module->hooks_count++] = (iso_added_hooks){.call = *hooks, .handle = given};
    if (handle) *handle = given;
    return ISO_OK;
}

iso_status iso_module_remove_hooks(iso_module *module, int handle) {
    char label[ISO_LABEL_ROOM];
    int at = 0;
    while (at < module->hooks_count && module->hooks[at].handle != handle) at++;
    ISO_CHECK(at < module->hooks_count, ISO_ERR_ARG,
              "%s has no hooks with handle %d: they were removed, or never added",
              iso__module_label(module, label), handle);
    module->hooks_count--;
    for (; at < module->hooks_count; at++) module->hooks[at] = module->hooks[at + 1];
    return ISO_OK;
}
