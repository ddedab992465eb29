// Checkpoints of named tensors: everything is read and compared before anything is changed.
#include "io/safetensors.h"

#include <string.h>

// The tensors as arrays of a file; free with iso__free.
static iso_status describe(const iso_named_tensor *tensors, int count, iso__array **out) {
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
    ISO_TRY(describe(tensors, count, &arrays));
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
    ISO_TRY(describe(tensors, count, &arrays));
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
