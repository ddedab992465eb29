// SPDX-License-Identifier: MIT
// Modules whose gradients are averaged over samples: ranks with batches of different lengths give
// the steps of one rank that has the whole batch.
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <isotherm/clip.h>
#include <isotherm/join.h>
#include <isotherm/noise_scale.h>

#include <criterion/criterion.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

TestSuite(np1_by_weight_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_by_weight_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_by_weight_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 5, ROWS = 12 };

static iso_data_parallel_config settings;
static void adjust(iso_data_parallel_config *dp) {
    *dp = settings;
    dp->by_weight = true;
}

// The first row of a rank; ranks have other numbers of rows in each step, at least 1.
static int64_t first_row(int step, int rank, int ranks) {
    if (rank == 0) return 0;
    return rank == ranks ? ROWS : rank + (ROWS - ranks) * (1 + step % 3) * rank / (4 * ranks);
}

static iso_status set_rows(trainer *t, int64_t first, int64_t rows) {
    int64_t shape[4] = {rows, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    iso_tensor_destroy(&t->batch);
    t->first_row = first;
    t->batch_rows = rows;
    return iso_tensor_create(t->device, ISO_F32, 4, shape, &t->batch);
}

// The gradient of the sum of losses over the rows.
static iso_status backward(trainer *t, int step, int64_t first, int64_t rows) {
    iso_tensor *out, *grad;
    double loss;
    void *data;
    ISO_TRY(set_rows(t, first, rows));
    ISO_TRY(trainer_forward(t, step, &out));
    ISO_TRY(iso_loss_compute(t->loss, out, t->labels, &loss, NULL, &grad));
    ISO_TRY(iso_tensor_map(grad, ISO_READ_WRITE, &data));
    for (int64_t i = 0; i < iso_tensor_count(grad); i++) ((float *)data)[i] *= (float)rows;
    ISO_TRY(iso_tensor_unmap(grad));
    ISO_TRY(iso_data_parallel_add_weight(t->model, (double)rows));
    return iso_module_backward(t->model, grad, NULL);
}

// Whose gradients are discarded with their weight.
static iso_status drop_backward(trainer *t, int step, int64_t first, int64_t rows) {
    ISO_TRY(backward(t, step + 1, first, rows));
    iso_module_zero_grad(t->model);
    return ISO_OK;
}

// In two backwards of which the first exchanges nothing, if there are rows enough. dropped: after
// one that is discarded with its weight.
static iso_status accumulate(trainer *t, int step, int64_t first, int64_t rows, bool dropped) {
    int64_t some = rows / 3;
    ISO_TRY(iso_data_parallel_begin_no_sync(t->model));
    if (dropped) ISO_TRY(drop_backward(t, step, first, rows));
    if (some > 0) ISO_TRY(backward(t, step, first, some));
    ISO_TRY(iso_data_parallel_end_no_sync(t->model));
    return backward(t, step, first + some, rows - some);
}

typedef struct way {
    iso_sync sync;
    bool accumulates, dropped, clips;
} way;

static iso_status train(trainer *t, const way *how, double *norm) {
    int ranks = iso_comm_size(t->comm), rank = iso_comm_rank(t->comm);
    for (int step = 0; step < STEPS; step++) {
        int64_t first = first_row(step, rank, ranks), end = first_row(step, rank + 1, ranks);
        iso_optimizer_zero_grad(t->optimizer);
        if (how->sync == ISO_SYNC_EXPLICIT && how->dropped)
            ISO_TRY(drop_backward(t, step, first, end - first));
        ISO_TRY(how->accumulates ? accumulate(t, step, first, end - first, how->dropped)
                                 : backward(t, step, first, end - first));
        if (how->sync == ISO_SYNC_EXPLICIT)
            ISO_TRY(iso_data_parallel_all_reduce_gradients(t->model));
        if (how->clips) ISO_TRY(iso_clip_grad_norm(t->model, 0.1, 2, norm));
        ISO_TRY(iso_optimizer_step(t->optimizer));
    }
    return ISO_OK;
}

static void make_trainer(iso_comm *comm, iso_sync sync, bool weighs, trainer *t) {
    trainer_config config = trainer_default();
    config.sync = sync;
    config.adjust = weighs ? adjust : NULL;
    settings.sync = sync;
    iso_assert_ok(trainer_create(t, comm, &config));
}

// One rank with the whole batch and the mean loss.
static void train_alone(iso_comm *alone, bool clips, trainer *t) {
    double norm = 0;
    make_trainer(alone, ISO_SYNC_BLOCKING, false, t);
    for (int step = 0; step < STEPS; step++) {
        iso_optimizer_zero_grad(t->optimizer);
        iso_assert_ok(trainer_backward(t, step));
        if (clips) iso_assert_ok(iso_clip_grad_norm(t->model, 0.1, 2, &norm));
        iso_assert_ok(iso_optimizer_step(t->optimizer));
    }
    iso_assert_all(!clips || norm > 0.1);
}

static uint64_t run(const way *how, trainer *alone, double tolerance) {
    double difference = 1, norm;
    uint64_t hash = 0;
    trainer t;
    make_trainer(test_comm, how->sync, true, &t);
    iso_assert_ok(train(&t, how, &norm));
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_ok(trainer_difference(&t, alone, &difference));
    if (difference > tolerance) fprintf(stderr, "difference %g\n", difference);
    iso_assert_all(difference <= tolerance);
    trainer_destroy(&t);
    return hash;
}

static void equals_one_rank(iso_data_parallel_config config, double tolerance) {
    iso_comm *self = NULL;
    trainer alone;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    for (int i = 0; i < 4; i++) {
        way how = {.accumulates = i & 1, .clips = i & 2};
        train_alone(self, how.clips, &alone);
        settings = config;
        uint64_t lazy = run(&how, &alone, tolerance);
        how.dropped = true;
        iso_assert_all(run(&how, &alone, tolerance) == lazy);
        how.sync = ISO_SYNC_BLOCKING;
        iso_assert_all(run(&how, &alone, tolerance) == lazy);
        how.sync = ISO_SYNC_EXPLICIT;
        if (!config.zero) iso_assert_all(run(&how, &alone, tolerance) == lazy);
        trainer_destroy(&alone);
    }
    iso_comm_destroy(&self);
}

Test(np1_by_weight_modules, equals_one_rank) {
    equals_one_rank((iso_data_parallel_config){0}, 1e-5);
}
Test(np2_by_weight_modules, equals_one_rank) {
    equals_one_rank((iso_data_parallel_config){.piece_mb = 0.0005}, 1e-5);
    equals_one_rank((iso_data_parallel_config){.average = ISO_AVERAGE_PRE}, 1e-5);
}
Test(np3_by_weight_modules, equals_one_rank) {
    equals_one_rank((iso_data_parallel_config){.bucket_mb = 1}, 1e-5);
    equals_one_rank((iso_data_parallel_config){.find_unused_parameters = true}, 1e-5);
    equals_one_rank((iso_data_parallel_config){.hook = &iso_hook_f16}, 1e-3);
}
Test(np3_by_weight_modules, equals_one_rank_with_zero) {
    equals_one_rank((iso_data_parallel_config){.zero = true}, 1e-5);
}

// ---- In a join ----------------------------------------------------------------------------------------

static iso_status step_of(void *user) { return iso_optimizer_step(((trainer *)user)->optimizer); }

// From step 2 on, rank 0 alone has rows. A rank without a batch has weight 0, whatever the divisor.
static iso_status train_joined(trainer *t, iso_join *join) {
    for (int step = 0;; step++) {
        bool all = step < 2;
        int64_t first = all ? first_row(step, test_rank, test_size) : 0;
        int64_t end = all ? first_row(step, test_rank + 1, test_size) : ROWS;
        bool has = step < STEPS && (all || test_rank == 0);
        iso_optimizer_zero_grad(t->optimizer);
        iso_status status = iso_join_next(join, has ? end - first : 0, true);
        if (status == ISO_PENDING) return ISO_OK;
        ISO_TRY(status);
        ISO_TRY(backward(t, step, first, end - first));
        ISO_TRY(step_of(t));
    }
}

Test(np3_by_weight_modules, a_rank_without_a_batch_has_weight_0) {
    const iso_join_divisor divisors[] = {ISO_JOIN_INITIAL, ISO_JOIN_SAMPLES};
    iso_comm *self = NULL;
    trainer alone;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    train_alone(self, false, &alone);
    for (int i = 0; i < 2; i++) {
        double difference = 1;
        iso_join *join;
        trainer t;
        settings = (iso_data_parallel_config){0};
        make_trainer(test_comm, ISO_SYNC_LAZY, true, &t);
        const iso_join_config how = {
            .mode = ISO_JOIN_SHADOW, .divisor = divisors[i], .step = step_of, .user = &t};
        iso_assert_ok(iso_join_begin(t.model, &how, &join));
        iso_assert_ok(train_joined(&t, join));
        iso_join_end(&join);
        iso_assert_ok(trainer_difference(&t, &alone, &difference));
        iso_assert_all(difference < 1e-5);
        trainer_destroy(&t);
    }
    trainer_destroy(&alone);
    iso_comm_destroy(&self);
}

// ---- Misuse -------------------------------------------------------------------------------------------

static void expect_said(iso_status status, iso_status expected, const char *said) {
    bool told = strstr(iso_last_error()->message, said);
    if (!told) fprintf(stderr, "%s\n", iso_last_error()->message);
    iso_assert_all(status == expected && told);
}

Test(np2_by_weight_modules, misuse_is_told) {
    iso_noise_scale *noise = NULL;
    trainer t;
    settings = (iso_data_parallel_config){0};
    make_trainer(test_comm, ISO_SYNC_LAZY, true, &t);
    expect_said(iso_data_parallel_add_weight(t.model, -1), ISO_ERR_ARG, "a weight of -1");
    expect_said(trainer_backward(&t, 0), ISO_ERR_STATE, "iso_data_parallel_add_weight");
    expect_said(iso_noise_scale_create(t.model, 0.5, &noise), ISO_ERR_UNSUPPORTED, "by_weight");
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(backward(&t, 0, 0, ROWS / 2));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    expect_said(backward(&t, 1, 0, ROWS / 2), ISO_ERR_STATE, "call iso_optimizer_zero_grad first");
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(backward(&t, 1, 0, ROWS / 2));
    trainer_destroy(&t);
    make_trainer(test_comm, ISO_SYNC_LAZY, false, &t);
    expect_said(iso_data_parallel_add_weight(t.model, 1), ISO_ERR_STATE, "set by_weight");
    trainer_destroy(&t);
}

// zero_grad discards weights with the gradients of a backward that exchanged nothing.
Test(np2_by_weight_modules, a_discarded_weight_is_none) {
    trainer t;
    settings = (iso_data_parallel_config){0};
    make_trainer(test_comm, ISO_SYNC_LAZY, true, &t);
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    iso_assert_ok(drop_backward(&t, 0, 0, ROWS / 2));
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    expect_said(trainer_backward(&t, 0), ISO_ERR_STATE, "iso_data_parallel_add_weight");
    trainer_destroy(&t);
}

// Rank 0 discards its batch and gives no other one.
Test(np3_by_weight_modules, a_rank_without_gradients_has_weight_0) {
    double sum = 0, whole = 0;
    trainer t;
    for (int with = 0; with < 2; with++) {
        settings = (iso_data_parallel_config){0};
        make_trainer(test_comm, ISO_SYNC_EXPLICIT, true, &t);
        bool drops = with && test_rank == 0;
        iso_assert_ok(drops ? drop_backward(&t, 0, 0, ROWS / 3) : ISO_OK);
        iso_assert_ok(test_rank > 0 ? backward(&t, 0, test_rank * 4, ROWS / 3) : ISO_OK);
        iso_assert_ok(iso_data_parallel_all_reduce_gradients(t.model));
        iso_assert_ok(iso_clip_grad_norm(t.model, 1e9, 2, with ? &sum : &whole));
        trainer_destroy(&t);
    }
    iso_assert_all(sum == whole && whole > 0);
}

static iso_status leave_alone(const iso_gradient *g, int count, iso_comm *comm, void *user) {
    (void)g, (void)count, (void)comm, (void)user;
    return ISO_OK;
}

Test(np2_by_weight_modules, a_reduce_function_is_refused) {
    trainer_config config = trainer_default();
    trainer t;
    config.adjust = adjust;
    settings = (iso_data_parallel_config){.reduce = leave_alone};
    expect_said(trainer_create(&t, test_comm, &config), ISO_ERR_ARG, "choose one");
    iso_device_destroy(&t.device);
}
