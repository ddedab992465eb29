// SPDX-License-Identifier: MIT
// Batches of a data set in the order of a sampler, which threads prepare while the program
// computes.
#include "base/recording.h"
#include "data/loader_impl.h"

#include <math.h>
#include <string.h>

const iso_loader_config iso_loader_default = ISO_LOADER_DEFAULT;

enum { MOST_AHEAD = 1024 };

// ---- Set-up -------------------------------------------------------------------------------------

static size_t bytes_of(const iso_tensor_spec *spec) {
    size_t bytes = iso_dtype_size(spec->dtype);
    for (int d = 0; d < spec->ndim; d++) bytes *= (size_t)spec->shape[d];
    return bytes;
}

static iso_status create_slot(iso_loader *self, int64_t rows, iso__slot *out) {
    size_t count = (size_t)self->outputs;
    void *memory;
    ISO_TRY(iso__alloc_zero(count * sizeof(iso__upload), &memory));
    out->uploads = memory;
    ISO_TRY(iso__alloc_zero(count * sizeof(iso_tensor *), &memory));
    out->tensors = memory;
    ISO_TRY(iso__alloc(count * sizeof(iso_tensor_spec), &memory));
    out->specs = memory;
    ISO_TRY(iso__alloc(count * sizeof(int64_t), &memory));
    out->rows = memory;
    for (int t = 0; t < self->outputs; t++) {
        out->specs[t] = iso__loader_output(self, t);
        if (t == iso__loader_labels(self)) {
            ISO_TRY(iso__alloc((size_t)rows * bytes_of(&out->specs[t]), &memory));
            out->labels = memory;
            continue;
        }
        ISO_TRY(iso__upload_create(self->device, &out->specs[t], rows, &out->uploads[t]));
        out->tensors[t] = out->uploads[t].tensor;
    }
    return ISO_OK;
}

static void destroy_slot(const iso_loader *self, iso__slot *s) {
    for (int t = 0; s->uploads && t < self->outputs; t++) iso__upload_destroy(&s->uploads[t]);
    iso__free(s->uploads);
    iso__free(s->tensors);
    iso__free(s->labels);
    iso__free(s->specs);
    iso__free(s->rows);
}

static iso_status create_slots(iso_loader *self) {
    int64_t rows = iso__loader_rows(self);
    void *memory;
    ISO_TRY(iso__alloc_zero((size_t)self->slot_count * sizeof(iso__slot), &memory));
    self->slots = memory;
    for (int s = 0; s < self->slot_count; s++) ISO_TRY(create_slot(self, rows, &self->slots[s]));
    return ISO_OK;
}

static iso_status create_workers(iso_loader *self) {
    void *memory;
    ISO_TRY(iso__alloc((size_t)self->tensors * sizeof(size_t), &memory));
    self->bytes = memory;
    for (int t = 0; t < self->tensors; t++)
        self->bytes[t] = self->dataset->columns[t].bytes /
                         iso_dtype_size(self->dataset->info.tensors[t].dtype) *
                         iso_dtype_size(iso__loader_spec(self, t).dtype);
    ISO_TRY(iso__alloc_zero((size_t)self->worker_count * sizeof(iso__worker), &memory));
    self->workers = memory;
    for (int i = 0; i < self->worker_count; i++) ISO_TRY(iso__worker_init(self, &self->workers[i]));
    return ISO_OK;
}

static iso_status use_shards(const iso__shards *shards, iso_sampler_config *order) {
    ISO_CHECK(
        order->rank == shards->rank && order->ranks == shards->ranks, ISO_ERR_ARG,
        "the data set is the shard of rank %d of %d, but the sampler is that of rank %d of %d",
        shards->rank, shards->ranks, order->rank, order->ranks);
    order->shard_least = shards->least;
    order->shard_most = shards->most;
    return ISO_OK;
}

static iso_status create_sampler(iso_loader *self, const iso_sampler_config *order) {
    iso_sampler_config config = *order;
    const iso__shards *shards = &self->dataset->shards;
    int64_t count = self->dataset->info.count;
    if (config.count == 0) config.count = count;
    ISO_CHECK(config.count <= count, ISO_ERR_ARG,
              "the sampler draws from %lld sample%s, but the data set has %lld",
              (long long)config.count, ISO_PLURAL(config.count), (long long)count);
    ISO_CHECK(shards->ranks == 0 || config.count == count, ISO_ERR_ARG,
              "the sampler draws from %lld sample%s, but the shard has %lld: with shards it must "
              "draw from all (count 0)",
              (long long)config.count, ISO_PLURAL(config.count), (long long)count);
    if (shards->ranks > 0) ISO_TRY(use_shards(shards, &config));
    return iso_sampler_create(&config, &self->sampler);
}

// Each thread needs a slot, so the number of batches ahead is raised to the number of threads.
static iso_status count_workers(iso_loader *self, const iso_loader_config *config) {
    int ahead = config->prefetch, threads = config->threads;
    ISO_CHECK(ahead >= 0 && ahead <= MOST_AHEAD, ISO_ERR_ARG,
              "%d batches cannot be prepared ahead: give 0 to %d", ahead, MOST_AHEAD);
    ISO_CHECK(threads >= 0 && threads <= MOST_AHEAD, ISO_ERR_ARG,
              "a loader cannot have %d threads: give 0 to %d", threads, MOST_AHEAD);
    self->worker_count = threads > 1 ? threads : 1;
    if (threads > 1 && ahead < threads) ahead = threads;
    self->slot_count = ahead + 1;
    return ISO_OK;
}

static iso_status set_up(iso_loader *self, const iso_sampler_config *order,
                         const iso_loader_config *config) {
    ISO_TRY(count_workers(self, config));
    self->tensors = self->dataset->info.inputs + self->dataset->info.targets;
    self->own_transform = config->transform;
    self->collate = config->collate;
    self->user = config->user;
    ISO_TRY(iso__make_init(config->make, &self->make));
    self->outputs = self->make.function ? self->make.outputs : self->tensors;
    ISO_TRY(iso__transform_init(&self->transform, self->dataset, config, order->seed));
    ISO_TRY(create_sampler(self, order));
    ISO_TRY(create_workers(self));
    return create_slots(self);
}

iso_status iso_loader_create_take(iso_device *device, iso_dataset *dataset,
                                  const iso_sampler_config *order, const iso_loader_config *config,
                                  iso_loader **out) {
    void *memory;
    iso_status status = iso__alloc_zero(sizeof(iso_loader), &memory);
    *out = NULL;
    if (status < 0) iso_dataset_destroy(&dataset);
    ISO_TRY(status);
    iso_loader *self = memory;
    self->dataset = dataset;
    self->device = iso_device_retain(device);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->prepared, NULL);
    pthread_cond_init(&self->room, NULL);
    ISO_TRY_GOTO(set_up(self, order, config ? config : &ISO_LOADER_DEFAULT));
    *out = self;
    return ISO_OK;
fail:
    iso_loader_destroy(&self);
    return status;
}

void iso_loader_destroy(iso_loader **loader) {
    iso_loader *self = loader ? *loader : NULL;
    if (!self) return;
    *loader = NULL;
    iso__loader_end_threads(self);
    for (int s = 0; self->slots && s < self->slot_count; s++) destroy_slot(self, &self->slots[s]);
    iso__free(self->slots);
    for (int i = 0; self->workers && i < self->worker_count; i++)
        iso__worker_free(&self->workers[i]);
    iso__free(self->workers);
    iso__free(self->bytes);
    iso__make_free(&self->make);
    iso__transform_free(&self->transform);
    iso_sampler_destroy(&self->sampler);
    pthread_cond_destroy(&self->prepared);
    pthread_cond_destroy(&self->room);
    pthread_mutex_destroy(&self->lock);
    iso_dataset_destroy(&self->dataset);
    iso_device_destroy(&self->device);
    iso__free(self);
}

int64_t iso_loader_batches(const iso_loader *self) { return iso_sampler_batches(self->sampler); }

const iso_dataset_info *iso_loader_info(const iso_loader *self) { return &self->dataset->info; }

// ---- The caller ---------------------------------------------------------------------------------

// Gives the caller's batch back. Its memory is free as soon as the launched work is done.
static iso_status give_back(iso_loader *self) {
    iso__slot *held = self->held;
    self->held = NULL;
    for (int t = 0; held && t < self->outputs; t++)
        if (held->tensors[t]) ISO_TRY(iso__upload_give_back(&held->uploads[t]));
    return ISO_OK;
}

iso_status iso_loader_start(iso_loader *self, int64_t epoch, int64_t first) {
    ISO_CHECK(first >= 0 && first <= iso_sampler_batches(self->sampler), ISO_ERR_ARG,
              "an epoch cannot start at batch %lld of %lld", (long long)first,
              (long long)iso_sampler_batches(self->sampler));
    self->started = false;
    iso__loader_end_threads(self); // before the sampler changes, which they read
    ISO_TRY(give_back(self));
    ISO_TRY(iso_sampler_set_epoch(self->sampler, epoch));
    iso__transform_set_epoch(&self->transform, epoch);
    self->epoch = epoch;
    self->next = self->claimed = self->ready = self->freed = self->sent = first;
    self->stop = false;
    self->status = ISO_OK;
    ISO_TRY(iso__loader_start_threads(self));
    self->started = true;
    return ISO_OK;
}

// Starts the copies of all prepared batches to the device, also of later ones.
static iso_status send_batches(iso_loader *self, int64_t ready) {
    for (; self->sent < ready; self->sent++) {
        iso__slot *s = &self->slots[self->sent % self->slot_count];
        for (int t = 0; t < self->outputs; t++)
            if (s->tensors[t]) ISO_TRY(iso__upload_send(&s->uploads[t], s->rows[t], &s->specs[t]));
    }
    return ISO_OK;
}

// Without threads. An error stays until the next epoch.
static iso_status prepare_now(iso_loader *self, int64_t k) {
    ISO_CHECK(self->status == ISO_OK, self->status, "%s", self->message);
    iso_status status = iso__worker_prepare(self->workers, k);
    if (status < 0) iso__loader_keep_error(self, k, status);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_loader_next(iso_loader *self, iso_batch *out) {
    ISO_CHECK(self->started, ISO_ERR_STATE, "no epoch was started: call iso_loader_start first");
    int64_t k = self->next, ready = k + 1;
    iso__alive("the preparation of a batch");
    ISO_TRY(give_back(self));
    if (k >= iso_sampler_batches(self->sampler)) {
        iso__loader_end_threads(self); // they have prepared all batches
        *out = (iso_batch){.index = k};
        return ISO_PENDING;
    }
    ISO_TRY(self->slot_count > 1 ? iso__loader_wait(self, k, &ready) : prepare_now(self, k));
    ISO_TRY(send_batches(self, ready));
    iso__slot *from = &self->slots[k % self->slot_count];
    int inputs = self->make.function ? self->make.inputs : self->dataset->info.inputs;
    for (int t = 0; t < self->outputs; t++)
        if (from->tensors[t]) ISO_TRY(iso__upload_take(&from->uploads[t]));
    *out = (iso_batch){.images = from->tensors[0],
                       .labels = from->labels,
                       .n = from->n,
                       .index = k,
                       .inputs = from->tensors,
                       .targets = from->tensors + inputs,
                       .specs = from->specs,
                       .rows = from->rows,
                       .input_count = inputs,
                       .target_count = self->outputs - inputs};
    self->held = from;
    self->next = k + 1;
    return ISO_OK;
}

// ---- State --------------------------------------------------------------------------------------

// With `cost`, the noise decides the order, too.
static int64_t shuffle_number(const iso_sampler_config *order) {
    int64_t noise = order->cost ? (int64_t)llround(order->cost_noise * (1 << 24)) : 0;
    return order->shuffle ? 1 + 2 * noise : 0;
}

void iso_loader_get_state(const iso_loader *self, iso_loader_state *out) {
    const iso_sampler_config *order = &self->sampler->config;
    *out = (iso_loader_state){.count = order->count,
                              .batch = order->batch,
                              .ranks = order->ranks,
                              .seed = (int64_t)order->seed,
                              .shuffle = shuffle_number(order),
                              .end = order->end,
                              .shift = self->transform.shift,
                              .flip = self->transform.flip,
                              .epoch = self->epoch,
                              .next = self->next};
}

iso_status iso_loader_set_state(iso_loader *self, const iso_loader_state *state) {
    iso_loader_state own;
    iso_loader_get_state(self, &own);
    const struct {
        const char *name;
        int64_t saved, own;
    } setting[] = {{"count", state->count, own.count},       {"batch", state->batch, own.batch},
                   {"ranks", state->ranks, own.ranks},       {"seed", state->seed, own.seed},
                   {"shuffle", state->shuffle, own.shuffle}, {"end", state->end, own.end},
                   {"shift", state->shift, own.shift},       {"flip", state->flip, own.flip}};
    for (size_t i = 0; i < sizeof(setting) / sizeof(setting[0]); i++)
        ISO_CHECK(setting[i].saved == setting[i].own, ISO_ERR_MISMATCH,
                  "the state of a loader with %s %lld does not fit this one with %s %lld: other "
                  "samples would come; use the settings of the run that was saved",
                  setting[i].name, (long long)setting[i].saved, setting[i].name,
                  (long long)setting[i].own);
    return iso_loader_start(self, state->epoch, state->next);
}

// ---- Another number of ranks ----------------------------------------------------------------------

// The batches of an epoch; -1: the settings are invalid.
static int64_t count_batches(const iso_loader_state *s, int64_t *global_batch) {
    if (s->ranks <= 0 || s->batch <= 0 || __builtin_mul_overflow(s->ranks, s->batch, global_batch))
        return -1;
    return (s->count + (s->end == ISO_SAMPLER_DROP ? 0 : *global_batch - 1)) / *global_batch;
}

iso_status iso_loader_convert_state(const iso_loader *self, iso_loader_state *state) {
    iso_loader_state own;
    int64_t before = 0, now = 0;
    iso_loader_get_state(self, &own);
    if (state->ranks == own.ranks && state->batch == own.batch) return ISO_OK;
    bool slices = state->end == ISO_SAMPLER_PAD || state->end == ISO_SAMPLER_DROP;
    slices = slices && !self->sampler->config.cost;
    ISO_CHECK(slices && self->sampler->config.shard_most == 0, ISO_ERR_MISMATCH,
              "the state of a loader of %lld rank%s does not fit %lld: with this sampler the "
              "samples of a rank depend on the number of ranks",
              (long long)state->ranks, ISO_PLURAL(state->ranks), (long long)own.ranks);
    int64_t batches = count_batches(state, &before);
    ISO_CHECK(batches >= 0 && state->next >= 0 && state->next <= batches && state->count > 0,
              ISO_ERR_MISMATCH, "the state of a loader is damaged");
    int64_t all = count_batches(&own, &now), done = state->next * before;
    ISO_CHECK(state->next == batches || (done % now == 0 && done / now <= all), ISO_ERR_MISMATCH,
              "the loader that was saved had taken %lld samples of the epoch, and no batch of %lld "
              "rank%s with %lld begins there: keep ranks * batch as before, %lld",
              (long long)done, (long long)own.ranks, ISO_PLURAL(own.ranks), (long long)own.batch,
              (long long)before);
    state->next = state->next == batches ? all : done / now;
    state->ranks = own.ranks;
    state->batch = own.batch;
    return ISO_OK;
}
