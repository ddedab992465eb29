// SPDX-License-Identifier: MIT
// Opens the loaders of a run: the samples of each rank, the normalisation of pixels, and random
// changes.
#include "train_server.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- Normalisation ------------------------------------------------------------------------------

// Counts the numbers in "X,X,..." that are above `above`, and writes the first `room` of
// them to out. 0: the text is not such a list.
static int64_t read_numbers(const char *text, double above, int64_t room, double *out) {
    int64_t count = 0;
    for (const char *at = text;; at++) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !isfinite(value) || !(value > above)) return 0;
        if (count < room) out[count] = value;
        count++;
        if (!*end) return count;
        at = end;
    }
}

iso_status train_data_check(const train_options *o) {
    bool no_mean = strcmp(o->mean, "auto") == 0, no_std = strcmp(o->std, "auto") == 0;
    if (no_mean && no_std) return ISO_OK;
    if (no_mean || no_std)
        return train_error(ISO_ERR_ARG, "--mean and --std belong together: give both or neither");
    static const char *const list = "give numbers separated by commas, or auto";
    if (read_numbers(o->mean, -INFINITY, 0, NULL) == 0)
        return train_error(ISO_ERR_ARG, "--mean %s: %s", o->mean, list);
    if (read_numbers(o->std, -INFINITY, 0, NULL) == 0)
        return train_error(ISO_ERR_ARG, "--std %s: %s", o->std, list);
    if (read_numbers(o->std, 0, 0, NULL) == 0)
        return train_error(ISO_ERR_ARG, "--std %s: a deviation must be above 0", o->std);
    return ISO_OK;
}

// Numbers for all channels, or a single one for each of them.
static iso_status take_channels(const char *option, const char *text, int64_t channels,
                                double *out) {
    int64_t count = read_numbers(text, -INFINITY, channels, out);
    for (; count == 1 && channels > 1; channels--) out[channels - 1] = out[0];
    if (count == 1 || count == channels) return ISO_OK;
    return train_error(ISO_ERR_ARG, "%s %s: these are %lld numbers for images of %lld channel%s",
                       option, text, (long long)count, (long long)channels,
                       channels == 1 ? "" : "s");
}

// From --mean and --std; numbers has room for two lists.
static iso_status take_normalisation(const train_options *options, const iso_dataset_info *info,
                                     double *numbers, iso_loader_config *out) {
    double *mean = numbers, *std = numbers + info->channels;
    out->mean = mean;
    out->std = std;
    if (strcmp(options->mean, "auto") == 0) {
        memcpy(mean, info->mean, (size_t)info->channels * sizeof(*mean));
        memcpy(std, info->std, (size_t)info->channels * sizeof(*std));
        return ISO_OK;
    }
    TRY(take_channels("--mean", options->mean, info->channels, mean));
    TRY(take_channels("--std", options->std, info->channels, std));
    return ISO_OK;
}

// ---- Loaders ------------------------------------------------------------------------------------

static iso_sampler_end sampler_end(const char *name) {
    if (strcmp(name, "drop") == 0) return ISO_SAMPLER_DROP;
    return strcmp(name, "overlap") == 0 ? ISO_SAMPLER_OVERLAP : ISO_SAMPLER_PAD;
}

// The config of a loader without augmentation. run->normalisation keeps its numbers.
static iso_status plain_config(const train_run *run, iso_loader_config *out) {
    *out = (iso_loader_config)ISO_LOADER_DEFAULT;
    TRY(take_normalisation(run->options, &run->world->info, run->normalisation, out));
    TRY(iso_dtype_parse(run->options->dtype, &out->dtype));
    if (out->dtype != ISO_F64) out->dtype = ISO_F32; // the model rounds them to 16 bits
    out->threads = (int)run->options->loader_threads;
    return ISO_OK;
}

// One of so many equal parts of the validation set.
static iso_status open_part(train_run *run, int part, int parts, iso_loader **out) {
    const train_world *world = run->world;
    iso_loader_config plain;
    TRY(plain_config(run, &plain));
    iso_sampler_config order = {.batch = run->options->batch,
                                .rank = part,
                                .ranks = parts,
                                .seed = (uint64_t)run->options->seed,
                                .end = ISO_SAMPLER_SHARE};
    return iso_loader_create_take(world->device, iso_dataset_retain(world->validation_set), &order,
                                  &plain, out);
}

static iso_status create_loaders(train_run *run) {
    const train_world *world = run->world;
    const train_options *options = run->options;
    iso_loader_config plain;
    TRY(plain_config(run, &plain));
    iso_loader_config changed = plain;
    changed.shift = (int)options->shift;
    changed.flip = options->flip;
    changed.crop = isnan(options->crop) ? 0 : options->crop;
    // A rank that only serves takes no sample, and counts the batches of the others.
    iso_sampler_config order = {.batch = options->batch,
                                .rank = train_serves(run) ? 0 : world->rank,
                                .ranks = run->workers,
                                .seed = (uint64_t)options->seed,
                                .shuffle = true,
                                .end = sampler_end(options->sampler)};
    TRY(iso_loader_create_take(world->device, iso_dataset_retain(world->train_set), &order,
                               &changed, &run->train_loader));
    order.rank = world->rank;
    order.ranks = world->ranks;
    order.shuffle = false;
    order.count = run->test_samples;
    order.end = ISO_SAMPLER_SHARE;
    TRY(iso_loader_create_take(world->device, iso_dataset_retain(world->test_set), &order, &plain,
                               &run->test_loader));
    if (!world->validation_set) return ISO_OK;
    return open_part(run, world->rank, world->ranks, &run->validation_loader);
}

iso_status train_held_out_open(train_run *run, int part, int parts) {
    return open_part(run, part, parts, &run->match_loader);
}

iso_status train_loaders_open(train_run *run) {
    iso_dataset_info test;
    iso_dataset_get_info(run->world->test_set, &test);
    int64_t limit = run->options->test_limit;
    run->test_samples = limit > 0 && limit < test.count ? limit : test.count;
    run->normalisation = calloc(2 * (size_t)run->world->info.channels, sizeof(double));
    if (!run->normalisation)
        return train_error(ISO_ERR_NOMEM, "out of memory for the normalisation");
    return create_loaders(run);
}
