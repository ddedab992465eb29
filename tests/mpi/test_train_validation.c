// SPDX-License-Identifier: MIT
// --validation: how the training set is divided, and what --early-stopping makes of it, resumed
// runs included.
#include "common/mpi_fixture.h"
#include "common/train_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_train_validation, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_train_validation, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_train_validation, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { IMAGES = 120, KEPT = 30 };

static train_world world;

static void open_world(double fraction, int64_t seed) {
    train_options options = {.validation = fraction, .seed = seed};
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(train_validation_split(&world, &options));
}

// ---- The split --------------------------------------------------------------------------------------

static int count_image(const iso_dataset *set, const uint8_t *image, int32_t label) {
    iso_dataset_info info;
    int count = 0;
    iso_dataset_get_info(set, &info);
    for (int64_t i = 0; i < info.count; i++) {
        int32_t other;
        const uint8_t *pixels = iso_dataset_image(set, i, &other);
        count += other == label && memcmp(pixels, image, (size_t)(info.height * info.width)) == 0;
    }
    return count;
}

// Every image is in one of the two sets.
static void each_image_is_in_one_set(void) {
    train_world whole;
    iso_dataset_info info;
    int kept = 0;
    iso_assert_ok(train_world_small(test_comm, IMAGES, &whole));
    open_world(0.25, 1);
    iso_dataset_get_info(world.validation_set, &info);
    iso_assert_all(info.count == KEPT && world.info.count == IMAGES - KEPT && info.classes == 4);
    iso_assert_all(world.info.classes == 4);
    for (int64_t i = 0; i < IMAGES; i++) {
        int32_t label;
        const uint8_t *image = iso_dataset_image(whole.train_set, i, &label);
        int in_rest = count_image(world.train_set, image, label);
        int in_kept = count_image(world.validation_set, image, label);
        cr_assert(in_rest + in_kept == 1, "image %d: %d and %d", (int)i, in_rest, in_kept);
        kept += in_kept;
    }
    iso_assert_all(kept == KEPT);
    train_world_close(&whole);
    train_world_close(&world);
}

Test(np1_train_validation, each_image_is_in_one_set) { each_image_is_in_one_set(); }

static uint64_t split_of(int64_t seed) {
    open_world(0.25, seed);
    uint64_t sum = iso_dataset_checksum(world.validation_set);
    train_world_close(&world);
    return sum;
}

Test(np3_train_validation, seed_alone_decides) {
    uint64_t mine = split_of(5);
    iso_assert_all(mine == split_of(5) && mine != split_of(6));
    iso_assert_ok(iso_comm_check_same(test_comm, mine, "the validation set"));
}

// ---- Early stopping ---------------------------------------------------------------------------------

// 5 steps an epoch, in which nothing is learnt: the first epoch stays the best one.
static void write_line(char line[300], const char *more) {
    snprintf(line, 300, "--model mlp --batch %d --epochs 9 --lr 1e-12 --validation 0.25 %s",
             18 / test_size, more);
}

static void last_epoch(int64_t epoch, const train_metrics *metrics, void *user) {
    (void)metrics;
    *(int64_t *)user = epoch;
}

static void stops_without_improvement(void) {
    char line[300];
    int64_t last = -1;
    train_result result;
    train_observer observer = {.epoch = last_epoch, .user = &last};
    open_world(0.25, 1);
    write_line(line, "--early-stopping 2");
    iso_assert_all(train_line(&world, line, &observer, &result));
    iso_assert_all(result.steps == 15 && last == 2 && result.loss_steps == 5);
    iso_assert_all(isfinite(result.metrics.train_loss) && result.metrics.train_loss > 0);
    write_line(line, "--early-stopping 20");
    iso_assert_all(train_line(&world, line, NULL, &result));
    iso_assert_all(result.steps == 45);
    train_world_close(&world);
}

Test(np1_train_validation, stops_without_improvement) { stops_without_improvement(); }
Test(np3_train_validation, stops_without_improvement) { stops_without_improvement(); }

// ---- Resumed ----------------------------------------------------------------------------------------

static void remove_set(const char *path, int step) {
    char name[120];
    snprintf(name, sizeof(name), "%s.step-%012d.rank-%05d", path, step, test_rank);
    remove(name);
    name[strlen(name) - strlen(".rank-00000")] = 0;
    if (test_rank == 0) remove(name);
}

// It ends after epoch 4. Of the run that goes on behind epoch 3, that is the third without a better
// one, too.
Test(np2_train_validation, the_best_epoch_is_resumed) {
    char path[64], more[200], line[300];
    train_result whole, resumed;
    long place = getpid();
    open_world(0.25, 1);
    iso_assert_ok(iso_comm_bcast(test_comm, &place, sizeof(place), 0));
    snprintf(path, sizeof(path), "test_train_validation.%ld", place);
    snprintf(more, sizeof(more), "--early-stopping 3 --checkpoint %s --checkpoint-every 100", path);
    write_line(line, more);
    iso_assert_all(train_line(&world, line, NULL, &whole));
    remove_set(path, 20);
    iso_assert_ok(iso_comm_barrier(test_comm));
    strcat(strcat(line, " --resume "), path);
    iso_assert_all(train_line(&world, line, NULL, &resumed));
    iso_assert_all(whole.steps == 20 && resumed.steps == 20 && !resumed.already_finished);
    iso_assert_all(strcmp(whole.hash, resumed.hash) == 0);
    iso_assert_all(train_line(&world, line, NULL, &resumed) && resumed.already_finished);
    iso_assert_ok(iso_resume_remove(path));
    if (test_rank == 0) remove(path);
    train_world_close(&world);
}
