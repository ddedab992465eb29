// SPDX-License-Identifier: MIT
// A network of two inputs: learns how much a reader likes a book, from the features of the book and
// the number of the reader. Each input becomes a vector; a bilinear layer combines the two.
//
// Compile it, once Isotherm is installed, and run it; with "blocking" after it, backward waits for
// the exchange of gradients, and the results are the same:
//   flags=$(pkg-config --cflags --libs isotherm)
//   mpicc two_inputs.c $flags
//   mpirun -n 2 ./a.out
#include <isotherm.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { READERS = 20, FEATURES = 6, WIDTH = 16, SAMPLES = 2400, BATCH = 48, EPOCHS = 12 };

static iso_comm *comm;
static iso_device *device;

static iso_status check(iso_status status) {
    if (status >= 0) return status;
    iso_error_print(stderr);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    return status;
}

// Inputs: the features of a book, and the number of a reader; target: how much this reader likes
// it.
static iso_status read_sample(int64_t i, void *const *tensors, void *user) {
    float *book = tensors[0], *liking = tensors[2];
    int32_t *reader = tensors[1];
    double sum = 0;
    (void)user;
    *reader = (int32_t)(i % READERS);
    for (int k = 0; k < FEATURES; k++) {
        book[k] = (float)sin(1.7 * (double)i + 12.9 * k * (double)i);
        sum += cos(2.3 * *reader + k) * (double)book[k]; // a taste for each feature
    }
    *liking = (float)sum;
    return ISO_OK;
}

static iso_loader *load(void) {
    const iso_tensor_spec tensors[] = {{.dtype = ISO_F32, .ndim = 1, .shape = {FEATURES}},
                                       {.dtype = ISO_I32, .ndim = 0},
                                       {.dtype = ISO_F32, .ndim = 1, .shape = {1}}};
    iso_dataset_config samples = {.count = SAMPLES, .inputs = 2, .targets = 1, .tensors = tensors};
    int ranks = iso_comm_size(comm);
    iso_sampler_config order = {.batch = BATCH > ranks ? BATCH / ranks : 1,
                                .rank = iso_comm_rank(comm),
                                .ranks = ranks,
                                .shuffle = true};
    iso_dataset *dataset;
    iso_loader *loader;
    check(iso_dataset_create_callback(&samples, read_sample, NULL, &dataset));
    check(iso_loader_create_take(device, dataset, &order, NULL, &loader));
    return loader;
}

static iso_module *build_network(void) {
    const iso_embedding_config readers = {.num_embeddings = READERS, .embedding_dim = WIDTH};
    iso_rng rng = {.seed = 1};
    iso_module *net, *towers, *layer;
    check(iso_sequential_create(device, &net));
    check(iso_branches_create(device, &towers));
    check(iso_linear_create(device, FEATURES, WIDTH, true, &rng, &layer));
    check(iso_branches_add_take(towers, "book", layer));
    check(iso_embedding_create(device, &readers, &rng, &layer));
    check(iso_branches_add_take(towers, "reader", layer));
    check(iso_sequential_add_take(net, "towers", towers));
    check(iso_bilinear_create(device, WIDTH, WIDTH, 1, true, &rng, &layer));
    check(iso_sequential_add_take(net, "join", layer));
    return net;
}

// Returns the root mean square error over the samples of all ranks.
static double run_epoch(iso_module *model, iso_loss *loss, iso_optimizer *optimizer,
                        iso_loader *data, int epoch) {
    double value, sum[2] = {0, 0}; // of squared errors, and of samples
    iso_batch batch;
    check(iso_loader_start(data, epoch, 0));
    while (check(iso_loader_next(data, &batch)) == ISO_OK) {
        iso_tensors in = {.count = 2, .item = {batch.inputs[0], batch.inputs[1]}}, out;
        iso_tensors gradient = {.count = 1};
        iso_optimizer_zero_grad(optimizer);
        check(iso_module_forward_many(model, &in, &out));
        check(iso_loss_compute_tensor(loss, out.item[0], batch.targets[0], &value,
                                      &gradient.item[0]));
        check(iso_module_backward_many(model, &gradient, 0, NULL));
        check(iso_optimizer_step(optimizer));
        sum[0] += value * (double)batch.n;
        sum[1] += (double)batch.n;
    }
    check(iso_comm_allreduce_f64(comm, sum, 2, ISO_SUM));
    return sqrt(sum[0] / sum[1]);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    check(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    check(iso_device_create("cpu", &device));
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    if (argc > 1 && strcmp(argv[1], "blocking") == 0) config.sync = ISO_SYNC_BLOCKING;
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    hyper.lr = 0.01;
    iso_module *model;
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_evaluation result;
    uint64_t hash;
    iso_loader *data = load();
    check(iso_data_parallel_create_take(build_network(), comm, &config, &model));
    check(iso_optimizer_create(ISO_ADAM, model, &hyper, &optimizer));
    check(iso_dp_optimizer_create_take(optimizer, model, &optimizer));
    check(iso_loss_create(device, ISO_MSE, &loss));
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        double error = run_epoch(model, loss, optimizer, data, epoch);
        if (iso_comm_rank(comm) == 0) printf("epoch %d: error %.5f\n", epoch, error);
    }
    check(iso_evaluate(model, loss, data, comm, &result));
    if (iso_comm_rank(comm) == 0) printf("evaluation: error %.5f\n", sqrt(result.loss));
    check(iso_parameter_hash(model, comm, &hash, NULL));
    if (iso_comm_rank(comm) == 0) printf("parameters %016llx\n", (unsigned long long)hash);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&model);
    iso_loss_destroy(&loss);
    iso_loader_destroy(&data);
    iso_device_destroy(&device);
    check(iso_comm_barrier(comm)); // names a rank that does not come; MPI_Finalize could not
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
