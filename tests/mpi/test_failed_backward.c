// SPDX-License-Identifier: MIT
// A backward that fails in a layer, on one rank or on all: the ranks skip the batch and go on
// together, as if it had never been.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/zero_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <isotherm/layers.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_failed_backward, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_failed_backward, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_failed_backward, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 7, BAD = 3, UNITS = 40 };

// ---- A layer that fails -----------------------------------------------------------------------------

// Of the two, `failing` fails: the upper one before any gradient was reported, the lower one after
// that of fc2.
enum { NONE, LOWER, UPPER };
static int failing;

static iso_status forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    ISO_TRY(iso_call_tensor(self, &call->out, 2,
                            (int64_t[]){iso_tensor_shape(in)[0], iso_tensor_shape(in)[1]},
                            ISO_LAYOUT_LOGICAL));
    *out = call->out;
    return iso_tensor_copy(in, call->out);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    (void)call;
    int mine = strcmp(self->name, "lower") == 0 ? LOWER : UPPER;
    ISO_CHECK(failing != mine, ISO_ERR_ARG, "the layer %s does not like this batch", self->name);
    *grad_in = grad_out;
    return ISO_OK;
}

static const iso_module_ops picky_ops = {
    .type = "Picky", .forward = forward, .backward_input = backward_input};

static iso_status add_picky(iso_module *net, iso_device *device, const char *name) {
    iso_module *picky = calloc(1, sizeof(*picky));
    ISO_TRY(iso_module_init(picky, &picky_ops, device));
    return iso_sequential_add_take(net, name, picky);
}

// flatten, fc1, relu, lower, fc2, upper
static iso_status build_picky(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = 5};
    iso_module *net, *m;
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, &net));
    *out = net;
    ISO_TRY(iso_flatten_create(device, &m));
    ISO_TRY(iso_sequential_add_take(net, "flatten", m));
    int64_t pixels = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE;
    ISO_TRY(iso_linear_create(device, pixels, UNITS, true, &rng, &m));
    ISO_TRY(iso_sequential_add_take(net, "fc1", m));
    ISO_TRY(iso_relu_create(device, &m));
    ISO_TRY(iso_sequential_add_take(net, "relu", m));
    ISO_TRY(add_picky(net, device, "lower"));
    ISO_TRY(iso_linear_create(device, UNITS, TRAINER_CLASSES, true, &rng, &m));
    ISO_TRY(iso_sequential_add_take(net, "fc2", m));
    return add_picky(net, device, "upper");
}

// ---- Runs -------------------------------------------------------------------------------------------

// Where a batch fails, all ranks skip it.
static iso_status make_batch(trainer *t, int step) {
    iso_tensor *out, *grad;
    double loss;
    iso_optimizer_zero_grad(t->optimizer);
    ISO_TRY(trainer_forward(t, step, &out));
    ISO_TRY(iso_loss_compute(t->loss, out, t->labels, &loss, NULL, &grad));
    iso_status status = iso_comm_agree(t->comm, iso_module_backward(t->model, grad, NULL));
    if (status == ISO_OK) return iso_optimizer_step(t->optimizer);
    iso_optimizer_zero_grad(t->optimizer);
    return status;
}

// which: the layer that fails on `rank` (-1: on all) in batch BAD; NONE: that batch is left out.
static uint64_t hash_of(trainer_config config, int stage, int which, int rank) {
    trainer t;
    uint64_t hash = 0;
    zero_create_trainer(&t, config, stage);
    for (int step = 0; step < STEPS; step++) {
        bool bad = step == BAD;
        if (bad && which == NONE) continue;
        failing = bad && (rank < 0 || rank == test_rank) ? which : NONE;
        iso_status status = make_batch(&t, step);
        failing = NONE;
        iso_assert_all(status == (bad ? ISO_ERR_ARG : ISO_OK));
        if (bad) iso_assert_all(strstr(iso_last_error()->message, "does not like") != NULL);
    }
    iso_assert_ok(trainer_hash(&t, &hash)); // fails if ranks differ
    trainer_destroy(&t);
    return hash;
}

static void all_go_on(iso_sync sync, int stage) {
    trainer_config config = trainer_default();
    config.build = build_picky;
    config.sync = sync;
    uint64_t without = hash_of(config, stage, NONE, 0);
    for (int which = LOWER; which <= UPPER; which++)
        for (int rank = -1; rank < test_size; rank++)
            iso_assert_all(hash_of(config, stage, which, rank) == without);
}

#define TESTS(name, ...)                                                                           \
    Test(np1_failed_backward, name) { all_go_on(__VA_ARGS__); }                                    \
    Test(np2_failed_backward, name) { all_go_on(__VA_ARGS__); }                                    \
    Test(np3_failed_backward, name) { all_go_on(__VA_ARGS__); }
TESTS(lazy_ranks_skip_the_batch, ISO_SYNC_LAZY, 0)
TESTS(blocking_ranks_skip_the_batch, ISO_SYNC_BLOCKING, 0)
TESTS(with_zero_stage_2_they_do, ISO_SYNC_LAZY, 2)
TESTS(with_zero_stage_3_they_do, ISO_SYNC_LAZY, 3)

// Inside no_sync nothing is sent, and what was accumulated before is discarded with the batch.
Test(np2_failed_backward, inside_no_sync_nothing_is_sent) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash = 0;
    config.build = build_picky;
    uint64_t without = hash_of(config, 0, NONE, 0);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < STEPS; step++) {
        bool bad = step == BAD;
        failing = bad && test_rank == 1 ? LOWER : NONE;
        if (bad) iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
        iso_status status = make_batch(&t, step);
        if (bad) iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
        iso_assert_all(status == (bad ? ISO_ERR_ARG : ISO_OK));
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == without);
    trainer_destroy(&t);
}

// ---- Hooks ------------------------------------------------------------------------------------------

static iso_status picky_hook(iso_module *module, void *user) {
    (void)module;
    ISO_CHECK(!*(bool *)user, ISO_ERR_ARG, "the hook does not like this batch");
    return ISO_OK;
}

// The other ranks get this rank's gradients all the same.
Test(np2_failed_backward, a_hook_that_fails_is_skipped_with_its_batch) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash = 0;
    bool fails = false;
    config.build = build_picky;
    uint64_t without = hash_of(config, 0, NONE, 0);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, picky_hook, &fails, NULL));
    for (int step = 0; step < STEPS; step++) {
        fails = step == BAD && test_rank == 0;
        iso_status status = make_batch(&t, step);
        iso_assert_all(status == (step == BAD ? ISO_ERR_ARG : ISO_OK));
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == without);
    trainer_destroy(&t);
}
