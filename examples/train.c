// Trains a network data-parallel over MPI, with every option of the library.
#include "train.h"

#include <mpi.h>
#include <signal.h>
#include <stdlib.h>

static bool inform(const train_options *options) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && options->help) train_options_help(stdout);
    if (rank == 0 && options->help_env) iso_env_print(stdout);
    if (rank == 0 && options->version) puts("isotherm " ISO_VERSION);
    return options->help || options->help_env || options->version;
}

static bool train(const train_options *options) {
    train_world world = {0};
    train_result result;
    bool good = train_all_well(train_options_check(options)) && train_world_open(&world, options) &&
                train_perform(&world, options, NULL, &result);
    if (good && result.already_finished && world.rank == 0 && !options->quiet)
        printf("the training saved as %s has come to its end: nothing is left to do\n",
               options->resume);
    train_world_close(&world);
    return good;
}

int main(int argc, char **argv) {
    int provided;
    signal(SIGXFSZ, SIG_IGN); // writing beyond a limit of size fails, as on a full disk
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    train_options options;
    bool good = train_all_well(train_options_parse(argc, argv, &options)) &&
                train_all_well(train_options_agree(&options));
    if (good && !inform(&options)) good = train(&options);
    MPI_Finalize();
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
