// SPDX-License-Identifier: MIT
// Determines the number of classes, and refuses labels that look damaged: a single wrong one would
// make the network far too large.
#include "train.h"

#include <stdlib.h>

static const char *const set_names[2] = {"training", "test"};

// The images that have one label, in one set.
typedef struct label_use {
    int64_t count, first;
} label_use;

static label_use find_label(const iso_dataset *set, int label) {
    iso_dataset_info info;
    label_use use = {0};
    iso_dataset_get_info(set, &info);
    for (int64_t i = 0; i < info.count; i++) {
        int32_t found;
        iso_dataset_image(set, i, &found);
        if (found == label && use.count++ == 0) use.first = i;
    }
    return use;
}

// Sets a bit in in_sets[label] for each set that has an image with this label. Ignores labels from
// `room` on.
static void mark_labels(const iso_dataset *const sets[2], int64_t room, uint8_t *in_sets) {
    for (int s = 0; s < 2; s++) {
        iso_dataset_info info;
        iso_dataset_get_info(sets[s], &info);
        for (int64_t i = 0; i < info.count; i++) {
            int32_t label;
            iso_dataset_image(sets[s], i, &label);
            if (label < room) in_sets[label] |= (uint8_t)(1 << s);
        }
    }
}

static iso_status check_label(const iso_dataset *const sets[2], const char *data, int label,
                              int classes) {
    label_use use[2] = {find_label(sets[0], label), find_label(sets[1], label)};
    if (use[0].count > 0 && use[1].count > 0) return ISO_OK;
    int s = use[0].count == 0;
    if (use[s].count == 0)
        return train_error(ISO_ERR_FORMAT,
                           "the labels of %.240s go up to %d, but no image has label %d: correct "
                           "the labels, or give --classes %d if they are right",
                           data, classes - 1, label, classes);
    return train_error(ISO_ERR_FORMAT,
                       "label %d occurs in the %s set of %.240s alone (%lld image%s, the first is "
                       "image %lld): correct the labels, or give --classes %d if they are right",
                       label, set_names[s], data, (long long)use[s].count,
                       use[s].count == 1 ? "" : "s", (long long)use[s].first, classes);
}

// The highest label is the likeliest to be damaged. If it exceeds the number of images, some label
// up to that number has no image. So memory for that many labels is enough.
static iso_status check_labels(const iso_dataset *const sets[2], int64_t images, const char *data,
                               int classes) {
    TRY(check_label(sets, data, classes - 1, classes));
    int64_t room = classes <= images ? classes : images + 1;
    uint8_t *in_sets = calloc((size_t)room, 1);
    if (!in_sets) return train_error(ISO_ERR_NOMEM, "out of memory for the labels of %s", data);
    mark_labels(sets, room, in_sets);
    iso_status status = ISO_OK;
    for (int64_t c = 0; c < room && status >= 0; c++)
        if (in_sets[c] != 3) status = check_label(sets, data, (int)c, classes);
    free(in_sets);
    return status;
}

static iso_status check_given(const iso_dataset *const sets[2], const char *data, int classes,
                              int given) {
    if (classes <= given) return ISO_OK;
    int s = find_label(sets[0], classes - 1).count == 0;
    return train_error(ISO_ERR_ARG,
                       "image %lld of the %s set of %.240s has label %d, and --classes %d allows 0 "
                       "to %d: correct the label, or give --classes %d",
                       (long long)find_label(sets[s], classes - 1).first, set_names[s], data,
                       classes - 1, given, given - 1, classes);
}

iso_status train_classes_find(train_world *world, const train_options *options) {
    const iso_dataset *const sets[2] = {world->train_set, world->test_set};
    iso_dataset_info train, test;
    if (train_images_are_open(world)) return train_images_classes(world, options);
    iso_dataset_get_info(sets[0], &train);
    iso_dataset_get_info(sets[1], &test);
    int classes = train.classes > test.classes ? train.classes : test.classes;
    int given = (int)options->classes;
    world->info.classes = given > 0 ? given : classes;
    if (given > 0) return check_given(sets, options->data, classes, given);
    return check_labels(sets, train.count + test.count, options->data, classes);
}
