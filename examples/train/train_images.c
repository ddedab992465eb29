// SPDX-License-Identifier: MIT
// Folders of pictures: opens them, and knows what other kinds of data tell by themselves.
#include "train.h"

#include <math.h>
#include <string.h>

static iso_images_layout find_layout(const train_options *o) {
    return strcmp(o->data, "digits") == 0 ? ISO_IMAGES_NONE : iso_images_find(o->data);
}

static iso_status open_part(const train_options *o, iso_images_part part, iso_dataset **out) {
    const iso_images_config config = {.part = part, .size = o->image_size > 0 ? o->image_size : 0};
    return train_error_of_library(iso_dataset_open_images(o->data, &config, out));
}

// The training set stands in for the test set until train_validation_split replaces it by the
// validation set.
static iso_status open_undivided(train_world *world, const train_options *o) {
    if (isnan(o->validation))
        return train_error(ISO_ERR_ARG,
                           "%s holds the pictures of one set: give --validation to test with a "
                           "fraction of them, or divide them among the folders train and val",
                           o->data);
    TRY(open_part(o, ISO_IMAGES_ALL, &world->train_set));
    world->test_set = iso_dataset_retain(world->train_set);
    return ISO_OK;
}

iso_status train_images_open(train_world *world, const train_options *o, bool *found) {
    iso_images_layout layout = find_layout(o);
    *found = layout != ISO_IMAGES_NONE;
    if (layout == ISO_IMAGES_CLASSES) return open_undivided(world, o);
    if (layout == ISO_IMAGES_SPLIT) {
        TRY(open_part(o, ISO_IMAGES_TRAIN, &world->train_set));
        return open_part(o, ISO_IMAGES_VAL, &world->test_set);
    }
    if (o->image_size > 0)
        return train_error(ISO_ERR_ARG,
                           "--image-size needs a folder of pictures, and --data %s is none: remove "
                           "it, or give a folder with train/CLASS/*.jpg and val/CLASS/*.jpg",
                           o->data);
    return ISO_OK;
}

void train_images_describe(train_world *world) {
    static const double mean[] = {0.485, 0.456, 0.406}, std[] = {0.229, 0.224, 0.225};
    if (world->info.mean) return;
    world->info.mean = mean;
    world->info.std = std;
}

bool train_images_are_open(const train_world *world) {
    return iso_dataset_class_name(world->train_set, 0) != NULL;
}

iso_status train_images_classes(train_world *world, const train_options *o) {
    int given = (int)o->classes, classes = world->info.classes;
    if (given > 0 && given < classes)
        return train_error(ISO_ERR_ARG,
                           "%s has %d class folders, and --classes %d allows fewer: remove it",
                           o->data, classes, given);
    if (given > 0) world->info.classes = given;
    return ISO_OK;
}
