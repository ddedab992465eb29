// SPDX-License-Identifier: MIT
// The sampler with costs: each sample once, samples of neighbouring costs on all ranks, and epochs
// that differ.
#include "base/base.h"
#include "common/balance.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <math.h>
#include <string.h>

TestSuite(sampler_cost, .fini = balance_check, .timeout = 60);

enum { MOST = 512, RANKS = 5 };

// Different integers in no order, below 509, which is prime.
static double cost_of(int64_t sample, void *user) {
    (void)user;
    return (double)(sample * 123 % 509);
}

static double equal_cost(int64_t sample, void *user) {
    (void)sample;
    (void)user;
    return 3;
}

static iso_sampler_config config_of(int64_t count, int ranks, int64_t batch) {
    return (iso_sampler_config){.count = count,
                                .batch = batch,
                                .ranks = ranks,
                                .seed = 7,
                                .shuffle = true,
                                .cost = cost_of};
}

// All samples of an epoch: batch k of rank r begins at [r][k * batch].
typedef struct epoch {
    int64_t sample[RANKS][MOST], size[RANKS][MOST], batches[RANKS];
} epoch;

static void take_epoch(iso_sampler_config config, int64_t number, epoch *out) {
    for (config.rank = 0; config.rank < config.ranks; config.rank++) {
        iso_sampler *sampler;
        cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_OK);
        cr_assert_eq(iso_sampler_set_epoch(sampler, number), ISO_OK);
        int r = config.rank;
        out->batches[r] = iso_sampler_batches(sampler);
        for (int64_t k = 0; k < out->batches[r]; k++) {
            const int64_t *part;
            out->size[r][k] = iso_sampler_batch(sampler, k, &part);
            memcpy(&out->sample[r][k * config.batch], part,
                   (size_t)out->size[r][k] * sizeof(int64_t));
        }
        iso_sampler_destroy(&sampler);
    }
}

static void count_samples(const iso_sampler_config *c, const epoch *e, int times[MOST]) {
    memset(times, 0, MOST * sizeof(int));
    for (int r = 0; r < c->ranks; r++)
        for (int64_t k = 0; k < e->batches[r]; k++)
            for (int64_t j = 0; j < e->size[r][k]; j++) times[e->sample[r][k * c->batch + j]]++;
}

static epoch e, f;

Test(sampler_cost, each_sample_once) {
    static const iso_sampler_end end[] = {ISO_SAMPLER_PAD, ISO_SAMPLER_SHARE, ISO_SAMPLER_DROP};
    int times[MOST];
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int64_t count = 97; count < 120; count++)
            for (int k = 0; k < 3; k++) {
                iso_sampler_config config = config_of(count, ranks, 7);
                config.end = end[k];
                config.cost_noise = .1;
                take_epoch(config, count, &e);
                count_samples(&config, &e, times);
                int64_t all = 0, twice = 0;
                for (int64_t i = 0; i < count; i++) all += times[i];
                for (int64_t i = 0; i < count; i++) twice += times[i] > 1;
                int64_t want = end[k] == ISO_SAMPLER_PAD    ? (count + ranks - 1) / ranks * ranks
                               : end[k] == ISO_SAMPLER_DROP ? count / (7 * ranks) * 7 * ranks
                                                            : count;
                cr_assert(all == want && twice == (want > count ? want - count : 0),
                          "%d ranks, %lld samples, end %d: %lld, %lld twice", ranks,
                          (long long)count, (int)end[k], (long long)all, (long long)twice);
            }
}

// The largest difference between the costs of the j-th samples of the ranks' batches.
static double widest_group(const iso_sampler_config *c, const epoch *from, int64_t batches) {
    double widest = 0;
    for (int64_t i = 0; i < batches * c->batch; i++) {
        double least = INFINITY, most = -INFINITY;
        for (int r = 0; r < c->ranks; r++) {
            least = fmin(least, cost_of(from->sample[r][i], NULL));
            most = fmax(most, cost_of(from->sample[r][i], NULL));
        }
        widest = fmax(widest, most - least);
    }
    return widest;
}

// All 509 costs from 0 to 508: the members of a group are consecutive.
Test(sampler_cost, ranks_get_neighbours) {
    for (int ranks = 2; ranks <= RANKS; ranks++) {
        iso_sampler_config config = config_of(509, ranks, 8);
        int lowest = 0;
        for (int64_t number = 0; number < 3; number++) {
            take_epoch(config, number, &e);
            cr_assert_eq(widest_group(&config, &e, 509 / (8 * ranks)), ranks - 1);
            for (int64_t i = 0; i < 64; i++)
                lowest += cost_of(e.sample[0][i], NULL) < cost_of(e.sample[1][i], NULL);
        }
        cr_assert(lowest > 60 && lowest < 132, "rank 0 is below rank 1 in %d of 192", lowest);
    }
}

// Raised by up to 0.02 of the range, members differ by little more than that.
Test(sampler_cost, noise_mixes_neighbours) {
    iso_sampler_config config = config_of(509, 4, 8);
    config.cost_noise = .02;
    take_epoch(config, 0, &e);
    double widest = widest_group(&config, &e, 15);
    cr_assert(widest > 4 && widest < .02 * 508 + 10, "%g", widest);
}

// Groups are shuffled, other ones in each epoch; of equal costs any samples form a group.
Test(sampler_cost, epochs_differ) {
    double mean = 0;
    int moved = 0;
    iso_sampler_config config = config_of(500, 4, 5);
    take_epoch(config, 0, &e);
    take_epoch(config, 1, &f);
    for (int64_t i = 0; i < 50; i++) mean += cost_of(e.sample[2][i], NULL) / 50;
    for (int64_t i = 0; i < 50; i++) moved += e.sample[2][i] != f.sample[2][i];
    cr_assert(mean > 180 && mean < 330, "%g", mean);
    cr_assert(moved > 40);
    config.cost = equal_cost;
    take_epoch(config, 0, &e);
    take_epoch(config, 1, &f);
    moved = 0;
    for (int64_t i = 0; i < 50; i++) moved += e.sample[2][i] != f.sample[2][i];
    cr_assert(moved > 40);
    take_epoch(config, 0, &f);
    cr_assert_arr_eq(&e, &f, sizeof(e));
}

// What is left over at the end of an epoch are other samples in each epoch.
Test(sampler_cost, drops_any_sample) {
    int times[MOST], dropped[MOST] = {0}, different = 0;
    iso_sampler_config config = config_of(122, 5, 8);
    config.end = ISO_SAMPLER_DROP;
    for (int64_t number = 0; number < 40; number++) {
        take_epoch(config, number, &e);
        count_samples(&config, &e, times);
        for (int i = 0; i < 122; i++) dropped[i] += times[i] == 0;
    }
    for (int i = 0; i < 122; i++) {
        different += dropped[i] > 0;
        cr_assert(dropped[i] < 20);
    }
    cr_assert(different > 30, "%d", different);
}

Test(sampler_cost, without_shuffle_the_cheapest_come_first) {
    iso_sampler_config config = config_of(509, 3, 4);
    config.shuffle = false;
    config.cost_noise = .5;
    take_epoch(config, 0, &e);
    for (int64_t i = 0; i < 160; i++)
        for (int r = 0; r < 3; r++)
            cr_assert(cost_of(e.sample[r][i], NULL) == (double)(3 * i + r), "rank %d, %lld", r,
                      (long long)i);
}

static double wrong_cost(int64_t sample, void *user) {
    return sample == 5 ? *(const double *)user : 1;
}

Test(sampler_cost, wrong_settings_are_refused) {
    double bad = NAN;
    iso_sampler *sampler = NULL;
    iso_sampler_config config = config_of(50, 2, 4);
    config.cost = wrong_cost;
    config.cost_user = &bad;
    cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "sample 5 is nan"));
    bad = 1;
    config.cost_noise = -1;
    cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_ERR_ARG);
    config.cost_noise = 0;
    config.end = ISO_SAMPLER_OVERLAP;
    cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_ERR_ARG);
    config.end = ISO_SAMPLER_PAD;
    config.shard_least = config.shard_most = 50;
    cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_ERR_ARG);
    cr_assert_null(sampler);
}
