// SPDX-License-Identifier: MIT
// Labelled byte images in memory: from arrays, IDX files or an MNIST folder, with their statistics.
#include "data/data_impl.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHORT_RUN 65536 // pixels whose squares have a sum below 2^32: compilers vectorise 32 bits

// Exact integer sums, so that the statistics are the same on every machine.
static void measure_channel(const iso_dataset *self, int64_t channel, double *mean, double *std) {
    const iso_dataset_info *info = &self->info;
    int64_t pixels = info->height * info->width;
    const uint8_t *plane = self->images + channel * pixels;
    uint64_t sum = 0, squares = 0, n = (uint64_t)(info->count * pixels);
    for (int64_t i = 0; i < info->count; i++, plane += self->image_bytes) {
        for (int64_t first = 0; first < pixels; first += SHORT_RUN) {
            int64_t end = first + SHORT_RUN < pixels ? first + SHORT_RUN : pixels;
            uint32_t run_sum = 0, run_squares = 0;
            for (int64_t p = first; p < end; p++) {
                uint32_t v = plane[p];
                run_sum += v;
                run_squares += v * v;
            }
            sum += run_sum;
            squares += run_squares;
        }
    }
    unsigned __int128 spread = (unsigned __int128)squares * n - (unsigned __int128)sum * sum;
    *mean = (double)sum / (double)n / 255;
    *std = sqrt((double)spread) / (double)n / 255;
}

static uint64_t sum_contents(const iso_dataset *self) {
    const iso_dataset_info *info = &self->info;
    int64_t shape[] = {info->count, info->channels, info->height, info->width, info->classes};
    uint64_t sum = iso__checksum(ISO_HASH_START, shape, sizeof(shape));
    sum = iso__checksum(sum, self->images, (size_t)(info->count * self->image_bytes));
    return iso__checksum(sum, self->labels, (size_t)info->count * sizeof(*self->labels));
}

iso_status iso__dataset_create_take(uint8_t *images, int32_t *labels, const iso_dataset_info *info,
                                    iso_dataset **out) {
    iso_status status;
    void *memory;
    size_t channels = (size_t)info->channels;
    ISO_TRY_GOTO(iso__alloc(sizeof(iso_dataset) + 2 * channels * sizeof(double), &memory));
    iso_dataset *self = memory;
    *self = (iso_dataset){.references = 1, .images = images, .labels = labels, .info = *info};
    self->image_bytes = info->channels * info->height * info->width;
    double *mean = self->statistics, *std = mean + channels;
    for (int64_t c = 0; c < info->channels; c++) measure_channel(self, c, mean + c, std + c);
    self->info.mean = mean;
    self->info.std = std;
    self->checksum = sum_contents(self);
    *out = self;
    return ISO_OK;
fail:
    iso__free(images);
    iso__free(labels);
    return status;
}

iso_status iso_dataset_create(const uint8_t *images, const int32_t *labels, int64_t count,
                              int64_t channels, int64_t height, int64_t width, int classes,
                              iso_dataset **out) {
    int64_t bytes;
    ISO_CHECK(images && labels, ISO_ERR_ARG,
              "a data set needs images and labels, and one of them is NULL");
    ISO_CHECK(count > 0 && channels > 0 && height > 0 && width > 0 && classes > 0, ISO_ERR_ARG,
              "a data set of %lld images of %lld x %lld x %lld in %d classes is impossible: all "
              "must be positive",
              (long long)count, (long long)channels, (long long)height, (long long)width, classes);
    ISO_CHECK(!__builtin_mul_overflow(count, channels, &bytes) &&
                  !__builtin_mul_overflow(bytes, height, &bytes) &&
                  !__builtin_mul_overflow(bytes, width, &bytes),
              ISO_ERR_ARG, "the size of %lld images overflows", (long long)count);
    for (int64_t i = 0; i < count; i++)
        ISO_CHECK(labels[i] >= 0 && labels[i] < classes, ISO_ERR_ARG,
                  "label %lld is %d, outside [0, %d)", (long long)i, labels[i], classes);
    void *image_copy, *label_copy;
    size_t label_bytes = (size_t)count * sizeof(int32_t);
    ISO_TRY(iso__alloc((size_t)bytes, &image_copy));
    iso_status status = iso__alloc(label_bytes, &label_copy);
    if (status < 0) iso__free(image_copy);
    ISO_TRY(status);
    memcpy(image_copy, images, (size_t)bytes);
    memcpy(label_copy, labels, label_bytes);
    iso_dataset_info info = {count, channels, height, width, classes, NULL, NULL};
    return iso__dataset_create_take(image_copy, label_copy, &info, out);
}

// ---- IDX pairs ----------------------------------------------------------------------------------

static int32_t label_at(const iso_idx *idx, int64_t i) {
    switch (idx->type) {
    case ISO_IDX_U8: return ((const uint8_t *)idx->data)[i];
    case ISO_IDX_I8: return ((const int8_t *)idx->data)[i];
    case ISO_IDX_I16: return ((const int16_t *)idx->data)[i];
    default: return ((const int32_t *)idx->data)[i];
    }
}

static iso_status read_labels(const char *path, int32_t **out, int64_t *count, int *classes) {
    iso_status status;
    iso_idx idx;
    void *labels = NULL;
    int32_t largest = 0;
    ISO_TRY(iso_idx_read(path, &idx));
    ISO_CHECK_GOTO(idx.ndim == 1, ISO_ERR_FORMAT, "%s has %d dimensions: labels have 1", path,
                   idx.ndim);
    ISO_CHECK_GOTO(idx.type != ISO_IDX_F32 && idx.type != ISO_IDX_F64, ISO_ERR_FORMAT,
                   "%s holds %s, as byte 2 of its header says, but labels are integers: convert "
                   "them",
                   path, iso__idx_type_text((int)idx.type));
    ISO_TRY_GOTO(iso__alloc((size_t)idx.count * sizeof(int32_t), &labels));
    for (int64_t i = 0; i < idx.count; i++) {
        int32_t label = label_at(&idx, i);
        ISO_CHECK_GOTO(label >= 0 && label < INT32_MAX, ISO_ERR_FORMAT,
                       "label %lld of %s is %d, which is not a class number", (long long)i, path,
                       label);
        if (label > largest) largest = label;
        ((int32_t *)labels)[i] = label;
    }
    *out = labels;
    *count = idx.count;
    *classes = largest + 1;
    iso_idx_free(&idx);
    return ISO_OK;
fail:
    iso__free(labels);
    iso_idx_free(&idx);
    return status;
}

static iso_status read_images(const char *path, uint8_t **out, iso_dataset_info *info) {
    iso_status status;
    iso_idx idx;
    ISO_TRY(iso_idx_read(path, &idx));
    ISO_CHECK_GOTO(idx.type == ISO_IDX_U8, ISO_ERR_FORMAT,
                   "%s holds %s, as byte 2 of its header says, but images are unsigned bytes "
                   "(0x08): convert them to 0 .. 255",
                   path, iso__idx_type_text((int)idx.type));
    ISO_CHECK_GOTO(
        idx.ndim >= 2 && idx.ndim <= 4, ISO_ERR_FORMAT,
        "%s has %d dimensions: images have 2 (N, features), 3 (N, H, W) or 4 (N, C, H, W)", path,
        idx.ndim);
    info->count = idx.shape[0];
    info->width = idx.shape[idx.ndim - 1];
    info->height = idx.ndim >= 3 ? idx.shape[idx.ndim - 2] : 1;
    info->channels = idx.ndim == 4 ? idx.shape[1] : 1;
    *out = idx.data;
    return ISO_OK;
fail:
    iso_idx_free(&idx);
    return status;
}

iso_status iso_dataset_read_idx(const char *images_path, const char *labels_path,
                                iso_dataset **out) {
    iso_status status;
    uint8_t *images = NULL;
    int32_t *labels = NULL;
    int64_t label_count = 0;
    iso_dataset_info info = {0};
    ISO_TRY_GOTO(read_images(images_path, &images, &info));
    ISO_TRY_GOTO(read_labels(labels_path, &labels, &label_count, &info.classes));
    ISO_CHECK_GOTO(label_count == info.count, ISO_ERR_FORMAT,
                   "%s has %lld images but %s has %lld labels: they do not belong together",
                   images_path, (long long)info.count, labels_path, (long long)label_count);
    return iso__dataset_create_take(images, labels, &info, out);
fail:
    iso__free(images);
    iso__free(labels);
    return status;
}

// ---- MNIST folders ------------------------------------------------------------------------------

#define PATH_ROOM    4096
#define LONGEST_NAME 64 // of a file in the folder

// Finds FOLDER/PREFIX{-,.}KIND-ubyte[.gz]; unpacked files are the first choice. False: it is not
// there.
static bool look_for(const char *folder, const char *prefix, const char *kind,
                     char path[PATH_ROOM]) {
    static const char *const pattern[] = {"%s/%s-%s-ubyte", "%s/%s.%s-ubyte", "%s/%s-%s-ubyte.gz",
                                          "%s/%s.%s-ubyte.gz"};
    for (int i = 0; i < 4; i++) {
        snprintf(path, PATH_ROOM, pattern[i], folder, prefix, kind);
        if (access(path, F_OK) == 0) return true;
    }
    return false;
}

static iso_status find_labels(const char *folder, const char *prefix, char path[PATH_ROOM]) {
    ISO_CHECK(look_for(folder, prefix, "idx1", path), ISO_ERR_IO,
              "folder %s lacks MNIST's %s: looked for %s-idx1-ubyte and %s.idx1-ubyte, each also "
              "with .gz",
              folder, prefix, prefix, prefix);
    return ISO_OK;
}

// The name tells the dimensions, but only the header decides: many files of 4 are called idx3.
static iso_status find_images(const char *folder, const char *prefix, char path[PATH_ROOM]) {
    char other[PATH_ROOM];
    bool grey = look_for(folder, prefix, "idx3", path);
    bool colour = look_for(folder, prefix, "idx4", grey ? other : path);
    ISO_CHECK(grey || colour, ISO_ERR_IO,
              "folder %s lacks MNIST's %s: looked for %s-idx3-ubyte, %s.idx3-ubyte and, of colour "
              "images, %s-idx4-ubyte and %s.idx4-ubyte, each also with .gz",
              folder, prefix, prefix, prefix, prefix, prefix);
    ISO_CHECK(!grey || !colour, ISO_ERR_IO,
              "folder %s has %s twice, as idx3-ubyte and as idx4-ubyte: remove one of them", folder,
              prefix);
    return ISO_OK;
}

iso_status iso_dataset_read_mnist(const char *folder, bool train, iso_dataset **out) {
    struct stat info;
    char images[PATH_ROOM], labels[PATH_ROOM];
    ISO_CHECK(stat(folder, &info) == 0 && S_ISDIR(info.st_mode), ISO_ERR_IO,
              "there is no data folder %s: give a folder with "
              "{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
              folder);
    ISO_CHECK(strlen(folder) < PATH_ROOM - LONGEST_NAME, ISO_ERR_ARG,
              "the name of the data folder is too long: %.100s...", folder);
    ISO_TRY(find_images(folder, train ? "train-images" : "t10k-images", images));
    ISO_TRY(find_labels(folder, train ? "train-labels" : "t10k-labels", labels));
    ISO_TRY(iso_dataset_read_idx(images, labels, out));
    return ISO_OK;
}

iso_status iso_dataset_open(const char *folder, bool train, iso_dataset **out) {
    if (folder && strcmp(folder, "digits") != 0) return iso_dataset_read_mnist(folder, train, out);
    return iso_dataset_create_digits(train, train ? 60000 : 10000, out);
}

// ---- Access -------------------------------------------------------------------------------------

iso_dataset *iso_dataset_retain(iso_dataset *dataset) {
    dataset->references++;
    return dataset;
}

void iso_dataset_destroy(iso_dataset **dataset) {
    iso_dataset *self = dataset ? *dataset : NULL;
    if (!self) return;
    *dataset = NULL;
    if (--self->references > 0) return;
    iso__free(self->images);
    iso__free(self->labels);
    iso__free(self);
}

void iso_dataset_get_info(const iso_dataset *dataset, iso_dataset_info *out) {
    *out = dataset->info;
}

uint64_t iso_dataset_checksum(const iso_dataset *dataset) { return dataset->checksum; }

const uint8_t *iso_dataset_image(const iso_dataset *dataset, int64_t i, int32_t *label) {
    if (label) *label = dataset->labels[i];
    return dataset->images + i * dataset->image_bytes;
}
