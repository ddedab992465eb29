// SPDX-License-Identifier: MIT
// The options of the train program.
#ifndef EXAMPLES_TRAIN_OPTIONS_H
#define EXAMPLES_TRAIN_OPTIONS_H

#include "support/option_reader.h"

#include <stddef.h>
#include <stdint.h>

enum { TRAIN_SETTINGS = 64 };

// Of what is not given and has no default, numbers are -1 (whole ones) or NaN, and texts NULL.
typedef struct train_options {
    const char *data, *sampler, *mean, *std, *model;
    int64_t classes, test_limit, shift;
    double flip, validation;
    bool dropout;
    int64_t epochs, steps, batch, accumulate, seed;
    const char *optimizer, *schedule, *milestones;
    double lr, momentum, weight_decay, label_smoothing, gamma, clip_grad_norm;
    int64_t step_size, patience, warmup_lr_steps;
    const char *finite;
    int64_t early_stopping;

    const char *sync, *sync_option, *progress;
    double bucket_mb;
    bool find_unused, sync_batchnorm;
    const char *buffers, *buffers_when, *average;
    double split_factor;
    int64_t check_equal;
    const char *on_difference;
    // What is given of the settings of strategies, in the order of train_setting_at.
    const char *setting[TRAIN_SETTINGS];

    const char *device, *math, *dtype, *kernels;
    int64_t threads;
    const char *log, *trace, *checkpoint, *checkpoint_best, *load, *resume;
    int64_t checkpoint_every, eval_every;
    bool overwrite;
    bool buckets, stats, quiet, help, help_env, version;
} train_options;

// Local. Fills in defaults and checks every value. ISO_ERR_ARG with a sentence by train_error.
// Texts are borrowed from argv.
iso_status train_options_parse(int argc, char **argv, train_options *out);
// The same where what stands in argv from `first` on holds in place of what stands before it; in
// each section an option may be given once.
iso_status train_options_parse_over(int first, int argc, char **argv, train_options *out);
// Local. ISO_ERR_ARG for options that can never work together, whatever the data.
iso_status train_options_check(const train_options *options);
// One line "--name value" for each option into text, cut where the room ends. settings: only those
// that a run which is resumed must have had from its beginning.
void train_options_text(const train_options *values, bool settings, char *text, size_t room);
// Where the first line in which two such texts differ begins in both.
size_t train_options_difference(const char *a, const char *b);
// Local. Adds what is given of the settings of the chosen --sync, and what --sync-option lists.
iso_status train_options_settings(const train_options *values, iso_settings *out);
// Collective over MPI_COMM_WORLD. ISO_ERR_MISMATCH where this rank's options are not rank 0's.
iso_status train_options_agree(const train_options *values);
void train_options_help(FILE *to);
// Local. ISO_ERR_ARG for a name that is none, with the option that is spelt most like it, of train
// or in `more`.
iso_status train_options_refuse(const char *name, const option_list *more);

// Room for the text of all options; names of files may be cut.
#define TRAIN_OPTIONS_ROOM 16384

// ---- train_settings.c -----------------------------------------------------------------------------
// Every setting that a registered strategy publishes is an option; strategies may share one.

// The settings, each key once, as the first strategy that has it describes it; NULL: there is no i.
const iso_setting *train_setting_at(int i);
// That of an option "--period", behind which = or a blank and a value may stand; NULL: it is none.
const iso_setting *train_setting_named(const char *option);
// The same as the strategy `sync` describes it; NULL: it has no such setting.
const iso_setting *train_setting_of(const char *sync, const char *key);
// "daso|localsgd|postlocal": who has it (key NULL: all) and takes this value (NULL: any).
const char *train_setting_owners(const char *key, const char *value, char *text, size_t room);
// Of the chosen --sync: what is given, or the default; NULL without either or such a setting.
const char *train_setting_text(const train_options *options, const char *key);
// ISO_ERR_ARG for an option that is not of what is chosen for the one that it depends on.
iso_status train_option_belongs(const iso_setting *setting, const char *chosen);
// Local. ISO_ERR_ARG for a setting that the chosen --sync does not have or take.
iso_status train_settings_check(const train_options *options);
// The line of a text of options that begins as this one, up to its first blank; NULL: none.
const char *train_options_line(const char *text, const char *line);
// The line of an option in a text of options; where that was not given and is a setting of the
// text's --sync that has a default, a line with the default, in room.
enum { TRAIN_LINE_ROOM = 80 };
const char *train_setting_default_line(const char *text, const char *line,
                                       char room[TRAIN_LINE_ROOM]);

// ---- train_option_table.c -------------------------------------------------------------------------

// Whose an option is; 0: a run's.
enum {
    TRAIN_SHARED = 1,    // the same in all runs of a sweep
    TRAIN_OUTSIDE = 2,   // changes no result; unless shared, a sweep does not take it
    TRAIN_STRATEGIES = 4 // a heading: the settings of strategies follow
};
// A setting without a key is the heading of those that follow in the help.
typedef struct train_option {
    int scope;
    iso_setting setting;
} train_option;

extern const train_option train_option_table[];
extern const int train_option_count;
// As train_setting_named.
const train_option *train_option_named(const char *option);

#endif
