// SPDX-License-Identifier: MIT
// The options of the train program.
#ifndef EXAMPLES_TRAIN_OPTIONS_H
#define EXAMPLES_TRAIN_OPTIONS_H

#include "support/option_reader.h"

#include <stddef.h>
#include <stdint.h>

enum { TRAIN_SETTINGS = 256 };

// Without a value or default, an integer is -1, another number is NaN, and a text is NULL.
typedef struct train_options {
    const char *data, *sampler, *mean, *std, *model, *activations;
    int64_t image_size, classes, test_limit, shift;
    double flip, crop, validation;
    bool dropout, amsgrad;
    int64_t epochs, steps, batch, accumulate, seed;
    const char *optimizer, *schedule, *milestones;
    double lr, momentum, weight_decay, label_smoothing, gamma, clip_grad_norm;
    int64_t step_size, patience, warmup_lr_steps;
    const char *finite;
    double skip_loss, skip_norm;
    int64_t skip_window;
    int64_t early_stopping;
    bool grad_scaler;
    double init_scale;
    int64_t growth_interval;

    const char *plugin, *sync, *sync_option, *replay, *progress;
    double bucket_mb;
    const char *rebuild;
    bool find_unused, static_unused, sync_batchnorm;
    const char *buffers, *buffers_when, *average;
    double split_factor;
    int64_t noise_scale, check_equal;
    const char *on_difference;
    // The given settings of strategies, in the order of train_setting_at; NULL: not given.
    const char *setting[TRAIN_SETTINGS];

    const char *device, *math, *autocast, *dtype, *kernels;
    int64_t threads, loader_threads;
    const char *log, *tensorboard, *trace, *checkpoint, *checkpoint_best, *load, *resume;
    int64_t checkpoint_every, eval_every;
    bool extend, overwrite;
    bool resume_auto; // set by train_state_choose: --resume was auto
    bool buckets, stats, quiet, help, help_env, version;
} train_options;

// Local, called once, before options are read: --plugin makes strategies of its own known, and
// their options. ISO_ERR_IO, ISO_ERR_FORMAT, ISO_ERR_MISMATCH or the plugin's own error, with a
// message by train_error.
iso_status train_plugin_load(int argc, char **argv);
// Local. Fills in defaults and checks every value. ISO_ERR_ARG with a message by train_error. Texts
// are borrowed from argv.
iso_status train_options_parse(int argc, char **argv, train_options *out);
// The same for two sections of argv: options from argv[first] on replace those before. In each
// section an option may be given once.
iso_status train_options_parse_over(int first, int argc, char **argv, train_options *out);
// Local. ISO_ERR_ARG for options that can never work together, whatever the data.
iso_status train_options_check(const train_options *options);
// Writes one line "--name value" for each option to text, cut off at room. settings: only the
// options that must stay the same when a run is resumed.
void train_options_text(const train_options *values, bool settings, char *text, size_t room);
// The offset of the first line in which two such texts differ.
size_t train_options_difference(const char *a, const char *b);
// Local. Adds the given settings of the chosen --sync, and those of --sync-option.
iso_status train_options_settings(const train_options *values, iso_settings *out);
// Collective over MPI_COMM_WORLD. ISO_ERR_MISMATCH if this rank's options differ from rank 0's.
iso_status train_options_agree(const train_options *values);
// train_text.c. The type of 16 bits that --dtype or --autocast gives activations; NULL: none does.
const char *train_activations(const train_options *options);
void train_options_help(FILE *to);
// Local. ISO_ERR_ARG for an unknown option. The message names the most similar option of train or
// in `more`.
iso_status train_options_refuse(const char *name, const option_list *more);

// Room for the text of all options. Names of files may be cut off.
#define TRAIN_OPTIONS_ROOM 16384

// ---- train_settings.c -----------------------------------------------------------------------------
// Every setting that a registered strategy publishes is an option; strategies may share one.

// The settings, each key once, as described by the first strategy that has it; NULL if i is too
// large.
const iso_setting *train_setting_at(int i);
// The setting of an option "--period", which may be followed by = or a blank and a value; NULL: not
// a setting.
const iso_setting *train_setting_named(const char *option);
// The setting as described by the strategy `sync`; NULL: it has no such setting.
const iso_setting *train_setting_of(const char *sync, const char *key);
// "daso|localsgd|postlocal": the strategies that have this setting (key NULL: all strategies) and
// accept this value (NULL: any).
const char *train_setting_owners(const char *key, const char *value, char *text, size_t room);
// The value of a setting of the chosen --sync, or its default; NULL if there is neither, or no such
// setting.
const char *train_setting_text(const train_options *options, const char *key);
// ISO_ERR_ARG if the setting does not apply to the chosen value of the option it depends on.
iso_status train_option_belongs(const iso_setting *setting, const char *chosen);
// Local. ISO_ERR_ARG for a setting that the chosen --sync does not have or take.
iso_status train_settings_check(const train_options *options);
// The line of a text of options with the same option as this line; NULL: none.
const char *train_options_line(const char *text, const char *line);
// Returns the line itself; but if it says "--KEY not given", and the strategy of the text's --sync
// has a default for KEY, a line with that default, written to room.
enum { TRAIN_LINE_ROOM = 80 };
const char *train_setting_default_line(const char *text, const char *line,
                                       char room[TRAIN_LINE_ROOM]);

// ---- train_option_table.c -------------------------------------------------------------------------

// What an option belongs to; 0: to a run.
enum {
    TRAIN_SHARED = 1,    // the same in all runs of a sweep
    TRAIN_OUTSIDE = 2,   // changes no result; unless shared, a sweep does not take it
    TRAIN_STRATEGIES = 4 // a heading: the settings of strategies follow
};
// A setting without a key is a heading of the help.
typedef struct train_option {
    int scope;
    iso_setting setting;
} train_option;

extern const train_option train_option_table[];
extern const int train_option_count;
// As train_setting_named.
const train_option *train_option_named(const char *option);

#endif
