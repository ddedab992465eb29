// SPDX-License-Identifier: MIT
// Data-parallel training on CPUs with math "bf16": lazy updates have the bits of blocking ones, and
// later steps make nothing.
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "device/cpu/cpu_impl.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(np2_cpu_bf16_ranks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static bool supported(void) {
    iso_device *device;
    iso_assert_ok(iso_device_create("cpu", &device));
    iso_status status = iso_device_set_math(device, "bf16");
    iso_device_destroy(&device);
    return strcmp(test_device(), "cpu") == 0 && status == ISO_OK;
}

static iso_status (*network)(iso_device *device, bool dropout, iso_module **out) = build_small_cnn;

static iso_status build_in_bf16(iso_device *device, bool dropout, iso_module **out) {
    ISO_TRY(iso_device_set_math(device, "bf16"));
    iso__cpu_of(device)->bf16_always = true;
    return network(device, dropout, out);
}

static uint64_t hash_after(const trainer_config *config) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_run(test_comm, config, 20, &hash));
    return hash;
}

// Of the weight that is cut.
static int pieces_of(const trainer_config *config) {
    trainer t;
    int most = 0;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    for (int i = 0; i < 4; i++) {
        int pieces = iso_reducer_pieces(iso_data_parallel_reducer(t.model), i);
        most = pieces > most ? pieces : most;
    }
    trainer_destroy(&t);
    return most;
}

static void lazy_has_the_bits_of_blocking(double piece_mb) {
    if (!test_all(supported(), "bf16")) test_mpi_skip("the CPUs have no AVX512_BF16");
    trainer_config config = trainer_default();
    config.build = network;
    config.piece_mb = piece_mb;
    iso_assert_all((pieces_of(&config) > 1) == (piece_mb > 0));
    uint64_t f32 = hash_after(&config);
    config.build = build_in_bf16;
    uint64_t lazy = hash_after(&config);
    config.sync = ISO_SYNC_BLOCKING;
    uint64_t blocking = hash_after(&config);
    iso_assert_all(lazy == blocking && lazy != f32);
}

Test(np2_cpu_bf16_ranks, lazy_steps_have_the_bits_of_blocking_ones) {
    lazy_has_the_bits_of_blocking(0);
}

Test(np2_cpu_bf16_ranks, lazy_steps_with_pieces_have_the_bits_of_blocking_ones) {
    network = build_wide_mlp;
    lazy_has_the_bits_of_blocking(0.01);
}

Test(np2_cpu_bf16_ranks, later_steps_make_nothing) {
    if (!test_all(supported(), "bf16")) test_mpi_skip("the CPUs have no AVX512_BF16");
    trainer_config config = trainer_default();
    config.build = build_in_bf16;
    trainer t;
    long long before, after;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    iso_memory_balance(NULL, NULL, &before);
    long long primitives = iso_device_primitives_created(t.device);
    iso_assert_ok(trainer_train(&t, 10));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before && iso_device_primitives_created(t.device) == primitives);
    trainer_destroy(&t);
}
