// SPDX-License-Identifier: MIT
// Learns to predict a column of a CSV file from the other columns, on several processes:
//   mpirun -n 2 ./a.out FILE [COLUMN]
// Compile it in its folder, once Isotherm is installed:
//   flags=$(pkg-config --cflags --libs isotherm)
//   mpicc regression.c support/check.c support/usage.c support/watch.c $flags
#include "support/check.h"
#include "support/usage.h"
#include "support/watch.h" // limits how long MPI_Init_thread and MPI_Finalize may wait

#include <isotherm.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>

enum { EPOCHS = 40, BATCH = 16, WIDTH = 32, HOLD_OUT = 5 };

static const char usage[] =
    "usage: mpirun -n RANKS regression FILE [COLUMN]\n"
    "Learns to predict a column of the CSV file FILE from its other columns. The first line names\n"
    "the columns; all others hold numbers. COLUMN is a name or a number from 1; the default is "
    "the\n"
    "last column. Every fifth row is kept for the test.\n\n"
    "  --help      print this text\n"
    "  --version   print the version\n";

static iso_comm *comm;
static iso_device *device;

// The rows of the file, and mean and standard deviation of the target.
static struct {
    iso_dataset *all;
    iso_dataset_info info;
    double mean, std;
} rows;

// ---- Data -----------------------------------------------------------------------------------------

static iso_status measure_target(void) {
    double sum = 0, squares = 0, count = (double)rows.info.count;
    float *x = malloc((size_t)rows.info.channels * sizeof(*x)), y;
    iso_status status = x ? ISO_OK : iso_error_set(ISO_ERR_NOMEM, "out of memory for a row");
    for (int64_t i = 0; i < rows.info.count && status >= 0; i++) {
        status = iso_dataset_sample(rows.all, i, (void *const[]){x, &y});
        sum += (double)y;
        squares += (double)y * (double)y;
    }
    free(x);
    rows.mean = sum / count;
    rows.std = sqrt(fmax(squares / count - rows.mean * rows.mean, 0));
    if (rows.std == 0) rows.std = 1; // all targets are equal
    return status;
}

static iso_status read_file(const char *path, const char *column) {
    const iso_csv_config config = {.header = true, .targets = column};
    iso_status status = iso_dataset_read_csv(path, &config, &rows.all);
    if (status < 0) return status;
    iso_dataset_get_info(rows.all, &rows.info);
    if (rows.info.targets != 1 || rows.info.tensors[1].shape[0] != 1)
        return iso_error_set(ISO_ERR_ARG, "name one column to predict, not \"%s\"", column);
    if (rows.info.count < HOLD_OUT)
        return iso_error_set(ISO_ERR_ARG, "%s has %d rows: it needs %d or more", path,
                             (int)rows.info.count, HOLD_OUT);
    return measure_target();
}

// Rows 4, 9, 14, ... are those of the test.
static iso_status read_train_row(int64_t i, void *const *tensors, void *user) {
    (void)user;
    return iso_dataset_sample(rows.all, i + i / (HOLD_OUT - 1), tensors);
}
static iso_status read_test_row(int64_t i, void *const *tensors, void *user) {
    (void)user;
    return iso_dataset_sample(rows.all, i * HOLD_OUT + HOLD_OUT - 1, tensors);
}

static iso_status scale_target(const iso_sample *sample, void *user) {
    float *y = sample->tensors[1];
    (void)user;
    *y = (float)(((double)*y - rows.mean) / rows.std);
    return ISO_OK;
}

static iso_loader *load(bool train) {
    iso_dataset *dataset = NULL;
    iso_loader *loader = NULL;
    int64_t tests = rows.info.count / HOLD_OUT;
    iso_dataset_config samples = {.count = train ? rows.info.count - tests : tests,
                                  .inputs = 1,
                                  .targets = 1,
                                  .tensors = rows.info.tensors};
    iso_sampler_config order = {.batch = BATCH,
                                .rank = iso_comm_rank(comm),
                                .ranks = iso_comm_size(comm),
                                .shuffle = train,
                                .end = train ? ISO_SAMPLER_PAD : ISO_SAMPLER_SHARE};
    iso_loader_config config = {
        .mean = rows.info.mean, .std = rows.info.std, .prefetch = 2, .transform = scale_target};
    check_together(comm, iso_dataset_create_callback(
                             &samples, train ? read_train_row : read_test_row, NULL, &dataset));
    check_together(comm, iso_loader_create_take(device, dataset, &order, &config, &loader));
    return loader;
}

// ---- Training -------------------------------------------------------------------------------------

static iso_module *build_network(void) {
    iso_rng rng = {.seed = 1};
    iso_module *net, *layer;
    int64_t in = rows.info.channels;
    check(iso_sequential_create(device, &net));
    for (int i = 0; i < 2; i++, in = WIDTH) {
        check(iso_linear_create(device, in, WIDTH, true, &rng, &layer));
        check(iso_sequential_add_take(net, NULL, layer));
        check(iso_tanh_create(device, &layer));
        check(iso_sequential_add_take(net, NULL, layer));
    }
    check(iso_linear_create(device, WIDTH, 1, true, &rng, &layer));
    check(iso_sequential_add_take(net, NULL, layer));
    return net;
}

static void train(iso_module *model, iso_loss *loss, iso_optimizer *optimizer,
                  const iso_schedule *schedule, iso_loader *data) {
    iso_batch batch;
    iso_tensor *output, *gradient;
    while (check(iso_loader_next(data, &batch)) == ISO_OK) {
        iso_schedule_step(schedule, optimizer);
        iso_optimizer_zero_grad(optimizer);
        check(iso_module_forward(model, batch.inputs[0], &output));
        check(iso_loss_compute_tensor(loss, output, batch.targets[0], NULL, &gradient));
        check(iso_module_backward(model, gradient, NULL));
        check(iso_optimizer_step(optimizer));
    }
}

static void train_and_test(iso_loader *train_data, iso_loader *test_data) {
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_module *model = build_network();
    int64_t steps = EPOCHS * iso_loader_batches(train_data);
    iso_schedule schedule = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, 1e-2, steps);
    check(iso_data_parallel_create_take(model, comm, NULL, &model));
    check(iso_optimizer_create(ISO_ADAM, model, NULL, &optimizer));
    check(iso_dp_optimizer_create_take(optimizer, model, &optimizer));
    check(iso_loss_create(device, ISO_MSE, &loss));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        iso_evaluation test;
        check(iso_loader_start(train_data, epoch, 0));
        train(model, loss, optimizer, &schedule, train_data);
        check(iso_evaluate(model, loss, test_data, comm, &test));
        if (iso_comm_rank(comm) == 0 && (epoch + 1) % 10 == 0)
            printf("epoch %d: root mean square error of the test %.4g (standard deviation of the "
                   "column %.4g)\n",
                   epoch + 1, rows.std * sqrt(test.loss), rows.std);
    }
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&model);
    iso_loss_destroy(&loss);
}

int main(int argc, char **argv) {
    int provided;
    watch_start("regression");
    watch_limit("MPI_Init_thread");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    watch_limit(NULL);
    usage_check(argc, argv, 2, "regression", usage);
    check(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    check(iso_device_create("cpu", &device));
    check_together(comm, argc > 1 ? read_file(argv[1], argc > 2 ? argv[2] : NULL)
                                  : iso_error_set(ISO_ERR_ARG, "give a CSV file: see --help"));
    check_together(comm, iso_comm_check_same(comm, iso_dataset_checksum(rows.all), argv[1]));
    iso_loader *train_data = load(true), *test_data = load(false);
    train_and_test(train_data, test_data);
    iso_loader_destroy(&train_data);
    iso_loader_destroy(&test_data);
    iso_dataset_destroy(&rows.all);
    iso_device_destroy(&device);
    finalize(&comm);
    return EXIT_SUCCESS;
}
