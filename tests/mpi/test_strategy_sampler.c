// SPDX-License-Identifier: MIT
// A strategy that a program registers may divide samples in another way than among all ranks: it
// wraps the module over ranks of its choice, and the trainer's sampler follows the wrapper.
#include "common/mpi_fixture.h"
#include "common/train_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(np3_strategy_sampler, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_strategy_sampler, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { IMAGES = 60, BATCH = 5, EPOCHS = 2 };

// ---- A strategy that trains parts of the ranks apart ------------------------------------------------

// user: the communicator of this rank's part.
static iso_status wrap_in_part(const iso_strategy_context *context, iso_module *module,
                               iso_module **out, void *user) {
    return iso_data_parallel_create_take(module, *(iso_comm **)user, &context->data_parallel, out);
}

static iso_comm *part;
static const iso_strategy in_parts = {.name = "parts", .wrap_module = wrap_in_part, .user = &part};

// ---- A trainer that knows no strategy ---------------------------------------------------------------

typedef struct training {
    iso_module *model;
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_loader *loader;
    iso_sampler_config order; // as the strategy has it
} training;

static iso_status build_network(iso_device *device, iso_module **out) {
    iso_rng rng = {.seed = 5};
    iso_module *net, *layer;
    iso_status status = iso_sequential_create(device, &net);
    if (status >= 0) status = iso_flatten_create(device, &layer);
    if (status >= 0) status = iso_sequential_add_take(net, "flatten", layer);
    if (status >= 0) status = iso_linear_create(device, 36, 4, true, &rng, &layer);
    if (status >= 0) status = iso_sequential_add_take(net, "fc", layer);
    *out = net;
    return status;
}

static void open_training(const train_world *world, const char *name, iso_comm *comm, training *t) {
    const iso_strategy *strategy;
    iso_strategy_context context = {.comm = comm, .data_parallel = ISO_DATA_PARALLEL_DEFAULT};
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    char warning[ISO_STRATEGY_WARNING];
    iso_module *net;
    iso_optimizer *inner;
    hyper.lr = 0.05;
    t->order = (iso_sampler_config){.batch = BATCH,
                                    .rank = iso_comm_rank(comm),
                                    .ranks = iso_comm_size(comm),
                                    .seed = 3,
                                    .shuffle = true};
    iso_assert_ok(iso_strategy_find(name, &strategy));
    iso_assert_ok(iso_strategy_check(strategy, &context, warning));
    iso_assert_ok(build_network(world->device, &net));
    iso_assert_ok(iso_strategy_wrap_module_take(strategy, &context, net, &t->model));
    iso_assert_ok(iso_optimizer_create(ISO_SGD, t->model, &hyper, &inner));
    iso_assert_ok(
        iso_strategy_wrap_optimizer_take(strategy, &context, inner, t->model, &t->optimizer));
    iso_assert_ok(iso_data_parallel_sampler(t->model, &t->order));
    iso_assert_ok(iso_loss_create(world->device, ISO_CROSS_ENTROPY, &t->loss));
    iso_assert_ok(iso_loader_create_take(world->device, iso_dataset_retain(world->train_set),
                                         &t->order, NULL, &t->loader));
}

static void close_training(training *t) {
    iso_loader_destroy(&t->loader);
    iso_loss_destroy(&t->loss);
    iso_optimizer_destroy(&t->optimizer);
    iso_module_destroy(&t->model);
}

static iso_status make_step(training *t, const iso_batch *batch) {
    iso_tensor *out, *grad;
    iso_optimizer_zero_grad(t->optimizer);
    iso_status status = iso_module_forward(t->model, batch->images, &out);
    if (status >= 0) status = iso_loss_compute(t->loss, out, batch->labels, NULL, NULL, &grad);
    if (status >= 0) status = iso_module_backward(t->model, grad, NULL);
    return status < 0 ? status : iso_optimizer_step(t->optimizer);
}

static iso_status make_epoch(training *t, int epoch, int *steps) {
    iso_batch batch;
    iso_status status = iso_loader_start(t->loader, epoch, 0);
    while (status >= 0 && (status = iso_loader_next(t->loader, &batch)) == ISO_OK) {
        status = make_step(t, &batch);
        ++*steps;
    }
    return status == ISO_PENDING ? ISO_OK : status;
}

// The hash of this rank's parameters in the end; how many steps, and the sampler's place.
static uint64_t train_with(const train_world *world, const char *name, iso_comm *comm, int *steps,
                           iso_sampler_config *order) {
    training t;
    uint64_t hash = 0;
    *steps = 0;
    open_training(world, name, comm, &t);
    for (int epoch = 0; epoch < EPOCHS; epoch++) iso_assert_ok(make_epoch(&t, epoch, steps));
    iso_assert_ok(iso_parameter_hash(t.model, iso_data_parallel_comm(t.model), &hash, NULL));
    *order = t.order;
    close_training(&t);
    return hash;
}

// ---- Parts are whole runs ---------------------------------------------------------------------------

// Of the last ranks and of the others; orders are reversed. Each part makes a pass over all
// samples, so that parts of equal size end with the same bits, those of a run of a part alone.
static void parts_divide_samples(int second) {
    train_world world;
    MPI_Comm mpi_part;
    iso_sampler_config order, alone, whole;
    int steps, steps_alone, steps_whole;
    int size = test_rank < second ? second : test_size - second;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank < second, -test_rank, &mpi_part);
    iso_assert_ok(iso_comm_create(mpi_part, NULL, &part));
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&in_parts));
    uint64_t hash = train_with(&world, "parts", test_comm, &steps, &order);
    iso_assert_all(order.ranks == size && order.rank == iso_comm_rank(part));
    iso_assert_all(order.batch == BATCH && order.seed == 3 && order.shuffle);
    iso_assert_all(steps == EPOCHS * IMAGES / BATCH / size);
    iso_assert_all(hash == train_with(&world, "lazy", part, &steps_alone, &alone));
    iso_assert_all(steps_alone == steps && alone.rank == order.rank);
    iso_assert_all(hash != train_with(&world, "lazy", test_comm, &steps_whole, &whole));
    iso_assert_all(whole.ranks == test_size && steps_whole < steps);
    train_world_close(&world);
    iso_comm_destroy(&part);
    MPI_Comm_free(&mpi_part);
}

Test(np3_strategy_sampler, parts_divide_samples) { parts_divide_samples(1); }
Test(np4_strategy_sampler, parts_divide_samples) { parts_divide_samples(2); }
