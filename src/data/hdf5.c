// SPDX-License-Identifier: MIT
// Data sets of HDF5 files: read into memory, or sample by sample as a loader asks for them.
#include "data/data_impl.h"
#include "data/hdf5_file.h"

#include <string.h>

// What reads the samples of a data set that stay in the file.
typedef struct samples {
    iso__hdf5 *file;
    int64_t first;       // the number in the file of sample 0
    int labels, classes; // the tensor of labels, -1: none
} samples;

// ---- Which samples ------------------------------------------------------------------------------

static int tensors_of(const iso_hdf5_config *config) { return config->inputs + config->targets; }

static iso_status check_config(const iso_hdf5_config *config) {
    ISO_CHECK(config->inputs > 0 && config->targets >= 0, ISO_ERR_ARG,
              "samples of %d inputs and %d targets are impossible: give at least one input",
              config->inputs, config->targets);
    ISO_CHECK(config->classes <= 0 || config->targets > 0, ISO_ERR_ARG,
              "a data set of %d classes needs labels: name the data set that holds them",
              config->classes);
    for (int t = 0; t < tensors_of(config); t++)
        ISO_CHECK(config->names && config->names[t], ISO_ERR_ARG,
                  "tensor %d of the samples has no name: name a data set of the file", t);
    return ISO_OK;
}

// The number of samples that are wanted.
static iso_status count_samples(const iso__hdf5 *file, const iso_hdf5_config *config,
                                int64_t *count) {
    const iso__hdf5_set *sets = file->sets;
    for (int t = 1; t < file->count; t++)
        ISO_CHECK(sets[t].samples == sets[0].samples, ISO_ERR_FORMAT,
                  "data set \"%s\" of %s holds %lld sample%s but \"%s\" holds %lld: they do not "
                  "belong together",
                  sets[0].name, file->path, (long long)sets[0].samples, ISO_PLURAL(sets[0].samples),
                  sets[t].name, (long long)sets[t].samples);
    ISO_CHECK(config->first >= 0 && config->count >= 0, ISO_ERR_ARG,
              "%lld samples from sample %lld on cannot be read", (long long)config->count,
              (long long)config->first);
    int64_t left = sets[0].samples - config->first;
    *count = config->count > 0 ? config->count : left;
    ISO_CHECK(left > 0 && *count <= left, ISO_ERR_FORMAT,
              "%s holds %lld sample%s, and %lld from sample %lld on were asked for", file->path,
              (long long)sets[0].samples, ISO_PLURAL(sets[0].samples), (long long)config->count,
              (long long)config->first);
    return ISO_OK;
}

// ---- Labels -------------------------------------------------------------------------------------

// Labels are read as i32. HDF5 clamps numbers outside the range of i32, so they stay outside the
// range of labels.
static iso_status use_labels(iso__hdf5 *file, int t) {
    iso__hdf5_set *set = &file->sets[t];
    ISO_CHECK(set->whole, ISO_ERR_FORMAT,
              "data set \"%s\" of %s holds floats, but labels are integers: convert them",
              set->name, file->path);
    set->bytes = set->bytes / iso_dtype_size(set->spec.dtype) * sizeof(int32_t);
    set->spec.dtype = ISO_I32;
    return ISO_OK;
}

// Checks the labels of sample `number` of the file and of the following ones.
static iso_status check_labels(const samples *self, const int32_t *labels, int64_t number,
                               int64_t count) {
    const iso__hdf5_set *set = &self->file->sets[self->labels];
    int64_t each = (int64_t)(set->bytes / sizeof(int32_t));
    for (int64_t i = 0; i < count * each; i++)
        ISO_CHECK(labels[i] >= 0 && labels[i] < self->classes, ISO_ERR_FORMAT,
                  "label %lld of data set \"%s\" of %s is %d, outside [0, %d)",
                  (long long)(number + i / each), set->name, self->file->path, labels[i],
                  self->classes);
    return ISO_OK;
}

// ---- Samples that stay in the file --------------------------------------------------------------

// How many of the picks follow each other, in the file as in the batch.
static int64_t measure_run(const iso__pick *picks, int64_t n) {
    int64_t length = 1;
    while (length < n && picks[length].number == picks[0].number + length &&
           picks[length].place == picks[0].place + length)
        length++;
    return length;
}

// Returns the number of runs.
static int64_t plan_runs(const samples *self, int t, const iso__pick *picks, int64_t n, void *array,
                         iso__hdf5_run *runs) {
    int64_t count = 0;
    for (int64_t i = 0, length; i < n; i += length) {
        length = measure_run(picks + i, n - i);
        void *to = (char *)array + (size_t)picks[i].place * self->file->sets[t].bytes;
        runs[count++] = (iso__hdf5_run){t, self->first + picks[i].number, length, to};
    }
    return count;
}

// runs: room for n. All runs in one call, so that no other thread takes the cache meanwhile.
static iso_status read_tensor(const samples *self, int t, const iso__pick *picks, int64_t n,
                              void *array, iso__hdf5_run *runs) {
    int64_t count = plan_runs(self, t, picks, n, array, runs);
    ISO_TRY(iso__hdf5_read(self->file, runs, count));
    for (int64_t r = 0; r < count && t == self->labels; r++)
        ISO_TRY(check_labels(self, runs[r].to, runs[r].first, runs[r].count));
    return ISO_OK;
}

static iso_status read_picks(void *user, const iso__pick *picks, int64_t n, void *const *arrays) {
    const samples *self = user;
    iso_status status = ISO_OK;
    void *runs;
    ISO_TRY(iso__alloc((size_t)n * sizeof(iso__hdf5_run), &runs));
    for (int t = 0; t < self->file->count && status >= 0; t++)
        status = read_tensor(self, t, picks, n, arrays[t], runs);
    iso__free(runs);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status read_sample(int64_t index, void *const *tensors, void *user) {
    const iso__pick pick = {.number = index};
    return read_picks(user, &pick, 1, tensors);
}

static void close_samples(void *user) {
    samples *self = user;
    iso__hdf5_close(&self->file);
    iso__free(self);
}

static const iso__reader_ops reader_ops = {.read = read_picks, .close = close_samples};

// The whole file may be too large to be read for a checksum: its size, the first sample and the
// last one stand for its contents.
static iso_status sum_contents(const samples *self, int64_t count, uint64_t *out) {
    int64_t numbers[] = {self->file->size, self->first};
    uint64_t sum = iso__checksum(ISO_HASH_START, numbers, sizeof(numbers));
    for (int t = 0; t < self->file->count; t++) {
        size_t bytes = self->file->sets[t].bytes;
        void *room;
        ISO_TRY(iso__alloc(2 * bytes, &room));
        const iso__pick ends[] = {{.number = 0}, {.number = count - 1, .place = 1}};
        iso__hdf5_run runs[2];
        iso_status status = read_tensor(self, t, ends, 2, room, runs);
        if (status >= 0) sum = iso__checksum(sum, room, 2 * bytes);
        iso__free(room);
        ISO_TRY(status);
    }
    *out = sum;
    return ISO_OK;
}

// ---- Making a data set --------------------------------------------------------------------------

// Takes the arrays, also on failure.
static iso_status read_arrays(samples *self, const iso_dataset_config *config, void **arrays,
                              iso_dataset **out) {
    iso_status status;
    for (int t = 0; t < self->file->count; t++) {
        ISO_TRY_GOTO(iso__alloc((size_t)config->count * self->file->sets[t].bytes, &arrays[t]));
        const iso__hdf5_run run = {t, self->first, config->count, arrays[t]};
        ISO_TRY_GOTO(iso__hdf5_read(self->file, &run, 1));
    }
    if (self->labels >= 0)
        ISO_TRY_GOTO(check_labels(self, arrays[self->labels], self->first, config->count));
    ISO_TRY(iso__dataset_create_take(config, arrays, out));
    return ISO_OK;
fail:
    for (int t = 0; t < self->file->count; t++) iso__free(arrays[t]);
    return status;
}

static iso_status create_in_memory(samples *self, const iso_dataset_config *config,
                                   iso_dataset **out) {
    void *arrays;
    ISO_TRY(iso__alloc_zero((size_t)self->file->count * sizeof(void *), &arrays));
    iso_status status = read_arrays(self, config, arrays, out);
    iso__free(arrays);
    ISO_TRY(status);
    close_samples(self);
    return ISO_OK;
}

static iso_status create_in_file(samples *self, iso_dataset_config *config, iso_dataset **out) {
    ISO_TRY(sum_contents(self, config->count, &config->contents));
    ISO_TRY(iso_dataset_create_callback(config, read_sample, self, out));
    (*out)->reader = &reader_ops;
    return ISO_OK;
}

static iso_status create_described(samples *self, const iso_hdf5_config *config,
                                   iso_tensor_spec *specs, iso_dataset **out) {
    iso_dataset_config described = {.inputs = config->inputs,
                                    .targets = config->targets,
                                    .tensors = specs,
                                    .classes = config->classes};
    ISO_TRY(count_samples(self->file, config, &described.count));
    if (self->labels >= 0) ISO_TRY(use_labels(self->file, self->labels));
    for (int t = 0; t < self->file->count; t++) specs[t] = self->file->sets[t].spec;
    return config->in_memory ? create_in_memory(self, &described, out)
                             : create_in_file(self, &described, out);
}

// Takes the file, also on failure.
static iso_status create_from(iso__hdf5 *file, const iso_hdf5_config *config, iso_dataset **out) {
    iso_status status;
    void *memory = NULL, *specs = NULL;
    ISO_TRY_GOTO(iso__alloc(sizeof(samples), &memory));
    samples *self = memory;
    *self = (samples){.file = file,
                      .first = config->first,
                      .labels = config->classes > 0 ? config->inputs : -1,
                      .classes = config->classes};
    ISO_TRY_GOTO(iso__alloc((size_t)file->count * sizeof(iso_tensor_spec), &specs));
    ISO_TRY_GOTO(create_described(self, config, specs, out));
    iso__free(specs);
    return ISO_OK;
fail:
    iso__free(specs);
    iso__hdf5_close(&file);
    iso__free(memory);
    return status;
}

iso_status iso_dataset_open_hdf5(const char *path, const iso_hdf5_config *config,
                                 iso_dataset **out) {
    iso__hdf5 *file = NULL;
    ISO_TRY(check_config(config));
    ISO_TRY(iso__hdf5_open(path, config->names, tensors_of(config), &file));
    ISO_TRY(create_from(file, config, out));
    return ISO_OK;
}

// ---- Images -------------------------------------------------------------------------------------

static iso_status describe_images(const iso__hdf5 *file, iso_dataset_info *info) {
    const iso__hdf5_set *x = &file->sets[0], *y = &file->sets[1];
    const int64_t *shape = x->spec.shape;
    int ndim = x->spec.ndim;
    ISO_CHECK(x->spec.dtype == ISO_U8 && ndim >= 1 && ndim <= 3, ISO_ERR_FORMAT,
              "data set \"%s\" of %s is %s of %d dimension%s: images are unsigned bytes of 2 (N, "
              "features), 3 (N, H, W) or 4 (N, C, H, W)",
              x->name, file->path, iso_dtype_name(x->spec.dtype), ndim + 1, ISO_PLURAL(ndim + 1));
    ISO_CHECK(y->bytes == sizeof(int32_t), ISO_ERR_FORMAT,
              "data set \"%s\" of %s has several labels for each image: give one", y->name,
              file->path);
    info->count = x->samples;
    info->width = shape[ndim - 1];
    info->height = ndim > 1 ? shape[ndim - 2] : 1;
    info->channels = ndim > 2 ? shape[0] : 1;
    return ISO_OK;
}

// The largest label decides the number of classes.
static iso_status count_classes(const iso__hdf5 *file, const int32_t *labels,
                                iso_dataset_info *info) {
    const samples all = {.file = (iso__hdf5 *)(uintptr_t)file, .labels = 1, .classes = INT32_MAX};
    ISO_TRY(check_labels(&all, labels, 0, info->count));
    for (int64_t i = 0; i < info->count; i++)
        if (labels[i] >= info->classes) info->classes = labels[i] + 1;
    return ISO_OK;
}

static iso_status read_images(iso__hdf5 *file, iso_dataset_info *info, uint8_t **images,
                              int32_t **labels) {
    void *memory;
    const iso_hdf5_config all = {.inputs = 1, .targets = 1};
    ISO_TRY(use_labels(file, 1));
    ISO_TRY(describe_images(file, info));
    ISO_TRY(count_samples(file, &all, &info->count));
    ISO_TRY(iso__alloc((size_t)info->count * file->sets[0].bytes, &memory));
    *images = memory;
    ISO_TRY(iso__alloc((size_t)info->count * sizeof(int32_t), &memory));
    *labels = memory;
    const iso__hdf5_run runs[] = {{0, 0, info->count, *images}, {1, 0, info->count, *labels}};
    ISO_TRY(iso__hdf5_read(file, runs, 2));
    return count_classes(file, *labels, info);
}

iso_status iso__hdf5_read_images(const char *path, bool train, iso_dataset **out) {
    iso__hdf5 *file = NULL;
    iso_dataset_info info = {0};
    uint8_t *images = NULL;
    int32_t *labels = NULL;
    const char *const names[] = {train ? "x_train" : "x_test", train ? "y_train" : "y_test"};
    ISO_TRY(iso__hdf5_open(path, names, 2, &file));
    iso_status status = read_images(file, &info, &images, &labels);
    iso__hdf5_close(&file);
    if (status < 0) {
        iso__free(images);
        iso__free(labels);
        return iso__error_frame(status, __func__, __FILE__, __LINE__);
    }
    ISO_TRY(iso__image_set_create_take(images, labels, &info, out));
    return ISO_OK;
}
