// SPDX-License-Identifier: MIT
// --validation: keeps some of the training set apart, and makes decisions by its accuracy.
#include "train.h"

#include <math.h>

// ---- The split ----------------------------------------------------------------------------------

iso_status train_validation_split(train_world *world, const train_options *options) {
    if (isnan(options->validation)) return ISO_OK;
    iso_dataset *rest;
    int64_t count = world->info.count;
    int classes = world->info.classes;
    iso_status status = iso_dataset_split(world->train_set, options->validation,
                                          (uint64_t)options->seed, &rest, &world->validation_set);
    if (status == ISO_ERR_ARG)
        return train_error(ISO_ERR_ARG,
                           "--validation %g of %lld image%s leaves one of the two sets empty: give "
                           "another fraction",
                           options->validation, (long long)count, count == 1 ? "" : "s");
    TRY(train_error_of_library(status));
    if (world->test_set == world->train_set) { // pictures that are not divided
        iso_dataset_destroy(&world->test_set);
        world->test_set = iso_dataset_retain(world->validation_set);
    }
    iso_dataset_destroy(&world->train_set);
    world->train_set = rest;
    iso_dataset_get_info(rest, &world->info);
    train_images_describe(world);
    world->info.classes = classes;
    return ISO_OK;
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
