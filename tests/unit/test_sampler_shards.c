// SPDX-License-Identifier: MIT
// The sampler of ranks that have shards of their own: every rank as many batches as it should, of
// its own samples.
#include "common/balance.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <string.h>

TestSuite(sampler_shards, .fini = balance_check, .timeout = 60);

enum { RANKS = 4, ROOM = 64 };

static const int64_t counts[RANKS] = {7, 3, 10, 4};

static iso_sampler_config shard_of(int rank, int64_t batch, iso_sampler_end end) {
    return (iso_sampler_config){.count = counts[rank],
                                .batch = batch,
                                .rank = rank,
                                .ranks = RANKS,
                                .seed = 5,
                                .shuffle = true,
                                .end = end,
                                .shard_least = 3,
                                .shard_most = 10};
}

// All samples of an epoch into order, sizes of batches into sizes; returns the number of batches.
static int64_t collect(iso_sampler_config config, int64_t epoch, int64_t order[ROOM],
                       int64_t sizes[ROOM]) {
    iso_sampler *sampler = NULL;
    int64_t n = 0;
    cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_OK, "%s", iso_last_error()->message);
    cr_assert_eq(iso_sampler_set_epoch(sampler, epoch), ISO_OK);
    int64_t batches = iso_sampler_batches(sampler);
    for (int64_t k = 0; k < batches; k++) {
        const int64_t *share;
        sizes[k] = iso_sampler_batch(sampler, k, &share);
        memcpy(order + n, share, (size_t)sizes[k] * sizeof(int64_t));
        n += sizes[k];
    }
    iso_sampler_destroy(&sampler);
    return batches;
}

// The first `count` are a permutation; what follows is it again.
static void check_order(const int64_t *order, int64_t count, int64_t all) {
    int seen[ROOM] = {0};
    for (int64_t i = 0; i < all; i++) {
        cr_assert(order[i] >= 0 && order[i] < count);
        if (i < count) cr_assert_eq(seen[order[i]]++, 0);
        if (i >= count) cr_assert_eq(order[i], order[i - count]);
    }
}

// The largest shard has 10 samples: batches of 4, 4 and 2, on every rank.
Test(sampler_shards, padding_gives_every_rank_the_batches_of_the_largest) {
    for (int rank = 0; rank < RANKS; rank++) {
        int64_t order[ROOM], sizes[ROOM];
        cr_assert_eq(collect(shard_of(rank, 4, ISO_SAMPLER_PAD), 1, order, sizes), 3);
        cr_assert(sizes[0] == 4 && sizes[1] == 4 && sizes[2] == 2);
        check_order(order, counts[rank], 10);
    }
}

// The smallest shard has 3 samples: one batch of 2, or of 3.
Test(sampler_shards, dropping_gives_every_rank_the_batches_of_the_smallest) {
    for (int rank = 0; rank < RANKS; rank++)
        for (int64_t batch = 2; batch <= 3; batch++) {
            int64_t order[ROOM], sizes[ROOM];
            cr_assert_eq(collect(shard_of(rank, batch, ISO_SAMPLER_DROP), 1, order, sizes), 1);
            cr_assert_eq(sizes[0], batch);
            check_order(order, counts[rank], batch);
        }
}

Test(sampler_shards, sharing_counts_every_sample_once) {
    for (int rank = 0; rank < RANKS; rank++)
        for (int64_t batch = 1; batch < 12; batch++) {
            int64_t order[ROOM], sizes[ROOM], all = 0;
            int64_t n = collect(shard_of(rank, batch, ISO_SAMPLER_SHARE), 0, order, sizes);
            for (int64_t k = 0; k < n; k++) all += sizes[k];
            cr_assert(all == counts[rank] && n == (counts[rank] + batch - 1) / batch);
            check_order(order, counts[rank], all);
        }
}

Test(sampler_shards, one_shard_is_the_whole_set) {
    const iso_sampler_end ends[] = {ISO_SAMPLER_PAD, ISO_SAMPLER_DROP, ISO_SAMPLER_SHARE};
    for (int i = 0; i < 3; i++)
        for (int64_t batch = 1; batch < 12; batch++) {
            int64_t whole[ROOM] = {0}, shard[ROOM] = {0}, sizes[2][ROOM] = {{0}};
            iso_sampler_config config = {.count = 11,
                                         .batch = batch,
                                         .ranks = 1,
                                         .seed = 2,
                                         .shuffle = true,
                                         .end = ends[i]};
            int64_t n = collect(config, 3, whole, sizes[0]);
            config.shard_least = config.shard_most = 11;
            cr_assert_eq(collect(config, 3, shard, sizes[1]), n);
            cr_assert_eq(memcmp(whole, shard, sizeof(whole)), 0);
            cr_assert_eq(memcmp(sizes[0], sizes[1], sizeof(sizes[0])), 0);
        }
}

// Equal shards are drawn from in other orders, which change from epoch to epoch.
Test(sampler_shards, every_rank_has_a_permutation_of_its_own) {
    int64_t order[RANKS][ROOM] = {{0}}, sizes[ROOM];
    for (int i = 0; i < RANKS; i++) {
        iso_sampler_config config = {.count = 20,
                                     .batch = 20,
                                     .rank = i % 2,
                                     .ranks = 2,
                                     .seed = 1,
                                     .shuffle = true,
                                     .shard_least = 20,
                                     .shard_most = 20};
        collect(config, i / 2, order[i], sizes);
        for (int j = 0; j < i; j++)
            cr_assert_neq(memcmp(order[i], order[j], sizeof(order[i])), 0, "%d, %d", i, j);
        config.shuffle = false;
        collect(config, i / 2, order[i], sizes);
        for (int k = 0; k < 20; k++) cr_assert_eq(order[i][k], k);
        config.shuffle = true;
        collect(config, i / 2, order[i], sizes);
    }
}

static void refuse(iso_sampler_config config, const char *words) {
    iso_sampler *sampler = NULL;
    cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, words), "no \"%s\" in: %s", words,
              iso_last_error()->message);
    cr_assert_null(sampler);
}

Test(sampler_shards, what_cannot_be_is_refused) {
    iso_sampler_config config = shard_of(0, 4, ISO_SAMPLER_DROP);
    refuse(config, "the smallest shard has 3 samples, less than one batch of 4");
    refuse(shard_of(0, 4, ISO_SAMPLER_OVERLAP), "nothing to overlap");
    config = shard_of(0, 4, ISO_SAMPLER_PAD), config.count = 11;
    refuse(config, "a shard of 11 samples is not among shards of 3 to 10");
    config.count = 2;
    refuse(config, "a shard of 2 samples");
    config = shard_of(0, 4, ISO_SAMPLER_PAD), config.shard_least = 0;
    refuse(config, "among shards of 0 to 10");
}
