// SPDX-License-Identifier: MIT
// Steps that are launched as CUDA graphs: the same bits as launch by launch, whatever changes from
// step to step.
#include "common/balance.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/parallel.h>

static void setup(void) {
    setenv("ISO_TEST_DEVICE", "cuda", 1);
    test_mpi_setup();
}

TestSuite(np1_gpu_graphs, .init = setup, .fini = test_mpi_teardown, .timeout = 300);
TestSuite(np2_gpu_graphs, .init = setup, .fini = test_mpi_teardown, .timeout = 300);

static void need_gpu(void) {
    if (iso_device_count("cuda") == 0) test_mpi_skip("there is no GPU, or no CUDA in this build");
}

typedef struct outcome {
    uint64_t hash;
    long long launches, graphs; // of the last steps
    long long made;             // graphs made in the last steps
} outcome;

enum { STEPS = 24, LAST = 8 };

// The learning rate changes in every step, or once when graphs have long been made.
static double rate(int step, bool smooth) {
    return smooth ? 0.05 / (1 + 0.01 * step) : step < STEPS - 3 ? 0.05 : 0.01;
}

static iso_status train(trainer *t, bool smooth, outcome *out) {
    long long launches = 0, graphs = 0, made = 0;
    for (int step = 0; step < STEPS; step++) {
        if (step == STEPS - LAST) {
            iso_device_launches(t->device, &launches, &graphs);
            made = iso_device_primitives_created(t->device);
        }
        iso_optimizer_hyper(t->optimizer)->lr = rate(step, smooth);
        double loss;
        iso_status status = trainer_step(t, step, &loss);
        if (status < 0) return status;
    }
    iso_device_launches(t->device, &out->launches, &out->graphs);
    out->launches -= launches;
    out->graphs -= graphs;
    out->made = iso_device_primitives_created(t->device) - made;
    return trainer_hash(t, &out->hash);
}

static outcome run(const char *graphs, iso_sync sync, bool dropout, bool smooth) {
    trainer t;
    outcome out = {0};
    trainer_config config = trainer_default();
    config.sync = sync;
    config.dropout = dropout;
    setenv("ISO_CUDA_GRAPHS", graphs, 1);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(train(&t, smooth, &out));
    trainer_destroy(&t);
    return out;
}

static void graphs_change_no_bits(iso_sync sync, bool dropout, bool smooth) {
    need_gpu();
    outcome without = run("0", sync, dropout, smooth), with = run("1", sync, dropout, smooth);
    iso_assert_all(with.hash == without.hash);
    iso_assert_all(without.graphs == 0 && without.launches == with.launches);
    iso_assert_all(with.graphs >= 2 * LAST); // every step has some
    // Soon no new ones come; with several ranks what has come back earlier is updated earlier.
    iso_assert_all(with.made == 0 || iso_comm_size(test_comm) > 1);
}

Test(np1_gpu_graphs, change_no_bits) { graphs_change_no_bits(ISO_SYNC_LAZY, false, true); }
Test(np1_gpu_graphs, take_a_sudden_learning_rate) {
    graphs_change_no_bits(ISO_SYNC_LAZY, false, false);
}
Test(np1_gpu_graphs, change_no_bits_with_dropout) {
    graphs_change_no_bits(ISO_SYNC_LAZY, true, true);
}
Test(np2_gpu_graphs, change_no_bits) { graphs_change_no_bits(ISO_SYNC_LAZY, false, true); }
Test(np2_gpu_graphs, take_a_sudden_learning_rate) {
    graphs_change_no_bits(ISO_SYNC_LAZY, false, false);
}
Test(np2_gpu_graphs, change_no_bits_of_blocking_steps) {
    graphs_change_no_bits(ISO_SYNC_BLOCKING, false, true);
}
