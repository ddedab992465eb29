// SPDX-License-Identifier: MIT
// ZeRO (of stage 1, with -DZERO_STAGE=2 of stage 2) where ranks or calls differ from the usual:
// gradients that were dropped or never came, updates that fail, ranks that look early, parameters
// that are not exchanged.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"
#include "optim/optim_impl.h"

#include <isotherm/clip.h>
#include <isotherm/join.h>
#include <isotherm/state_dict.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// A rank that waits in vain ends its wait before the test does.
static void setup(void) {
    setenv("ISO_TIMEOUT", "20", 1);
    test_mpi_setup();
}
#ifndef ZERO_STAGE
#define ZERO_STAGE 1
#endif

TestSuite(np2_zero_faults, .init = setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_zero_faults, .init = setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 4 };

static const char *const ignored[] = {"fc1.weight", "fc1.bias"};

static void share_out(iso_data_parallel_config *dp) { dp->zero = ZERO_STAGE; }
static void ignore_fc1(iso_data_parallel_config *dp) {
    dp->ignore = ignored;
    dp->ignore_count = 2;
}
static void ignore_and_share(iso_data_parallel_config *dp) {
    ignore_fc1(dp);
    share_out(dp);
}

static trainer_config config_of(iso_optimizer_kind kind, bool zero) {
    trainer_config config = trainer_default();
    config.optimizer = kind;
    if (kind != ISO_SGD) config.hyper = iso_hyper_default(kind);
    config.adjust = zero ? share_out : NULL;
    return config;
}

static void all_ok(iso_status status) {
    cr_assert(status == ISO_OK, "rank %d: %s", test_rank, iso_last_error()->message);
}

// ---- Gradients --------------------------------------------------------------------------------------

// Values take the place of gradients: nothing is added to them.
Test(np2_zero_faults, a_step_drops_gradients) {
    trainer_config config = config_of(ISO_SGD, true);
    double norm = 1, difference = 1;
    trainer a, b;
    iso_assert_ok(trainer_create(&a, test_comm, &config));
    iso_assert_ok(trainer_create(&b, test_comm, &config));
    for (int step = 0; step < STEPS; step++) {
        iso_assert_ok(trainer_step(&a, step, NULL));
        iso_assert_ok(trainer_backward(&b, step));
        iso_assert_ok(iso_optimizer_step(b.optimizer));
        iso_assert_ok(iso_grad_norm(b.model, 2, &norm));
        iso_assert_all(norm == 0);
    }
    iso_assert_ok(trainer_difference(&a, &b, &difference));
    iso_assert_all(difference == 0);
    trainer_destroy(&a);
    trainer_destroy(&b);
}

Test(np2_zero_faults, gradients_dropped_by_the_module_are_dropped) {
    trainer_config config = config_of(ISO_SGD, true);
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_backward(&t, 0));
    iso_module_zero_grad(t.model);
    iso_assert_ok(trainer_backward(&t, 1));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    trainer_destroy(&t);
}

// ---- Parameters that are not exchanged --------------------------------------------------------------

static double norm_of(const trainer_config *config) {
    double norm = 0;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    iso_assert_ok(trainer_backward(&t, 0));
    iso_assert_ok(iso_grad_norm(t.model, 2, &norm));
    iso_optimizer_zero_grad(t.optimizer);
    trainer_destroy(&t);
    return norm;
}

Test(np3_zero_faults, whole_gradients_count_once) {
    trainer_config plain = config_of(ISO_SGD, false), zero = config_of(ISO_SGD, true);
    plain.adjust = ignore_fc1;
    zero.adjust = ignore_and_share;
    iso_assert_all(fabs(norm_of(&zero) / norm_of(&plain) - 1) < 1e-6);
    plain = config_of(ISO_SGD, false), zero = config_of(ISO_SGD, true);
    plain.sync = zero.sync = ISO_SYNC_NONE;
    iso_assert_all(norm_of(&zero) == norm_of(&plain));
}

static iso_status step_of(void *user) { return iso_optimizer_step(((trainer *)user)->optimizer); }

// Ranks have other numbers of batches.
static void train_unevenly(trainer *t) {
    iso_join *join;
    const iso_join_config how = {.mode = ISO_JOIN_SHADOW, .step = step_of, .user = t};
    iso_assert_ok(iso_join_begin(t->model, &how, &join));
    for (int step = 0;; step++) {
        iso_optimizer_zero_grad(t->optimizer);
        iso_status status = iso_join_next(join, step < STEPS - test_rank ? t->batch_rows : 0, true);
        if (status == ISO_PENDING) break;
        all_ok(status);
        all_ok(trainer_backward(t, step));
        all_ok(step_of(t));
    }
    iso_join_end(&join);
    iso_assert_ok(iso_data_parallel_finish(t->model));
}

Test(np3_zero_faults, saving_leaves_counts_of_a_rank_alone) {
    trainer_config config = config_of(ISO_ADAM, true);
    iso_state_dict dict = {0};
    trainer t;
    int i = 0;
    config.adjust = ignore_and_share;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    train_unevenly(&t);
    const iso__base_optimizer *core = iso__optimizer_innermost(t.optimizer);
    while (strcmp(core->slot[i].name, "fc1.bias") != 0) i++;
    iso_assert_all(core->slot[i].step == STEPS - test_rank);
    iso_assert_ok(iso_optimizer_state_dict(t.optimizer, &dict));
    iso_assert_all(core->slot[i].step == STEPS - test_rank);
    iso_state_dict_destroy(&dict);
    trainer_destroy(&t);
}

// ---- Updates ----------------------------------------------------------------------------------------

Test(np2_zero_faults, a_whole_update_is_refused) {
    trainer_config config = config_of(ISO_ADAM, true);
    trainer t;
    config.bucket_mb = 100;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    const iso__base_optimizer *core = iso__optimizer_innermost(t.optimizer);
    int refused = 0;
    for (int i = 0; i < core->count; i++) {
        iso_tensor *g;
        iso_hyper hyper = *iso_optimizer_hyper(t.optimizer);
        iso_assert_ok(iso_parameter_grad(core->slot[i].parameter, &g));
        void *data;
        iso_assert_ok(iso_tensor_map(g, ISO_READ, &data));
        refused += t.optimizer->ops->update(t.optimizer, i, data, 1, &hyper) == ISO_ERR_STATE;
        iso_assert_ok(iso_tensor_unmap(g));
    }
    cr_assert(refused > 0 && refused < core->count, "%d", refused);
    trainer_destroy(&t);
}

enum { LENGTH = 100, ARRAYS = 2 };

typedef struct arrays {
    float value[ARRAYS][LENGTH];
    bool fails;
    iso_reducer *reducer;
} arrays;

static iso_status update_all(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)i, (void)gradient, (void)scale, (void)hyper, (void)user;
    return ISO_OK;
}

static iso_status update_some(int i, size_t first, size_t count, void *gradient, double scale,
                              const void *hyper, void *user) {
    arrays *x = user;
    if (x->fails) {
        x->fails = false;
        return iso_error_set(ISO_ERR_STATE, "an update that fails once");
    }
    for (size_t k = 0; k < count; k++)
        x->value[i][first + k] -=
            (float)(*(const double *)hyper * scale * (double)((float *)gradient)[k]);
    return ISO_OK;
}

static void create_arrays(arrays *x, iso_unused unused) {
    iso_reducer_param param[ARRAYS] = {
        {.name = "a", .value = x->value[0], .count = LENGTH, .dtype = ISO_F32, .layer = 0},
        {.name = "b", .value = x->value[1], .count = LENGTH, .dtype = ISO_F32, .layer = 1}};
    const iso_reducer_config config = {.zero = ZERO_STAGE, .unused = unused};
    iso_assert_ok(iso_reducer_create(test_comm, param, ARRAYS, &config, &x->reducer));
    iso_assert_ok(iso_reducer_set_apply(x->reducer, update_all, sizeof(double), x));
    iso_assert_ok(iso_reducer_set_apply_piece(x->reducer, ISO_REDUCER_ONLY, update_some));
}

static iso_status report_ones(arrays *x) {
    for (int i = ARRAYS - 1; i >= 0; i--) {
        ISO_TRY(iso_reducer_param_needed(x->reducer, i));
        float *gradient = iso_reducer_grad(x->reducer, i);
        for (int k = 0; k < LENGTH; k++) gradient[k] = 1;
        ISO_TRY(iso_reducer_grad_ready(x->reducer, i));
    }
    return ISO_OK;
}

static bool all_are(const arrays *x, float wanted) {
    for (int i = 0; i < ARRAYS; i++)
        for (int k = 0; k < LENGTH; k++)
            if (x->value[i][k] != wanted) return false;
    return true;
}

// All sums are here before the step, as after clipping. The other ranks get values all the same.
Test(np2_zero_faults, an_update_at_once_that_fails_keeps_nobody_waiting) {
    static arrays x;
    const double lr = 1;
    create_arrays(&x, ISO_UNUSED_ERROR);
    iso_assert_ok(report_ones(&x));
    iso_assert_ok(iso_reducer_finish(x.reducer));
    x.fails = test_rank == 1;
    iso_status status = iso_reducer_step(x.reducer, &lr);
    cr_assert(status == (test_rank == 1 ? ISO_ERR_STATE : ISO_OK));
    iso_assert_ok(iso_reducer_finish(x.reducer));
    iso_reducer_destroy(&x.reducer);
}

// After a step whose sums were here, a rank has no gradient at all: it is zero.
Test(np2_zero_faults, a_rank_without_gradients_goes_on) {
    static arrays x;
    const double lr = 1;
    create_arrays(&x, ISO_UNUSED_ZERO);
    for (int step = 0; step < 3; step++) {
        if (step == 0 || test_rank == 0) all_ok(report_ones(&x));
        if (step == 0) all_ok(iso_reducer_finish(x.reducer));
        all_ok(iso_reducer_step(x.reducer, &lr));
    }
    iso_assert_ok(iso_reducer_finish(x.reducer));
    iso_assert_all(all_are(&x, -2)); // of rank 0 alone twice, divided by 2 ranks
    iso_reducer_destroy(&x.reducer);
}

// ---- Ranks that look early --------------------------------------------------------------------------

static iso_status add_layer(iso_module *net, const char *name, iso_status made, iso_module **m) {
    ISO_TRY(made);
    return iso_sequential_add_take(net, name, *m);
}

static iso_status build_normed(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *net, *m = NULL;
    const iso_batch_norm_config norm = {.num_features = 4};
    const iso_conv2d_config conv = {
        .in_channels = TRAINER_CHANNELS, .out_channels = 4, .kernel_size = {3, 3}};
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(add_layer(net, "conv", iso_conv2d_create(device, &conv, &rng, &m), &m));
    ISO_TRY(add_layer(net, "bn", iso_batch_norm2d_create(device, &norm, &m), &m));
    ISO_TRY(add_layer(net, "flat", iso_flatten_create(device, &m), &m));
    ISO_TRY(
        add_layer(net, "fc", iso_linear_create(device, 256, TRAINER_CLASSES, true, &rng, &m), &m));
    *out = net;
    return ISO_OK;
}

// Rank 0 reads its new values, which the others send before they wait for rank 0.
Test(np3_zero_faults, a_rank_looks_before_buffers_are_averaged) {
    trainer_config config = config_of(ISO_SGD, true);
    uint64_t hash;
    trainer t;
    config.build = build_normed;
    config.buffers.when = ISO_BUFFERS_BEFORE_FORWARD;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < 3; step++) {
        all_ok(trainer_step(&t, step, NULL));
        if (test_rank == 0) all_ok(iso_parameter_hash(t.model, NULL, &hash, NULL));
    }
    iso_assert_ok(iso_data_parallel_finish(t.model));
    trainer_destroy(&t);
}
