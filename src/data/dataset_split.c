// SPDX-License-Identifier: MIT
// Divides a data set at random into a training and a validation set.
#include "data/data_impl.h"

#include <math.h>

// Another permutation than those of the epochs, of the same seed.
#define OF_SPLIT UINT64_C(0x9e3779b97f4a7c15)

// Sets chosen[i] for `wanted` samples.
static iso_status choose_samples(int64_t count, int64_t wanted, uint64_t seed, bool *chosen) {
    const int64_t *indices;
    iso_sampler *sampler;
    iso_sampler_config order = {.count = count,
                                .batch = wanted,
                                .ranks = 1,
                                .seed = seed ^ OF_SPLIT,
                                .shuffle = true,
                                .end = ISO_SAMPLER_SHARE};
    ISO_TRY(iso_sampler_create(&order, &sampler));
    int64_t n = iso_sampler_batch(sampler, 0, &indices);
    for (int64_t i = 0; i < n; i++) chosen[indices[i]] = true;
    iso_sampler_destroy(&sampler);
    return ISO_OK;
}

// A view of the samples that are chosen, or of those that are not, in their order.
static iso_status create_part(iso_dataset *dataset, const bool *chosen, bool which, int64_t count,
                              iso_dataset **out) {
    void *memory;
    ISO_TRY(iso__alloc((size_t)count * sizeof(int64_t), &memory));
    int64_t *indices = memory, n = 0;
    for (int64_t i = 0; i < dataset->info.count; i++)
        if (chosen[i] == which) indices[n++] = i;
    ISO_TRY(iso__dataset_create_view(dataset, indices, count, out));
    return ISO_OK;
}

static iso_status check_split(const iso_dataset *dataset, double fraction, int64_t *wanted) {
    int64_t count = dataset->info.count;
    ISO_CHECK(dataset->shards.ranks == 0, ISO_ERR_STATE,
              "a shard cannot be split, since its ranks know its size: split the data set first, "
              "and call iso_dataset_set_shard for each part");
    ISO_CHECK(fraction > 0 && fraction < 1, ISO_ERR_ARG,
              "a data set cannot be split at a fraction of %g: give a number between 0 and 1",
              fraction);
    *wanted = llround(fraction * (double)count);
    ISO_CHECK(*wanted >= 1 && *wanted < count, ISO_ERR_ARG,
              "a fraction of %g of %lld sample%s leaves one of the two sets empty: give another "
              "fraction",
              fraction, (long long)count, ISO_PLURAL(count));
    return ISO_OK;
}

iso_status iso_dataset_split(iso_dataset *dataset, double fraction, uint64_t seed,
                             iso_dataset **train, iso_dataset **validation) {
    iso_status status;
    int64_t count = dataset->info.count, wanted = 0;
    iso_dataset *rest = NULL, *part = NULL;
    void *chosen;
    ISO_TRY(check_split(dataset, fraction, &wanted));
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(bool), &chosen));
    ISO_TRY_GOTO(choose_samples(count, wanted, seed, chosen));
    ISO_TRY_GOTO(create_part(dataset, chosen, false, count - wanted, &rest));
    ISO_TRY_GOTO(create_part(dataset, chosen, true, wanted, &part));
    iso__free(chosen);
    *train = rest;
    *validation = part;
    return ISO_OK;
fail:
    iso__free(chosen);
    iso_dataset_destroy(&rest);
    return status;
}
