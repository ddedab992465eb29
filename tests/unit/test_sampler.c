// SPDX-License-Identifier: MIT
// The sampler: one permutation for any number of ranks, each sample once, and what happens at the
// end.
#include "common/balance.h"
#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <stdlib.h>
#include <string.h>

TestSuite(sampler, .fini = balance_check, .timeout = 60);

static iso_sampler *create(iso_sampler_config config, int64_t epoch) {
    iso_sampler *sampler = NULL;
    cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_OK, "%s", iso_last_error()->message);
    cr_assert_eq(iso_sampler_set_epoch(sampler, epoch), ISO_OK);
    return sampler;
}

// All samples of an epoch in order: global batch after global batch, in it rank after rank. Returns
// their number; `order` has room for count + ranks.
static int64_t collect(iso_sampler_config config, int64_t epoch, int64_t *order) {
    iso_sampler *sampler[8];
    int64_t n = 0;
    for (config.rank = 0; config.rank < config.ranks; config.rank++)
        sampler[config.rank] = create(config, epoch);
    for (int64_t k = 0; k < iso_sampler_batches(sampler[0]); k++) {
        for (int r = 0; r < config.ranks; r++) {
            const int64_t *part;
            if (config.end == ISO_SAMPLER_SHARE && k == iso_sampler_batches(sampler[r])) continue;
            int64_t size = iso_sampler_batch(sampler[r], k, &part);
            cr_assert(config.end == ISO_SAMPLER_SHARE ||
                      iso_sampler_batches(sampler[r]) == iso_sampler_batches(sampler[0]));
            cr_assert(size > 0 && size <= config.batch);
            memcpy(order + n, part, (size_t)size * sizeof(int64_t));
            n += size;
        }
    }
    for (int r = 0; r < config.ranks; r++) iso_sampler_destroy(&sampler[r]);
    return n;
}

static const int rank_counts[] = {1, 2, 3, 4, 7};

// N ranks with batch b see what one rank with batch N * b sees; padding only adds at the end.
Test(sampler, ranks_split_the_batches_of_one_rank) {
    int64_t one[1100], many[1100];
    for (int i = 0; i < 5; i++) {
        for (int count = 1003; count <= 1008; count++) {
            int ranks = rank_counts[i];
            iso_sampler_config config = {
                .count = count, .batch = 16, .ranks = ranks, .seed = 5, .shuffle = true};
            int64_t n = collect(config, 3, many);
            config.batch *= ranks;
            config.ranks = 1;
            cr_assert_eq(collect(config, 3, one), count);
            cr_assert_eq(memcmp(one, many, (size_t)count * sizeof(int64_t)), 0);
            cr_assert_eq(n, (count + ranks - 1) / ranks * ranks);
            for (int64_t p = count; p < n; p++) cr_assert_eq(many[p], one[p - count]);
        }
    }
}

Test(sampler, every_sample_comes_once) {
    int64_t order[1100];
    for (int i = 0; i < 5; i++) {
        iso_sampler_config config = {
            .count = 1000, .batch = 9, .ranks = rank_counts[i], .seed = 1, .shuffle = true};
        int seen[1000] = {0};
        collect(config, 0, order);
        for (int j = 0; j < 1000; j++) seen[order[j]]++;
        for (int j = 0; j < 1000; j++) cr_assert_eq(seen[j], 1);
    }
}

// 10 samples, 3 ranks, 2 each: 6, then 4 left, rounded up to 6 = 2 each.
Test(sampler, padding_gives_every_rank_the_same_size) {
    for (int rank = 0; rank < 3; rank++) {
        iso_sampler_config config = {.count = 10, .batch = 2, .rank = rank, .ranks = 3};
        iso_sampler *sampler = create(config, 0);
        const int64_t *part;
        const int64_t expected[3][2] = {{6, 7}, {8, 9}, {0, 1}};
        cr_assert_eq(iso_sampler_batches(sampler), 2);
        cr_assert_eq(iso_sampler_batch(sampler, 1, &part), 2);
        cr_assert_eq(memcmp(part, expected[rank], sizeof(expected[0])), 0);
        iso_sampler_destroy(&sampler);
    }
}

// 13 samples, 3 ranks, 4 each: one whole batch of 12, then 1 left, rounded up to 3 = 1 each.
Test(sampler, the_last_batch_is_no_larger_than_needed) {
    iso_sampler *sampler =
        create((iso_sampler_config){.count = 13, .batch = 4, .rank = 2, .ranks = 3}, 0);
    const int64_t *part;
    cr_assert_eq(iso_sampler_batches(sampler), 2);
    cr_assert_eq(iso_sampler_batch(sampler, 0, &part), 4);
    cr_assert_eq(part[0], 8);
    cr_assert_eq(iso_sampler_batch(sampler, 1, &part), 1);
    cr_assert_eq(part[0], 1);
    iso_sampler_destroy(&sampler);
}

Test(sampler, dropping_leaves_out_the_remainder) {
    int64_t order[1100];
    iso_sampler_config config = {.count = 1003, .batch = 10, .ranks = 4, .end = ISO_SAMPLER_DROP};
    cr_assert_eq(collect(config, 0, order), 1000);
    config.count = 1000;
    cr_assert_eq(collect(config, 0, order), 1000);
}

// Of every number of samples: each once, in the order of one rank, and none of the ranks with two
// samples more than another.
Test(sampler, sharing_counts_every_sample_once) {
    int64_t order[1100];
    for (int i = 0; i < 5; i++) {
        iso_sampler_config config = {.batch = 3, .ranks = rank_counts[i], .end = ISO_SAMPLER_SHARE};
        for (config.count = 1; config.count < 70; config.count++) {
            cr_assert_eq(collect(config, 0, order), config.count);
            for (int64_t k = 0; k < config.count; k++) cr_assert_eq(order[k], k);
        }
    }
}

// 7 samples on 3 ranks, 2 each: 6, then 1 for the first rank alone. 8: 6, then 1 for two ranks.
Test(sampler, sharing_splits_the_rest_evenly) {
    const int64_t batches[3][3] = {{2, 1, 1}, {2, 2, 1}, {2, 2, 2}};
    for (int rank = 0; rank < 3; rank++) {
        for (int count = 7; count <= 9; count++) {
            iso_sampler_config config = {
                .count = count, .batch = 2, .rank = rank, .ranks = 3, .end = ISO_SAMPLER_SHARE};
            iso_sampler *sampler = create(config, 0);
            const int64_t *part;
            cr_assert_eq(iso_sampler_batches(sampler), batches[count - 7][rank]);
            cr_assert_eq(iso_sampler_batch(sampler, 0, &part), 2);
            cr_assert_eq(part[0], 2 * rank);
            if (batches[count - 7][rank] == 2) {
                cr_assert_eq(iso_sampler_batch(sampler, 1, &part), 1);
                cr_assert_eq(part[0], 6 + rank);
            }
            iso_sampler_destroy(&sampler);
        }
    }
}

// The shards of pytorch-pfn-extras' create_distributed_subset_indices: from floor(count * rank /
// ranks) on, ceil(count / ranks) samples.
Test(sampler, overlapping_shards_are_those_of_pfn_extras) {
    const struct {
        int count, ranks, size, begin[4];
    } golden[] = {{10, 3, 4, {0, 3, 6}}, {11, 4, 3, {0, 2, 5, 8}}, {8, 4, 2, {0, 2, 4, 6}}};
    for (int i = 0; i < 3; i++) {
        for (int rank = 0; rank < golden[i].ranks; rank++) {
            iso_sampler *sampler = create((iso_sampler_config){.count = golden[i].count,
                                                               .batch = 2,
                                                               .rank = rank,
                                                               .ranks = golden[i].ranks,
                                                               .end = ISO_SAMPLER_OVERLAP},
                                          0);
            int64_t next = golden[i].begin[rank];
            for (int64_t k = 0; k < iso_sampler_batches(sampler); k++) {
                const int64_t *part;
                int64_t n = iso_sampler_batch(sampler, k, &part);
                for (int64_t j = 0; j < n; j++) cr_assert_eq(part[j], next++);
            }
            cr_assert_eq(next, golden[i].begin[rank] + golden[i].size);
            iso_sampler_destroy(&sampler);
        }
    }
}

// Of every number of samples: each at least once, at most ranks - 1 of them twice, and (collect
// checks it) the same number of batches on all ranks.
Test(sampler, overlapping_leaves_nothing_out) {
    int64_t order[1100];
    for (int i = 0; i < 5; i++) {
        iso_sampler_config config = {.batch = 3,
                                     .ranks = rank_counts[i],
                                     .seed = 4,
                                     .shuffle = true,
                                     .end = ISO_SAMPLER_OVERLAP};
        for (config.count = config.ranks; config.count < 70; config.count++) {
            int seen[70] = {0};
            int64_t n = collect(config, 1, order);
            cr_assert_eq(n, (config.count + config.ranks - 1) / config.ranks * config.ranks);
            for (int64_t j = 0; j < n; j++) seen[order[j]]++;
            for (int64_t j = 0; j < config.count; j++) cr_assert(seen[j] == 1 || seen[j] == 2);
        }
    }
}

Test(sampler, unshuffled_samples_come_in_order) {
    int64_t order[100];
    collect((iso_sampler_config){.count = 90, .batch = 7, .ranks = 3, .seed = 9}, 4, order);
    for (int i = 0; i < 90; i++) cr_assert_eq(order[i], i);
}

static int64_t equal_places(iso_sampler_config a, int64_t epoch_a, iso_sampler_config b,
                            int64_t epoch_b) {
    int64_t first[1100], second[1100], equal = 0;
    collect(a, epoch_a, first);
    collect(b, epoch_b, second);
    for (int i = 0; i < 1000; i++) equal += first[i] == second[i];
    return equal;
}

// Two random permutations agree in 1 place on average; in more than 10 with probability about 1e-8.
Test(sampler, epoch_and_seed_decide_the_order) {
    iso_sampler_config a = {.count = 1000, .batch = 10, .ranks = 1, .seed = 1, .shuffle = true},
                       b = a;
    b.seed = 2;
    cr_assert_eq(equal_places(a, 7, a, 7), 1000);
    cr_assert_leq(equal_places(a, 7, a, 8), 10);
    cr_assert_leq(equal_places(a, 7, b, 7), 10);
}

// All 24 orders of 4 samples, 24,000 epochs: 1000 each, standard deviation 31; six of them are
// allowed.
Test(sampler, every_order_is_equally_likely) {
    int count[256] = {0}, orders = 0;
    iso_sampler *sampler =
        create((iso_sampler_config){.count = 4, .batch = 4, .ranks = 1, .shuffle = true}, 0);
    for (int epoch = 0; epoch < 24000; epoch++) {
        const int64_t *p;
        cr_assert_eq(iso_sampler_set_epoch(sampler, epoch), ISO_OK);
        iso_sampler_batch(sampler, 0, &p);
        count[p[0] * 64 + p[1] * 16 + p[2] * 4 + p[3]]++;
    }
    for (int i = 0; i < 256; i++) {
        if (count[i] == 0) continue;
        orders++;
        cr_assert(count[i] > 810 && count[i] < 1190, "an order came %d times", count[i]);
    }
    cr_assert_eq(orders, 24);
    iso_sampler_destroy(&sampler);
}

static void refuse(iso_sampler_config config, const char *words) {
    iso_sampler *sampler = NULL;
    cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_ERR_ARG);
    cr_assert_null(sampler);
    cr_assert(strstr(iso_last_error()->message, words), "no \"%s\" in: %s", words,
              iso_last_error()->message);
}

// The size of the list of samples overflows.
Test(sampler, more_samples_than_memory_are_refused) {
    static const int64_t counts[] = {INT64_MAX, INT64_MAX / 8 + 1, INT64_MAX / 16};
    for (int i = 0; i < 6; i++) {
        iso_sampler *sampler;
        iso_sampler_config config = {.count = counts[i / 2], .batch = 32, .ranks = 1 + i % 2};
        cr_assert_eq(iso_sampler_create(&config, &sampler), ISO_ERR_NOMEM, "%d", i);
    }
}

Test(sampler, refuses_what_cannot_be) {
    refuse((iso_sampler_config){.count = 3, .batch = 1, .ranks = 4},
           "4 ranks cannot share 3 samples");
    refuse((iso_sampler_config){.count = 3, .batch = 1, .ranks = 4, .end = ISO_SAMPLER_OVERLAP},
           "4 ranks cannot share 3 samples");
    refuse((iso_sampler_config){.count = 7, .batch = 4, .ranks = 2, .end = ISO_SAMPLER_DROP},
           "use a smaller batch");
    refuse((iso_sampler_config){.count = 0, .batch = 4, .ranks = 1}, "at least one sample");
    refuse((iso_sampler_config){.count = 9, .batch = 0, .ranks = 1}, "a batch of 0");
    refuse((iso_sampler_config){.count = 9, .batch = INT64_MAX, .ranks = 2}, "impossible");
    refuse((iso_sampler_config){.count = 9, .batch = 1, .rank = 2, .ranks = 2}, "rank 2 of 2");
    iso_sampler *sampler = create((iso_sampler_config){.count = 9, .batch = 100, .ranks = 3}, 0);
    cr_assert_eq(iso_sampler_set_epoch(sampler, -1), ISO_ERR_ARG);
    iso_sampler_destroy(&sampler);
}
