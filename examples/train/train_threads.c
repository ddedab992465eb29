// SPDX-License-Identifier: MIT
// Places the threads of a training run on cores, and warns if the cores do not suffice.
#include "train.h"

iso_status train_threads_setup(train_world *world, const train_options *options) {
    iso_cores *cores = &world->cores;
    TRY(iso_cores_survey(world->comm, (int)options->threads, cores));
    // Before the first kernel starts its threads, and after the thread that drives progress.
    world->bound = iso_cores_bind(cores);
    if (world->bound) iso_cores_pin_progress(world->comm, cores);
    if (world->rank != 0 || options->quiet) return ISO_OK;
    if (cores->single[0]) fprintf(stderr, "%s: warning: %s\n", train_error_name(), cores->single);
    if (cores->crowded[0]) fprintf(stderr, "%s: warning: %s\n", train_error_name(), cores->crowded);
    return ISO_OK;
}
