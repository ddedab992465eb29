// SPDX-License-Identifier: MIT
// The gradient noise scale against the same estimates in another form, of gradients that single
// ranks compute: the mean of products of two ranks' gradients, and their sample variance.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "parallel/data_parallel_impl.h"

#include <criterion/criterion.h>
#include <isotherm/noise_scale.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_noise_scale, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_noise_scale, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_noise_scale, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_noise_scale, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 6, ROWS = 12, MOST_PARAMETERS = 2000 };
#define DECAY 0.75

// ---- The model --------------------------------------------------------------------------------------

// This rank's gradient of its rows of batch `step`, computed without other ranks.
static int own_gradient(int step, double g[MOST_PARAMETERS]) {
    trainer_config config = trainer_default();
    trainer t;
    iso_comm *self;
    iso_parameter_list list;
    int count = 0;
    config.rows = ROWS / test_size;
    config.first_row = config.rows * test_rank;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    iso_assert_ok(trainer_create(&t, self, &config));
    iso_assert_ok(trainer_backward(&t, step));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *grad;
        iso_assert_ok(iso_parameter_grad(list.item[i], &grad));
        for (int64_t k = 0; k < iso_tensor_count(grad); k++)
            g[count++] = (double)((float *)iso_tensor_data(grad))[k];
    }
    iso_parameter_list_destroy(&list);
    trainer_destroy(&t);
    iso_comm_destroy(&self);
    return count;
}

static double product(const double *a, const double *b, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

static iso_noise_estimate model_of(int step) {
    static double mine[MOST_PARAMETERS], all[4][MOST_PARAMETERS], off[MOST_PARAMETERS];
    int count = own_gradient(step, mine), pairs = test_size * (test_size - 1);
    iso_noise_estimate model = {0};
    MPI_Allgather(mine, MOST_PARAMETERS, MPI_DOUBLE, all, MOST_PARAMETERS, MPI_DOUBLE,
                  MPI_COMM_WORLD);
    for (int r = 0; r < test_size; r++) {
        for (int s = 0; s < test_size; s++)
            if (s != r) model.gradient2 += product(all[r], all[s], count) / pairs;
        for (int i = 0; i < count; i++) {
            off[i] = all[r][i];
            for (int s = 0; s < test_size; s++) off[i] -= all[s][i] / test_size;
        }
        model.trace += product(off, off, count) / (test_size - 1) * (ROWS / test_size);
    }
    return model;
}

static bool agrees(double a, double b, double scale) { return fabs(a - b) <= 1e-6 * scale; }

// ---- Estimates --------------------------------------------------------------------------------------

static void measured_backward(trainer *t, iso_noise_scale *noise, int step,
                              iso_noise_estimate *out) {
    iso_optimizer_zero_grad(t->optimizer);
    iso_assert_ok(iso_noise_scale_begin(noise));
    iso_assert_ok(trainer_backward(t, step));
    iso_assert_ok(iso_noise_scale_end(noise, (double)t->batch_rows, out));
}

// Parameters do not change, so single ranks need no training.
static void estimates_equal_the_model(iso_sync sync, double piece_mb) {
    trainer_config config = trainer_default();
    config.sync = sync;
    config.piece_mb = piece_mb;
    config.rows = ROWS;
    trainer t;
    iso_noise_scale *noise;
    double average[2] = {0};
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_noise_scale_create(t.model, DECAY, &noise));
    for (int step = 0; step < STEPS; step++) {
        iso_noise_estimate e, model = model_of(step);
        double scale = fabs(model.gradient2) + model.trace;
        measured_backward(&t, noise, step, &e);
        average[0] = DECAY * average[0] + (1 - DECAY) * model.gradient2;
        average[1] = DECAY * average[1] + (1 - DECAY) * model.trace;
        iso_assert_all(agrees(e.gradient2, model.gradient2, scale));
        iso_assert_all(agrees(e.trace, model.trace, scale));
        double expected = average[1] / average[0];
        iso_assert_all(average[0] > 0 ? agrees(e.noise_scale, expected, 100 * fabs(expected))
                                      : isnan(e.noise_scale));
    }
    iso_noise_scale_destroy(&noise);
    trainer_destroy(&t);
}

Test(np2_noise_scale, estimates_equal_the_model) {
    estimates_equal_the_model(ISO_SYNC_LAZY, 0);
    estimates_equal_the_model(ISO_SYNC_BLOCKING, 0);
    estimates_equal_the_model(ISO_SYNC_LAZY, 1e-4);
}
Test(np3_noise_scale, estimates_equal_the_model) { estimates_equal_the_model(ISO_SYNC_LAZY, 0); }
Test(np4_noise_scale, estimates_equal_the_model) { estimates_equal_the_model(ISO_SYNC_LAZY, 0); }

// ---- Training ---------------------------------------------------------------------------------------

static uint64_t train_measured(iso_sync sync, int every) {
    trainer_config config = trainer_default();
    config.sync = sync;
    trainer t;
    iso_noise_scale *noise;
    iso_noise_estimate e;
    uint64_t hash = 0;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_noise_scale_create(t.model, DECAY, &noise));
    for (int step = 0; step < STEPS; step++) {
        if (every && step % every == 0)
            measured_backward(&t, noise, step, &e);
        else
            iso_optimizer_zero_grad(t.optimizer);
        if (!every || step % every != 0) iso_assert_ok(trainer_backward(&t, step));
        iso_assert_ok(iso_optimizer_step(t.optimizer));
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_noise_scale_destroy(&noise);
    trainer_destroy(&t);
    return hash;
}

Test(np3_noise_scale, training_has_the_same_bits) {
    for (iso_sync sync = ISO_SYNC_LAZY; sync <= ISO_SYNC_BLOCKING; sync++) {
        uint64_t without = train_measured(sync, 0);
        iso_assert_all(train_measured(sync, 1) == without);
        iso_assert_all(train_measured(sync, 2) == without);
    }
}

// ---- Misuse -----------------------------------------------------------------------------------------

Test(np2_noise_scale, wrong_use_is_refused) {
    trainer_config config = trainer_default();
    trainer t;
    iso_noise_scale *noise = NULL;
    iso_noise_estimate e;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_all(iso_noise_scale_create(t.model, 1, &noise) == ISO_ERR_ARG);
    iso_assert_all(iso_noise_scale_create(t.model, NAN, &noise) == ISO_ERR_ARG);
    iso_assert_all(iso_noise_scale_create(iso_data_parallel_module(t.model), 0, &noise) ==
                   ISO_ERR_ARG);
    iso_assert_ok(iso_noise_scale_create(t.model, 0, &noise));
    iso_assert_all(iso_noise_scale_end(noise, 6, &e) == ISO_ERR_STATE);
    iso_assert_ok(iso_noise_scale_begin(noise));
    iso_assert_all(iso_noise_scale_begin(noise) == ISO_ERR_STATE);
    iso_assert_all(iso_noise_scale_end(noise, 6, &e) == ISO_ERR_STATE); // without a backward
    measured_backward(&t, noise, 0, &e);
    iso_assert_all(isfinite(e.trace));
    iso_assert_ok(iso_noise_scale_begin(noise)); // destroyed before the end
    iso_noise_scale_destroy(&noise);
    iso_assert_ok(trainer_step(&t, 1, NULL));
    trainer_destroy(&t);
}

static iso_status cannot(const iso_comm_hook_bucket *bucket, double factor, void *user) {
    (void)bucket, (void)factor, (void)user;
    return iso_error_set(ISO_ERR_UNSUPPORTED, "this bucket cannot travel");
}

static int hooks_of(const trainer *t) { return iso__data_parallel_of(t->model)->pre_sync.count; }

// A hook that stayed would be called with the memory of the noise scale, which may be freed.
static void leaves_no_hook(bool ends) {
    const iso_comm_hook broken = {
        .name = "broken", .wire = ISO_BF16, .compress = cannot, .decompress = cannot};
    trainer_config config = trainer_default();
    trainer t;
    iso_noise_scale *noise;
    iso_noise_estimate e;
    config.hook = &broken;
    config.sync = ISO_SYNC_BLOCKING;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_noise_scale_create(t.model, DECAY, &noise));
    iso_assert_ok(iso_noise_scale_begin(noise));
    iso_assert_all(hooks_of(&t) == 1);
    iso_assert_all(trainer_backward(&t, 0) == ISO_ERR_UNSUPPORTED);
    if (ends) {
        iso_assert_all(iso_noise_scale_end(noise, 6, &e) < 0);
        iso_assert_all(strstr(iso_last_error()->message, "there is no") == NULL);
        iso_assert_all(hooks_of(&t) == 0);
    }
    iso_noise_scale_destroy(&noise);
    iso_assert_all(hooks_of(&t) == 0);
    trainer_destroy(&t);
}

Test(np2_noise_scale, a_failed_exchange_leaves_no_hook) {
    leaves_no_hook(true);
    leaves_no_hook(false);
}

Test(np1_noise_scale, one_rank_has_nothing_to_compare) {
    trainer_config config = trainer_default();
    trainer t;
    iso_noise_scale *noise = NULL;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_all(iso_noise_scale_create(t.model, 0, &noise) == ISO_ERR_UNSUPPORTED && !noise);
    trainer_destroy(&t);
}

static iso_status spoil(iso_module *model, void *user) {
    iso_parameter_list list;
    iso_status status = iso_module_parameters(model, &list);
    if (status < 0) return status;
    if (test_rank == *(int *)user) ((float *)iso_tensor_data(list.item[0]->grad))[0] = NAN;
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

Test(np2_noise_scale, a_nan_does_not_stay) {
    trainer_config config = trainer_default();
    trainer t;
    iso_noise_scale *noise;
    iso_noise_estimate e;
    int rank = 1, handle;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_noise_scale_create(t.model, DECAY, &noise));
    measured_backward(&t, noise, 0, &e);
    double before = iso_noise_scale_state(noise)[1];
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, spoil, &rank, &handle));
    measured_backward(&t, noise, 1, &e);
    iso_assert_all(isnan(e.gradient2) && isnan(e.trace));
    iso_assert_all(iso_noise_scale_state(noise)[1] == before);
    iso_noise_scale_destroy(&noise);
    trainer_destroy(&t);
}
