// SPDX-License-Identifier: MIT
// Trains a network data-parallel over MPI, with every option of the library.
#include "train.h"

#include "support/watch.h"
#include "support/watchdog.h"

#include <mpi.h>
#include <signal.h>
#include <stdlib.h>

static bool print_information(const train_options *options) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && options->help) train_options_help(stdout);
    if (rank == 0 && options->help_env) iso_env_print(stdout);
    if (rank == 0 && options->version) puts("isotherm " ISO_VERSION);
    return options->help || options->help_env || options->version;
}

static bool perform_run(const train_world *world, const train_options *options, bool *stopped) {
    train_result result;
    train_stop_begin(options, world->rank == 0);
    bool good = train_perform(world, options, NULL, &result);
    train_stop_end();
    *stopped = good && result.stopped;
    if (*stopped && world->rank == 0) train_stop_tell();
    if (good && result.already_finished && world->rank == 0 && !options->quiet)
        printf("the training saved as %s is complete: there are no steps left; more "
               "--epochs and --extend go on with it\n",
               options->resume);
    return good;
}

static bool train_network(train_world *world, train_options *options, bool *stopped) {
    return train_all_well(train_options_check(options)) && train_world_open(world, options) &&
           train_state_choose(world, options) && perform_run(world, options, stopped);
}

int main(int argc, char **argv) {
    int provided;
    bool stopped = false;
    train_world world = {0};
    watchdog_start("train");
    watch_start("train");
    train_stop_catch();
    signal(SIGXFSZ, SIG_IGN); // writing beyond a limit of size fails, as on a full disk
    watch_limit("MPI_Init_thread");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    watch_limit(NULL);
    train_options options;
    bool good = train_all_well(train_plugin_load(argc, argv)) &&
                train_all_well(train_options_parse(argc, argv, &options)) &&
                train_all_well(train_options_agree(&options));
    if (good && !print_information(&options)) good = train_network(&world, &options, &stopped);
    if (good) good = train_all_end();
    train_world_close(&world);
    watch_limit("MPI_Finalize");
    MPI_Finalize();
    watch_limit(NULL);
    watchdog_end();
    return !good ? EXIT_FAILURE : stopped ? TRAIN_STOPPED : EXIT_SUCCESS;
}
