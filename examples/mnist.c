// Trains PyTorch's MNIST network on several processes: mpirun -n 2 examples/mnist [FOLDER].
#include <isotherm.h>
#include <mpi.h>
#include <stdlib.h>

enum { EPOCHS = 3, BATCH = 64, PREFETCH = 2, LAYERS = 9 };

static iso_comm *comm;
static iso_device *device;

// An error that one process may have alone ends the job.
static void check(iso_status status) {
    if (status >= 0) return;
    iso_error_print(stderr);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}

// An error that all may have, as with files: one of them tells of it.
static void check_together(iso_status status) {
    if (iso_comm_agree(comm, status) == ISO_OK) return;
    if (iso_comm_rank(comm) == 0) iso_error_print(stderr);
    MPI_Finalize();
    exit(EXIT_FAILURE);
}

// MNIST's files in a folder or, without one, digits that the library draws.
static iso_dataset *read_images(const char *folder, bool train) {
    iso_dataset *images = NULL;
    check_together(folder ? iso_dataset_read_mnist(folder, train, &images)
                          : iso_dataset_create_digits(train, train ? 60000 : 10000, &images));
    return images;
}

static iso_loader *load(iso_dataset *images, const iso_dataset_info *normalise,
                        iso_sampler *sampler) {
    iso_loader *loader;
    iso_loader_config config = {device, normalise->mean, normalise->std, PREFETCH};
    check(iso_loader_create(images, sampler, &config, &loader));
    return loader;
}

static bool next(iso_loader *loader, iso_batch *batch) {
    iso_status status = iso_loader_next(loader, batch);
    check(status);
    return status != ISO_PENDING;
}

static iso_module *build_network(const iso_dataset_info *images) {
    iso_module *net, *layer[LAYERS];
    iso_rng rng = {.seed = 1};
    iso_conv2d_config conv1 = {images->channels, 32, .kernel_size = {3, 3}};
    iso_conv2d_config conv2 = {32, 64, .kernel_size = {3, 3}};
    int64_t features = 64 * ((images->height - 4) / 2) * ((images->width - 4) / 2);
    check(iso_conv2d_create(device, &conv1, &rng, &layer[0]));
    check(iso_relu_create(device, &layer[1]));
    check(iso_conv2d_create(device, &conv2, &rng, &layer[2]));
    check(iso_relu_create(device, &layer[3]));
    check(iso_max_pool2d_create(device, 2, 2, &layer[4]));
    check(iso_flatten_create(device, &layer[5]));
    check(iso_linear_create(device, features, 128, true, &rng, &layer[6]));
    check(iso_relu_create(device, &layer[7]));
    check(iso_linear_create(device, 128, images->classes, true, &rng, &layer[8]));
    check(iso_sequential_create(device, &net));
    for (int i = 0; i < LAYERS; i++) check(iso_sequential_add_take(net, NULL, layer[i]));
    return net;
}

static void train(iso_module *model, iso_loss *loss, iso_optimizer *optimizer,
                  const iso_schedule *schedule, iso_loader *data, iso_progress_bar *bar) {
    iso_batch batch;
    iso_tensor *output, *gradient;
    double value;
    while (next(data, &batch)) {
        iso_hyper *hyper = iso_optimizer_hyper(optimizer);
        iso_schedule_apply(schedule, hyper->step, hyper);
        iso_optimizer_zero_grad(optimizer);
        check(iso_module_forward(model, batch.images, &output));
        check(iso_loss_compute(loss, output, batch.labels, &value, NULL, &gradient));
        check(iso_module_backward(model, gradient, NULL));
        check(iso_optimizer_step(optimizer));
        iso_progress_bar_update(bar, batch.index + 1, value);
    }
}

// The part of the test images that is recognised; the ranks take batches in turn.
static double test(iso_module *model, iso_loss *loss, iso_loader *data) {
    iso_batch batch;
    iso_tensor *output;
    double value;
    int64_t correct, sum[2] = {0, 0}; // correct, all
    while (next(data, &batch)) {
        if (batch.index % iso_comm_size(comm) != iso_comm_rank(comm)) continue;
        check(iso_module_forward(model, batch.images, &output));
        check(iso_loss_compute(loss, output, batch.labels, &value, &correct, NULL));
        sum[0] += correct;
        sum[1] += batch.n;
    }
    check(iso_comm_allreduce_i64(comm, sum, 2, ISO_SUM));
    return (double)sum[0] / (double)sum[1];
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    check(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    check(iso_device_create("cpu", &device));
    int rank = iso_comm_rank(comm), ranks = iso_comm_size(comm);

    // Of every batch each rank trains on its share. The test goes over the whole set in order.
    iso_dataset *train_set = read_images(argv[1], true), *test_set = read_images(argv[1], false);
    iso_dataset_info info, test_info;
    iso_dataset_get_info(train_set, &info);
    iso_dataset_get_info(test_set, &test_info);
    iso_sampler_config shuffled = {info.count, BATCH, rank, ranks, .seed = 1, .shuffle = true};
    iso_sampler_config in_order = {test_info.count, BATCH, .rank = 0, .ranks = 1};
    iso_sampler *train_sampler, *test_sampler;
    check_together(iso_sampler_create(&shuffled, &train_sampler));
    check_together(iso_sampler_create(&in_order, &test_sampler));
    iso_loader *train_data = load(train_set, &info, train_sampler);
    iso_loader *test_data = load(test_set, &info, test_sampler);

    // Wrapping the model and its optimizer is all that makes the training parallel.
    iso_module *model = build_network(&info);
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    int64_t batches = iso_sampler_batches(train_sampler);
    iso_schedule schedule = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 2e-3, EPOCHS * batches);
    check(iso_data_parallel_create_take(model, comm, NULL, &model));
    check(iso_optimizer_create(ISO_ADAM, model, &hyper, &optimizer));
    check(iso_dp_optimizer_create_take(optimizer, model, &optimizer));
    check(iso_loss_create(device, ISO_CROSS_ENTROPY, &loss));

    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        char text[64];
        iso_progress_bar *bar;
        snprintf(text, sizeof(text), "epoch %d/%d", epoch + 1, EPOCHS);
        check(iso_progress_bar_create(rank == 0 ? stdout : NULL, text, batches, "steps", &bar));
        check(iso_loader_start(train_data, epoch, 0));
        check(iso_module_train(model, true));
        train(model, loss, optimizer, &schedule, train_data, bar);
        check(iso_loader_start(test_data, 0, 0));
        check(iso_module_train(model, false));
        double accuracy = test(model, loss, test_data);
        snprintf(text, sizeof(text), "test accuracy %.2f %%", 100 * accuracy);
        iso_progress_bar_finish(&bar, text);
    }

    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&model);
    iso_loss_destroy(&loss);
    iso_loader_destroy(&train_data);
    iso_loader_destroy(&test_data);
    iso_sampler_destroy(&train_sampler);
    iso_sampler_destroy(&test_sampler);
    iso_dataset_destroy(&train_set);
    iso_dataset_destroy(&test_set);
    iso_device_destroy(&device);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
