// SPDX-License-Identifier: MIT
// Layers under DataParallel that are used twice, not at all, frozen, or in another way on each
// rank; ranks that built different models.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <math.h>
#include <string.h>

TestSuite(np1_used_layers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_used_layers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_used_layers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_used_layers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static uint64_t hash_after(const trainer_config *config, int steps) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_run(test_comm, config, steps, &hash));
    return hash;
}

// ---- Layers used twice, not at all, or frozen --------------------------------------------------------

// flatten, fc (200-200) twice, out; "fc" is one module in two places.
static iso_status build_shared(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *net, *m, *shared;
    iso_status status = iso_sequential_create(device, &net);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, NULL, m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, 200, true, &rng, &shared);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "fc", iso_module_retain(shared));
    if (status == ISO_OK) status = iso_relu_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, NULL, m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "again", shared);
    if (status == ISO_OK) status = iso_linear_create(device, 200, TRAINER_CLASSES, true, &rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "out", m);
    *out = net;
    return status;
}

static void compare_with_one_rank(trainer_config config) {
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    uint64_t lazy, blocking;
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
    lazy = hash_after(&config, 10);
    config.sync = ISO_SYNC_BLOCKING;
    blocking = hash_after(&config, 10);
    iso_assert_all(lazy == blocking);
}

Test(np2_used_layers, layer_used_twice) {
    trainer_config config = trainer_default();
    config.build = build_shared;
    compare_with_one_rank(config);
}

static iso_status build_frozen(iso_device *device, bool dropout, iso_module **out) {
    iso_parameter_list list;
    iso_status status = build_small_cnn(device, dropout, out);
    if (status == ISO_OK) status = iso_module_parameters(*out, &list);
    if (status < 0) return status;
    for (int i = 0; i < list.count; i++)
        if (i < 2 || i == 5) list.item[i]->requires_grad = false; // conv1 whole, fc1 in part
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

Test(np2_used_layers, frozen_parameters) {
    trainer_config config = trainer_default();
    config.build = build_frozen;
    compare_with_one_rank(config);
}

static iso_status build_all_frozen(iso_device *device, bool dropout, iso_module **out) {
    iso_parameter_list list;
    iso_status status = build_small_cnn(device, dropout, out);
    if (status == ISO_OK) status = iso_module_parameters(*out, &list);
    if (status < 0) return status;
    for (int i = 0; i < list.count; i++) list.item[i]->requires_grad = false;
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

Test(np2_used_layers, nothing_to_train_is_refused) {
    trainer_config config = trainer_default();
    config.build = build_all_frozen;
    trainer t;
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_ARG);
    trainer_destroy(&t);
}

// A container of two branches that runs only the one that is switched on.
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

static iso_status build_branches(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_module *branch = calloc(1, sizeof(*branch)), *a, *b;
    iso_status status = iso_module_init(branch, &branch_ops, device);
    if (status == ISO_OK) status = build_small_cnn(device, false, &a);
    if (status == ISO_OK) status = build_small_cnn(device, false, &b);
    if (status == ISO_OK) status = iso_module_add_child_take(branch, "a", a);
    if (status == ISO_OK) status = iso_module_add_child_take(branch, "b", b);
    *out = branch;
    return status;
}

static iso_status train_branches(trainer *t, int steps) {
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < steps; step++) {
        branch_on =
            step / 2 % 2; // each unused for two steps, so that leftovers and zeros both occur
        status = trainer_step(t, step, NULL);
    }
    return status;
}

Test(np2_used_layers, unused_layers) {
    trainer_config config = trainer_default();
    config.build = build_branches;
    config.find_unused = true;
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        config.sync = i ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        trainer t;
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        iso_assert_ok(train_branches(&t, 12));
        iso_assert_ok(trainer_hash(&t, &hash[i]));
        trainer_destroy(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}

// ---- Ranks that use different layers ------------------------------------------------------------------

// The gradient is the average over ranks on every rank, also where this rank did not reach the
// layer, and the next backward adds to it everywhere.
Test(np2_used_layers, ranks_that_use_different_layers_hold_the_same_gradients) {
    trainer_config config = trainer_default();
    config.build = build_branches;
    config.find_unused = true;
    trainer t;
    double sum[2] = {0};
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_optimizer_zero_grad(t.optimizer);
    for (int round = 0; round < 2; round++) {
        iso_parameter_list list;
        iso_tensor *gradient;
        branch_on = round == 0 ? test_rank : 1; // the second one reaches branch a nowhere
        iso_assert_ok(trainer_backward(&t, round));
        iso_assert_ok(iso_module_parameters(t.model, &list));
        iso_assert_ok(iso_parameter_grad(list.item[0], &gradient)); // a.conv1.weight
        for (int64_t k = 0; k < iso_tensor_count(gradient); k++)
            sum[round] += fabs(((const float *)iso_tensor_data(gradient))[k]);
        iso_parameter_list_destroy(&list);
    }
    double first = sum[0];
    iso_assert_ok(iso_comm_allreduce_f64(test_comm, &first, 1, ISO_MAX));
    iso_assert_all(first > 0 && sum[0] == first && sum[1] == first);
    trainer_destroy(&t);
}

// Two models on one communicator: exchanges of one must not come between those of the other.
Test(np2_used_layers, two_models_trained_alternately) {
    trainer_config config = trainer_default();
    trainer a, b;
    uint64_t hash;
    config.build = build_branches;
    config.find_unused = true;
    iso_assert_ok(trainer_create(&a, test_comm, &config));
    config.build = NULL;
    config.find_unused = false;
    iso_assert_ok(trainer_create(&b, test_comm, &config));
    branch_on = test_rank;
    for (int step = 0; step < 4; step++) {
        iso_optimizer_zero_grad(a.optimizer);
        iso_optimizer_zero_grad(b.optimizer);
        iso_assert_ok(trainer_backward(&a, step));
        iso_assert_ok(trainer_backward(&b, step));
        iso_assert_ok(iso_optimizer_step(a.optimizer));
        iso_assert_ok(iso_optimizer_step(b.optimizer));
    }
    iso_assert_ok(trainer_hash(&a, &hash)); // fails if replicas differ
    iso_assert_ok(trainer_hash(&b, &hash));
    trainer_destroy(&b);
    trainer_destroy(&a);
}

// A user's own collective between backward and step must not meet exchanges that a rank still holds
// back.
Test(np2_used_layers, blocking_with_different_layers_and_a_collective_before_step) {
    trainer_config config = trainer_default();
    config.build = build_branches;
    config.find_unused = true;
    config.sync = ISO_SYNC_BLOCKING;
    trainer t;
    uint64_t hash;
    double loss = 1;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    branch_on = test_rank;
    iso_status status = trainer_backward(&t, 0);
    if (status == ISO_OK) status = iso_comm_allreduce_f64(test_comm, &loss, 1, ISO_SUM);
    if (status == ISO_OK) status = iso_optimizer_step(t.optimizer);
    iso_assert_ok(status);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
}

// ---- Other settings ---------------------------------------------------------------------------------

Test(np3_used_layers, communicator_smaller_than_the_world) {
    MPI_Comm part;
    iso_comm *comm;
    trainer t;
    uint64_t hash;
    trainer_config config = trainer_default();
    MPI_Comm_split(MPI_COMM_WORLD, test_rank == 0, 0, &part); // {0}, {1, 2}
    iso_assert_ok(iso_comm_create(part, NULL, &comm));
    MPI_Comm_free(&part);
    iso_assert_ok(trainer_create(&t, comm, &config));
    iso_assert_ok(trainer_train(&t, 5));
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
}

static iso_status build_frozen_on_one_rank(iso_device *device, bool dropout, iso_module **out) {
    return test_rank == 1 ? build_all_frozen(device, dropout, out)
                          : build_small_cnn(device, dropout, out);
}

Test(np2_used_layers, nothing_to_train_on_one_rank_is_refused_on_all) {
    trainer_config config = trainer_default();
    config.build = build_frozen_on_one_rank;
    trainer t;
    iso_status status = trainer_create(&t, test_comm, &config);
    iso_assert_all(status < 0);
    trainer_destroy(&t);
}

static iso_status build_other_frozen(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *m;
    iso_status status = iso_sequential_create(device, out);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(*out, NULL, m);
    if (status == ISO_OK)
        status = iso_linear_create(device, test_rank ? 24 : 16, 16, true, &rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(*out, "frozen", m);
    for (int i = 0; status == ISO_OK && i < 2; i++) m->parameter[i]->requires_grad = false;
    if (status == ISO_OK) status = iso_linear_create(device, 16, TRAINER_CLASSES, true, &rng, &m);
    return status == ISO_OK ? iso_sequential_add_take(*out, "out", m) : status;
}

Test(np2_used_layers, frozen_layers_must_match_too) {
    trainer_config config = trainer_default();
    config.build = build_other_frozen;
    trainer t;
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_MISMATCH);
    trainer_destroy(&t);
}

static iso_status build_odd(iso_device *device, bool dropout, iso_module **out) {
    if (test_rank != 1) return build_small_cnn(device, dropout, out);
    iso_rng rng = {.seed = 7};
    iso_status status = iso_sequential_create(device, out);
    iso_module *m;
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(*out, NULL, m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, TRAINER_CLASSES, true, &rng, &m);
    return status == ISO_OK ? iso_sequential_add_take(*out, "conv1", m) : status;
}

Test(np3_used_layers, another_model_on_one_rank_is_named) {
    trainer_config config = trainer_default();
    config.build = build_odd;
    trainer t;
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_MISMATCH);
    const char *said = iso_last_error()->message;
    cr_expect(strstr(said, "rank 1 has parameter \"conv1.weight\" [5, 200]") &&
                  strstr(said, "[4, 2, 3, 3]"),
              "%s", said);
    trainer_destroy(&t);
}

Test(np2_used_layers, a_bad_setting_on_one_rank_is_refused_on_all) {
    trainer_config config = trainer_default();
    if (test_rank == 1) config.bucket_mb = -1;
    trainer t;
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_ARG);
    iso_assert_all(t.model == NULL); // the module was taken, and is gone
    trainer_destroy(&t);
}

Test(np2_used_layers, the_model_may_be_destroyed_before_its_optimizer) {
    trainer_config config = trainer_default();
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 2));
    iso_module_destroy(&t.model);
    trainer_destroy(&t);
}

Test(np1_used_layers, a_learning_rate_that_is_no_number_is_refused) {
    trainer_config config = trainer_default();
    trainer t;
    cr_assert_eq(trainer_create(&t, test_comm, &config), ISO_OK);
    iso_optimizer_hyper(t.optimizer)->lr = NAN;
    cr_expect_eq(trainer_step(&t, 0, NULL), ISO_ERR_ARG);
    trainer_destroy(&t);
}
