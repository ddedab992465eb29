// SPDX-License-Identifier: MIT
// Trains PyTorch's MNIST network on several processes: mpirun -n 2 ./a.out [FOLDER].
// Compile it in its folder, once Isotherm is installed:
//   flags=$(pkg-config --cflags --libs isotherm)
//   mpicc mnist.c support/check.c support/usage.c support/watch.c $flags
#include "support/check.h"
#include "support/usage.h"
#include "support/watch.h" // limits how long MPI_Init_thread and MPI_Finalize may wait

#include <isotherm.h>
#include <mpi.h>
#include <stdlib.h>

enum { EPOCHS = 3, BATCH = 64, LAYERS = 6 };

static const char usage[] =
    "usage: mpirun -n RANKS mnist [FOLDER]\n"
    "Trains PyTorch's MNIST network on the MNIST files in FOLDER, or on generated digits.\n\n"
    "  --help      print this text\n"
    "  --version   print the version\n";

static iso_comm *comm;
static iso_device *device;

// Loads this process's share of MNIST from a folder or, without one, of digits that the library
// generates.
// training: NULL for the training set. The test set must have images of its size, and is normalised
// as it is.
static iso_loader *load(const char *folder, const iso_dataset_info *training) {
    iso_dataset *images = NULL;
    iso_loader *loader = NULL;
    iso_loader_config config = {.prefetch = 2};
    bool train = !training;
    int rank = iso_comm_rank(comm), ranks = iso_comm_size(comm);
    iso_sampler_config order = {.batch = BATCH, .rank = rank, .ranks = ranks, .shuffle = train};
    order.end = train ? ISO_SAMPLER_PAD : ISO_SAMPLER_SHARE;
    check_together(comm, iso_dataset_open(folder, train, &images));
    check_together(comm, iso_comm_check_same(comm, iso_dataset_checksum(images),
                                             train ? "the training set" : "the test set"));
    if (training) check_together(comm, check_size(images, training));
    if (training) config.mean = training->mean, config.std = training->std;
    check_together(comm,
                   iso_loader_create_take(device, images, &order, train ? NULL : &config, &loader));
    return loader;
}

static iso_module *build_network(const iso_dataset_info *images) {
    iso_module *net = NULL;
    int64_t sample[3] = {images->channels, images->height, images->width};
    iso_layer list[LAYERS] = {{.kind = ISO_CONV2D, .out = 32, .size = 3, .relu = true},
                              {.kind = ISO_CONV2D, .out = 64, .size = 3, .relu = true},
                              {.kind = ISO_MAX_POOL2D, .size = 2},
                              {.kind = ISO_FLATTEN},
                              {.kind = ISO_LINEAR, .out = 128, .relu = true},
                              {.kind = ISO_LINEAR, .out = images->classes}};
    check_together(comm,
                   iso_sequential_build(device, sample, list, LAYERS, &(iso_rng){.seed = 1}, &net));
    return net;
}

static void train(iso_module *model, iso_loss *loss, iso_optimizer *optimizer,
                  const iso_schedule *schedule, iso_loader *data, iso_progress_bar *bar) {
    iso_batch batch;
    iso_tensor *output, *gradient;
    double value;
    while (check(iso_loader_next(data, &batch)) == ISO_OK) {
        iso_schedule_step(schedule, optimizer);
        iso_optimizer_zero_grad(optimizer);
        check(iso_module_forward(model, batch.images, &output));
        check(iso_loss_compute(loss, output, batch.labels, &value, NULL, &gradient));
        check(iso_module_backward(model, gradient, NULL));
        check(iso_optimizer_step(optimizer));
        iso_progress_bar_update(bar, batch.index + 1, value);
    }
}

int main(int argc, char **argv) {
    int provided;
    watch_start("mnist");
    watch_limit("MPI_Init_thread");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    watch_limit(NULL);
    usage_check(argc, argv, 1, "mnist", usage);
    check(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    check(iso_device_create("cpu", &device));
    iso_loader *train_data = load(argv[1], NULL);
    const iso_dataset_info *info = iso_loader_info(train_data);
    iso_loader *test_data = load(argv[1], info);
    int64_t steps = iso_loader_batches(train_data);
    bool first = iso_comm_rank(comm) == 0;

    // Wrapping the model and its optimizer is all that makes the training parallel.
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_module *model = build_network(info);
    check(iso_data_parallel_create_take(model, comm, NULL, &model));
    check(iso_optimizer_create(ISO_ADAM, model, NULL, &optimizer));
    check(iso_dp_optimizer_create_take(optimizer, model, &optimizer));
    check(iso_loss_create(device, ISO_CROSS_ENTROPY, &loss));
    iso_schedule schedule = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 2e-3, EPOCHS * steps);

    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        iso_progress_bar *bar;
        iso_evaluation test;
        check(iso_progress_bar_create(first ? stdout : NULL, "epoch", steps, "steps", &bar));
        check(iso_loader_start(train_data, epoch, 0));
        train(model, loss, optimizer, &schedule, train_data, bar);
        check(iso_evaluate(model, loss, test_data, comm, &test));
        iso_progress_bar_finish(&bar, "%d: test accuracy %.2f %%", epoch + 1, 100 * test.accuracy);
    }

    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&model);
    iso_loss_destroy(&loss);
    iso_loader_destroy(&train_data);
    iso_loader_destroy(&test_data);
    iso_device_destroy(&device);
    finalize(&comm);
    return EXIT_SUCCESS;
}
