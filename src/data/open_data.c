// SPDX-License-Identifier: MIT
// Opens a data set of images by its name: what a folder or file holds decides.
#include "data/data_impl.h"

#include <string.h>
#include <sys/stat.h>

// By the end of its name; a folder may have any.
static bool is_hdf5(const char *path) {
    struct stat info;
    const char *end = strrchr(path, '.');
    bool named = end && (strcmp(end, ".h5") == 0 || strcmp(end, ".hdf5") == 0);
    return named && !(stat(path, &info) == 0 && S_ISDIR(info.st_mode));
}

static iso_status open_digits(bool train, iso_dataset **out) {
    double count;
    ISO_TRY(iso__env_number(ISO_ENV_DIGITS, 60000, &count));
    return iso_dataset_create_digits(train, (int64_t)(train ? count : count / 6), out);
}

iso_status iso_dataset_open(const char *folder, bool train, iso_dataset **out) {
    if (folder && is_hdf5(folder)) return iso__hdf5_read_images(folder, train, out);
    if (!folder || strcmp(folder, "digits") == 0) return open_digits(train, out);
    if (iso_images_find(folder) != ISO_IMAGES_NONE) return iso__images_open(folder, train, out);
    return iso_dataset_read_mnist(folder, train, out);
}
