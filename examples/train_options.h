// The options of the train program.
#ifndef EXAMPLES_TRAIN_OPTIONS_H
#define EXAMPLES_TRAIN_OPTIONS_H

#include <isotherm/strategy.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Of what is not given and has no default, numbers are -1 (whole ones) or NaN, and texts NULL.
typedef struct train_options {
    const char *data, *sampler, *mean, *std, *model;
    int64_t classes, test_limit, shift;
    double flip;
    bool dropout;
    int64_t epochs, steps, batch, accumulate, seed;
    const char *optimizer, *schedule, *milestones;
    double lr, momentum, weight_decay, label_smoothing, gamma, clip_grad_norm;
    int64_t step_size, patience, warmup_lr_steps;

    const char *sync, *sync_option, *progress;
    double bucket_mb;
    bool sync_batchnorm;
    int64_t period, max_period, wait, local_skip; // wait -1: auto
    double warmup, cooldown;
    int64_t warmup_steps, cooldown_steps;
    const char *unit, *merge, *wire, *state, *policy;
    double max_divergence, stability_level;
    int64_t warmup_epochs, cooldown_epochs, max_global_skips, sending_chunk_size;
    const char *downcast_type, *use_mpi_groups;
    int64_t skip_reduction_factor, local_skip_factor;

    const char *device, *math, *dtype, *kernels;
    int64_t threads;
    const char *log, *trace, *checkpoint, *load, *resume;
    int64_t checkpoint_every, eval_every;
    bool overwrite;
    bool buckets, stats, quiet, help, help_env, version;
} train_options;

// Local. Fills in defaults and checks every value. ISO_ERR_ARG with a sentence by train_error.
// Texts are borrowed from argv.
iso_status train_options_parse(int argc, char **argv, train_options *out);
// The same where what stands in argv from `first` on holds in place of what stands before it; in
// each part an option may be given once.
iso_status train_options_parse_over(int first, int argc, char **argv, train_options *out);
// Local. ISO_ERR_ARG for options that can never work together, whatever the data.
iso_status train_options_check(const train_options *options);
// One line "--name value" for each option into text, cut where the room ends. settings: only those
// that a run which is resumed must have had from its beginning.
void train_options_text(const train_options *values, bool settings, char *text, size_t room);
// Where the first line in which two such texts differ begins in both.
size_t train_options_difference(const char *a, const char *b);
// Local. Adds the options of the chosen --sync, by their names without dashes, and what
// --sync-option lists.
iso_status train_options_settings(const train_options *values, iso_settings *out);
// Collective over MPI_COMM_WORLD. ISO_ERR_MISMATCH where this rank's options are not rank 0's.
iso_status train_options_agree(const train_options *values);
void train_options_help(FILE *to);
// Local. Whether there is an option of that name, behind which =VALUE may stand.
bool train_options_has(const char *name);
// Local. ISO_ERR_ARG for a name that is none, with the option that is spelt most like it, of train
// or one of `more`.
iso_status train_options_refuse(const char *name, const char *const *more, int count);

// Room for the text of all options; names of files may be cut.
#define TRAIN_OPTIONS_ROOM 16384

// ---- train_option_table.c -------------------------------------------------------------------------

typedef enum train_option_kind {
    TOPIC,
    SWITCH,
    TEXT,
    CHOICE,
    STRATEGY, // a CHOICE of what is registered; value lists the library's own
    INTEGER,
    NUMBER
} train_option_kind;

typedef struct train_option {
    train_option_kind kind;
    const char *name; // TOPIC: the heading of the options that follow
    size_t offset;    // of the field in train_options
    // What the help calls the value; of a CHOICE the values, with | between them. An INTEGER whose
    // value is "N|auto" may be auto, which is -1.
    const char *value;
    const char *initial; // default, NULL: none
    const char *meaning;
    double low, high;       // of INTEGER and NUMBER
    const char *of, *among; // only where the CHOICE `of` has one of these values; NULL: everywhere
    bool outside;           // does not change what is computed
} train_option;

extern const train_option train_option_table[];
extern const int train_option_count;

#endif
