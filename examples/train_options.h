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
// One line "--name value" for each option into text, cut where the room ends.
void train_options_text(const train_options *values, char *text, size_t room);
// Collective over MPI_COMM_WORLD. ISO_ERR_MISMATCH where this rank's options are not rank 0's.
iso_status train_options_agree(const train_options *values);
void train_options_help(FILE *to);

#endif
