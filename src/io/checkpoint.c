// SPDX-License-Identifier: MIT
// Files of named tensors. Loading reads and compares everything before it changes anything.
#include "io/safetensors.h"
#include "tensor/tensor_impl.h"

#include <string.h>

// The tensors as arrays of a file; free with iso__free.
static iso_status describe_tensors(const iso_named_tensor *tensors, int count, iso__array **out) {
    void *memory;
    ISO_CHECK(tensors && count > 0, ISO_ERR_ARG, "a checkpoint needs at least one tensor");
    for (int i = 0; i < count; i++)
        ISO_CHECK(tensors[i].tensor, ISO_ERR_ARG, "tensor %d of a checkpoint is NULL", i);
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(iso__array), &memory));
    iso__array *arrays = memory;
    for (int i = 0; i < count; i++) {
        iso_tensor *tensor = tensors[i].tensor;
        arrays[i] = (iso__array){.name = tensors[i].name,
                                 .dtype = iso__safetensors_dtype(iso_tensor_dtype(tensor)),
                                 .ndim = iso_tensor_ndim(tensor),
                                 .shape = iso_tensor_shape(tensor),
                                 .tensor = tensor};
    }
    iso_status status = iso__arrays_check(arrays, count);
    if (status < 0) {
        iso__free(memory);
        return status;
    }
    *out = arrays;
    return ISO_OK;
}

iso_status iso_checkpoint_save(const char *path, const iso_named_tensor *tensors, int count) {
    static const iso__note format = {"format", "pt"};
    iso__array *arrays = NULL;
    ISO_TRY(describe_tensors(tensors, count, &arrays));
    iso_status status = iso__safetensors_write(path, false, &format, 1, arrays, count);
    iso__free(arrays);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status copy_in(const iso__safetensors *file, const iso__array *array) {
    const iso__stored *stored = iso__safetensors_find(file, array->name);
    void *to;
    ISO_TRY(iso__array_open(array, ISO_WRITE, &to));
    memcpy(to, (const char *)file->data + stored->begin, (size_t)(stored->end - stored->begin));
    ISO_TRY(iso__array_close(array));
    return ISO_OK;
}

iso_status iso_checkpoint_load(const char *path, const iso_named_tensor *tensors, int count) {
    iso_status status;
    iso__safetensors file = {0};
    iso__array *arrays = NULL;
    ISO_TRY(describe_tensors(tensors, count, &arrays));
    ISO_TRY_GOTO(iso__safetensors_open(path, false, &file));
    ISO_TRY_GOTO(iso__safetensors_match(&file, arrays, count));
    // All data are read before the first tensor changes, so that a disk error changes nothing
    // either.
    ISO_TRY_GOTO(iso__safetensors_load(&file));
    for (int i = 0; i < count; i++) ISO_TRY_GOTO(copy_in(&file, &arrays[i]));
    status = ISO_OK;
fail:
    iso__safetensors_close(&file);
    iso__free(arrays);
    return status;
}

// ---- Files of a state_dict ----------------------------------------------------------------------

iso_status iso_state_dict_save(const iso_state_dict *dict, const char *path) {
    iso__note *notes;
    iso__array *arrays = NULL;
    void *memory = NULL;
    int count = 0;
    iso_status status;
    bool adds = !iso_state_dict_metadata(dict, "format");
    ISO_CHECK_GOTO(
        dict->metadata_count + adds <= ISO__MOST_NOTES, ISO_ERR_ARG,
        "cannot write %s: with `format`, which is added, its metadata has %d entries, and "
        "at most %d are allowed",
        path, dict->metadata_count + adds, ISO__MOST_NOTES);
    ISO_TRY_GOTO(iso__alloc((size_t)(dict->metadata_count + 1) * sizeof(iso__note), &memory));
    notes = memory;
    if (adds) notes[count++] = (iso__note){"format", "pt"};
    for (int i = 0; i < dict->metadata_count; i++)
        notes[count++] = (iso__note){dict->metadata[i].key, dict->metadata[i].value};
    ISO_TRY_GOTO(describe_tensors(dict->item, dict->count, &arrays));
    ISO_TRY_GOTO(iso__safetensors_write(path, false, notes, count, arrays, dict->count));
    status = ISO_OK;
fail:
    iso__free(arrays);
    iso__free(memory);
    return status;
}

static iso_status check_stored(const char *path, const iso__stored *stored, iso_dtype *out) {
    char shape[100];
    int dtype = 0;
    bool fits = stored->ndim <= ISO_MAX_DIMS;
    ISO_CHECK(stored->name[0], ISO_ERR_FORMAT, "%s has a tensor without a name", path);
    while (dtype < ISO_DTYPE_COUNT &&
           strcmp(stored->dtype, iso__safetensors_dtype((iso_dtype)dtype)) != 0)
        dtype++;
    ISO_CHECK(dtype < ISO_DTYPE_COUNT, ISO_ERR_TYPE,
              "tensor %s of %s has element type %s, which cannot be read: save it as F32, F64, "
              "BF16, F16, I64, I32 or U8",
              stored->name, path, stored->dtype);
    for (int d = 0; fits && d < stored->ndim; d++) fits = stored->shape[d] > 0;
    ISO_CHECK(fits, ISO_ERR_SHAPE,
              "tensor %s of %s has shape %s, which cannot be read: a tensor has at most %d "
              "dimensions and no empty one",
              stored->name, path,
              iso__shape_text(stored->ndim, stored->shape, shape, sizeof(shape)), ISO_MAX_DIMS);
    *out = (iso_dtype)dtype;
    return ISO_OK;
}

static iso_status add_stored(const iso__safetensors *file, const iso__stored *stored,
                             iso_device *device, iso_state_dict *dict) {
    iso_dtype dtype = ISO_F32;
    iso_tensor *tensor = NULL;
    iso_status status;
    void *to;
    ISO_TRY(check_stored(file->path, stored, &dtype));
    ISO_TRY(iso_tensor_create(device, dtype, stored->ndim, stored->shape, &tensor));
    ISO_TRY_GOTO(iso_tensor_map(tensor, ISO_WRITE, &to));
    memcpy(to, (const char *)file->data + stored->begin, (size_t)(stored->end - stored->begin));
    ISO_TRY_GOTO(iso_tensor_unmap(tensor));
    ISO_TRY_GOTO(iso_state_dict_add(dict, stored->name, tensor));
    status = ISO_OK;
fail:
    iso_tensor_destroy(&tensor);
    return status;
}

// What a run is resumed from lies beside its checkpoint, and has a longer name.
static iso_status check_checkpoint(const iso__safetensors *file) {
    const char *path = file->path, *end = strstr(path, ".step-");
    for (const char *next = end; next; next = strstr(next + 1, ".step-")) end = next;
    int length = end ? (int)(end - path) : 0;
    ISO_CHECK(!iso__safetensors_note(file, "isotherm.set"), ISO_ERR_FORMAT,
              "%s is a state for train --resume, not a checkpoint: give the checkpoint that was "
              "saved with it%s%.*s",
              path, end ? ", " : "", length, path);
    return ISO_OK;
}

iso_status iso_state_dict_read(const char *path, iso_device *device, iso_state_dict *out) {
    iso__safetensors file = {0};
    iso_state_dict dict = {0};
    iso_status status;
    ISO_TRY(iso__safetensors_open(path, false, &file));
    ISO_TRY_GOTO(check_checkpoint(&file));
    ISO_TRY_GOTO(iso__safetensors_load(&file));
    for (int i = 0; i < file.header.count; i++)
        ISO_TRY_GOTO(add_stored(&file, &file.header.stored[i], device, &dict));
    for (int i = 0; i < file.header.note_count; i++)
        ISO_TRY_GOTO(
            iso_state_dict_set_metadata(&dict, file.header.note[i].key, file.header.note[i].value));
    *out = dict;
    dict = (iso_state_dict){0};
    status = ISO_OK;
fail:
    iso_state_dict_destroy(&dict);
    iso__safetensors_close(&file);
    return status;
}
