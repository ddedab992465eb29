// SPDX-License-Identifier: MIT
// --kernels: chooses kernels by the fixed rule, or by rank 0's measurements for all ranks.
#include "train.h"

#include <stdlib.h>
#include <string.h>

// Runs a step on a separate model, so that the counters and statistics of the run's model do not
// change.
static iso_status run_step(const train_run *run, iso_module *model, iso_tensor *images,
                           const int32_t *labels) {
    iso_tensor *output, *gradient;
    double loss;
    TRY(iso_module_forward(model, images, &output));
    TRY(iso_loss_compute(run->loss, output, labels, &loss, NULL, &gradient));
    return iso_module_backward(model, gradient, NULL);
}

static iso_status make_images(const train_run *run, iso_tensor **out) {
    const iso_dataset_info *info = &run->world->info;
    float *pixels;
    iso_rng noise = {.seed = 1};
    TRY(iso_tensor_create(
        run->world->device, ISO_F32, 4,
        (int64_t[]){run->options->batch, info->channels, info->height, info->width}, out));
    TRY(iso_tensor_map(*out, ISO_WRITE, (void **)&pixels));
    for (int64_t i = 0; i < iso_tensor_count(*out); i++) {
        noise.seed = noise.seed * 6364136223846793005u + 1442695040888963407u; // Knuth's
        pixels[i] = (float)(noise.seed >> 40) * 0x1p-23f - 1;
    }
    return iso_tensor_unmap(*out);
}

static iso_status tune_kernels(const train_run *run) {
    const train_options *o = run->options;
    iso_device *device = run->world->device;
    iso_rng rng = {.seed = 1};
    iso_module *model = NULL;
    iso_tensor *images = NULL;
    int32_t *labels = calloc((size_t)o->batch, sizeof(*labels));
    iso_status status = labels
                            ? train_model_create(run, &rng, &model)
                            : train_error(ISO_ERR_NOMEM, "out of memory for the labels of a batch");
    if (status >= 0) status = make_images(run, &images);
    if (status >= 0) status = iso_device_tune(device, true);
    if (status >= 0) status = run_step(run, model, images, labels);
    iso_device_tune(device, false);
    iso_tensor_destroy(&images);
    iso_module_destroy(&model);
    free(labels);
    return status;
}

// Gives rank 0's choices to all.
static iso_status spread_choices(const train_run *run) {
    iso_comm *comm = run->world->comm;
    iso_device *device = run->world->device;
    size_t bytes = 0;
    const void *mine = iso_device_choices(device, &bytes);
    int64_t room = (int64_t)bytes; // the others have none
    TRY(iso_comm_bcast(comm, &room, sizeof(room), 0));
    char *copy = calloc((size_t)room + 1, 1);
    if (!copy) return train_error(ISO_ERR_NOMEM, "out of memory for the choices of kernels");
    for (size_t i = 0; i < bytes; i++) copy[i] = ((const char *)mine)[i];
    iso_status status = iso_comm_bcast(comm, copy, (size_t)room, 0);
    if (status >= 0) status = iso_device_set_choices(device, copy, (size_t)room);
    free(copy);
    return status;
}

iso_status train_kernels_setup(const train_run *run) {
    TRY(iso_device_set_choices(run->world->device, NULL, 0)); // of a run before
    if (run->options->kernels[0] == 'f') return ISO_OK;
    if (strcmp(run->options->dtype, "f64") == 0) return ISO_OK; // it has no candidates
    TRY(iso_comm_agree(run->world->comm, run->world->rank == 0 ? tune_kernels(run) : ISO_OK));
    return spread_choices(run);
}
