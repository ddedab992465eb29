// SPDX-License-Identifier: MIT
// Tied parameters under DataParallel: exchanged once, when all who use them have written theirs.
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_tied, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_tied, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_tied, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_tied, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- Models ---------------------------------------------------------------------------------------

static iso_status add_linear(iso_module *net, const char *name, int64_t in, int64_t out) {
    iso_rng rng = {.seed = 7, .next_stream = (uint64_t)net->child_count};
    iso_module *m;
    iso_status status = iso_linear_create(net->device, in, out, true, &rng, &m);
    return status < 0 ? status : iso_sequential_add_take(net, name, m);
}

static iso_status add_relu(iso_module *net) {
    iso_module *m;
    iso_status status = iso_relu_create(net->device, &m);
    return status < 0 ? status : iso_sequential_add_take(net, NULL, m);
}

// flatten, a, b, c (200-200), out; not tied.
static iso_status build_plain(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    static const char *const name[] = {"a", "b", "c"};
    iso_module *net, *m;
    iso_status status = iso_sequential_create(device, &net);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, NULL, m);
    for (int i = 0; i < 3 && status == ISO_OK; i++) {
        status = add_linear(net, name[i], 200, 200);
        if (status == ISO_OK) status = add_relu(net);
    }
    if (status == ISO_OK) status = add_linear(net, "out", 200, TRAINER_CLASSES);
    *out = net;
    return status;
}

// All in a, and parts of it in b and c: b has nothing of its own, c only a weight.
static iso_status build_tied(iso_device *device, bool dropout, iso_module **out) {
    iso_status status = build_plain(device, dropout, out);
    if (status == ISO_OK) status = iso_module_tie(*out, "b.weight", *out, "a.weight");
    if (status == ISO_OK) status = iso_module_tie(*out, "b.bias", *out, "a.bias");
    if (status == ISO_OK) status = iso_module_tie(*out, "c.bias", *out, "b.bias");
    return status;
}

// The same with a weight that is frozen.
static iso_status build_frozen(iso_device *device, bool dropout, iso_module **out) {
    iso_status status = build_tied(device, dropout, out);
    if (status == ISO_OK) (*out)->child[1]->parameter[0]->requires_grad = false; // a.weight
    return status;
}

// ---- Equivalences ---------------------------------------------------------------------------------

static void equals_one_rank(trainer_config config) {
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    iso_assert_ok(trainer_train(&many, 10));
    iso_assert_ok(trainer_train(&one, 10));
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(difference < 2e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

static void lazy_equals_blocking(trainer_config config) {
    uint64_t lazy = 0, blocking = 0;
    iso_assert_ok(trainer_run(test_comm, &config, 10, &lazy));
    config.sync = ISO_SYNC_BLOCKING;
    iso_assert_ok(trainer_run(test_comm, &config, 10, &blocking));
    iso_assert_all(lazy == blocking);
}

static void trains(iso_status (*build)(iso_device *, bool, iso_module **), double bucket_mb) {
    trainer_config config = trainer_default();
    config.build = build;
    config.bucket_mb = bucket_mb;
    equals_one_rank(config);
    lazy_equals_blocking(config);
}

Test(np1_tied, trains_as_one_rank) { trains(build_tied, 0); }
Test(np2_tied, trains_as_one_rank) { trains(build_tied, 0); }
Test(np3_tied, trains_as_one_rank) { trains(build_tied, 0); }
Test(np4_tied, trains_as_one_rank) { trains(build_tied, 0); }
Test(np2_tied, trains_in_fused_buckets) { trains(build_tied, 0.2); }
Test(np3_tied, trains_in_one_bucket) { trains(build_tied, 10); }
Test(np2_tied, trains_with_a_frozen_one) { trains(build_frozen, 0); }

// Gradients of two micro-steps, the first of which is not exchanged.
Test(np2_tied, accumulates_in_no_sync) {
    trainer_config config = trainer_default();
    config.build = build_tied;
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    for (int step = 0; step < 4; step++) {
        iso_optimizer_zero_grad(many.optimizer);
        iso_optimizer_zero_grad(one.optimizer);
        iso_assert_ok(iso_data_parallel_begin_no_sync(many.model));
        iso_assert_ok(trainer_backward(&many, 2 * step));
        iso_assert_ok(iso_data_parallel_end_no_sync(many.model));
        iso_assert_ok(trainer_backward(&many, 2 * step + 1));
        for (int i = 0; i < 2; i++) iso_assert_ok(trainer_backward(&one, 2 * step + i));
        iso_assert_ok(iso_optimizer_step(many.optimizer));
        iso_assert_ok(iso_optimizer_step(one.optimizer));
    }
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(difference < 2e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

// a (200 x 200 + 200), c's weight and out: nothing travels twice.
Test(np2_tied, is_exchanged_once) {
    trainer_config config = trainer_default();
    config.build = build_tied;
    trainer t;
    iso_reducer_stats stats;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    iso_reducer_get_stats(iso_data_parallel_reducer(t.model), &stats);
    size_t expected = 4 * (40000 + 200 + 40000 + 1000 + 5), padding = 5 * 64;
    iso_assert_all(stats.bytes_per_step >= expected && stats.bytes_per_step < expected + padding);
    iso_assert_all(stats.bucket_count == 3);
    trainer_destroy(&t);
}

// ---- Users that are not all there -----------------------------------------------------------------

// One of two children runs.
static int branch_on;

static iso_status branch_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                 iso_tensor **out) {
    (void)call;
    return iso_module_call(self->child[branch_on], ISO_ACT_NONE, in, out);
}

static iso_status branch_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                  iso_tensor **grad_in) {
    (void)call;
    return iso_module_call_backward(self->child[branch_on], grad_out, grad_in);
}

static const iso_module_ops branch_ops = {
    .type = "Branch", .forward = branch_forward, .backward = branch_backward};

// Two branches, tied in themselves and with each other: a.weight has four users.
static iso_status build_branches(iso_device *device, bool dropout, iso_module **out) {
    iso_module *branch = calloc(1, sizeof(*branch)), *child;
    iso_status status = iso_module_init(branch, &branch_ops, device);
    for (int i = 0; i < 2 && status == ISO_OK; i++) {
        status = build_tied(device, dropout, &child);
        if (status == ISO_OK)
            status = iso_module_add_child_take(branch, i ? "second" : "first", child);
    }
    if (status == ISO_OK)
        status = iso_module_tie(branch, "second.a.weight", branch, "first.a.weight");
    if (status == ISO_OK)
        status = iso_module_tie(branch, "second.b.weight", branch, "first.a.weight");
    *out = branch;
    return status;
}

static iso_status train_branches(trainer *t, bool by_rank) {
    iso_status status = ISO_OK;
    for (int step = 0; step < 10 && status == ISO_OK; step++) {
        branch_on = (step / 2 + (by_rank ? test_rank : 0)) % 2;
        status = trainer_step(t, step, NULL);
    }
    return status;
}

Test(np2_tied, users_in_turn_equal_one_rank) {
    trainer_config config = trainer_default();
    config.build = build_branches;
    config.find_unused = true;
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    iso_assert_ok(train_branches(&many, false));
    iso_assert_ok(train_branches(&one, false));
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(difference < 2e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

Test(np3_tied, users_on_different_ranks) {
    trainer_config config = trainer_default();
    uint64_t hash[2] = {0, 1};
    config.build = build_branches;
    config.find_unused = true;
    for (int i = 0; i < 2; i++) {
        trainer t;
        config.sync = i ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        iso_assert_ok(train_branches(&t, true));
        iso_assert_ok(trainer_hash(&t, &hash[i])); // fails if replicas differ
        trainer_destroy(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}

// A wrapper that saw only some of the users would exchange half a gradient.
Test(np2_tied, a_user_outside_of_the_wrapper_is_refused) {
    iso_device *device;
    iso_module *net, *outside, *wrapped;
    iso_rng rng = {.seed = 1};
    iso_assert_ok(iso_device_create(test_device(), &device));
    iso_assert_ok(build_tied(device, false, &net));
    iso_assert_ok(iso_linear_create(device, 200, 200, true, &rng, &outside));
    iso_assert_ok(iso_module_tie(outside, "weight", net, "c.weight"));
    iso_assert_all(iso_data_parallel_create_take(net, test_comm, NULL, &wrapped) == ISO_ERR_STATE);
    cr_expect(strstr(iso_last_error()->message, "tied"), "%s", iso_last_error()->message);
    iso_module_destroy(&outside); // holds the last reference
    iso_device_destroy(&device);
}

Test(np1_tied, is_too_late_once_wrapped) {
    trainer_config config = trainer_default();
    config.build = build_plain;
    trainer t;
    cr_assert_eq(trainer_create(&t, test_comm, &config), ISO_OK);
    cr_expect_eq(iso_module_tie(t.model, "b.weight", t.model, "a.weight"), ISO_ERR_STATE);
    trainer_destroy(&t);
}

// ---- PyTorch's ------------------------------------------------------------------------------------

// a, b, c: 8 to 8, each with tanh; out: 8 to 5; in f64, with the values of the fixture.
static iso_status build_golden(iso_device *device, fixture *golden, iso_module **out) {
    static const char *const name[] = {"a", "b", "c"};
    iso_module *net, *m;
    iso_parameter_list list = {0};
    iso_status status = iso_sequential_create(device, &net);
    for (int i = 0; i < 3 && status == ISO_OK; i++) {
        status = add_linear(net, name[i], 8, 8);
        if (status == ISO_OK) status = iso_tanh_create(device, &m);
        if (status == ISO_OK) status = iso_sequential_add_take(net, NULL, m);
    }
    if (status == ISO_OK) status = add_linear(net, "out", 8, 5);
    if (status == ISO_OK) status = iso_module_tie(net, "b.weight", net, "a.weight");
    if (status == ISO_OK) status = iso_module_tie(net, "c.bias", net, "a.bias");
    if (status == ISO_OK) status = iso_module_to(net, ISO_F64);
    if (status == ISO_OK) status = iso_module_parameters(net, &list);
    for (int i = 0; i < list.count; i++)
        fixture_load(golden, "start", list.name[i], list.item[i]->value);
    iso_parameter_list_destroy(&list);
    *out = net;
    return status;
}

// This rank's rows of a batch of 8.
static iso_status golden_step(fixture *golden, int step, iso_module *model, iso_loss *loss,
                              iso_optimizer *optimizer, double *value) {
    enum { ROW = 8 };
    int rows = 8 / test_size, first = rows * test_rank;
    const double *x = fixture_get(golden, NULL, "x", NULL) + (step * 8 + first) * ROW;
    const double *label = fixture_get(golden, NULL, "labels", NULL) + step * 8 + first;
    int32_t labels[8];
    iso_tensor *in, *out, *grad;
    void *data;
    for (int i = 0; i < rows; i++) labels[i] = (int32_t)label[i];
    iso_status status = iso_tensor_create(model->device, ISO_F64, 2, (int64_t[]){rows, ROW}, &in);
    if (status == ISO_OK) status = iso_tensor_map(in, ISO_WRITE, &data);
    if (status == ISO_OK) memcpy(data, x, (size_t)rows * ROW * sizeof(double));
    if (status == ISO_OK) status = iso_tensor_unmap(in);
    iso_optimizer_zero_grad(optimizer);
    if (status == ISO_OK) status = iso_module_forward(model, in, &out);
    if (status == ISO_OK) status = iso_loss_compute(loss, out, labels, value, NULL, &grad);
    if (status == ISO_OK) status = iso_module_backward(model, grad, NULL);
    if (status == ISO_OK) status = iso_optimizer_step(optimizer);
    iso_tensor_destroy(&in);
    *value /= test_size;
    return status < 0 ? status : iso_comm_allreduce_f64(test_comm, value, 1, ISO_SUM);
}

static void trains_as_pytorch(int zero) {
    fixture *golden = fixture_open("tied.txt");
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_data_parallel_config dp = {.sync = ISO_SYNC_LAZY, .zero = zero};
    iso_device *device;
    iso_module *net, *model;
    iso_optimizer *inner, *optimizer;
    iso_loss *loss;
    iso_parameter_list list;
    iso_tensor *end;
    hyper.lr = 0.1;
    hyper.momentum = 0.9;
    hyper.weight_decay = 0.01;
    iso_assert_ok(iso_device_create(test_device(), &device));
    iso_assert_ok(build_golden(device, golden, &net));
    iso_assert_ok(iso_data_parallel_create_take(net, test_comm, &dp, &model));
    iso_assert_ok(iso_optimizer_create(ISO_SGD, model, &hyper, &inner));
    iso_assert_ok(iso_dp_optimizer_create_take(inner, model, &optimizer));
    iso_assert_ok(iso_loss_create(device, ISO_CROSS_ENTROPY, &loss));
    for (int step = 0; step < 6; step++) {
        double value = 0, expected = fixture_get(golden, NULL, "losses", NULL)[step];
        iso_assert_ok(golden_step(golden, step, model, loss, optimizer, &value));
        iso_assert_all(fabs(value - expected) < 1e-13 * expected);
    }
    iso_assert_ok(iso_data_parallel_finish(model));
    iso_assert_ok(iso_module_parameters(model, &list));
    for (int i = 0; i < list.count; i++) {
        iso_assert_ok(iso_parameter_value(list.item[i], &end));
        fixture_compare(golden, "end", list.name[i], end, 1e-13);
    }
    iso_parameter_list_destroy(&list);
    iso_loss_destroy(&loss);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&model);
    iso_device_destroy(&device);
    fixture_close(&golden);
}

Test(np1_tied, trains_as_pytorch) { trains_as_pytorch(0); }
Test(np2_tied, trains_as_pytorch) { trains_as_pytorch(0); }
Test(np4_tied, trains_as_pytorch) { trains_as_pytorch(0); }
Test(np2_tied, trains_as_pytorch_with_parameters_divided) { trains_as_pytorch(3); }
Test(np4_tied, trains_as_pytorch_with_parameters_divided) { trains_as_pytorch(3); }
