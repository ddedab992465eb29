// SPDX-License-Identifier: MIT
// How much ranks wait for the one with the longest samples: an epoch of samples whose lengths vary
// as those of sentences, with and without the sampler's costs. The time of a step is the length of
// the longest batch of all ranks. usage: bench_balance [RANKS [BATCH]]
#include "base/base.h"

#include <isotherm.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 20000, MOST_RANKS = 4096 };

// Log-normal, with a median of 24.
static double length_of(int64_t sample, void *user) {
    (void)user;
    uint32_t counter[4] = {(uint32_t)sample}, bits[4];
    double sum = 0;
    iso__philox(iso__philox_key_make(1, ISO_RNG_TEST, 0), counter, bits);
    for (int i = 0; i < 4; i++) sum += (double)iso__uniform(bits[i]) - .5;
    return ceil(24 * exp(.7 * sum * sqrt(3)));
}

static double batch_length(const iso_sampler *sampler, int64_t k) {
    const int64_t *sample;
    double sum = 0;
    int64_t size = iso_sampler_batch(sampler, k, &sample);
    for (int64_t i = 0; i < size; i++) sum += length_of(sample[i], NULL);
    return sum;
}

// The fraction of the ranks' time that is spent on waits.
static double idle_share(iso_sampler_config config) {
    static iso_sampler *sampler[MOST_RANKS];
    double busy = 0, time = 0;
    for (config.rank = 0; config.rank < config.ranks; config.rank++)
        if (iso_sampler_create(&config, &sampler[config.rank]) < 0) exit(EXIT_FAILURE);
    for (int64_t k = 0; k < iso_sampler_batches(sampler[0]); k++) {
        double longest = 0;
        for (int r = 0; r < config.ranks; r++) {
            double length = batch_length(sampler[r], k);
            busy += length;
            longest = fmax(longest, length);
        }
        time += longest * config.ranks;
    }
    for (int r = 0; r < config.ranks; r++) iso_sampler_destroy(&sampler[r]);
    return 1 - busy / time;
}

int main(int argc, char **argv) {
    iso_sampler_config config = {.count = SAMPLES,
                                 .ranks = argc > 1 ? atoi(argv[1]) : 8,
                                 .batch = argc > 2 ? atoi(argv[2]) : 8,
                                 .end = ISO_SAMPLER_DROP,
                                 .seed = 1,
                                 .shuffle = true};
    if (config.ranks > MOST_RANKS) return EXIT_FAILURE;
    double plain = idle_share(config);
    config.cost = length_of;
    double sorted = idle_share(config);
    config.cost_noise = .05;
    printf("{\"ranks\": %d, \"batch\": %lld, \"idle\": %.4f, \"idle_by_cost\": %.4f, "
           "\"idle_by_cost_with_noise\": %.4f}\n",
           config.ranks, (long long)config.batch, plain, sorted, idle_share(config));
    return EXIT_SUCCESS;
}
