// SPDX-License-Identifier: MIT
// Arrays of safetensors files: element types, names, access, and the seal.
#include "io/safetensors.h"

#include <inttypes.h>
#include <string.h>

static const struct {
    const char *name;
    int64_t bits;
} dtypes[] = {
    {"F32", 32},    {"F64", 64},    {"BF16", 16}, {"F16", 16},    {"BOOL", 8},
    {"U8", 8},      {"I8", 8},      {"U16", 16},  {"I16", 16},    {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"U32", 32},  {"I32", 32},    {"U64", 64},
    {"I64", 64},    {"C64", 64},    {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

const char *iso__safetensors_dtype_named(const char *name, int64_t *bits) {
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) != 0) continue;
        *bits = dtypes[i].bits;
        return dtypes[i].name;
    }
    return NULL;
}

static const char *const library_types[ISO_DTYPE_COUNT] = {"F32", "F64", "BF16", "F16",
                                                           "I64", "I32", "U8"};

const char *iso__safetensors_dtype(iso_dtype dtype) { return library_types[dtype]; }

iso_dtype iso__safetensors_type(const char *name) {
    int type = 0;
    while (type < ISO_DTYPE_COUNT && strcmp(library_types[type], name) != 0) type++;
    return (iso_dtype)type;
}

// ---- Arrays -------------------------------------------------------------------------------------

size_t iso__array_bytes(const iso__array *array) {
    int64_t bits = 0;
    iso__safetensors_dtype_named(array->dtype, &bits);
    for (int d = 0; d < array->ndim; d++) bits *= array->shape[d];
    return (size_t)bits / 8;
}

iso_status iso__array_open(const iso__array *array, iso_access access, void **out) {
    if (array->tensor) return iso_tensor_map(array->tensor, access, out);
    *out = array->data;
    return ISO_OK;
}

iso_status iso__array_close(const iso__array *array) {
    return array->tensor ? iso_tensor_unmap(array->tensor) : ISO_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const iso__array *const *)a)->name, (*(const iso__array *const *)b)->name);
}

iso_status iso__arrays_check(const iso__array *arrays, int count) {
    iso_status status;
    void *memory;
    for (int i = 0; i < count; i++)
        ISO_CHECK(arrays[i].name && strcmp(arrays[i].name, "__metadata__") != 0, ISO_ERR_ARG,
                  "tensor %d of a checkpoint has no name, or is named __metadata__", i);
    ISO_TRY(iso__alloc((size_t)count * sizeof(void *), &memory));
    const iso__array **sorted = memory;
    for (int i = 0; i < count; i++) sorted[i] = &arrays[i];
    if (count > 0) qsort(sorted, (size_t)count, sizeof(*sorted), compare_names);
    for (int i = 1; i < count; i++)
        ISO_CHECK_GOTO(compare_names(&sorted[i - 1], &sorted[i]) != 0, ISO_ERR_ARG,
                       "two tensors of a checkpoint have the name %s", sorted[i]->name);
    status = ISO_OK;
fail:
    iso__free(memory);
    return status;
}

// ---- The seal -----------------------------------------------------------------------------------

void iso__seal_text(uint64_t hash, char text[ISO__SEAL_DIGITS + 1]) {
    snprintf(text, ISO__SEAL_DIGITS + 1, "%016" PRIx64, hash);
}

uint64_t iso__seal_of(const char *text, size_t length) {
    static const char zeros[] = "0000000000000000";
    size_t start = strlen(ISO__SEAL_START), end = start + ISO__SEAL_DIGITS;
    uint64_t hash = iso__hash(ISO_HASH_START, text, start);
    hash = iso__hash(hash, zeros, ISO__SEAL_DIGITS);
    return iso__hash(hash, text + end, length - end);
}
