// SPDX-License-Identifier: MIT
// Gradient accumulation without exchanges: sums, how often is exchanged, nesting, and misuse.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <isotherm/optim.h>

#include <criterion/criterion.h>
#include <math.h>

TestSuite(np1_no_sync, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_no_sync, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_no_sync, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 6, MICRO = 4 };

static long long exchanged(trainer *t) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(t->model), &stats);
    return stats.bytes_world;
}

static size_t bytes_per_step(trainer *t) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(t->model), &stats);
    return stats.bytes_per_step;
}

// MICRO backwards and one step; the last backward is the one that exchanges.
static void accumulate(trainer *t, int step, bool no_sync) {
    iso_optimizer_zero_grad(t->optimizer);
    if (no_sync) iso_assert_ok(iso_data_parallel_begin_no_sync(t->model));
    for (int k = 0; k < MICRO; k++) {
        if (no_sync && k == MICRO - 1) iso_assert_ok(iso_data_parallel_end_no_sync(t->model));
        iso_assert_ok(trainer_backward(t, step * MICRO + k));
    }
    iso_assert_ok(iso_optimizer_step(t->optimizer));
}

static uint64_t train(const trainer_config *config, bool no_sync) {
    trainer t;
    uint64_t hash = 0;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    for (int step = 0; step < STEPS; step++) accumulate(&t, step, no_sync);
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(!no_sync || test_size == 1 ||
                   exchanged(&t) == STEPS * (long long)bytes_per_step(&t));
    trainer_destroy(&t);
    return hash;
}

// Averages of sums are sums of averages: N ranks equal one rank that accumulates the same.
static void equals_one_rank(void) {
    trainer_config config = trainer_default();
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    for (int step = 0; step < STEPS; step++) {
        accumulate(&many, step, true);
        accumulate(&one, step, false);
    }
    iso_assert_ok(iso_data_parallel_finish(many.model));
    iso_assert_ok(iso_data_parallel_finish(one.model));
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(difference < 1e-5);
    trainer_destroy(&many);
    trainer_destroy(&one);
    iso_comm_destroy(&alone);
}

Test(np1_no_sync, equals_one_rank) { equals_one_rank(); }
Test(np2_no_sync, equals_one_rank) { equals_one_rank(); }
Test(np3_no_sync, equals_one_rank) { equals_one_rank(); }

static void lazy_is_blocking(void) {
    trainer_config lazy = trainer_default(), blocking = trainer_default();
    lazy.dropout = blocking.dropout = true;
    blocking.sync = ISO_SYNC_BLOCKING;
    iso_assert_all(train(&lazy, true) == train(&blocking, true));
}

Test(np2_no_sync, lazy_is_blocking) { lazy_is_blocking(); }
Test(np3_no_sync, lazy_is_blocking) { lazy_is_blocking(); }

// Only the outermost end counts; a forward inside and its backward outside are outside.
Test(np2_no_sync, nests_and_is_decided_at_backward) {
    trainer_config config = trainer_default();
    trainer t;
    iso_tensor *out, *grad;
    double value;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    iso_assert_ok(trainer_backward(&t, 0));
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    iso_assert_ok(trainer_backward(&t, 1));
    iso_assert_all(exchanged(&t) == 0);
    iso_assert_ok(trainer_forward(&t, 2, &out));
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    iso_assert_ok(iso_loss_compute(t.loss, out, t.labels, &value, NULL, &grad));
    iso_assert_ok(iso_module_backward(t.model, grad, NULL));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_assert_all(exchanged(&t) == (long long)bytes_per_step(&t));
    trainer_destroy(&t);
}

// Ranks would go apart in silence; the gradients are still there for a backward outside.
Test(np2_no_sync, step_inside_is_refused) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash;
    config.optimizer = ISO_ADAM; // counts steps
    config.hyper = iso_hyper_default(ISO_ADAM);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_step(&t, 0, NULL));
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    iso_assert_ok(trainer_backward(&t, 0));
    iso_assert_all(iso_optimizer_step(t.optimizer) == ISO_ERR_STATE);
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    iso_assert_all(iso_data_parallel_end_no_sync(t.model) == ISO_ERR_STATE);
    iso_assert_all(iso_optimizer_step(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(iso_optimizer_hyper(t.optimizer)->step == 1);
    iso_assert_ok(trainer_backward(&t, 1));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    iso_assert_all(iso_optimizer_hyper(t.optimizer)->step == 2);
    iso_assert_ok(trainer_hash(&t, &hash)); // fails if ranks differ
    trainer_destroy(&t);
}

// The first step is not taken back, and nothing is exchanged or counted for the second.
static void second_step_is_refused(bool find_unused) {
    trainer_config config = trainer_default();
    config.optimizer = ISO_ADAM;
    config.find_unused = find_unused;
    trainer twice, once;
    double difference = 1;
    iso_assert_ok(trainer_create(&twice, test_comm, &config));
    iso_assert_ok(trainer_create(&once, test_comm, &config));
    for (int step = 0; step < 3; step++) {
        iso_assert_ok(trainer_step(&once, step, NULL));
        iso_assert_ok(trainer_step(&twice, step, NULL));
        // Of one rank alone it must not leave the others waiting.
        iso_status status = test_rank == 0 ? iso_optimizer_step(twice.optimizer) : ISO_ERR_STATE;
        iso_assert_all(status == ISO_ERR_STATE);
    }
    iso_assert_all(iso_optimizer_hyper(twice.optimizer)->step == 3);
    iso_assert_ok(trainer_difference(&twice, &once, &difference));
    iso_assert_all(difference == 0);
    trainer_destroy(&once);
    trainer_destroy(&twice);
}

Test(np2_no_sync, a_second_step_is_refused) {
    second_step_is_refused(false);
    second_step_is_refused(true);
}

static void sums(iso_data_parallel_config *dp) { dp->average = ISO_AVERAGE_SUM; }

// A sum over all ranks would be summed again. With the last backward alone outside no_sync it is
// not.
Test(np2_no_sync, a_second_backward_that_adds_to_sums_is_refused) {
    trainer t;
    trainer_config config = trainer_default();
    config.adjust = sums;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_backward(&t, 0));
    iso_assert_all(trainer_backward(&t, 1) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "ISO_AVERAGE_SUM"));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    iso_assert_ok(trainer_backward(&t, 1));
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    iso_assert_ok(trainer_backward(&t, 2));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    trainer_destroy(&t);
}

// The engine cannot know whether a program adds to sums or, as here, has put them into use and
// writes new gradients.
Test(np2_no_sync, the_engine_sums_what_is_written_anew) {
    float value[4] = {0};
    iso_reducer *r;
    const iso_reducer_param param = {.name = "w", .value = value, .count = 4, .dtype = ISO_F32};
    const iso_reducer_config config = {.average = ISO_AVERAGE_SUM};
    iso_assert_ok(iso_reducer_create(test_comm, &param, 1, &config, &r));
    for (int step = 1; step < 4; step++) {
        float *gradient = iso_reducer_grad(r, 0);
        for (int k = 0; k < 4; k++) gradient[k] = (float)(step * (k + 1));
        iso_assert_ok(iso_reducer_grad_ready(r, 0));
        iso_assert_ok(iso_reducer_finish(r));
        for (int k = 0; k < 4; k++) iso_assert_all(gradient[k] == (float)(2 * step * (k + 1)));
    }
    iso_reducer_destroy(&r);
}

// A parameter that is cut is reported once, too, as a whole.
Test(np2_no_sync, a_cut_gradient_is_reported_once) {
    static float value[64 * 64];
    iso_reducer *r;
    const iso_reducer_param param = {
        .name = "w", .value = value, .count = 64 * 64, .dtype = ISO_F32, .row = 64};
    const iso_reducer_config config = {.piece_bytes = 2048};
    iso_assert_ok(iso_reducer_create(test_comm, &param, 1, &config, &r));
    iso_assert_all(iso_reducer_pieces(r, 0) > 2);
    for (int step = 0; step < 2; step++) {
        for (int k = 1; k < iso_reducer_pieces(r, 0); k += 2) // some by themselves
            iso_assert_ok(iso_reducer_piece_ready(r, 0, k));
        iso_assert_ok(iso_reducer_grad_ready(r, 0));
        iso_assert_all(iso_reducer_grad_ready(r, 0) == ISO_ERR_STATE);
        iso_assert_ok(iso_reducer_finish(r));
    }
    iso_reducer_destroy(&r);
}

// Those of a layer, too, are this rank's own until they are averaged.
Test(np2_no_sync, a_layer_is_not_averaged_by_itself) {
    static float value[8];
    iso_reducer *r;
    iso_optimizer *optimizer;
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    const iso_reducer_param param = {.name = "w", .value = value, .count = 8, .dtype = ISO_F32};
    const iso_reducer_config config = {.sync = ISO_SYNC_EXPLICIT};
    iso_assert_ok(iso_reducer_create(test_comm, &param, 1, &config, &r));
    iso_assert_ok(iso_reducer_set_optimizer(r, ISO_SGD, &hyper, NULL, 0, &optimizer));
    iso_assert_ok(iso_reducer_layer_ready(r, 0));
    iso_assert_ok(iso_reducer_all_reduce(r));
    iso_assert_ok(iso_reducer_layer_ready(r, 0));
    iso_assert_all(iso_optimizer_step(optimizer) == ISO_ERR_STATE);
    iso_assert_ok(iso_reducer_shadow(r)); // in place of that backward
    iso_assert_ok(iso_optimizer_step(optimizer));
    iso_optimizer_destroy(&optimizer);
    iso_reducer_destroy(&r);
}
