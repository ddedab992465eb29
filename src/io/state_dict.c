// SPDX-License-Identifier: MIT
// The list behind a state_dict: named tensors in their order, and metadata.
#include "base/base.h"

#include <isotherm/checkpoint.h>
#include <string.h>

// ---- Tensors ------------------------------------------------------------------------------------

iso_tensor *iso_state_dict_find(const iso_state_dict *dict, const char *name) {
    for (int i = 0; i < dict->count; i++)
        if (strcmp(dict->item[i].name, name) == 0) return dict->item[i].tensor;
    return NULL;
}

iso_status iso_state_dict_add(iso_state_dict *dict, const char *name, iso_tensor *tensor) {
    ISO_CHECK(name && name[0] && tensor, ISO_ERR_ARG,
              "an entry of a state_dict needs a name and a tensor");
    ISO_CHECK(!iso_state_dict_find(dict, name), ISO_ERR_ARG,
              "two tensors of a state_dict have the name %s", name);
    void *list = dict->item;
    char *copy;
    ISO_TRY(iso__grow(&list, dict->count, NULL, sizeof(iso_named_tensor)));
    dict->item = list;
    ISO_TRY(iso__strdup(name, &copy));
    dict->item[dict->count++] = (iso_named_tensor){copy, iso_tensor_retain(tensor)};
    return ISO_OK;
}

// ---- Metadata -----------------------------------------------------------------------------------

static iso_metadata *find_metadata(const iso_state_dict *dict, const char *key) {
    for (int i = 0; i < dict->metadata_count; i++)
        if (strcmp(dict->metadata[i].key, key) == 0) return &dict->metadata[i];
    return NULL;
}

const char *iso_state_dict_metadata(const iso_state_dict *dict, const char *key) {
    const iso_metadata *found = find_metadata(dict, key);
    return found ? found->value : NULL;
}

static iso_status add_metadata(iso_state_dict *dict, const char *key, char *value) {
    void *list = dict->metadata;
    char *copy;
    ISO_TRY(iso__grow(&list, dict->metadata_count, NULL, sizeof(iso_metadata)));
    dict->metadata = list;
    ISO_TRY(iso__strdup(key, &copy));
    dict->metadata[dict->metadata_count++] = (iso_metadata){copy, value};
    return ISO_OK;
}

iso_status iso_state_dict_set_metadata(iso_state_dict *dict, const char *key, const char *value) {
    iso_metadata *found = find_metadata(dict, key);
    char *copy;
    ISO_TRY(iso__strdup(value, &copy));
    if (found) {
        iso__free((void *)found->value);
        found->value = copy;
        return ISO_OK;
    }
    iso_status status = add_metadata(dict, key, copy);
    if (status < 0) iso__free(copy);
    return status;
}

void iso_state_dict_destroy(iso_state_dict *dict) {
    if (!dict) return;
    for (int i = 0; i < dict->count; i++) {
        iso__free((void *)dict->item[i].name);
        iso_tensor_destroy(&dict->item[i].tensor);
    }
    for (int i = 0; i < dict->metadata_count; i++) {
        iso__free((void *)dict->metadata[i].key);
        iso__free((void *)dict->metadata[i].value);
    }
    iso__free(dict->item);
    iso__free(dict->metadata);
    *dict = (iso_state_dict){0};
}
