// SPDX-License-Identifier: MIT
// Data sets of pictures in class folders, which are decoded when a loader asks for them.
#include "data/data_impl.h"
#include "data/folder_list.h"
#include "data/picture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_ROOM = 4096, USUAL_SIZE = 224, MOST_SIZE = 8192, CHANNELS = 3, MOST_SIDE = 65536 };

// What reads the samples of a data set.
typedef struct samples {
    iso__folder_list list;
    char folder[PATH_ROOM]; // of which the list has the paths
    int64_t size, shorter;
    bool real;
} samples;

// ---- Samples ------------------------------------------------------------------------------------

static int64_t elements_of(const samples *self) { return CHANNELS * self->size * self->size; }

static iso_status fit_picture(const samples *self, const iso__picture *picture,
                              const iso__pick *pick, void *to) {
    iso__span x, y;
    uint8_t *bytes = to;
    int64_t n = elements_of(self);
    // Puts the bytes at the end of `to`, where no float overwrites a byte before it is read.
    if (self->real) bytes += (size_t)n * (sizeof(float) - 1);
    if (pick->crop > 0)
        iso__picture_draw(picture, pick->crop, pick->random, self->size, &x, &y);
    else
        iso__picture_centre(picture, self->shorter, self->size, &x, &y);
    ISO_TRY(iso__picture_crop(picture, &x, &y, self->size, bytes));
    for (int64_t i = 0; self->real && i < n; i++) {
        float number = (float)bytes[i] / 255;
        memcpy((float *)to + i, &number, sizeof(number));
    }
    return ISO_OK;
}

// The shorter side that leaves enough pixels even for the smallest crop at the widest ratio.
static int64_t least_side(const samples *self, double crop) {
    if (crop == 0) return self->shorter;
    double part = sqrt(crop * 3 / 4);
    return part * MOST_SIDE > (double)self->size ? (int64_t)((double)self->size / part) : MOST_SIDE;
}

static iso_status read_picture(const samples *self, const iso__pick *pick, void *const *arrays) {
    char path[2 * PATH_ROOM];
    iso__picture picture;
    size_t bytes = (size_t)elements_of(self) * (self->real ? sizeof(float) : 1);
    snprintf(path, sizeof(path), "%s/%s", self->folder,
             iso__texts_at(&self->list.paths, pick->number));
    ISO_TRY(iso__picture_read(path, least_side(self, pick->crop), &picture));
    iso_status status =
        fit_picture(self, &picture, pick, (char *)arrays[0] + (size_t)pick->place * bytes);
    iso__picture_free(&picture);
    ISO_TRY(status);
    ((int32_t *)arrays[1])[pick->place] = ((const int32_t *)self->list.labels)[pick->number];
    return ISO_OK;
}

static iso_status read_picks(void *user, const iso__pick *picks, int64_t n, void *const *arrays) {
    for (int64_t i = 0; i < n; i++) ISO_TRY(read_picture(user, &picks[i], arrays));
    return ISO_OK;
}

static iso_status read_sample(int64_t index, void *const *tensors, void *user) {
    return read_picture(user, &(iso__pick){.number = index}, tensors);
}

static void close_samples(void *user) {
    samples *self = user;
    iso__folder_list_free(&self->list);
    iso__free(self);
}

static const iso__reader_ops reader_ops = {
    .read = read_picks, .close = close_samples, .crops = true};

const char *iso_dataset_class_name(const iso_dataset *dataset, int label) {
    if (dataset->reader != &reader_ops) return NULL;
    const samples *self = dataset->user;
    bool known = label >= 0 && label < self->list.classes.count;
    return known ? iso__texts_at(&self->list.classes, label) : NULL;
}

// ---- Opening ------------------------------------------------------------------------------------

// Reading all files would take long: their names stand for their contents.
static uint64_t sum_contents(const samples *self) {
    const iso__folder_list *list = &self->list;
    int64_t numbers[] = {self->size, self->shorter, self->real};
    uint64_t sum = iso__checksum(ISO_HASH_START, numbers, sizeof(numbers));
    sum = iso__checksum(sum, list->classes.text, list->classes.bytes);
    return iso__checksum(sum, list->paths.text, list->paths.bytes);
}

static iso_status take_sizes(const iso_images_config *config, samples *self) {
    self->size = config->size > 0 ? config->size : USUAL_SIZE;
    self->shorter = config->shorter > 0 ? config->shorter : (self->size * 8 + 3) / 7;
    self->real = config->real;
    ISO_CHECK(config->size >= 0 && self->size <= MOST_SIZE, ISO_ERR_ARG,
              "pictures cannot become images of %lld pixels in each direction: give 1 to %d",
              (long long)config->size, MOST_SIZE);
    ISO_CHECK(
        config->shorter >= 0 && self->shorter >= self->size && self->shorter <= 2 * MOST_SIZE,
        ISO_ERR_ARG,
        "pictures cannot be resized to a shorter side of %lld for images of %lld: give %lld to "
        "%d",
        (long long)config->shorter, (long long)self->size, (long long)self->size, 2 * MOST_SIZE);
    return ISO_OK;
}

static iso_status take_folder(const char *folder, iso_images_part part, samples *self) {
    char classes_of[PATH_ROOM];
    ISO_CHECK(strlen(folder) < PATH_ROOM - sizeof("/train"), ISO_ERR_ARG,
              "the name of the data folder is too long: %.100s...", folder);
    ISO_CHECK(iso__is_folder(folder), ISO_ERR_IO, "there is no data folder %s", folder);
    snprintf(classes_of, sizeof(classes_of), "%s%s", folder,
             part == ISO_IMAGES_ALL ? "" : "/train");
    snprintf(self->folder, sizeof(self->folder), "%s%s", folder,
             part == ISO_IMAGES_ALL     ? ""
             : part == ISO_IMAGES_TRAIN ? "/train"
                                        : "/val");
    ISO_TRY(iso__folder_list_create(self->folder, classes_of, &self->list));
    return ISO_OK;
}

// Takes `self` on success.
static iso_status create_set(samples *self, iso_dataset **out) {
    const iso_tensor_spec specs[] = {
        {self->real ? ISO_F32 : ISO_U8, 3, {CHANNELS, self->size, self->size}}, {.dtype = ISO_I32}};
    const iso_dataset_config config = {.count = self->list.paths.count,
                                       .inputs = 1,
                                       .targets = 1,
                                       .tensors = specs,
                                       .classes = (int)self->list.classes.count,
                                       .contents = sum_contents(self)};
    ISO_TRY(iso_dataset_create_callback(&config, read_sample, self, out));
    (*out)->reader = &reader_ops;
    return ISO_OK;
}

iso_status iso_dataset_open_images(const char *folder, const iso_images_config *config,
                                   iso_dataset **out) {
    iso_status status;
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(samples), &memory));
    ISO_TRY_GOTO(take_sizes(config, memory));
    ISO_TRY_GOTO(take_folder(folder, config->part, memory));
    ISO_TRY_GOTO(create_set(memory, out));
    return ISO_OK;
fail:
    close_samples(memory);
    return status;
}

// ---- Which layout -------------------------------------------------------------------------------

iso_images_layout iso_images_find(const char *folder) {
    char path[PATH_ROOM];
    int length = snprintf(path, sizeof(path), "%s/train", folder);
    if (length >= PATH_ROOM || iso__is_mnist(folder)) return ISO_IMAGES_NONE;
    if (iso__has_folders(path, false)) return ISO_IMAGES_SPLIT;
    return iso__has_folders(folder, true) ? ISO_IMAGES_CLASSES : ISO_IMAGES_NONE;
}

iso_status iso__images_open(const char *folder, bool train, iso_dataset **out) {
    bool split = iso_images_find(folder) == ISO_IMAGES_SPLIT;
    ISO_CHECK(split || train, ISO_ERR_FORMAT,
              "%s holds the pictures of one set: put those of the test set into %s/val and the "
              "other ones into %s/train, or divide it with iso_dataset_split",
              folder, folder, folder);
    iso_images_part part = !split ? ISO_IMAGES_ALL : train ? ISO_IMAGES_TRAIN : ISO_IMAGES_VAL;
    const iso_images_config config = {.part = part};
    ISO_TRY(iso_dataset_open_images(folder, &config, out));
    return ISO_OK;
}
