// Refuses options that cannot go together before anything is opened.
#include "train.h"

#include <string.h>

static bool is_daso(const train_options *o) { return strcmp(o->sync, "daso") == 0; }

static bool rounds(const train_options *o) {
    return o->wire && strcmp(o->wire, "f32") != 0 && strcmp(o->wire, "noop") != 0;
}

static iso_status check_wire(const train_options *o) {
    if (is_daso(o) && o->wire &&
        (strcmp(o->wire, "noop") == 0 || strcmp(o->wire, "bf16-feedback") == 0))
        return train_error(ISO_ERR_ARG,
                           "--wire %s is a way of gradients, and --sync daso sends parameters: "
                           "give --wire f32, bf16 or f16, or --sync lazy",
                           o->wire);
    if (strcmp(o->dtype, "f32") != 0 && rounds(o))
        return train_error(ISO_ERR_ARG,
                           "--wire %s rounds gradients of f32: leave it or --dtype %s away",
                           o->wire, o->dtype);
    return ISO_OK;
}

static iso_status check_math(const train_options *o) {
    bool rounds_factors = strcmp(o->math, "f32") != 0;
    if (rounds_factors && strncmp(o->device, "cuda", 4) != 0)
        return train_error(ISO_ERR_ARG,
                           "--math %s is of GPUs, and --device is %s: leave it away, or give "
                           "--device cuda",
                           o->math, o->device);
    if (rounds_factors && strcmp(o->dtype, "f32") != 0)
        return train_error(ISO_ERR_ARG, "--math %s rounds f32: leave it or --dtype %s away",
                           o->math, o->dtype);
    return ISO_OK;
}

static iso_status check_strategy(const train_options *o) {
    const iso_strategy *strategy;
    TRY(iso_strategy_find(o->sync, &strategy));
    if (strategy->stats && strcmp(o->dtype, "f32") != 0)
        return train_error(ISO_ERR_ARG,
                           "--sync %s exchanges parameters in f32: leave --dtype %s away, or use "
                           "--sync lazy",
                           o->sync, o->dtype);
    iso_settings *settings;
    TRY(iso_settings_create(&settings));
    iso_status status = train_options_settings(o, settings); // texts that are no settings
    iso_settings_destroy(&settings);
    return status;
}

static iso_status check_policy(const train_options *o) {
    if (!is_daso(o) || strcmp(o->policy, "fixed") == 0) return ISO_OK;
    bool period = o->period > o->max_period;
    if (period || o->wait > o->max_period)
        return train_error(ISO_ERR_ARG,
                           "%s %lld is above --max-period %lld, to which --policy %s keeps: lower "
                           "it, or raise --max-period",
                           period ? "--period" : "--wait",
                           (long long)(period ? o->period : o->wait), (long long)o->max_period,
                           o->policy);
    return ISO_OK;
}

static iso_status check_files(const train_options *o) {
    const char *path[] = {o->log, o->trace, o->checkpoint};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (path[i] && path[k] && strcmp(path[i], path[k]) == 0)
                return train_error(ISO_ERR_ARG, "%s is to hold two outputs: give each its own file",
                                   path[i]);
    if (o->load && o->resume)
        return train_error(ISO_ERR_ARG, "--load and --resume both say where parameters come from: "
                                        "--resume to go on with a run, --load to begin a new one");
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
