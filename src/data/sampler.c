// SPDX-License-Identifier: MIT
// Which samples stand in which batch of which rank: slices or shards of one global permutation per
// epoch.
#include "data/data_impl.h"

#include <string.h>

// Unbiased in [0, bound): Lemire, "Fast random integer generation in an interval" (2019). Counter
// words: the position in words 0 and 1, the attempt in word 2.
static uint64_t draw_below(iso__philox_key key, uint64_t position, uint64_t bound) {
    uint64_t unfair = -bound % bound; // 2^64 mod bound
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    for (;; counter[2]++) {
        uint32_t word[4];
        iso__philox(key, counter, word);
        uint64_t bits = (uint64_t)word[1] << 32 | word[0];
        unsigned __int128 product = (unsigned __int128)bits * bound;
        if ((uint64_t)product >= unfair) return (uint64_t)(product >> 64);
    }
}

static const char *plural_s(int64_t count) { return count == 1 ? "" : "s"; }

static iso_status check_config(const iso_sampler_config *config, int64_t *global_batch) {
    ISO_CHECK(config->count > 0, ISO_ERR_ARG, "a sampler needs at least one sample, not %lld",
              (long long)config->count);
    ISO_CHECK(config->ranks > 0 && config->rank >= 0 && config->rank < config->ranks, ISO_ERR_ARG,
              "rank %d of %d ranks does not exist", config->rank, config->ranks);
    ISO_CHECK(config->batch > 0 &&
                  !__builtin_mul_overflow(config->batch, config->ranks, global_batch),
              ISO_ERR_ARG, "a batch of %lld samples on each of %d rank%s is impossible",
              (long long)config->batch, config->ranks, plural_s(config->ranks));
    ISO_CHECK(config->ranks <= config->count || config->end == ISO_SAMPLER_SHARE, ISO_ERR_ARG,
              "%d ranks cannot share %lld sample%s: use at most as many ranks as samples",
              config->ranks, (long long)config->count, plural_s(config->count));
    ISO_CHECK(
        config->end != ISO_SAMPLER_DROP || config->count >= *global_batch, ISO_ERR_ARG,
        "%lld sample%s are less than one batch of %lld on each of %d rank%s: use a smaller batch",
        (long long)config->count, plural_s(config->count), (long long)config->batch, config->ranks,
        plural_s(config->ranks));
    return ISO_OK;
}

// How many batches there are, and how the last one is split.
static void split_epoch(iso_sampler *self, int64_t global_batch) {
    const iso_sampler_config *c = &self->config;
    int64_t rest = c->count % global_batch;
    self->stride = global_batch;
    self->begin = c->rank * c->batch;
    self->batches = c->count / global_batch;
    if (rest > 0 && c->end != ISO_SAMPLER_DROP)
        self->batches++;
    else
        rest = global_batch;
    self->last = self->batches - 1;
    // Ranks below `larger` get one sample more than the others.
    int64_t share = rest / c->ranks, larger = rest % c->ranks;
    if (c->end == ISO_SAMPLER_PAD && larger > 0) larger = c->ranks;
    self->last_size = share + (c->rank < larger);
    self->last_begin = share * c->rank + (c->rank < larger ? c->rank : larger);
    if (self->last_size == 0) self->batches--;
}

// The same for shards of one size. Neighbours overlap where the ranks do not divide the samples
// evenly.
static void cut_shard(iso_sampler *self) {
    const iso_sampler_config *c = &self->config;
    int64_t whole = c->count / c->ranks, rest = c->count % c->ranks;
    int64_t size = whole + (rest > 0);
    self->stride = c->batch;
    self->begin = self->last_begin = whole * c->rank + rest * c->rank / c->ranks;
    self->batches = (size - 1) / c->batch + 1;
    self->last = self->batches - 1;
    self->last_size = size - self->last * c->batch;
}

iso_status iso_sampler_create(const iso_sampler_config *config, iso_sampler **out) {
    int64_t global_batch = 0;
    ISO_TRY(check_config(config, &global_batch));
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_sampler), &memory));
    iso_sampler *self = memory;
    self->config = *config;
    if (config->end == ISO_SAMPLER_OVERLAP)
        cut_shard(self);
    else
        split_epoch(self, global_batch);
    void *indices;
    iso_status status;
    ISO_TRY_GOTO(iso__alloc((size_t)(config->count + config->ranks) * sizeof(int64_t), &indices));
    self->indices = indices;
    ISO_TRY_GOTO(iso_sampler_set_epoch(self, 0));
    *out = self;
    return ISO_OK;
fail:
    iso_sampler_destroy(&self);
    return status;
}

void iso_sampler_destroy(iso_sampler **sampler) {
    if (!sampler || !*sampler) return;
    iso__free((*sampler)->indices);
    iso__free(*sampler);
    *sampler = NULL;
}

iso_status iso_sampler_set_epoch(iso_sampler *self, int64_t epoch) {
    ISO_CHECK(epoch >= 0, ISO_ERR_ARG, "epoch %lld is negative", (long long)epoch);
    int64_t count = self->config.count, *indices = self->indices;
    for (int64_t i = 0; i < count; i++) indices[i] = i;
    if (self->config.shuffle) {
        iso__philox_key key =
            iso__philox_key_make(self->config.seed, ISO_RNG_SHUFFLE, (uint64_t)epoch);
        for (int64_t i = count - 1; i > 0; i--) { // Fisher-Yates
            int64_t j = (int64_t)draw_below(key, (uint64_t)i, (uint64_t)i + 1);
            int64_t moved = indices[i];
            indices[i] = indices[j];
            indices[j] = moved;
        }
    }
    // What pads the last batch is at most ranks - 1 samples, and there are at least as many as
    // ranks.
    if (self->config.end == ISO_SAMPLER_PAD)
        memcpy(indices + count, indices, (size_t)(self->config.ranks - 1) * sizeof(int64_t));
    return ISO_OK;
}

int64_t iso_sampler_batches(const iso_sampler *self) { return self->batches; }

int64_t iso_sampler_batch(const iso_sampler *self, int64_t k, const int64_t **indices) {
    int64_t size = self->config.batch, begin = self->begin;
    if (k == self->last) {
        size = self->last_size;
        begin = self->last_begin;
    }
    *indices = self->indices + k * self->stride + begin;
    return size;
}
