// SPDX-License-Identifier: MIT
// Augmentation: every image is its original, moved and mirrored; how often each way; and the same
// for any number of ranks.
#include "common/balance.h"
#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 4000, CHANNELS = 2, SIDE = 8, PIXELS = SIDE * SIDE, IMAGE = CHANNELS * PIXELS };

static uint8_t images[COUNT * IMAGE];
static int32_t labels[COUNT];

static iso_device *device;
static iso_dataset *dataset;

// Pixel (y, x) of channel c is 64 c + 8 y + x + 1: it tells where it was, and is never background.
static void setup(void) {
    for (int i = 0; i < COUNT; i++) {
        labels[i] = i;
        for (int p = 0; p < IMAGE; p++) images[i * IMAGE + p] = (uint8_t)(p + 1);
    }
    cr_assert_eq(iso_device_create("cpu", &device), ISO_OK);
    cr_assert_eq(iso_dataset_create(images, labels, COUNT, CHANNELS, SIDE, SIDE, COUNT, &dataset),
                 ISO_OK);
}

static void tear_down(void) {
    iso_dataset_destroy(&dataset);
    iso_device_destroy(&device);
    balance_check();
}
TestSuite(augment, .init = setup, .fini = tear_down, .timeout = 60);

// All pixels of an epoch, image i at i * IMAGE, as the bytes that they were.
static uint8_t *epoch_of(iso_sampler_config order, iso_loader_config config, int64_t epoch,
                         int64_t first) {
    const double zero[CHANNELS] = {0}, unit[CHANNELS] = {1 / 255.0, 1 / 255.0};
    static uint8_t memory[2][COUNT * IMAGE]; // the result lives for one further call
    static int turn;
    uint8_t *out = memory[turn = !turn];
    iso_loader *loader;
    iso_batch batch;
    memset(out, 255, sizeof(memory[0]));
    config.mean = zero;
    config.std = unit;
    cr_assert_eq(
        iso_loader_create_take(device, iso_dataset_retain(dataset), &order, &config, &loader),
        ISO_OK, "%s", iso_last_error()->message);
    cr_assert_eq(iso_loader_start(loader, epoch, first), ISO_OK);
    while (iso_loader_next(loader, &batch) == ISO_OK) {
        void *pixels;
        cr_assert_eq(iso_tensor_map(batch.images, ISO_READ, &pixels), ISO_OK);
        for (int64_t k = 0; k < batch.n * IMAGE; k++)
            out[batch.labels[k / IMAGE] * IMAGE + k % IMAGE] = (uint8_t)lround(
                config.dtype == ISO_F64 ? ((double *)pixels)[k] : (double)((float *)pixels)[k]);
        iso_tensor_unmap(batch.images);
    }
    iso_loader_destroy(&loader);
    return out;
}

static const iso_sampler_config all = {.batch = 100, .ranks = 1, .seed = 3, .shuffle = true};

typedef struct change {
    int down, right, mirrored;
} change;

// What was done to an image, told from two pixels near its middle, then checked at every pixel.
static change recognise(const uint8_t *image) {
    int a = image[4 * SIDE + 4] - 1, b = image[4 * SIDE + 3] - 1;
    change out = {.down = 4 - a / SIDE, .mirrored = b > a};
    out.right = 4 - (out.mirrored ? SIDE - 1 - a % SIDE : a % SIDE);
    for (int p = 0; p < IMAGE; p++) {
        int y = p % PIXELS / SIDE - out.down, x = p % SIDE - out.right;
        bool inside = y >= 0 && y < SIDE && x >= 0 && x < SIDE;
        if (out.mirrored) x = SIDE - 1 - x;
        cr_assert_eq(image[p], inside ? p / PIXELS * PIXELS + y * SIDE + x + 1 : 0);
    }
    return out;
}

Test(augment, off_leaves_every_byte) {
    cr_assert_eq(memcmp(epoch_of(all, ISO_LOADER_DEFAULT, 1, 0), images, sizeof(images)), 0);
}

// 25 places x mirrored or not: 80 of 4000 each, standard deviation 9; six of them are allowed.
Test(augment, every_change_is_equally_likely) {
    int count[50] = {0};
    const uint8_t *epoch =
        epoch_of(all, (iso_loader_config){.prefetch = 2, .shift = 2, .flip = 0.5}, 0, 0);
    for (int i = 0; i < COUNT; i++) {
        change c = recognise(epoch + i * IMAGE);
        cr_assert(c.down >= -2 && c.down <= 2 && c.right >= -2 && c.right <= 2);
        count[(c.down + 2) * 10 + (c.right + 2) * 2 + c.mirrored]++;
    }
    for (int i = 0; i < 50; i++)
        cr_assert(count[i] > 26 && count[i] < 134, "change %d came %d times", i, count[i]);
}

// 1000 of 4000, standard deviation 27; and where it is certain, all.
Test(augment, mirrors_as_often_as_told) {
    int mirrored[2] = {0};
    for (int all_of_them = 0; all_of_them < 2; all_of_them++) {
        const uint8_t *epoch =
            epoch_of(all, (iso_loader_config){.flip = all_of_them ? 1 : 0.25}, 0, 0);
        for (int i = 0; i < COUNT; i++) {
            change c = recognise(epoch + i * IMAGE);
            cr_assert(c.down == 0 && c.right == 0);
            mirrored[all_of_them] += c.mirrored;
        }
    }
    cr_assert(mirrored[0] > 838 && mirrored[0] < 1162, "%d", mirrored[0]);
    cr_assert_eq(mirrored[1], COUNT);
}

// Moving alone does not mirror, and reaches the ends of its range.
Test(augment, moves_as_far_as_told) {
    int most = 0;
    const uint8_t *epoch = epoch_of(all, (iso_loader_config){.shift = 3}, 0, 0);
    for (int i = 0; i < COUNT; i++) {
        change c = recognise(epoch + i * IMAGE);
        cr_assert(!c.mirrored && abs(c.down) <= 3 && abs(c.right) <= 3);
        most += abs(c.down) == 3 && abs(c.right) == 3;
    }
    cr_assert_gt(most, 0);
}

// Whoever has a sample, in whatever thread and type, from wherever in the epoch.
Test(augment, ranks_draw_what_one_rank_draws) {
    const iso_loader_config config = {.prefetch = 2, .shift = 2, .flip = 0.5};
    static uint8_t one[COUNT * IMAGE];
    memcpy(one, epoch_of(all, config, 5, 0), sizeof(one));
    for (int ranks = 2; ranks <= 5; ranks++) {
        for (int rank = 0; rank < ranks; rank++) {
            iso_loader_config own = config;
            iso_sampler_config order = all;
            order.batch = 30;
            order.ranks = ranks;
            order.rank = rank;
            order.end = ranks % 2 ? ISO_SAMPLER_OVERLAP : ISO_SAMPLER_PAD;
            own.prefetch = rank;
            own.dtype = rank == 1 ? ISO_F64 : ISO_F32;
            const uint8_t *part = epoch_of(order, own, 5, rank);
            int had = 0;
            for (int i = 0; i < COUNT; i++) {
                if (part[i * IMAGE] == 255) continue;
                had++;
                cr_assert_eq(memcmp(part + i * IMAGE, one + i * IMAGE, IMAGE), 0);
            }
            cr_assert(had > COUNT / ranks - 30 * (rank + 1) && had <= COUNT / ranks + 1);
        }
    }
}

// Of 50 changes, two draws agree in 1 of 50: 80 of 4000, standard deviation 9.
Test(augment, epoch_and_seed_decide_the_draws) {
    const iso_loader_config config = {.shift = 2, .flip = 0.5};
    iso_sampler_config other = all;
    other.seed = 4;
    for (int k = 0; k < 2; k++) {
        int equal = 0;
        const uint8_t *a = epoch_of(all, config, 0, 0);
        const uint8_t *b = k ? epoch_of(other, config, 0, 0) : epoch_of(all, config, 1, 0);
        for (int i = 0; i < COUNT; i++) equal += memcmp(a + i * IMAGE, b + i * IMAGE, IMAGE) == 0;
        cr_assert(equal > 26 && equal < 134, "%d", equal);
    }
}
