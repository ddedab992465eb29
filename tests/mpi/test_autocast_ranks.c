// SPDX-License-Identifier: MIT
// Models under autocast on several ranks: lazy steps have the bits of blocking ones.
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/parallel.h>
#include <string.h>

TestSuite(np1_autocast, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np2_autocast, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

enum { PIXELS = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE, HIDDEN = 96, STEPS = 8 };

static iso_status append(iso_module *net, iso_status made, iso_module **layer) {
    return made < 0 ? made : iso_sequential_add_take(net, NULL, *layer);
}

static iso_status fill(iso_device *device, bool dropout, iso_module *net) {
    iso_rng rng = {.seed = 7};
    iso_module *m = NULL;
    iso_status status = append(net, iso_flatten_create(device, &m), &m);
    if (status >= 0)
        status = append(net, iso_linear_create(device, PIXELS, HIDDEN, true, &rng, &m), &m);
    if (status >= 0) status = append(net, iso_relu_create(device, &m), &m);
    if (status >= 0 && dropout)
        status = append(net, iso_dropout_create(device, 0.25, &rng, &m), &m);
    if (status >= 0)
        status = append(net, iso_linear_create(device, HIDDEN, HIDDEN, true, &rng, &m), &m);
    if (status >= 0) status = append(net, iso_tanh_create(device, &m), &m);
    if (status < 0) return status;
    return append(net, iso_linear_create(device, HIDDEN, TRAINER_CLASSES, true, &rng, &m), &m);
}

static iso_dtype half = ISO_BF16;

static iso_status build(iso_device *device, bool dropout, iso_module **out) {
    iso_module *net;
    iso_status status = iso_sequential_create(device, &net);
    if (status < 0) return status;
    status = fill(device, dropout, net);
    if (status >= 0) return iso_autocast_create_take(net, half, out);
    iso_module_destroy(&net);
    return status;
}

static uint64_t hash_of(iso_sync sync, double piece_mb) {
    uint64_t hash = 0;
    trainer_config config = trainer_default();
    config.build = build;
    config.dropout = true;
    config.sync = sync;
    config.piece_mb = piece_mb;
    iso_assert_ok(trainer_run(test_comm, &config, STEPS, &hash));
    return hash;
}

// piece_mb: weights are updated in pieces while the layer that rounds them is waiting.
static void lazy_is_blocking(double piece_mb) {
    if (iso_device_count(test_device()) == 0) test_mpi_skip("there is no such device");
    uint64_t blocking = hash_of(ISO_SYNC_BLOCKING, piece_mb);
    iso_assert_all(hash_of(ISO_SYNC_LAZY, piece_mb) == blocking);
}

Test(np1_autocast, lazy_steps_have_the_bits_of_blocking_ones) { lazy_is_blocking(0); }
Test(np2_autocast, lazy_steps_have_the_bits_of_blocking_ones) { lazy_is_blocking(0); }
Test(np2_autocast, the_same_in_f16) {
    half = ISO_F16;
    lazy_is_blocking(0);
}
Test(np2_autocast, the_same_with_weights_in_pieces) { lazy_is_blocking(0.005); }

// The optimizer is tied to the wrapper, so that the wrapper has to be outermost.
Test(np2_autocast, does_not_go_around_data_parallel) {
    if (iso_device_count(test_device()) == 0) test_mpi_skip("there is no such device");
    trainer_config config = trainer_default();
    trainer t;
    iso_module *outer;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_status status = iso_autocast_create_take(iso_module_retain(t.model), ISO_BF16, &outer);
    iso_assert_all(status == ISO_ERR_STATE && !outer);
    iso_assert_all(strstr(iso_last_error()->message, "create the Autocast first") != NULL);
    trainer_destroy(&t);
}
