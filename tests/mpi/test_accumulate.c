// SPDX-License-Identifier: MIT
// train --accumulate: K batches of b samples make the update of one batch of K b, with one
// exchange.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/train_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(np1_accumulate, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np2_accumulate, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_accumulate, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

// Divisible by no batch: epochs end with a smaller update whose last batch is smaller, too.
enum { IMAGES = 101 };

static train_world world;

static void compare(const char *common, const char *small, const char *large, double tolerance) {
    char line[400];
    train_curve a = {.count = 0}, b = {.count = 0};
    train_result first, second;
    snprintf(line, sizeof(line), "%s %s", common, small);
    iso_assert_all(train_curve_of(&world, line, &a, &first));
    snprintf(line, sizeof(line), "%s %s", common, large);
    iso_assert_all(train_curve_of(&world, line, &b, &second));
    if (test_rank == 0)
        fprintf(stderr, "%s | %s: %d updates, difference %.3g\n", small, large, a.count,
                train_curve_difference(&a, &b));
    iso_assert_all(first.steps == second.steps && first.metrics.samples == second.metrics.samples);
    iso_assert_all(train_curve_difference(&a, &b) < tolerance);
    iso_assert_all(b.count > 1 && b.test_loss[0] - b.test_loss[b.count - 1] > 1e4 * tolerance);
}

// ---- Equal to a large batch -----------------------------------------------------------------------

#define MLP "--model mlp --optimizer sgd --momentum 0.9 --lr 0.02 --dtype f64 "
static const char sgd[] = MLP "--schedule constant --epochs 2";

static void equals_large_batches(void) {
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    compare(sgd, "--batch 4 --accumulate 2", "--batch 8", 1e-9);
    compare(sgd, "--batch 4 --accumulate 5", "--batch 20", 1e-9);
    compare(sgd, "--batch 4 --accumulate 3 --sampler overlap", "--batch 12 --sampler overlap",
            1e-9);
    // More than an epoch has: one update of everything.
    compare(sgd, "--batch 7 --accumulate 100", "--batch 101", 1e-9);
    train_world_close(&world);
}

Test(np1_accumulate, equals_large_batches) { equals_large_batches(); }
Test(np2_accumulate, equals_large_batches) { equals_large_batches(); }
Test(np3_accumulate, equals_large_batches) { equals_large_batches(); }

static void with_other_options(void) {
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    compare(sgd, "--batch 3 --accumulate 4 --sync blocking", "--batch 12", 1e-9);
    compare(sgd, "--batch 4 --accumulate 3 --clip-grad-norm 0.3", "--batch 12 --clip-grad-norm 0.3",
            1e-9);
    // Schedules and --steps count updates.
    compare(MLP "--schedule one-cycle --steps 7", "--batch 4 --accumulate 2", "--batch 8", 1e-9);
    train_world_close(&world);
}

Test(np2_accumulate, with_other_options) { with_other_options(); }
Test(np3_accumulate, with_other_options) { with_other_options(); }

// Samples that drop leaves out are other ones with larger batches; here none are.
Test(np2_accumulate, with_dropped_samples) {
    iso_assert_ok(train_world_small(test_comm, 96, &world));
    compare(sgd, "--batch 4 --accumulate 3 --sampler drop", "--batch 12 --sampler drop", 1e-9);
    train_world_close(&world);
}

// What a periodic mode exchanges are the parameters after an update, whatever that was made of.
// With a shard of its own each rank takes the same samples for both.
static void with_exchanges_of_parameters(void) {
    static const char f32[] = "--model mlp --optimizer sgd --momentum 0 --lr 0.02 --schedule "
                              "constant --epochs 3 --sampler overlap";
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    const char *const mode[] = {"--sync localsgd --period 2", "--sync postlocal --period 2",
                                "--sync daso --period 3 --wait 1 --wire f32", "--sync daso-heat"};
    for (int i = 0; i < 4; i++) {
        char common[300];
        snprintf(common, sizeof(common), "%s %s", f32, mode[i]);
        compare(common, "--batch 3 --accumulate 4", "--batch 12", 1e-5);
    }
    train_world_close(&world);
}

Test(np1_accumulate, with_exchanges_of_parameters) { with_exchanges_of_parameters(); }
Test(np2_accumulate, with_exchanges_of_parameters) { with_exchanges_of_parameters(); }
Test(np3_accumulate, with_exchanges_of_parameters) { with_exchanges_of_parameters(); }

// ---- Exchanges ------------------------------------------------------------------------------------

static void exchanges_once(void) {
    train_result one, many;
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_all(train_line(&world, "--model mlp --batch 3 --epochs 2", NULL, &one));
    iso_assert_all(
        train_line(&world, "--model mlp --batch 3 --epochs 2 --accumulate 4", NULL, &many));
    iso_assert_all(one.bytes_per_step == many.bytes_per_step && many.bytes_per_step > 0);
    int64_t times = 2 * (test_size - 1); // what a sum in the memory of a node moves, by all ranks
    iso_assert_all(one.bytes_sent == one.steps * one.bytes_per_step * times);
    iso_assert_all(many.bytes_sent == many.steps * many.bytes_per_step * times);
    iso_assert_all(one.bytes_between_nodes == 0 && many.bytes_between_nodes == 0);
    iso_assert_all(many.steps < one.steps && many.metrics.samples == one.metrics.samples);
    train_world_close(&world);
}

Test(np2_accumulate, exchanges_once) { exchanges_once(); }
Test(np3_accumulate, exchanges_once) { exchanges_once(); }

// ---- Random layers ---------------------------------------------------------------------------------

// Within one update every forward draws masks of its own.
Test(np2_accumulate, masks_do_not_repeat) {
    trainer_config config = trainer_default();
    trainer t;
    iso_tensor *out;
    void *data;
    float first[64 * TRAINER_CLASSES];
    config.dropout = true;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    for (int k = 0; k < 2; k++) {
        iso_assert_ok(trainer_forward(&t, 0, &out));
        iso_assert_ok(iso_tensor_map(out, ISO_READ, &data));
        size_t bytes = (size_t)iso_tensor_count(out) * sizeof(float);
        iso_assert_all(k == 0 || memcmp(first, data, bytes) != 0);
        memcpy(first, data, bytes);
        iso_assert_ok(iso_tensor_unmap(out));
        iso_assert_ok(trainer_backward(&t, 0));
    }
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    trainer_destroy(&t);
}

// ---- Misuse ---------------------------------------------------------------------------------------

Test(np1_accumulate, wrong_values_are_refused) {
    train_options options;
    const char *const wrong[] = {"0", "-1", "2.5", "many"};
    for (int i = 0; i < 4; i++) {
        char value[16], *words[] = {"train", "--accumulate", value};
        snprintf(value, sizeof(value), "%s", wrong[i]);
        cr_assert_eq(train_options_parse(3, words, &options), ISO_ERR_ARG);
        cr_assert(strstr(train_error_text(), "--accumulate"), "says %s", train_error_text());
    }
}
