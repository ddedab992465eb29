// SPDX-License-Identifier: MIT
// Data sets of labelled byte images: from arrays, IDX files or an MNIST folder.
#include "data/data_impl.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- From arrays --------------------------------------------------------------------------------

static iso_dataset_config describe_images(const iso_dataset_info *info,
                                          iso_tensor_spec tensors[2]) {
    tensors[0] = (iso_tensor_spec){ISO_U8, 3, {info->channels, info->height, info->width}};
    tensors[1] = (iso_tensor_spec){.dtype = ISO_I32};
    return (iso_dataset_config){.count = info->count,
                                .inputs = 1,
                                .targets = 1,
                                .tensors = tensors,
                                .classes = info->classes};
}

iso_status iso__image_set_create_take(uint8_t *images, int32_t *labels,
                                      const iso_dataset_info *info, iso_dataset **out) {
    iso_tensor_spec tensors[2];
    iso_dataset_config config = describe_images(info, tensors);
    ISO_TRY(iso__dataset_create_take(&config, (void *const[]){images, labels}, out));
    return ISO_OK;
}

iso_status iso_dataset_create(const uint8_t *images, const int32_t *labels, int64_t count,
                              int64_t channels, int64_t height, int64_t width, int classes,
                              iso_dataset **out) {
    iso_dataset_info info = {
        .count = count, .channels = channels, .height = height, .width = width, .classes = classes};
    iso_tensor_spec tensors[2];
    ISO_CHECK(count > 0 && channels > 0 && height > 0 && width > 0 && classes > 0, ISO_ERR_ARG,
              "a data set of %lld image%s of %lld x %lld x %lld in %d class%s is impossible: all "
              "must be positive",
              (long long)count, ISO_PLURAL(count), (long long)channels, (long long)height,
              (long long)width, classes, classes == 1 ? "" : "es");
    iso_dataset_config config = describe_images(&info, tensors);
    ISO_TRY(iso_dataset_create_arrays(&config, (const void *const[]){images, labels}, true, out));
    return ISO_OK;
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
        "%s has %d dimension%s: images have 2 (N, features), 3 (N, H, W) or 4 (N, C, H, W)", path,
        idx.ndim, ISO_PLURAL(idx.ndim));
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
                   "%s has %lld image%s but %s has %lld label%s: they do not belong together",
                   images_path, (long long)info.count, ISO_PLURAL(info.count), labels_path,
                   (long long)label_count, ISO_PLURAL(label_count));
    return iso__image_set_create_take(images, labels, &info, out);
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

bool iso__is_mnist(const char *folder) {
    char path[PATH_ROOM];
    return look_for(folder, "train-images", "idx3", path) ||
           look_for(folder, "train-images", "idx4", path);
}

iso_status iso_dataset_read_mnist(const char *folder, bool train, iso_dataset **out) {
    struct stat info;
    char images[PATH_ROOM], labels[PATH_ROOM];
    bool exists = stat(folder, &info) == 0, is_file = exists && !S_ISDIR(info.st_mode);
    ISO_CHECK(exists && !is_file, ISO_ERR_IO,
              "%s%s%s: give a folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]",
              is_file ? "" : "there is no data folder ", folder, is_file ? " is a file" : "");
    ISO_CHECK(strlen(folder) < PATH_ROOM - LONGEST_NAME, ISO_ERR_ARG,
              "the name of the data folder is too long: %.100s...", folder);
    ISO_TRY(find_images(folder, train ? "train-images" : "t10k-images", images));
    ISO_TRY(find_labels(folder, train ? "train-labels" : "t10k-labels", labels));
    ISO_TRY(iso_dataset_read_idx(images, labels, out));
    return ISO_OK;
}
