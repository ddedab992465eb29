// SPDX-License-Identifier: MIT
// Assigns samples to the batches of each rank: slices or shards of one global permutation per
// epoch, or slices of a permutation of each rank's own samples.
#include "data/data_impl.h"

static bool has_shards(const iso_sampler_config *config) { return config->shard_most > 0; }

static iso_status check_shards(const iso_sampler_config *c) {
    ISO_CHECK(c->shard_least > 0 && c->shard_least <= c->count && c->count <= c->shard_most,
              ISO_ERR_ARG, "a shard of %lld samples is not among shards of %lld to %lld",
              (long long)c->count, (long long)c->shard_least, (long long)c->shard_most);
    ISO_CHECK(c->end != ISO_SAMPLER_OVERLAP, ISO_ERR_ARG,
              "ranks that have shards of their own have nothing to overlap: pad, drop or share");
    ISO_CHECK(c->end != ISO_SAMPLER_DROP || c->shard_least >= c->batch, ISO_ERR_ARG,
              "the smallest shard has %lld sample%s, less than one batch of %lld: use a smaller "
              "batch",
              (long long)c->shard_least, ISO_PLURAL(c->shard_least), (long long)c->batch);
    return ISO_OK;
}

static iso_status check_config(const iso_sampler_config *config, int64_t *global_batch) {
    ISO_CHECK(config->count > 0, ISO_ERR_ARG, "a sampler needs at least one sample, not %lld",
              (long long)config->count);
    ISO_CHECK(config->ranks > 0 && config->rank >= 0 && config->rank < config->ranks, ISO_ERR_ARG,
              "rank %d of %d rank%s does not exist", config->rank, config->ranks,
              ISO_PLURAL(config->ranks));
    ISO_CHECK(config->batch > 0 &&
                  !__builtin_mul_overflow(config->batch, config->ranks, global_batch),
              ISO_ERR_ARG, "a batch of %lld sample%s on each of %d rank%s is impossible",
              (long long)config->batch, ISO_PLURAL(config->batch), config->ranks,
              ISO_PLURAL(config->ranks));
    ISO_CHECK(!config->cost || (!has_shards(config) && config->end != ISO_SAMPLER_OVERLAP),
              ISO_ERR_ARG,
              "samples of similar cost are chosen among the same samples on all ranks: not with "
              "shards, and not with overlap");
    if (has_shards(config)) return check_shards(config);
    ISO_CHECK(config->ranks <= config->count || config->end == ISO_SAMPLER_SHARE, ISO_ERR_ARG,
              "%d ranks cannot share %lld sample%s: use at most as many ranks as samples",
              config->ranks, (long long)config->count, ISO_PLURAL(config->count));
    ISO_CHECK(config->end != ISO_SAMPLER_DROP || config->count >= *global_batch, ISO_ERR_ARG,
              "%lld sample%s less than one batch of %lld on each of %d rank%s: use a smaller batch",
              (long long)config->count, config->count == 1 ? " is" : "s are",
              (long long)config->batch, config->ranks, ISO_PLURAL(config->ranks));
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
    if (c->end == ISO_SAMPLER_PAD) self->padded = c->ranks - 1; // at most
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

// The same for a shard that only this rank has.
static void use_shard(iso_sampler *self) {
    const iso_sampler_config *c = &self->config;
    int64_t samples = c->count;
    if (c->end == ISO_SAMPLER_PAD) samples = c->shard_most;
    if (c->end == ISO_SAMPLER_DROP) samples = c->shard_least / c->batch * c->batch;
    self->stride = c->batch;
    self->batches = (samples - 1) / c->batch + 1;
    self->last = self->batches - 1;
    self->last_size = samples - self->last * c->batch;
    self->padded = iso__larger(samples - c->count, 0);
}

iso_status iso_sampler_create(const iso_sampler_config *config, iso_sampler **out) {
    int64_t global_batch = 0;
    ISO_TRY(check_config(config, &global_batch));
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_sampler), &memory));
    iso_sampler *self = memory;
    self->config = *config;
    if (has_shards(config))
        use_shard(self);
    else if (config->end == ISO_SAMPLER_OVERLAP)
        cut_shard(self);
    else
        split_epoch(self, global_batch);
    void *indices;
    iso_status status;
    int64_t bytes;
    bool fits = !__builtin_add_overflow(config->count, self->padded, &bytes) &&
                !__builtin_mul_overflow(bytes, (int64_t)sizeof(int64_t), &bytes);
    ISO_CHECK_GOTO(fits, ISO_ERR_NOMEM, "out of memory for the order of %lld samples",
                   (long long)config->count);
    ISO_TRY_GOTO(iso__alloc((size_t)bytes, &indices));
    self->indices = indices;
    if (config->cost) ISO_TRY_GOTO(iso__sampler_make_costs(self));
    ISO_TRY_GOTO(iso_sampler_set_epoch(self, 0));
    *out = self;
    return ISO_OK;
fail:
    iso_sampler_destroy(&self);
    return status;
}

void iso_sampler_destroy(iso_sampler **sampler) {
    if (!sampler || !*sampler) return;
    iso__sampler_drop_costs(*sampler);
    iso__free((*sampler)->indices);
    iso__free(*sampler);
    *sampler = NULL;
}

iso_status iso_sampler_set_epoch(iso_sampler *self, int64_t epoch) {
    ISO_CHECK(epoch >= 0, ISO_ERR_ARG, "epoch %lld is negative", (long long)epoch);
    int64_t count = self->config.count, *indices = self->indices;
    uint32_t shard = has_shards(&self->config) ? (uint32_t)self->config.rank : 0;
    iso__philox_key key = iso__philox_key_make(self->config.seed, ISO_RNG_SHUFFLE, (uint64_t)epoch);
    for (int64_t i = 0; i < count; i++) indices[i] = i;
    for (int64_t i = count - 1; self->config.shuffle && i > 0; i--) { // Fisher-Yates
        int64_t j = (int64_t)iso__draw_below(key, shard, (uint64_t)i, (uint64_t)i + 1);
        int64_t moved = indices[i];
        indices[i] = indices[j];
        indices[j] = moved;
    }
    if (self->costs) iso__sampler_balance(self, key);
    for (int64_t i = count; i < count + self->padded; i++) indices[i] = indices[i - count];
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
