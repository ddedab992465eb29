// SPDX-License-Identifier: MIT
// Gradients under DataParallel: zero_grad, accumulation, and looking at them between backward and
// step.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <math.h>
#include <string.h>

TestSuite(np1_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static uint64_t hash_after(const trainer_config *config, int steps) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_run(test_comm, config, steps, &hash));
    return hash;
}

// What is expected after `steps` steps, from a blocking run.
static uint64_t expected_hash(int steps) {
    trainer_config config = trainer_default();
    config.sync = ISO_SYNC_BLOCKING;
    return hash_after(&config, steps);
}

// ---- zero_grad and accumulation ---------------------------------------------------------------------

// zero_grad after the forward instead of before it: the same training.
Test(np2_gradients, zero_grad_may_stand_after_forward) {
    uint64_t expected = expected_hash(5), hash = 0;
    trainer_config config = trainer_default();
    trainer t;
    iso_tensor *out, *grad;
    double value;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < 5; step++) {
        iso_assert_ok(trainer_forward(&t, step, &out));
        iso_optimizer_zero_grad(t.optimizer);
        iso_assert_ok(iso_loss_compute(t.loss, out, t.labels, &value, NULL, &grad));
        iso_assert_ok(iso_module_backward(t.model, grad, NULL));
        iso_assert_ok(iso_optimizer_step(t.optimizer));
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

// Two backwards before one step: gradients add up, and equal those of one rank that does the same.
static void accumulation_equals_one_rank(iso_sync sync) {
    trainer_config config = trainer_default();
    config.sync = sync;
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    trainer *t[2] = {&many, &one};
    for (int i = 0; i < 2; i++)
        for (int step = 0; step < 6; step++) {
            if (step % 2 == 0) iso_optimizer_zero_grad(t[i]->optimizer);
            iso_status status = trainer_backward(t[i], step);
            if (status == ISO_OK && step % 2 == 1) status = iso_optimizer_step(t[i]->optimizer);
            iso_assert_ok(status);
        }
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(difference < 1e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

Test(np2_gradients, accumulation_equals_one_rank) { accumulation_equals_one_rank(ISO_SYNC_LAZY); }
Test(np3_gradients, blocking_accumulation_equals_one_rank) {
    accumulation_equals_one_rank(ISO_SYNC_BLOCKING);
}

Test(np2_gradients, gradients_read_from_outside_are_averages) {
    trainer_config config = trainer_default();
    trainer many, one;
    iso_comm *alone;
    iso_parameter_list pm, po;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    iso_assert_ok(trainer_backward(&many, 0));
    iso_assert_ok(trainer_backward(&one, 0));
    iso_assert_ok(iso_module_parameters(many.model, &pm));
    iso_assert_ok(iso_module_parameters(one.model, &po));
    double worst = 0;
    for (int i = 0; i < pm.count; i++) {
        iso_tensor *gm, *go;
        iso_assert_ok(iso_parameter_grad(pm.item[i], &gm));
        iso_assert_ok(iso_parameter_grad(po.item[i], &go));
        const float *x = iso_tensor_data(gm), *y = iso_tensor_data(go);
        for (int64_t k = 0; k < iso_tensor_count(gm); k++)
            worst = fmax(worst, fabs((double)x[k] - (double)y[k]));
    }
    iso_assert_all(worst < 1e-6);
    iso_parameter_list_destroy(&pm);
    iso_parameter_list_destroy(&po);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

// ---- Looking between backward and step ----------------------------------------------------------------

enum { LOOK_NOWHERE, LOOK_GRADIENT, LOOK_VALUE, LOOK_EVALUATION, LOOK_FORWARD };

static iso_status look(trainer *t, int where) {
    iso_parameter_list list;
    iso_tensor *tensor;
    iso_status status = iso_module_parameters(t->model, &list);
    if (status < 0) return status;
    if (where == LOOK_GRADIENT)
        status = iso_parameter_grad(list.item[0], &tensor); // to clip it, for example
    if (where == LOOK_VALUE) status = iso_parameter_value(list.item[0], &tensor);
    if (where == LOOK_EVALUATION) status = iso_module_train(t->model, false);
    if (where == LOOK_EVALUATION && status == ISO_OK) status = iso_module_train(t->model, true);
    if (where == LOOK_FORWARD) status = trainer_forward(t, 5, &tensor);
    iso_parameter_list_destroy(&list);
    return status;
}

static uint64_t hash_after_looking(int where, iso_sync sync) {
    trainer_config config = trainer_default();
    config.sync = sync;
    trainer t;
    uint64_t hash = 0;
    iso_status status = trainer_create(&t, test_comm, &config);
    for (int step = 0; status == ISO_OK && step < 3; step++) {
        iso_optimizer_zero_grad(t.optimizer);
        status = trainer_backward(&t, step);
        if (status == ISO_OK) status = look(&t, where);
        if (status == ISO_OK) status = iso_optimizer_step(t.optimizer);
    }
    iso_assert_ok(status);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

static void looking_changes_nothing(int where) {
    uint64_t expected = hash_after_looking(LOOK_NOWHERE, ISO_SYNC_LAZY);
    iso_assert_all(hash_after_looking(where, ISO_SYNC_LAZY) == expected);
    iso_assert_all(hash_after_looking(where, ISO_SYNC_BLOCKING) == expected);
}

Test(np1_gradients, reading_a_gradient_before_step_keeps_it) {
    looking_changes_nothing(LOOK_GRADIENT);
}
Test(np2_gradients, reading_a_gradient_before_step_keeps_it) {
    looking_changes_nothing(LOOK_GRADIENT);
}
Test(np2_gradients, reading_a_value_before_step_keeps_gradients) {
    looking_changes_nothing(LOOK_VALUE);
}
Test(np2_gradients, evaluating_before_step_keeps_gradients) {
    looking_changes_nothing(LOOK_EVALUATION);
}
Test(np2_gradients, another_forward_before_step_keeps_gradients) {
    looking_changes_nothing(LOOK_FORWARD);
}

// A layer in evaluation mode still has a pending update, which its forward needs.
Test(np2_gradients, one_layer_in_evaluation_mode) {
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        trainer_config config = trainer_default();
        config.sync = i ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        trainer t;
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        iso_assert_ok(iso_module_train(iso_data_parallel_module(t.model)->child[0], false));
        iso_assert_ok(trainer_train(&t, 5));
        iso_assert_ok(trainer_hash(&t, &hash[i]));
        trainer_destroy(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}
