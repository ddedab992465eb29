// SPDX-License-Identifier: MIT
// Normalises the first input of a sample; moves and mirrors images at random.
#include "data/data_impl.h"

#include <math.h>
#include <string.h>

// ---- Set-up -------------------------------------------------------------------------------------

static iso_status check_statistics(const iso_dataset *dataset, const iso_loader_config *config) {
    const iso_dataset_info *info = &dataset->info;
    iso_dtype dtype = info->tensors[0].dtype;
    bool fits = iso__dataset_has_images(dataset) || dtype == ISO_F32 || dtype == ISO_F64;
    ISO_CHECK(!config->mean == !config->std, ISO_ERR_ARG,
              "a loader was given only one of mean and std: give both, or none for the data set's");
    ISO_CHECK(!config->mean || fits, ISO_ERR_ARG,
              "an input of %s cannot be normalised: give no mean and std", iso_dtype_name(dtype));
    for (int64_t c = 0; config->std && c < info->channels; c++)
        ISO_CHECK(isfinite(config->mean[c]) && isfinite(config->std[c]) && config->std[c] >= 0,
                  ISO_ERR_ARG,
                  "channel %lld cannot be normalised with mean %g and standard deviation %g",
                  (long long)c, config->mean[c], config->std[c]);
    return ISO_OK;
}

static iso_status check_config(const iso_dataset *dataset, const iso_loader_config *config) {
    const iso_dataset_info *info = &dataset->info;
    ISO_CHECK(config->dtype == ISO_F32 || config->dtype == ISO_F64, ISO_ERR_UNSUPPORTED,
              "a loader gives images of f32 or f64, not %s", iso_dtype_name(config->dtype));
    ISO_CHECK(config->flip >= 0 && config->flip <= 1, ISO_ERR_ARG,
              "images cannot be mirrored with probability %g: give 0 to 1", config->flip);
    ISO_CHECK(config->crop >= 0 && config->crop <= 1, ISO_ERR_ARG,
              "pictures cannot be cut to parts of at least %g of their area: give 0 to 1",
              config->crop);
    ISO_CHECK(config->crop == 0 || (dataset->reader && dataset->reader->crops), ISO_ERR_ARG,
              "only pictures in class folders can be cut at random: give no crop");
    ISO_CHECK((config->shift == 0 && config->flip == 0) || iso__dataset_has_images(dataset),
              ISO_ERR_ARG,
              "only images of bytes can be moved and mirrored, and the first input is no such "
              "image: give no shift and flip");
    ISO_CHECK(
        config->shift == 0 ||
            (config->shift > 0 && config->shift < info->height && config->shift < info->width),
        ISO_ERR_ARG,
        "images of %lld x %lld pixels cannot be moved by up to %d: give less than their sides",
        (long long)info->height, (long long)info->width, config->shift);
    return check_statistics(dataset, config);
}

// Tabulates the result for each byte: pixels need no arithmetic. mean NULL: mean 0, deviation 1.
static void fill_table(iso__transform *self, const double *mean, const double *std) {
    for (int64_t i = 0; i < 256 * self->channels; i++) {
        int64_t c = i / 256;
        double x = (double)(i % 256) / 255.0;
        if (mean && std[c] > 0) x = (x - mean[c]) / std[c];
        if (self->dtype == ISO_F64)
            ((double *)self->table)[i] = x;
        else
            ((float *)self->table)[i] = (float)x;
    }
}

static iso_status keep_statistics(iso__transform *self, const iso_loader_config *config) {
    size_t channels = (size_t)self->channels;
    void *memory;
    ISO_TRY(iso__alloc(2 * channels * sizeof(double), &memory));
    self->mean = memory;
    self->std = self->mean + channels;
    memcpy(self->mean, config->mean, channels * sizeof(double));
    memcpy(self->std, config->std, channels * sizeof(double));
    return ISO_OK;
}

iso_status iso__transform_init(iso__transform *self, const iso_dataset *dataset,
                               const iso_loader_config *config, uint64_t seed) {
    const iso_dataset_info *info = &dataset->info;
    bool images = iso__dataset_has_images(dataset);
    ISO_TRY(check_config(dataset, config));
    *self = (iso__transform){.on = images || config->mean,
                             .channels = info->channels,
                             .height = info->height,
                             .width = info->width,
                             .dtype = images ? config->dtype : info->tensors[0].dtype,
                             .shift = config->shift,
                             .flip = (uint32_t)lround(config->flip * 0x1p24),
                             .crop = config->crop,
                             .seed = seed,
                             .shard = (uint32_t)dataset->shards.rank};
    if (!self->on) return ISO_OK;
    if (!images) return keep_statistics(self, config);
    size_t elements = 256 * (size_t)info->channels;
    ISO_TRY(iso__alloc(elements * iso_dtype_size(config->dtype), &self->table));
    fill_table(self, config->std ? config->mean : info->mean,
               config->std ? config->std : info->std);
    return ISO_OK;
}

void iso__transform_free(iso__transform *self) {
    iso__free(self->table);
    iso__free(self->mean);
    self->table = NULL;
    self->mean = NULL;
}

void iso__transform_set_epoch(iso__transform *self, int64_t epoch) {
    self->key = iso__philox_key_make(self->seed, ISO_RNG_AUGMENT, (uint64_t)epoch);
}

// ---- Pixels -------------------------------------------------------------------------------------

// Where row and column of the result come from.
typedef struct view {
    int64_t down, right; // how far the image is moved
    bool mirrored;
} view;

// Element i is that of from[i], or of from[-i] of a mirrored row. Four at a time: the pixels of a
// batch are looked up in about the time in which they are stored.
#define DEFINE_CONVERT(name, type)                                                                 \
    static void name(const void *table, const uint8_t *from, int64_t step, int64_t n, void *to) {  \
        const type *restrict element = table;                                                      \
        type *restrict out = to;                                                                   \
        int64_t i = 0;                                                                             \
        for (; i + 4 <= n; i += 4, from += 4 * step) {                                             \
            type a = element[from[0]], b = element[from[step]];                                    \
            type c = element[from[2 * step]], d = element[from[3 * step]];                         \
            out[i] = a, out[i + 1] = b, out[i + 2] = c, out[i + 3] = d;                            \
        }                                                                                          \
        for (; i < n; i++, from += step) out[i] = element[*from];                                  \
    }
DEFINE_CONVERT(convert_f32, float)
DEFINE_CONVERT(convert_f64, double)

static void convert_row(iso_dtype dtype, const void *table, const uint8_t *from, bool mirrored,
                        int64_t n, void *to) {
    void (*all)(const void *, const uint8_t *, int64_t, int64_t, void *) =
        dtype == ISO_F64 ? convert_f64 : convert_f32;
    if (mirrored)
        all(table, from, -1, n, to);
    else
        all(table, from, 1, n, to);
}

// Elements of byte 0.
static void fill_background(iso_dtype dtype, const void *table, int64_t n, void *to) {
    for (int64_t i = 0; i < n; i++)
        if (dtype == ISO_F64)
            ((double *)to)[i] = *(const double *)table;
        else
            ((float *)to)[i] = *(const float *)table;
}

// One channel: column x of the result is column x - right of the image, counted from its other side
// if that is mirrored.
static void convert_plane(const iso__transform *self, const view *how, const void *table,
                          const uint8_t *plane, char *out) {
    int64_t width = self->width, left = iso__larger(how->right, 0);
    int64_t inside = width - left - iso__larger(-how->right, 0);
    int64_t first = how->mirrored ? width - 1 - (left - how->right) : left - how->right;
    size_t size = iso_dtype_size(self->dtype);
    for (int64_t y = 0; y < self->height; y++, out += (size_t)width * size) {
        int64_t row = y - how->down;
        if (row < 0 || row >= self->height) {
            fill_background(self->dtype, table, width, out);
            continue;
        }
        fill_background(self->dtype, table, left, out);
        convert_row(self->dtype, table, plane + row * width + first, how->mirrored, inside,
                    out + (size_t)left * size);
        fill_background(self->dtype, table, width - left - inside,
                        out + (size_t)(left + inside) * size);
    }
}

// From -most to most; 2^32 is so much more than the number of choices that none is preferred
// noticeably.
static int64_t draw_shift(uint32_t bits, int64_t most) {
    return (int64_t)((uint64_t)bits * (uint64_t)(2 * most + 1) >> 32) - most;
}

// Counter words 0 and 1: the number of the sample.
static view draw_view(const iso__transform *self, int64_t index) {
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, self->shard}, word[4];
    iso__philox(self->key, counter, word);
    return (view){.down = draw_shift(word[0], self->shift),
                  .right = draw_shift(word[1], self->shift),
                  .mirrored = word[2] >> 8 < self->flip};
}

static void transform_image(const iso__transform *self, int64_t index, const uint8_t *image,
                            void *out) {
    int64_t pixels = self->height * self->width;
    size_t size = iso_dtype_size(self->dtype);
    bool plain = self->shift == 0 && self->flip == 0;
    view how = plain ? (view){0} : draw_view(self, index);
    for (int64_t c = 0; c < self->channels; c++) {
        const void *table = (const char *)self->table + (size_t)c * 256 * size;
        char *to = (char *)out + (size_t)(c * pixels) * size;
        if (plain)
            convert_row(self->dtype, table, image + c * pixels, false, pixels, to);
        else
            convert_plane(self, &how, table, image + c * pixels, to);
    }
}

// ---- Other samples ------------------------------------------------------------------------------

static void normalise_channel(iso_dtype dtype, double mean, double std, int64_t n, const void *from,
                              void *out) {
    for (int64_t i = 0; i < n; i++)
        if (dtype == ISO_F64)
            ((double *)out)[i] = (((const double *)from)[i] - mean) / std;
        else
            ((float *)out)[i] = (float)(((double)((const float *)from)[i] - mean) / std);
}

static void normalise_sample(const iso__transform *self, const void *sample, void *out) {
    int64_t n = self->height * self->width;
    size_t bytes = (size_t)n * iso_dtype_size(self->dtype);
    for (int64_t c = 0; c < self->channels; c++) {
        bool constant = self->std[c] == 0;
        normalise_channel(self->dtype, constant ? 0 : self->mean[c], constant ? 1 : self->std[c], n,
                          (const char *)sample + (size_t)c * bytes,
                          (char *)out + (size_t)c * bytes);
    }
}

void iso__transform_sample(const iso__transform *self, int64_t index, const void *sample,
                           void *out) {
    if (self->table)
        transform_image(self, index, sample, out);
    else
        normalise_sample(self, sample, out);
}

static uint64_t draw_seed(const iso__transform *self, int64_t index, uint32_t purpose) {
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), purpose, self->shard}, word[4];
    iso__philox(self->key, counter, word);
    return (uint64_t)word[1] << 32 | word[0];
}

uint64_t iso__transform_random(const iso__transform *self, int64_t index) {
    return draw_seed(self, index, 1);
}

uint64_t iso__transform_random_crop(const iso__transform *self, int64_t index) {
    return draw_seed(self, index, 3);
}

uint64_t iso__transform_random_batch(const iso__transform *self, int64_t index) {
    return draw_seed(self, index, 2);
}
