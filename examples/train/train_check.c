// SPDX-License-Identifier: MIT
// Refuses options that cannot be combined, before anything is opened.
#include "train_server.h"
#include "train_text.h"
#include "train_tournament.h"

#include "support/models.h"

#include <math.h>
#include <string.h>

// A wire that is the mode's default is accepted: it shortens only values of f32.
static iso_status check_wire(const train_options *o) {
    const char *wire = train_setting_text(o, "wire");
    bool rounds = wire && strcmp(wire, "f32") != 0 && strcmp(wire, "noop") != 0 &&
                  strcmp(wire, train_setting_of(o->sync, "wire")->initial) != 0;
    if (rounds && strcmp(o->dtype, "f64") == 0) // of 16 bits the f32 master weights travel
        return train_error(ISO_ERR_ARG, "--wire %s needs f32: remove it or --dtype %s", wire,
                           o->dtype);
    return ISO_OK;
}

static iso_status check_dtype(const train_options *o) {
    bool half = strcmp(o->dtype, "bf16") == 0 || strcmp(o->dtype, "f16") == 0;
    const iso_strategy *strategy;
    TRY(iso_strategy_find(o->sync, &strategy));
    if (half && strategy->finish && train_zero_stage(o) > 0)
        return train_error(
            ISO_ERR_ARG,
            "--dtype %s cannot be combined with both ZeRO and --sync %s: use f32, or "
            "no ZeRO",
            o->dtype, o->sync);
    return ISO_OK;
}

static iso_status check_math(const train_options *o) {
    bool rounds_factors = strcmp(o->math, "f32") != 0;
    if (strcmp(o->math, "tf32") == 0 && strncmp(o->device, "cuda", 4) != 0)
        return train_error(ISO_ERR_ARG,
                           "--math tf32 needs a GPU, but --device is %s: remove it, or give "
                           "--device cuda",
                           o->device);
    if (rounds_factors && strcmp(o->dtype, "f32") != 0)
        return train_error(ISO_ERR_ARG, "--math %s rounds f32: remove it or --dtype %s", o->math,
                           o->dtype);
    return ISO_OK;
}

static iso_status check_autocast(const train_options *o) {
    if (strcmp(o->autocast, "none") == 0) return ISO_OK;
    if (strcmp(o->dtype, "f32") != 0)
        return train_error(ISO_ERR_ARG, "--autocast %s rounds f32: remove it or --dtype %s",
                           o->autocast, o->dtype);
    if (strcmp(o->autocast, "f16") == 0 && strcmp(o->math, "f32") != 0)
        return train_error(ISO_ERR_ARG,
                           "--math %s would round activations of f16 to bf16: remove it or "
                           "--autocast f16",
                           o->math);
    return ISO_OK;
}

static iso_status check_strategy(const train_options *o) {
    const iso_strategy *strategy;
    TRY(iso_strategy_find(o->sync, &strategy));
    char warning[ISO_STRATEGY_WARNING];
    iso_strategy_context context = {.total_steps = 0}; // the data say how many
    TRY(iso_settings_create(&context.settings));
    iso_status status = train_options_settings(o, context.settings);
    if (status >= 0)
        status = train_error_of_library(iso_strategy_check(strategy, &context, warning));
    iso_settings_destroy(&context.settings);
    return status;
}

static iso_status check_activations(const train_options *o) {
    if (!o->activations || model_activations_fit(o->activations)) return ISO_OK;
    return train_error(ISO_ERR_ARG, "--activations %s: give " MODEL_ACTIVATIONS_RULE,
                       o->activations);
}

static iso_status check_buffers(const train_options *o) {
    if (strcmp(o->buffers, "keep") == 0 && strcmp(o->buffers_when, "evaluation") != 0)
        return train_error(ISO_ERR_ARG,
                           "--buffers keep synchronises nothing, so --buffers-when %s has no "
                           "effect: remove one of them",
                           o->buffers_when);
    return ISO_OK;
}

// Modes that exchange parameters change in the course of a run over how many ranks gradients are
// averaged.
static iso_status check_average_of_mode(const train_options *o) {
    const iso_strategy *strategy;
    TRY(iso_strategy_find(o->sync, &strategy));
    if (strcmp(o->sync, "localsgd") == 0)
        return train_error(ISO_ERR_ARG,
                           "--average %s has no effect with --sync localsgd, which averages no "
                           "gradients: remove it",
                           o->average);
    if (strategy->finish && strcmp(o->average, "sum") == 0)
        return train_error(
            ISO_ERR_ARG,
            "--average sum cannot be combined with --sync %s, where the number of ranks "
            "that share gradients changes during the run: give post or pre",
            o->sync);
    return ISO_OK;
}

// The 16-bit wires divide before they round.
static iso_status check_average(const train_options *o) {
    const char *wire = train_setting_text(o, "wire");
    bool split = strcmp(o->average, "split") == 0;
    bool divides = wire && iso_setting_among(wire, "f16|bf16|bf16-feedback");
    if (strcmp(o->average, "post") == 0) return ISO_OK;
    if (split && isnan(o->split_factor))
        return train_error(ISO_ERR_ARG, "--average split needs --split-factor");
    TRY(check_average_of_mode(o));
    if (split && divides && strncmp(o->sync, "daso", 4) != 0)
        return train_error(ISO_ERR_ARG,
                           "--average split has no effect with --wire %s, which divides by the "
                           "number of ranks before the exchange: remove one of them",
                           wire);
    return ISO_OK;
}

// A batch that is skipped would shift HeAT's schedule, which counts the batches of an epoch.
static iso_status check_finite(const train_options *o) {
    if (o->finite && strcmp(o->finite, "skip") == 0 && strcmp(o->sync, "daso-heat") == 0)
        return train_error(
            ISO_ERR_ARG, "--finite skip cannot be combined with --sync daso-heat, which counts the "
                         "updates of an epoch: give --finite stop");
    return ISO_OK;
}

static iso_status check_equal(const train_options *o) {
    const char *wire = train_setting_text(o, "wire");
    const iso_strategy *strategy;
    TRY(iso_strategy_find(o->sync, &strategy));
    if (o->check_equal < 0 && strcmp(o->on_difference, "stop") != 0)
        return train_error(ISO_ERR_ARG, "--on-difference %s needs --check-equal", o->on_difference);
    if (o->check_equal > 0 && strategy->finish)
        return train_error(
            ISO_ERR_ARG,
            "--check-equal cannot be combined with --sync %s, where parameters differ "
            "between ranks until they are exchanged: remove it",
            o->sync);
    if (o->check_equal > 0 && wire && strcmp(wire, "noop") == 0)
        return train_error(
            ISO_ERR_ARG,
            "--check-equal cannot be combined with --wire noop, where nothing keeps the "
            "parameters of ranks equal: remove one of them");
    return ISO_OK;
}

static iso_status check_validation(const train_options *o) {
    const char *what = o->early_stopping > 0 ? "--early-stopping"
                       : o->checkpoint_best  ? "--checkpoint-best"
                                             : NULL;
    if (what && isnan(o->validation))
        return train_error(ISO_ERR_ARG, "%s needs a validation set: give --validation, too", what);
    return ISO_OK;
}

static iso_status check_replay(const train_options *o) {
    bool timed =
        train_setting_of(o->sync, "period") || train_setting_of(o->sync, "sync-interval-ms");
    if (!o->replay || timed) return ISO_OK;
    return train_error(
        ISO_ERR_ARG,
        "--replay needs a --sync with a setting \"period\" or "
        "\"sync-interval-ms\": --sync %s has none; modes of Isotherm without it repeat "
        "their results with the same options",
        o->sync);
}

static iso_status check_files(const train_options *o) {
    const char *path[] = {o->log, o->trace, o->checkpoint, o->checkpoint_best};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            if (path[i] && path[k] && strcmp(path[i], path[k]) == 0)
                return train_error(ISO_ERR_ARG,
                                   "two outputs would go to %s: give each its own file", path[i]);
    if (o->checkpoint_every > 0 && !o->checkpoint)
        return train_error(ISO_ERR_ARG, "--checkpoint-every needs --checkpoint");
    bool chooses = o->resume && strcmp(o->resume, "auto") == 0;
    if (chooses && !o->checkpoint)
        return train_error(ISO_ERR_ARG, "--resume auto needs --checkpoint");
    if (o->extend && strcmp(o->sync, "daso-heat") == 0)
        return train_error(ISO_ERR_ARG,
                           "--extend cannot be combined with --sync daso-heat, which plans its "
                           "phases for the whole run: start a new run with --load");
    if (o->extend && !o->resume)
        return train_error(ISO_ERR_ARG, "--extend needs --resume, which names the run to extend");
    if (o->load && o->resume && !chooses)
        return train_error(ISO_ERR_ARG,
                           "--load and --resume both say where parameters come from: "
                           "use --resume to continue a run, --load to start a new one");
    return ISO_OK;
}

iso_status train_options_check(const train_options *o) {
    TRY(check_strategy(o));
    TRY(check_wire(o));
    TRY(check_math(o));
    TRY(check_dtype(o));
    TRY(check_autocast(o));
    TRY(check_average(o));
    TRY(check_buffers(o));
    TRY(check_finite(o));
    TRY(check_equal(o));
    TRY(train_noise_check(o));
    TRY(train_rebuild_check(o));
    TRY(train_scaler_check(o));
    TRY(train_outlier_check(o));
    TRY(check_validation(o));
    TRY(check_activations(o));
    TRY(train_tournament_check(o));
    TRY(train_server_check(o));
    TRY(train_data_check(o));
    TRY(train_schedule_check(o));
    TRY(check_replay(o));
    return check_files(o);
}
