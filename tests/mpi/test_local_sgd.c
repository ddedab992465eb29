// SPDX-License-Identifier: MIT
// The serial model against runs without periodic training, and local and post-local SGD against the
// model and against data parallelism.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>

TestSuite(np1_local_sgd, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_local_sgd, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_local_sgd, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_local_sgd, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- The model itself -----------------------------------------------------------------------------

// Ranks that average every gradient are data parallelism, whatever the optimizer: the model agrees
// with the real one.
static void model_is_data_parallel(iso_optimizer_kind kind, double lr) {
    trainer t;
    daso_model m;
    double difference = INFINITY;
    daso_case c = daso_case_default(1);
    if (kind != ISO_SGD) c.train.hyper = iso_hyper_default(kind);
    c.train.optimizer = kind;
    c.train.hyper.lr = lr;
    c.train.hyper.eps = 1e-4;
    c.train.rows = 12;
    iso_assert_ok(trainer_create(&t, test_comm, &c.train));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < 30; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_batch(&m, step, ISO_SCOPE_WORLD));
    }
    iso_assert_ok(daso_difference(&t, &m, &difference));
    iso_assert_all(difference < DASO_ROUNDING);
    model_destroy(&m);
    trainer_destroy(&t);
}

Test(np1_local_sgd, model_is_data_parallel) { model_is_data_parallel(ISO_SGD, 0.05); }
Test(np2_local_sgd, model_is_data_parallel) { model_is_data_parallel(ISO_ADAM, 0.003); }
Test(np3_local_sgd, model_is_data_parallel) { model_is_data_parallel(ISO_SGD, 0.05); }
Test(np4_local_sgd, model_is_data_parallel) { model_is_data_parallel(ISO_ADAM, 0.003); }

// Ranks of a node of the model train alone when they average over themselves only: the second rank
// of the model is a single process that sees that rank's rows.
Test(np2_local_sgd, model_ranks_are_alone) {
    trainer one;
    daso_model m, alone;
    iso_comm *self;
    double together = 0, apart = 0;
    daso_case c = daso_case_default(1);
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    c.train.rows = 2;
    iso_assert_ok(trainer_create(&one, self, &c.train));
    iso_assert_ok(daso_model_open(&alone, &one, &c));
    model_config two = {.ranks = 2, .ranks_per_node = 1, .train = c.train};
    two.train.rows = 4;
    iso_assert_ok(model_create(&m, &two));
    for (int step = 0; step < 10; step++) {
        iso_assert_ok(trainer_step(&one, step, NULL)); // rows 0 and 1
        iso_assert_ok(model_batch(&m, step, ISO_SCOPE_RANK));
    }
    iso_assert_ok(iso_data_parallel_finish(one.model));
    iso_assert_ok(model_difference(&m, 0, one.model, &together));
    iso_assert_ok(model_difference(&m, 1, one.model, &apart));
    iso_assert_all(together < DASO_ROUNDING && apart > 1e-2);
    model_destroy(&m);
    model_destroy(&alone);
    trainer_destroy(&one);
    iso_comm_destroy(&self);
}

// ---- Local SGD ------------------------------------------------------------------------------------

// Averaging parameters after each plain SGD step is averaging gradients: x - lr g is linear in g.
static void period_one_is_data_parallel(void) {
    trainer local, plain;
    double difference = INFINITY;
    daso_case c = daso_case_default(20);
    c.daso = iso_local_sgd_config(20, 1);
    c.train.hyper.momentum = 0;
    c.train.rows = 12;
    iso_assert_ok(daso_open(&local, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_create(&plain, test_comm, &c.train));
    for (int step = 0; step < 20; step++) {
        iso_assert_ok(trainer_step(&local, step, NULL));
        iso_assert_ok(trainer_step(&plain, step, NULL));
        iso_assert_ok(trainer_difference(&local, &plain, &difference));
        iso_assert_all(difference < DASO_ROUNDING);
    }
    daso_close(&local);
    trainer_destroy(&plain);
}

Test(np1_local_sgd, period_one_is_data_parallel) { period_one_is_data_parallel(); }
Test(np2_local_sgd, period_one_is_data_parallel) { period_one_is_data_parallel(); }
Test(np4_local_sgd, period_one_is_data_parallel) { period_one_is_data_parallel(); }

// What the model is told is written out here, so that the library's own config is tested too.
static void equals_model(iso_daso_config config, int64_t warmup, int64_t period, int steps) {
    trainer t;
    daso_model m;
    double apart = 0;
    iso_daso_stats stats;
    daso_case c = daso_case_default(steps);
    c.daso = config;
    iso_daso_config told = {.total_steps = steps,
                            .warmup_steps = warmup,
                            .global_skip = period,
                            .local_skip = 1,
                            .unit = ISO_SCOPE_RANK};
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < steps; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_daso_step(&m, &told, step));
        iso_assert_all(daso_follows(&t, &m, "a step"));
        // Equal while warming up and after each average, apart else.
        bool equal = step < warmup || (step + 1 - warmup) % period == 0 || step + 1 == steps;
        iso_assert_all(daso_equal(&t) == equal);
        apart = fmax(apart, model_spread(&m));
    }
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.steps == steps && stats.syncs == m.syncs && !stats.pending);
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_all(daso_equal(&t) && apart > 1e-3);
    model_destroy(&m);
    daso_close(&t);
}

Test(np2_local_sgd, period_five_equals_model) {
    equals_model(iso_local_sgd_config(22, 5), 0, 5, 22);
}
Test(np4_local_sgd, period_five_equals_model) {
    equals_model(iso_local_sgd_config(22, 5), 0, 5, 22);
}
Test(np3_local_sgd, post_local_equals_model) {
    equals_model(iso_post_local_sgd_config(23, 6, 5), 6, 5, 23);
}
