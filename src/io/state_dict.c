// SPDX-License-Identifier: MIT
// The list behind a state_dict: named tensors in their order, and metadata.
#include "io/safetensors.h"

#include <string.h>

// ---- Tensors ------------------------------------------------------------------------------------

int iso__state_dict_index(const iso_state_dict *dict, const char *name) {
    int i = dict->named ? 0 : -1;
    for (size_t at = 0; i >= 0;) {
        i = iso__index_next(dict->named, iso__name_key(name), &at);
        if (i >= 0 && i < dict->count && strcmp(dict->item[i].name, name) == 0) return i;
    }
    return -1;
}

iso_tensor *iso_state_dict_find(const iso_state_dict *dict, const char *name) {
    int i = iso__state_dict_index(dict, name);
    return i >= 0 ? dict->item[i].tensor : NULL;
}

static iso_status index_item(iso_state_dict *dict, const char *name) {
    if (!dict->named) ISO_TRY(iso__alloc_zero(sizeof(*dict->named), (void **)&dict->named));
    return iso__index_add(dict->named, iso__name_key(name), dict->count);
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
    ISO_TRY(index_item(dict, name));
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
    ISO_CHECK(dict->metadata_count < ISO__MOST_NOTES, ISO_ERR_ARG,
              "a state_dict has at most %d entries of metadata: \"%.60s\" is one more",
              ISO__MOST_NOTES, key);
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
    if (dict->named) iso__index_free(dict->named);
    iso__free(dict->named);
    iso__free(dict->item);
    iso__free(dict->metadata);
    *dict = (iso_state_dict){0};
}
