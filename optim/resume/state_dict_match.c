// SPDX-License-Identifier: MIT
// Compares a state_dict with the module or optimizer to load it into, and copies its tensors.
#include "device/device_impl.h"
#include "optim/resume/state_dict_impl.h"
#include "tensor/element.h"
#include "tensor/tensor_impl.h"

#include <string.h>

// ---- Names --------------------------------------------------------------------------------------

void iso_incompatible_keys_destroy(iso_incompatible_keys *keys) {
    if (!keys) return;
    for (int i = 0; i < keys->missing_count; i++) iso__free(keys->missing[i]);
    for (int i = 0; i < keys->unexpected_count; i++) iso__free(keys->unexpected[i]);
    iso__free(keys->missing);
    iso__free(keys->unexpected);
    *keys = (iso_incompatible_keys){0};
}

// Whether a tensor of own is in dict: one that is shared under any of its names.
static bool is_given(const iso_state_dict *own, int i, const iso_state_dict *dict) {
    if (iso_state_dict_find(dict, own->item[i].name)) return true;
    for (int k = 0; k < own->count; k++)
        if (own->item[k].tensor == own->item[i].tensor &&
            iso_state_dict_find(dict, own->item[k].name))
            return true;
    return false;
}

static bool is_known(const iso_state_dict *dict, int i, const iso_state_dict *own) {
    return iso_state_dict_find(own, dict->item[i].name) != NULL;
}

typedef bool (*is_there)(const iso_state_dict *a, int i, const iso_state_dict *b);

// The names of `a` that are not there in `b`; *count names are to be freed on failure, too.
static iso_status list_absent(const iso_state_dict *a, const iso_state_dict *b, is_there there,
                              char ***out, int *count) {
    void *memory;
    ISO_TRY(iso__alloc_zero((size_t)a->count * sizeof(char *), &memory));
    *out = memory;
    for (int i = 0; i < a->count; i++) {
        if (there(a, i, b)) continue;
        ISO_TRY(iso__strdup(a->item[i].name, &(*out)[*count]));
        *count += 1;
    }
    return ISO_OK;
}

enum { LIST_ROOM = 180 };

// "2 tensors are missing (fc.weight, fc.bias)"; what does not fit is left out.
static const char *list_text(char *const *names, int count, const char *what,
                             char text[LIST_ROOM]) {
    size_t used = (size_t)snprintf(text, LIST_ROOM, "%d tensor%s %s", count,
                                   count == 1 ? " is" : "s are", what);
    for (int i = 0; i < count; i++) {
        const char *before = i == 0 ? " (" : ", ";
        if (used + strlen(before) + strlen(names[i]) + sizeof(", ...)") > LIST_ROOM) {
            snprintf(text + used, LIST_ROOM - used, "%s...)", before);
            return text;
        }
        used += (size_t)snprintf(text + used, LIST_ROOM - used, "%s%s", before, names[i]);
    }
    if (count > 0) snprintf(text + used, LIST_ROOM - used, ")");
    return text;
}

static iso_status check_names(const iso_incompatible_keys *keys, const char *what) {
    char missing[LIST_ROOM], unexpected[LIST_ROOM];
    ISO_CHECK(keys->missing_count + keys->unexpected_count == 0, ISO_ERR_MISMATCH,
              "the state_dict is of another %s: %s and %s", what,
              list_text(keys->missing, keys->missing_count, "missing", missing),
              list_text(keys->unexpected, keys->unexpected_count, "unexpected", unexpected));
    return ISO_OK;
}

// ---- Tensors ------------------------------------------------------------------------------------

static bool can_convert(iso_dtype from, iso_dtype to) {
    return from == to || (iso__is_real(from) && iso__is_real(to));
}

static iso_status check_tensor(const char *name, const iso_tensor *own, const iso_tensor *given,
                               const char *what) {
    char here[100], there[100];
    ISO_CHECK(iso__tensor_same_shape(own, given), ISO_ERR_MISMATCH,
              "tensor %s has shape %s in the state_dict and %s in the %s", name,
              iso__shape_text(given->ndim, given->shape, there, sizeof(there)),
              iso__shape_text(own->ndim, own->shape, here, sizeof(here)), what);
    ISO_CHECK(can_convert(given->dtype, own->dtype), ISO_ERR_MISMATCH,
              "tensor %s of shape %s has element type %s in the state_dict and %s in the %s: only "
              "f32, f64, bf16 and f16 are converted",
              name, iso__shape_text(own->ndim, own->shape, here, sizeof(here)),
              iso_dtype_name(given->dtype), iso_dtype_name(own->dtype), what);
    return ISO_OK;
}

iso_status iso__state_dict_match(const iso_state_dict *own, const iso_state_dict *dict,
                                 const char *what, bool strict, iso_incompatible_keys *keys) {
    iso_incompatible_keys found = {0};
    iso_status status;
    ISO_TRY_GOTO(list_absent(own, dict, is_given, &found.missing, &found.missing_count));
    ISO_TRY_GOTO(list_absent(dict, own, is_known, &found.unexpected, &found.unexpected_count));
    if (strict) ISO_TRY_GOTO(check_names(&found, what));
    for (int i = 0; i < own->count; i++) {
        const iso_tensor *given = iso_state_dict_find(dict, own->item[i].name);
        if (given) ISO_TRY_GOTO(check_tensor(own->item[i].name, own->item[i].tensor, given, what));
    }
    if (!keys) iso_incompatible_keys_destroy(&found);
    if (keys) *keys = found;
    return ISO_OK;
fail:
    iso_incompatible_keys_destroy(&found);
    return status;
}

static void convert_values(const iso_tensor *from, const iso_tensor *to, const void *source,
                           void *target) {
    for (int64_t i = 0; i < to->count; i++)
        iso__element_put(to->dtype, target, i, iso__element_get(from->dtype, source, i));
}

// Over the host, as the two may be on different devices or of types that devices only store.
static iso_status copy_values(iso_tensor *from, iso_tensor *to) {
    void *source, *target;
    if (from == to) return ISO_OK;
    ISO_TRY(iso_tensor_map(from, ISO_READ, &source));
    iso_status status = iso_tensor_map(to, ISO_WRITE, &target);
    if (status >= 0) {
        if (from->dtype != to->dtype)
            convert_values(from, to, source, target);
        else // the same memory, where a dict is loaded into what it was taken from
            memmove(target, source, (size_t)to->count * iso_dtype_size(to->dtype));
        status = iso_tensor_unmap(to);
    }
    iso_tensor_unmap(from);
    return status;
}

iso_status iso__state_dict_copy(const iso_state_dict *own, const iso_state_dict *dict) {
    for (int i = 0; i < own->count; i++) {
        iso_tensor *to = own->item[i].tensor;
        iso_tensor *from = iso_state_dict_find(dict, own->item[i].name);
        if (from) ISO_TRY(copy_values(from, to));
    }
    return ISO_OK;
}
