// SPDX-License-Identifier: MIT
// --validation: keeps some of the training set apart, and makes decisions by its accuracy.
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- The split ----------------------------------------------------------------------------------

// Another permutation than those of the epochs, of the same seed.
#define OF_SPLIT UINT64_C(0x9e3779b97f4a7c15)

static iso_status mark_chosen(int64_t count, int64_t wanted, int64_t seed, char *chosen) {
    const int64_t *indices;
    iso_sampler *sampler;
    iso_sampler_config order = {.count = count,
                                .batch = wanted,
                                .ranks = 1,
                                .seed = (uint64_t)seed ^ OF_SPLIT,
                                .shuffle = true,
                                .end = ISO_SAMPLER_SHARE};
    TRY(iso_sampler_create(&order, &sampler));
    int64_t n = iso_sampler_batch(sampler, 0, &indices);
    for (int64_t i = 0; i < n; i++) chosen[indices[i]] = 1;
    iso_sampler_destroy(&sampler);
    return ISO_OK;
}

// Copies the images that are chosen, or those that are not, in their order.
static iso_status copy_part(const iso_dataset *set, const char *chosen, bool which,
                            iso_dataset **out) {
    iso_dataset_info info;
    iso_dataset_get_info(set, &info);
    size_t bytes = (size_t)(info.channels * info.height * info.width), n = 0;
    uint8_t *images = malloc((size_t)info.count * bytes);
    int32_t *labels = malloc((size_t)info.count * sizeof(*labels));
    iso_status status = train_error(ISO_ERR_NOMEM, "out of memory for --validation");
    for (int64_t i = 0; images && labels && i < info.count; i++)
        if (chosen[i] == which)
            memcpy(images + n * bytes, iso_dataset_image(set, i, &labels[n]), bytes), n++;
    if (images && labels)
        status = train_error_of_library(iso_dataset_create(
            images, labels, (int64_t)n, info.channels, info.height, info.width, info.classes, out));
    free(images);
    free(labels);
    return status;
}

static iso_status split_set(train_world *world, const char *chosen) {
    iso_dataset *rest = NULL;
    int classes = world->info.classes;
    TRY(copy_part(world->train_set, chosen, true, &world->validation_set));
    TRY(copy_part(world->train_set, chosen, false, &rest));
    iso_dataset_destroy(&world->train_set);
    world->train_set = rest;
    iso_dataset_get_info(rest, &world->info);
    world->info.classes = classes;
    return ISO_OK;
}

iso_status train_validation_split(train_world *world, const train_options *options) {
    if (isnan(options->validation)) return ISO_OK;
    int64_t count = world->info.count, wanted = llround(options->validation * (double)count);
    if (wanted < 1 || wanted >= count)
        return train_error(ISO_ERR_ARG,
                           "--validation %g of %lld image%s leaves one of the two sets empty: give "
                           "another fraction",
                           options->validation, (long long)count, count == 1 ? "" : "s");
    char *chosen = calloc((size_t)count, 1);
    if (!chosen) return train_error(ISO_ERR_NOMEM, "out of memory for --validation");
    iso_status status = mark_chosen(count, wanted, options->seed, chosen);
    if (status >= 0) status = split_set(world, chosen);
    free(chosen);
    return status;
}

// ---- After an epoch -----------------------------------------------------------------------------

iso_status train_validation_run(train_run *run) {
    if (!run->validation_loader) return ISO_OK;
    return iso_evaluate(run->model, run->test_loss, run->validation_loader, run->world->comm,
                        &run->validation);
}

iso_status train_validation_judge(train_run *run) {
    train_best *best = &run->best;
    if (!run->validation_loader) return ISO_OK;
    best->since++;
    if (!(run->validation.accuracy > best->accuracy)) return ISO_OK;
    *best = (train_best){run->validation.accuracy, (double)(run->at.epoch + 1), 0};
    const char *path = run->options->checkpoint_best;
    return path ? train_checkpoint_save(run, path) : ISO_OK;
}

bool train_validation_stops(const train_run *run) {
    int64_t patience = run->options->early_stopping;
    return patience > 0 && run->best.since >= (double)patience;
}
