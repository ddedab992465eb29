// SPDX-License-Identifier: MIT
// Reads data sets from binary files that hold only the elements of tensors.
#include "data/data_impl.h"

#include <string.h>

// What a file holds.
typedef struct extent {
    size_t bytes;    // of a sample
    int64_t samples; // in the file
} extent;

static iso_status measure_sample(const iso_raw_file *file, size_t *bytes) {
    int64_t size = (int64_t)iso_dtype_size(file->tensor.dtype);
    bool fits = file->tensor.ndim >= 0 && file->tensor.ndim < ISO_MAX_DIMS;
    for (int d = 0; fits && d < file->tensor.ndim; d++)
        fits = file->tensor.shape[d] > 0 &&
               !__builtin_mul_overflow(size, file->tensor.shape[d], &size);
    ISO_CHECK(fits, ISO_ERR_ARG, "the shape given for the samples of %s is impossible", file->path);
    *bytes = (size_t)size;
    return ISO_OK;
}

static iso_status measure_file(const iso_raw_file *file, const iso__source *source, extent *out) {
    int64_t size = iso__source_size(source);
    ISO_TRY(measure_sample(file, &out->bytes));
    ISO_CHECK(file->offset >= 0 && file->offset <= size, ISO_ERR_FORMAT,
              "%s has %lld byte%s, so its samples cannot begin at byte %lld", file->path,
              (long long)size, ISO_PLURAL(size), (long long)file->offset);
    int64_t left = size - file->offset, rest = left % (int64_t)out->bytes;
    ISO_CHECK(
        rest == 0, ISO_ERR_FORMAT,
        "%s has %lld byte%s from byte %lld on: samples of %zu bytes leave %lld over: check its "
        "shape, type and offset",
        file->path, (long long)left, ISO_PLURAL(left), (long long)file->offset, out->bytes,
        (long long)rest);
    out->samples = left / (int64_t)out->bytes;
    return ISO_OK;
}

static iso_status check_extent(const iso_raw_config *config, const iso_raw_file *file,
                               const extent *has, int64_t all, int64_t *count) {
    ISO_CHECK(all < 0 || has->samples == all, ISO_ERR_FORMAT,
              "%s holds %lld sample%s but %s holds %lld: they do not belong together",
              config->files[0].path, (long long)all, ISO_PLURAL(all), file->path,
              (long long)has->samples);
    ISO_CHECK(config->first >= 0 && config->count >= 0, ISO_ERR_ARG,
              "%lld samples from sample %lld on cannot be read", (long long)config->count,
              (long long)config->first);
    int64_t left = has->samples - config->first;
    *count = config->count > 0 ? config->count : left;
    ISO_CHECK(left > 0 && *count <= left, ISO_ERR_FORMAT,
              "%s holds %lld sample%s, and %lld from sample %lld on were asked for", file->path,
              (long long)has->samples, ISO_PLURAL(has->samples), (long long)config->count,
              (long long)config->first);
    return ISO_OK;
}

// The samples that are wanted; *all: how many are in each file, -1 before the first one.
static iso_status read_file(const iso_raw_config *config, const iso_raw_file *file, int64_t *all,
                            int64_t *count, void **out) {
    iso_status status;
    iso__source *source;
    void *memory = NULL;
    extent has = {0};
    size_t got = 0;
    ISO_TRY(iso__source_open_plain(file->path, &source));
    ISO_TRY_GOTO(measure_file(file, source, &has));
    ISO_TRY_GOTO(check_extent(config, file, &has, *all, count));
    ISO_TRY_GOTO(iso__source_skip(source, file->offset + config->first * (int64_t)has.bytes));
    size_t bytes = (size_t)*count * has.bytes;
    ISO_TRY_GOTO(iso__alloc(bytes, &memory));
    ISO_TRY_GOTO(iso__source_read(source, memory, bytes, &got));
    ISO_CHECK_GOTO(got == bytes, ISO_ERR_IO, "%s became shorter while it was read", file->path);
    iso__source_close(&source);
    *all = has.samples;
    *out = memory;
    return ISO_OK;
fail:
    iso__source_close(&source);
    iso__free(memory);
    return status;
}

// ---- Labels -------------------------------------------------------------------------------------

static int64_t label_at(iso_dtype dtype, const void *array, int64_t i) {
    switch (dtype) {
    case ISO_U8: return ((const uint8_t *)array)[i];
    case ISO_I32: return ((const int32_t *)array)[i];
    default: return ((const int64_t *)array)[i];
    }
}

// Replaces the array by one of i32.
static iso_status convert_labels(const iso_raw_config *config, int64_t count, void **array) {
    const iso_raw_file *file = &config->files[config->inputs];
    const iso_tensor_spec *spec = &file->tensor;
    void *labels;
    int64_t each = 1;
    for (int d = 0; d < spec->ndim; d++) each *= spec->shape[d];
    ISO_TRY(iso__alloc((size_t)(count * each) * sizeof(int32_t), &labels));
    for (int64_t i = 0; i < count * each; i++) {
        int64_t label = label_at(spec->dtype, *array, i);
        if (label < 0 || label >= config->classes) {
            iso__free(labels);
            return ISO_FAIL(ISO_ERR_FORMAT, "label %lld of %s is %lld, outside [0, %d)",
                            (long long)(config->first + i / each), file->path, (long long)label,
                            config->classes);
        }
        ((int32_t *)labels)[i] = (int32_t)label;
    }
    iso__free(*array);
    *array = labels;
    return ISO_OK;
}

static iso_status check_config(const iso_raw_config *config) {
    ISO_CHECK(config->inputs > 0 && config->targets >= 0, ISO_ERR_ARG,
              "samples of %d inputs and %d targets are impossible: give at least one input",
              config->inputs, config->targets);
    if (config->classes <= 0) return ISO_OK;
    iso_dtype dtype = config->targets > 0 ? config->files[config->inputs].tensor.dtype : ISO_F32;
    ISO_CHECK(dtype == ISO_I32 || dtype == ISO_I64 || dtype == ISO_U8, ISO_ERR_ARG,
              "a data set of %d classes needs labels: make its first target i32, i64 or u8",
              config->classes);
    return ISO_OK;
}

// ---- All files ----------------------------------------------------------------------------------

static iso_status read_files(const iso_raw_config *config, iso_tensor_spec *specs, void **arrays,
                             int64_t *count) {
    int64_t all = -1;
    for (int t = 0; t < config->inputs + config->targets; t++) {
        specs[t] = config->files[t].tensor;
        ISO_TRY(read_file(config, &config->files[t], &all, count, &arrays[t]));
    }
    if (config->classes <= 0) return ISO_OK;
    specs[config->inputs].dtype = ISO_I32;
    return convert_labels(config, *count, &arrays[config->inputs]);
}

static iso_status create_from(const iso_raw_config *config, iso_tensor_spec *specs, void **arrays,
                              iso_dataset **out) {
    int64_t count = 0;
    iso_status status = read_files(config, specs, arrays, &count);
    if (status < 0) {
        for (int t = 0; t < config->inputs + config->targets; t++) iso__free(arrays[t]);
        return iso__error_frame(status, __func__, __FILE__, __LINE__);
    }
    iso_dataset_config described = {.count = count,
                                    .inputs = config->inputs,
                                    .targets = config->targets,
                                    .tensors = specs,
                                    .classes = config->classes};
    ISO_TRY(iso__dataset_create_take(&described, arrays, out));
    return ISO_OK;
}

iso_status iso_dataset_read_raw(const iso_raw_config *config, iso_dataset **out) {
    void *specs, *arrays = NULL;
    ISO_TRY(check_config(config));
    size_t count = (size_t)(config->inputs + config->targets);
    ISO_TRY(iso__alloc(count * sizeof(iso_tensor_spec), &specs));
    iso_status status = iso__alloc_zero(count * sizeof(void *), &arrays);
    if (status >= 0) status = create_from(config, specs, arrays, out);
    iso__free(specs);
    iso__free(arrays);
    ISO_TRY(status);
    return ISO_OK;
}
