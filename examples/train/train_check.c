// SPDX-License-Identifier: MIT
// Refuses options that cannot go together before anything is opened.
#include "train.h"

#include <math.h>
#include <string.h>

static bool is_daso(const train_options *o) { return strcmp(o->sync, "daso") == 0; }

// Of gradients: what --sync daso sends is of f32 anyway.
static iso_status check_wire(const train_options *o) {
    const char *wire = train_setting_text(o, "wire");
    bool rounds = wire && strcmp(wire, "f32") != 0 && strcmp(wire, "noop") != 0;
    if (rounds && !is_daso(o) && strcmp(o->dtype, "f32") != 0)
        return train_error(ISO_ERR_ARG,
                           "--wire %s rounds gradients of f32: remove it or --dtype %s", wire,
                           o->dtype);
    return ISO_OK;
}

static iso_status check_math(const train_options *o) {
    bool rounds_factors = strcmp(o->math, "f32") != 0;
    if (rounds_factors && strncmp(o->device, "cuda", 4) != 0)
        return train_error(ISO_ERR_ARG,
                           "--math %s needs a GPU, but --device is %s: remove it, or give "
                           "--device cuda",
                           o->math, o->device);
    if (rounds_factors && strcmp(o->dtype, "f32") != 0)
        return train_error(ISO_ERR_ARG, "--math %s rounds f32: remove it or --dtype %s", o->math,
                           o->dtype);
    return ISO_OK;
}

static iso_status check_strategy(const train_options *o) {
    const iso_strategy *strategy;
    TRY(iso_strategy_find(o->sync, &strategy));
    if (strategy->f32_only && strcmp(o->dtype, "f32") != 0)
        return train_error(ISO_ERR_ARG,
                           "--sync %s exchanges parameters in f32: remove --dtype %s, or use "
                           "--sync lazy",
                           o->sync, o->dtype);
    iso_settings *settings;
    TRY(iso_settings_create(&settings));
    iso_status status = train_options_settings(o, settings); // texts that are no settings
    iso_settings_destroy(&settings);
    return status;
}

static iso_status check_policy(const train_options *o) {
    int64_t period = train_setting_integer(o, "period"), wait = train_setting_integer(o, "wait");
    int64_t most = train_setting_integer(o, "max-period");
    if (!is_daso(o)) return ISO_OK;
    if (period > 0 && wait > period)
        return train_error(ISO_ERR_ARG,
                           "--wait %lld is longer than --period %lld, but an exchange is merged "
                           "before the next one is sent: lower it, or raise --period",
                           (long long)wait, (long long)period);
    const char *policy = train_setting_text(o, "policy");
    if (strcmp(policy, "fixed") == 0 || (period <= most && wait <= most)) return ISO_OK;
    return train_error(ISO_ERR_ARG,
                       "%s %lld is above --max-period %lld, the limit of --policy %s: lower it, "
                       "or raise --max-period",
                       period > most ? "--period" : "--wait",
                       (long long)(period > most ? period : wait), (long long)most, policy);
}

static iso_status check_files(const train_options *o) {
    const char *path[] = {o->log, o->trace, o->checkpoint};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (path[i] && path[k] && strcmp(path[i], path[k]) == 0)
                return train_error(ISO_ERR_ARG,
                                   "two outputs would go to %s: give each its own file", path[i]);
    if (o->load && o->resume)
        return train_error(ISO_ERR_ARG,
                           "--load and --resume both say where parameters come from: "
                           "use --resume to continue a run, --load to start a new one");
    return ISO_OK;
}

iso_status train_options_check(const train_options *o) {
    TRY(check_wire(o));
    TRY(check_math(o));
    TRY(check_strategy(o));
    TRY(check_policy(o));
    TRY(train_data_check(o));
    TRY(train_schedule_check(o));
    return check_files(o);
}

// ---- What depends on the length of the run ------------------------------------------------------

// Steps that an option gives as a number or, if that is not given, as a part of the run, rounded up
// as the library does it: 0.07 of 100 is 7, although the product in doubles is a little more.
static int64_t steps_of(const train_options *o, const char *part, int64_t number, int64_t total) {
    double share = train_setting_number(o, part);
    if (number >= 0) return number;
    return isnan(share) ? 0 : (int64_t)ceil(share * (double)total * (1 - 1e-12));
}

static void phases_of(const train_options *o, int64_t total, int64_t *warmup, int64_t *cooldown) {
    *warmup = steps_of(o, "warmup", train_setting_integer(o, "warmup-steps"), total);
    *cooldown = steps_of(o, "cooldown", train_setting_integer(o, "cooldown-steps"), total);
}

void train_phases_warn(const train_options *o, int64_t total) {
    bool local = strcmp(o->sync, "localsgd") == 0 || strcmp(o->sync, "postlocal") == 0;
    bool fixed = local || (is_daso(o) && strcmp(train_setting_text(o, "policy"), "fixed") == 0);
    int64_t warmup, cooldown, period = train_setting_integer(o, "period");
    if (!fixed || period < 1) return;
    phases_of(o, total, &warmup, &cooldown);
    int64_t cycling = total - warmup - cooldown;
    if (period < cycling) return;
    fprintf(stderr,
            "train: warning: --period %lld is not shorter than the %lld steps in which ranks train "
            "apart: they exchange no parameters before the end of those: lower it, or train "
            "longer\n",
            (long long)period, (long long)(cycling > 0 ? cycling : 0));
}

iso_status train_phases_check(const train_options *o, int64_t total) {
    int64_t warmup, cooldown;
    if (!is_daso(o)) return ISO_OK;
    phases_of(o, total, &warmup, &cooldown);
    int64_t cycling = total - warmup - cooldown;
    bool given = train_setting_integer(o, "warmup-steps") >= 0 &&
                 train_setting_integer(o, "cooldown-steps") >= 0;
    if (given && cycling < 0)
        return train_error(ISO_ERR_ARG,
                           "--warmup-steps %lld and --cooldown-steps %lld are more than the %lld "
                           "steps of the run: lower them, or train longer",
                           (long long)warmup, (long long)cooldown, (long long)total);
    // What is sent first comes at the earliest after one step, or after a period of --wait steps.
    int64_t wait = train_setting_integer(o, "wait");
    int64_t first = train_setting_integer(o, "period") > wait ? 1 : wait;
    if (cycling <= 0 || wait < 1 || wait <= cycling - first) return ISO_OK;
    return train_error(ISO_ERR_ARG,
                       "--wait %lld: in the %lld steps between warm-up and cool-down nothing that "
                       "is sent would be merged: lower it, or train longer",
                       (long long)wait, (long long)cycling);
}
