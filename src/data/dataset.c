// SPDX-License-Identifier: MIT
// Data sets: samples of any tensors, in arrays or from a callback.
#include "data/data_impl.h"

#include <string.h>

// ---- Checks -------------------------------------------------------------------------------------

static bool is_storable(iso_dtype dtype) {
    return dtype == ISO_F32 || dtype == ISO_F64 || dtype == ISO_I64 || dtype == ISO_I32 ||
           dtype == ISO_U8;
}

// *bytes: of this tensor in one sample.
static iso_status check_tensor(const iso_dataset_config *config, int t, size_t *bytes) {
    const iso_tensor_spec *spec = &config->tensors[t];
    const char *kind = t < config->inputs ? "input" : "target";
    int number = t < config->inputs ? t : t - config->inputs;
    int64_t size, all;
    ISO_CHECK(is_storable(spec->dtype), ISO_ERR_UNSUPPORTED,
              "%s %d of a data set is %s: use f32, f64, i64, i32 or u8", kind, number,
              iso_dtype_name(spec->dtype));
    ISO_CHECK(spec->ndim >= 0 && spec->ndim < ISO_MAX_DIMS, ISO_ERR_ARG,
              "%s %d of a data set has %d dimensions: a sample may have 0 to %d", kind, number,
              spec->ndim, ISO_MAX_DIMS - 1);
    size = (int64_t)iso_dtype_size(spec->dtype);
    for (int d = 0; d < spec->ndim; d++) {
        ISO_CHECK(spec->shape[d] >= 1, ISO_ERR_ARG,
                  "dimension %d of %s %d of a data set is %lld: it must be at least 1", d, kind,
                  number, (long long)spec->shape[d]);
        ISO_CHECK(!__builtin_mul_overflow(size, spec->shape[d], &size), ISO_ERR_ARG,
                  "the size of %s %d of a data set overflows", kind, number);
    }
    ISO_CHECK(!__builtin_mul_overflow(size, config->count, &all), ISO_ERR_ARG,
              "the size of %s %d of %lld samples overflows", kind, number,
              (long long)config->count);
    *bytes = (size_t)size;
    return ISO_OK;
}

static iso_status check_config(const iso_dataset_config *c) {
    ISO_CHECK(c->count > 0, ISO_ERR_ARG, "a data set of %lld samples is impossible: give 1 or more",
              (long long)c->count);
    ISO_CHECK(c->inputs > 0 && c->targets >= 0, ISO_ERR_ARG,
              "samples of %d inputs and %d targets are impossible: give at least one input",
              c->inputs, c->targets);
    ISO_CHECK(c->classes >= 0, ISO_ERR_ARG, "a data set of %d classes is impossible", c->classes);
    bool labels = c->classes == 0 || (c->targets > 0 && c->tensors[c->inputs].dtype == ISO_I32);
    ISO_CHECK(labels, ISO_ERR_ARG,
              "a data set of %d classes needs labels: make its first target i32", c->classes);
    return ISO_OK;
}

static int64_t labels_of_sample(const iso_dataset *self) {
    return (int64_t)(self->columns[self->info.inputs].bytes / sizeof(int32_t));
}

static iso_status check_labels(const iso_dataset *self, const int32_t *labels, int64_t first,
                               int64_t count) {
    int64_t each = labels_of_sample(self);
    for (int64_t i = 0; i < count; i++)
        ISO_CHECK(labels[i] >= 0 && labels[i] < self->info.classes, ISO_ERR_ARG,
                  "label %lld is %d, outside [0, %d)", (long long)(first + i / each), labels[i],
                  self->info.classes);
    return ISO_OK;
}

// ---- Making one ---------------------------------------------------------------------------------

static void describe_input(iso_dataset_info *info) {
    const iso_tensor_spec *first = &info->tensors[0];
    info->channels = first->ndim > 0 ? first->shape[0] : 1;
    info->height = first->ndim > 1 ? first->shape[1] : 1;
    info->width = 1;
    for (int d = 2; d < first->ndim; d++) info->width *= first->shape[d];
}

static iso_status create_bare(const iso_dataset_config *config, iso_dataset **out) {
    iso_status status;
    void *memory;
    ISO_TRY(check_config(config));
    int count = config->inputs + config->targets;
    ISO_TRY(iso__alloc_zero(sizeof(iso_dataset), &memory));
    iso_dataset *self = memory;
    self->references = 1;
    ISO_TRY_GOTO(iso__alloc_zero((size_t)count * sizeof(iso__column), &memory));
    self->columns = memory;
    ISO_TRY_GOTO(iso__alloc((size_t)count * sizeof(iso_tensor_spec), &memory));
    memcpy(memory, config->tensors, (size_t)count * sizeof(iso_tensor_spec));
    self->info = (iso_dataset_info){.count = config->count,
                                    .classes = config->classes,
                                    .inputs = config->inputs,
                                    .targets = config->targets,
                                    .tensors = memory};
    for (int t = 0; t < count; t++) ISO_TRY_GOTO(check_tensor(config, t, &self->columns[t].bytes));
    describe_input(&self->info);
    *out = self;
    return ISO_OK;
fail:
    iso_dataset_destroy(&self);
    return status;
}

static int tensors_of(const iso_dataset *self) { return self->info.inputs + self->info.targets; }

// Labelled images are described by their sizes alone, as in the first version: saved states contain
// this checksum.
static uint64_t sum_description(const iso_dataset *self, int64_t count, int classes) {
    const iso_dataset_info *info = &self->info;
    const iso_tensor_spec *label = &info->tensors[info->inputs];
    int64_t sizes[] = {count, info->channels, info->height, info->width, classes};
    uint64_t sum = iso__checksum(ISO_HASH_START, sizes, sizeof(sizes));
    if (iso__dataset_has_images(self) && info->inputs == 1 && info->targets == 1 &&
        info->classes > 0 && label->ndim == 0)
        return sum;
    int64_t numbers[] = {info->inputs, info->targets};
    sum = iso__checksum(sum, numbers, sizeof(numbers));
    for (int t = 0; t < tensors_of(self); t++) {
        const iso_tensor_spec *spec = &info->tensors[t];
        int64_t kind[] = {spec->dtype, spec->ndim};
        sum = iso__checksum(sum, kind, sizeof(kind));
        sum = iso__checksum(sum, spec->shape, (size_t)spec->ndim * sizeof(spec->shape[0]));
    }
    return sum;
}

static iso_status measure_input(iso_dataset *self) {
    iso_dtype dtype = self->info.tensors[0].dtype;
    void *memory;
    if (!iso__dataset_has_images(self) && dtype != ISO_F32 && dtype != ISO_F64) return ISO_OK;
    ISO_TRY(iso__alloc(2 * (size_t)self->info.channels * sizeof(double), &memory));
    double *mean = memory, *std = mean + self->info.channels;
    self->info.mean = mean;
    self->info.std = std;
    iso__dataset_measure(self, mean, std);
    return ISO_OK;
}

static uint64_t sum_column(const iso_dataset *self, int t, uint64_t sum) {
    size_t bytes = self->columns[t].bytes;
    int64_t count = self->info.count;
    if (!self->indices) return iso__checksum(sum, self->columns[t].array, (size_t)count * bytes);
    iso__checksum_state state = iso__checksum_begin(sum);
    for (int64_t i = 0; i < count; i++)
        iso__checksum_add(&state, iso__dataset_place(self, t, i), bytes);
    return iso__checksum_end(&state);
}

// For a data set in memory: checks labels, measures the input and computes the checksum. The labels
// of a view were checked before.
static iso_status look_through(iso_dataset *self) {
    const iso_dataset_info *info = &self->info;
    if (info->classes > 0 && !self->indices)
        ISO_TRY(check_labels(self, self->columns[info->inputs].array, 0,
                             info->count * labels_of_sample(self)));
    ISO_TRY(measure_input(self));
    self->checksum = sum_description(self, info->count, info->classes);
    for (int t = 0; t < tensors_of(self); t++) self->checksum = sum_column(self, t, self->checksum);
    return ISO_OK;
}

iso_status iso__dataset_create_take(const iso_dataset_config *config, void *const *arrays,
                                    iso_dataset **out) {
    iso_dataset *self = NULL;
    iso_status status = create_bare(config, &self);
    if (status < 0) {
        for (int t = 0; t < config->inputs + config->targets; t++) iso__free(arrays[t]);
        return iso__error_frame(status, __func__, __FILE__, __LINE__);
    }
    self->owned = true;
    for (int t = 0; t < tensors_of(self); t++) self->columns[t].array = arrays[t];
    ISO_TRY_GOTO(look_through(self));
    *out = self;
    return ISO_OK;
fail:
    iso_dataset_destroy(&self);
    return status;
}

static iso_status fill_column(iso_dataset *self, int t, const void *from) {
    iso__column *column = &self->columns[t];
    ISO_CHECK(from, ISO_ERR_ARG,
              "a data set needs an array for each tensor of its samples, and array %d is NULL", t);
    size_t bytes = (size_t)self->info.count * column->bytes;
    if (self->owned) {
        ISO_TRY(iso__alloc(bytes, &column->array));
        memcpy(column->array, from, bytes);
    } else {
        column->array = (void *)(uintptr_t)from; // only read
    }
    return ISO_OK;
}

iso_status iso_dataset_create_arrays(const iso_dataset_config *config, const void *const *arrays,
                                     bool copy, iso_dataset **out) {
    iso_status status;
    iso_dataset *self;
    ISO_TRY(create_bare(config, &self));
    self->owned = copy;
    for (int t = 0; t < tensors_of(self); t++) ISO_TRY_GOTO(fill_column(self, t, arrays[t]));
    ISO_TRY_GOTO(look_through(self));
    *out = self;
    return ISO_OK;
fail:
    iso_dataset_destroy(&self);
    return status;
}

iso_status iso_dataset_create_callback(const iso_dataset_config *config, iso_sample_reader read,
                                       void *user, iso_dataset **out) {
    iso_dataset *self;
    ISO_CHECK(read, ISO_ERR_ARG, "a data set needs a function that reads its samples, got NULL");
    ISO_TRY(create_bare(config, &self));
    self->read = read;
    self->user = user;
    self->checksum = iso__checksum(sum_description(self, config->count, config->classes),
                                   &config->contents, sizeof(config->contents));
    *out = self;
    return ISO_OK;
}

// ---- Views --------------------------------------------------------------------------------------

// A callback may be slow: the checksum takes the numbers of its samples, not their contents.
static iso_status fill_view(iso_dataset *self, const iso_dataset *of) {
    for (int t = 0; t < tensors_of(self); t++) self->columns[t].array = of->columns[t].array;
    for (int64_t i = 0; i < self->info.count; i++)
        self->indices[i] = iso__dataset_number(of, self->indices[i]);
    self->read = of->read;
    self->reader = of->reader;
    self->user = of->user;
    if (!self->read) return look_through(self);
    uint64_t sum = sum_description(self, self->info.count, self->info.classes);
    sum = iso__checksum(sum, &self->parent->checksum, sizeof(sum));
    self->checksum =
        iso__checksum(sum, self->indices, (size_t)self->info.count * sizeof(*self->indices));
    return ISO_OK;
}

iso_status iso__dataset_create_view(iso_dataset *of, int64_t *indices, int64_t count,
                                    iso_dataset **out) {
    iso_dataset_config config = {.count = count,
                                 .inputs = of->info.inputs,
                                 .targets = of->info.targets,
                                 .tensors = of->info.tensors,
                                 .classes = of->info.classes};
    iso_dataset *self = NULL;
    iso_status status;
    ISO_TRY_GOTO(create_bare(&config, &self));
    self->indices = indices;
    self->parent = iso_dataset_retain(of->parent ? of->parent : of);
    ISO_TRY_GOTO(fill_view(self, of));
    *out = self;
    return ISO_OK;
fail:
    if (!self) iso__free(indices);
    iso_dataset_destroy(&self);
    return status;
}

// ---- References ---------------------------------------------------------------------------------

iso_dataset *iso_dataset_retain(iso_dataset *dataset) {
    dataset->references++;
    return dataset;
}

void iso_dataset_destroy(iso_dataset **dataset) {
    iso_dataset *self = dataset ? *dataset : NULL;
    if (!self) return;
    *dataset = NULL;
    if (--self->references > 0) return;
    for (int t = 0; self->owned && t < tensors_of(self); t++) iso__free(self->columns[t].array);
    if (self->reader && !self->parent) self->reader->close(self->user);
    iso__free(self->columns);
    iso__free((void *)(uintptr_t)self->info.tensors);
    iso__free((void *)(uintptr_t)self->info.mean);
    iso__free(self->indices);
    iso_dataset_destroy(&self->parent);
    iso__free(self);
}

// ---- Shards -------------------------------------------------------------------------------------

uint64_t iso__dataset_kind(const iso_dataset *self) {
    return sum_description(self, 0, self->info.classes > 0);
}

void iso__dataset_set_shards(iso_dataset *self, iso__shards shards, int classes) {
    self->shards = shards;
    self->info.classes = classes;
}

// ---- Samples ------------------------------------------------------------------------------------

void iso_dataset_get_info(const iso_dataset *dataset, iso_dataset_info *out) {
    *out = dataset->info;
}

uint64_t iso_dataset_checksum(const iso_dataset *dataset) { return dataset->checksum; }

bool iso__dataset_has_images(const iso_dataset *self) {
    return self->info.tensors[0].dtype == ISO_U8 && self->info.tensors[0].ndim == 3;
}

static iso_status call_reader(const iso_dataset *self, int64_t i, void *const *room) {
    ISO_TRY(self->read(iso__dataset_number(self, i), room, self->user));
    if (self->info.classes > 0)
        ISO_TRY(check_labels(self, room[self->info.inputs], iso__dataset_number(self, i),
                             labels_of_sample(self)));
    return ISO_OK;
}

iso_status iso__dataset_read(const iso_dataset *self, int64_t i, void *const *room,
                             const void **at) {
    if (self->read) ISO_TRY(call_reader(self, i, room));
    for (int t = 0; t < tensors_of(self); t++)
        at[t] = self->read ? room[t] : iso__dataset_place(self, t, i);
    return ISO_OK;
}

enum { CACHE_LINE = 64 };

void iso__dataset_fetch_ahead(const iso_dataset *self, int64_t i) {
    for (int t = 0; !self->read && t < tensors_of(self); t++) {
        const char *sample = iso__dataset_place(self, t, i);
        for (size_t at = 0; at < self->columns[t].bytes; at += CACHE_LINE)
            __builtin_prefetch(sample + at);
    }
}

const uint8_t *iso_dataset_image(const iso_dataset *self, int64_t i, int32_t *label) {
    const iso_dataset_info *info = &self->info;
    if (self->read || !iso__dataset_has_images(self) || info->classes == 0) return NULL;
    if (info->tensors[info->inputs].ndim > 0) return NULL;
    if (label) *label = *(const int32_t *)iso__dataset_place(self, info->inputs, i);
    return iso__dataset_place(self, 0, i);
}

iso_status iso_dataset_sample(const iso_dataset *self, int64_t i, void *const *tensors) {
    ISO_CHECK(i >= 0 && i < self->info.count, ISO_ERR_ARG,
              "sample %lld of a data set of %lld sample%s does not exist", (long long)i,
              (long long)self->info.count, ISO_PLURAL(self->info.count));
    if (self->read) return call_reader(self, i, tensors);
    for (int t = 0; t < tensors_of(self); t++)
        memcpy(tensors[t], iso__dataset_place(self, t, i), self->columns[t].bytes);
    return ISO_OK;
}
