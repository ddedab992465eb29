// SPDX-License-Identifier: MIT
// How many launches the updates of a network take: one for all that wait for no exchange, and one
// for each layer where the next forward brings gradients back layer by layer.
#include "common/balance.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/parallel.h>
#include <string.h>

static void setup(void) {
    setenv("ISO_TEST_DEVICE", "cuda", 1);
    test_mpi_setup();
}

TestSuite(np1_gpu_updates, .init = setup, .fini = test_mpi_teardown, .timeout = 300);
TestSuite(np2_gpu_updates, .init = setup, .fini = test_mpi_teardown, .timeout = 300);

// Of the small CNN: conv1, conv2, fc1 and fc2, each with weights and a bias.
enum { LAYERS = 4, PARAMETERS = 8, STEPS = 4 };

static long long launches(const trainer *t) {
    long long count, graphs;
    iso_device_launches(t->device, &count, &graphs);
    return count;
}

static void create(trainer *t, trainer_config *config) {
    if (iso_device_count("cuda") == 0) test_mpi_skip("there is no GPU, or no CUDA in this build");
    setenv("ISO_CUDA_GRAPHS", "0", 1);
    iso_assert_ok(trainer_create(t, test_comm, config));
}

// From the end of a backward until all is updated.
static void updates_are(trainer_config config, long long expected) {
    trainer t;
    create(&t, &config);
    for (int step = 0; step < STEPS; step++) {
        uint64_t hash;
        iso_optimizer_zero_grad(t.optimizer);
        iso_assert_ok(trainer_backward(&t, step));
        long long before = launches(&t);
        iso_assert_ok(iso_optimizer_step(t.optimizer));
        iso_assert_ok(trainer_hash(&t, &hash));
        iso_assert_all(launches(&t) - before == expected);
    }
    trainer_destroy(&t);
}

// In a forward, beyond those of one that has nothing to update.
static void updates_of_a_forward_are(trainer_config config, long long expected) {
    trainer t;
    iso_tensor *out;
    create(&t, &config);
    for (int step = 0; step < STEPS; step++) {
        iso_optimizer_zero_grad(t.optimizer);
        iso_assert_ok(trainer_backward(&t, step));
        iso_assert_ok(iso_optimizer_step(t.optimizer));
        long long before = launches(&t);
        iso_assert_ok(trainer_forward(&t, step, &out));
        long long with = launches(&t) - before;
        before = launches(&t);
        iso_assert_ok(trainer_forward(&t, step, &out));
        iso_assert_all(with - (launches(&t) - before) == expected);
    }
    trainer_destroy(&t);
}

static trainer_config with(iso_optimizer_kind kind, iso_sync sync) {
    trainer_config config = trainer_default();
    config.optimizer = kind;
    config.hyper = iso_hyper_default(kind);
    config.sync = sync;
    return config;
}

static bool is_bias(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    size_t length = strlen(name);
    return length > 5 && strcmp(name + length - 5, ".bias") == 0;
}

// Biases without decay: parameters take turns.
static iso_status two_groups(iso_optimizer *inner) {
    iso_hyper hyper = *iso_optimizer_hyper(inner);
    iso_optimizer_hyper(inner)->weight_decay = 0.125;
    return iso_optimizer_add_group(inner, &hyper, is_bias, NULL, NULL);
}

Test(np1_gpu_updates, of_a_step_alone_take_one_launch) {
    updates_are(with(ISO_SGD, ISO_SYNC_LAZY), 1);
    updates_are(with(ISO_ADAMW, ISO_SYNC_LAZY), 1);
    updates_are(with(ISO_RMSPROP, ISO_SYNC_BLOCKING), 1);
    updates_are(with(ISO_NADAM, ISO_SYNC_LAZY), 1);
    trainer_config amsgrad = with(ISO_ADAM, ISO_SYNC_LAZY);
    amsgrad.hyper.amsgrad = true;
    updates_are(amsgrad, 1);
}
Test(np1_gpu_updates, of_two_groups_take_one_launch) {
    trainer_config config = with(ISO_ADAM, ISO_SYNC_LAZY);
    config.prepare = two_groups;
    updates_are(config, 1);
}
Test(np1_gpu_updates, of_lamb_take_two_launches_each) {
    updates_are(with(ISO_LAMB, ISO_SYNC_LAZY), 2 * PARAMETERS);
}
// It was asked for by the step, and waits for the first command of the forward.
Test(np1_gpu_updates, of_a_step_alone_leave_one_launch_to_the_forward) {
    updates_of_a_forward_are(with(ISO_SGD, ISO_SYNC_LAZY), 1);
}

Test(np2_gpu_updates, of_a_blocking_step_take_one_launch) {
    updates_are(with(ISO_ADAM, ISO_SYNC_BLOCKING), 1);
}
Test(np2_gpu_updates, of_a_lazy_step_that_is_completed_take_one_launch) {
    updates_are(with(ISO_ADAM, ISO_SYNC_LAZY), 1);
}
Test(np2_gpu_updates, of_a_forward_take_one_launch_a_layer) {
    updates_of_a_forward_are(with(ISO_ADAM, ISO_SYNC_LAZY), LAYERS);
}

static iso_status build_wide(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    const int64_t sample[] = {TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    const iso_layer layers[] = {{.kind = ISO_FLATTEN},
                                {.kind = ISO_LINEAR, .out = 100, .relu = true},
                                {.kind = ISO_LINEAR, .out = TRAINER_CLASSES}};
    iso_rng rng = {.seed = 7};
    return iso_sequential_build(device, sample, layers, 3, &rng, out);
}

// Each piece of the first layer's weights comes back by itself.
Test(np2_gpu_updates, of_pieces_take_one_launch_a_layer) {
    trainer_config config = with(ISO_ADAM, ISO_SYNC_LAZY);
    config.build = build_wide;
    config.piece_mb = 0.015625;
    updates_of_a_forward_are(config, 2);
}
