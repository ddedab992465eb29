// The options of the train program.
#ifndef EXAMPLES_TRAIN_OPTIONS_H
#define EXAMPLES_TRAIN_OPTIONS_H

#include <isotherm/status.h>
#include <stdint.h>
#include <stdio.h>

typedef struct train_options {
    const char *data, *model, *optimizer, *schedule, *sync, *progress, *device, *dtype;
    const char *log, *trace, *checkpoint, *load;  // NULL: not wanted
    int64_t epochs, steps, batch, seed, threads;  // steps 0: as many as the epochs have
    double lr, momentum, weight_decay, bucket_mb; // NaN: not given
    bool dropout, quiet, help, help_env, version;
} train_options;

// Local. Fills in defaults and checks every value. ISO_ERR_ARG with a sentence by train_error.
// Texts are borrowed from argv.
iso_status train_options_parse(int argc, char **argv, train_options *out);
void train_options_help(FILE *to);

#endif
