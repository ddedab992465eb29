// SPDX-License-Identifier: MIT
// For tests that make runs of the train program in their own process: a small world, and runs from
// lines of options.
#include "common/any_device.h"
#include "common/train_fixture.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

enum { SIDE = 6, CLASSES = 4, WORDS = 48, ROOM = 512, TEST_IMAGES = 30 };

// A class is a bright row; the rest is noise.
static iso_status make_set(uint64_t stream, int64_t count, iso_dataset **out) {
    iso__philox_key key = iso__philox_key_make(11, ISO_RNG_TEST, stream);
    size_t pixels = SIDE * SIDE;
    uint8_t *image = malloc((size_t)count * pixels);
    int32_t *label = malloc((size_t)count * sizeof(*label));
    iso_status status = ISO_ERR_NOMEM;
    for (uint32_t i = 0; image && label && i < (uint32_t)count; i++) {
        label[i] = (int32_t)(i * 7 % CLASSES);
        for (uint32_t p = 0; p < pixels; p++) {
            uint32_t counter[4] = {p, i, 0, 0}, bits[4];
            iso__philox(key, counter, bits);
            image[i * pixels + p] = (uint8_t)(bits[0] % 120 + ((int32_t)p / SIDE == label[i]) * 90);
        }
    }
    if (image && label)
        status = iso_dataset_create(image, label, count, 1, SIDE, SIDE, CLASSES, out);
    free(image);
    free(label);
    return status;
}

iso_status train_world_small(iso_comm *comm, int64_t count, train_world *out) {
    iso_topology *topology;
    *out = (train_world){
        .comm = iso_comm_retain(comm), .rank = iso_comm_rank(comm), .ranks = iso_comm_size(comm)};
    ISO_TRY(iso_device_create(test_device(), &out->device));
    ISO_TRY(make_set(0, count, &out->train_set));
    ISO_TRY(make_set(1, TEST_IMAGES, &out->test_set));
    iso_dataset_get_info(out->train_set, &out->info);
    ISO_TRY(iso_topology_create(comm, NULL, &topology));
    out->nodes = topology->nodes;
    iso_topology_destroy(&topology);
    return ISO_OK;
}

bool train_line(const train_world *world, const char *line, const train_observer *observer,
                train_result *out) {
    char text[ROOM], *words[WORDS] = {"train", "--quiet"}, *rest = text, *word;
    int count = 2;
    train_options options;
    snprintf(text, sizeof(text), "%s", line);
    while (count < WORDS && (word = strtok_r(rest, " ", &rest))) words[count++] = word;
    return train_all_well(train_options_parse(count, words, &options)) &&
           train_perform(world, &options, observer, out);
}

static void on_eval(const train_eval *eval, void *user) {
    train_curve *curve = user;
    if (curve->count == TRAIN_CURVE) return;
    curve->train_loss[curve->count] = eval->train_loss;
    curve->test_loss[curve->count++] = eval->test_loss;
}

bool train_curve_of(const train_world *world, const char *line, train_curve *curve,
                    train_result *out) {
    char text[ROOM];
    train_observer observer = {.eval = on_eval, .user = curve};
    curve->count = 0;
    snprintf(text, sizeof(text), "%s --eval-every 1", line);
    return train_line(world, text, &observer, out);
}

double train_curve_difference(const train_curve *a, const train_curve *b) {
    double largest = a->count == b->count && a->count > 0 ? 0 : INFINITY;
    for (int i = 0; i < a->count && i < b->count; i++) {
        largest = fmax(largest, fabs(a->train_loss[i] - b->train_loss[i]));
        largest = fmax(largest, fabs(a->test_loss[i] - b->test_loss[i]));
    }
    return largest;
}
