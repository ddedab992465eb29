// SPDX-License-Identifier: MIT
// Turns samples into batches, a thread preparing the next ones while the program computes.
#include "data/data_impl.h"
#include "data/loader_upload.h"

#include <isotherm/trace.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

const iso_loader_config iso_loader_default = ISO_LOADER_DEFAULT;

typedef struct slot {
    iso__upload *uploads; // [tensors]; unused for labels
    iso_tensor **tensors; // [tensors], as a batch has them
    int32_t *labels;      // NULL: there are none
    int64_t n;
} slot;

struct iso_loader {
    iso_dataset *dataset;
    iso_sampler *sampler;
    iso_device *device;
    iso__transform transform;
    iso_sample_transform own_transform; // NULL: none
    void *user;
    int tensors;    // of a sample
    int slot_count; // prefetch + 1: the caller holds one batch while the others are prepared
    slot *slots;    // batch k is in slot k % slot_count

    // For the batch and the sample in preparation, [tensors] each.
    size_t *bytes;     // size of each tensor of a sample in a batch
    char **batch;      // start of each tensor of the batch
    void **to;         // its place for the sample
    void **room;       // where a callback writes the sample
    const void **from; // where the sample is
    void *first;       // room for a first input that a callback writes before it is normalised
    bool started, threaded;
    int64_t epoch, next; // the batch that iso_loader_next gives
    int64_t sent;        // batches below are at the device, or on their way
    slot *held;          // what the caller has; NULL: nothing

    // Shared with the thread of the running epoch, under the lock.
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t ready; // batches below are prepared
    int64_t freed; // batches below are no longer used by the caller
    bool stop;
    iso_status status; // error of the thread, with its message
    char message[sizeof(((iso_error *)0)->message)];
};

// ---- One batch ----------------------------------------------------------------------------------

enum { AHEAD = 2 };

// The tensor that holds labels; -1: none.
static int label_tensor(const iso_loader *self) {
    const iso_dataset_info *info = &self->dataset->info;
    return info->classes > 0 ? info->inputs : -1;
}

// Returns type and shape in a batch: images become real numbers.
static iso_tensor_spec spec_of(const iso_loader *self, int t) {
    iso_tensor_spec spec = self->dataset->info.tensors[t];
    if (t == 0 && self->transform.on) spec.dtype = self->transform.dtype;
    return spec;
}

static iso_status fill_sample(iso_loader *self, int64_t i, int64_t index) {
    for (int t = 0; t < self->tensors; t++) {
        self->to[t] = self->batch[t] + (size_t)i * self->bytes[t];
        self->room[t] = t == 0 && self->first ? self->first : self->to[t];
    }
    ISO_TRY(iso__dataset_read(self->dataset, index, self->room, self->from));
    for (int t = 0; t < self->tensors; t++)
        if (t == 0 && self->transform.on)
            iso__transform_sample(&self->transform, index, self->from[0], self->to[0]);
        else if (self->from[t] != self->to[t])
            memcpy(self->to[t], self->from[t], self->dataset->columns[t].bytes);
    if (!self->own_transform) return ISO_OK;
    iso_sample sample = {index, self->epoch, iso__transform_random(&self->transform, index),
                         self->to};
    ISO_TRY(self->own_transform(&sample, self->user));
    return ISO_OK;
}

// Samples in random order are all cache misses, which cost more than the work on them.
static iso_status fill_samples(iso_loader *self, int64_t n, const int64_t *indices) {
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) iso__dataset_fetch_ahead(self->dataset, indices[i + AHEAD]);
        ISO_TRY(fill_sample(self, i, indices[i]));
    }
    return ISO_OK;
}

// Closes the tensors also on failure, because another epoch may begin.
static iso_status fill_slot(iso_loader *self, slot *to, const int64_t *indices) {
    iso_status status = ISO_OK;
    int opened = 0;
    for (; opened < self->tensors && status >= 0; opened++) {
        void *memory = to->labels;
        if (opened != label_tensor(self))
            status = iso__upload_open(&to->uploads[opened], to->n, &memory);
        if (status < 0) break;
        self->batch[opened] = memory;
    }
    if (status >= 0) status = fill_samples(self, to->n, indices);
    for (int t = 0; t < opened; t++) {
        iso_status closed = t == label_tensor(self) ? ISO_OK : iso__upload_close(&to->uploads[t]);
        if (status >= 0) status = closed;
    }
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status prepare_batch(iso_loader *self, int64_t k) {
    slot *to = &self->slots[k % self->slot_count];
    int64_t start = iso_now();
    const int64_t *indices;
    to->n = iso_sampler_batch(self->sampler, k, &indices);
    ISO_TRY(fill_slot(self, to, indices));
    if (iso_trace_on()) {
        char name[32];
        snprintf(name, sizeof(name), "batch %lld", (long long)k);
        iso_trace_span(ISO_LANE_DATA, name, start, iso_now());
    }
    return ISO_OK;
}

// ---- The thread of an epoch ---------------------------------------------------------------------

// Waits until the slot of batch k is free; false: the epoch was ended.
static bool wait_for_slot(iso_loader *self, int64_t k) {
    pthread_mutex_lock(&self->lock);
    while (!self->stop && k - self->freed >= self->slot_count)
        pthread_cond_wait(&self->changed, &self->lock);
    bool go = !self->stop;
    pthread_mutex_unlock(&self->lock);
    return go;
}

static void *run_epoch(void *argument) {
    iso_loader *self = argument;
    int64_t batches = iso_sampler_batches(self->sampler);
    iso_status status = ISO_OK;
    // `ready` is written by this thread only.
    for (int64_t k = self->ready; k < batches && status == ISO_OK && wait_for_slot(self, k); k++) {
        status = prepare_batch(self, k);
        pthread_mutex_lock(&self->lock);
        if (status < 0) {
            self->status = status;
            memcpy(self->message, iso_last_error()->message, sizeof(self->message));
        } else {
            self->ready = k + 1;
        }
        pthread_cond_signal(&self->changed);
        pthread_mutex_unlock(&self->lock);
    }
    return NULL;
}

static iso_status start_thread(iso_loader *self) {
    // The thread takes no signals, so that they reach the program as they would without it.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&self->thread, NULL, run_epoch, self);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    ISO_CHECK(error == 0, ISO_ERR_NOMEM, "the loader could not start its thread: %s",
              strerror(error));
    self->threaded = true;
    return ISO_OK;
}

static void end_epoch(iso_loader *self) {
    self->started = false;
    if (!self->threaded) return;
    pthread_mutex_lock(&self->lock);
    self->stop = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
    pthread_join(self->thread, NULL);
    self->threaded = false;
}

// ---- The caller ---------------------------------------------------------------------------------

static iso_status create_slot(iso_loader *self, int64_t samples, slot *out) {
    size_t count = (size_t)self->tensors;
    void *memory;
    ISO_TRY(iso__alloc_zero(count * sizeof(iso__upload), &memory));
    out->uploads = memory;
    ISO_TRY(iso__alloc_zero(count * sizeof(iso_tensor *), &memory));
    out->tensors = memory;
    for (int t = 0; t < self->tensors; t++) {
        if (t == label_tensor(self)) {
            ISO_TRY(iso__alloc((size_t)samples * self->bytes[t], &memory));
            out->labels = memory;
            continue;
        }
        iso_tensor_spec spec = spec_of(self, t);
        ISO_TRY(iso__upload_create(self->device, &spec, samples, &out->uploads[t]));
        out->tensors[t] = out->uploads[t].tensor;
    }
    return ISO_OK;
}

static void destroy_slot(const iso_loader *self, slot *s) {
    for (int t = 0; s->uploads && t < self->tensors; t++) iso__upload_destroy(&s->uploads[t]);
    iso__free(s->uploads);
    iso__free(s->tensors);
    iso__free(s->labels);
}

static iso_status create_slots(iso_loader *self) {
    int64_t largest = 1; // no batch is larger than the first, where there is one
    const int64_t *indices;
    if (iso_loader_batches(self) > 0) largest = iso_sampler_batch(self->sampler, 0, &indices);
    void *memory;
    ISO_TRY(iso__alloc_zero((size_t)self->slot_count * sizeof(slot), &memory));
    self->slots = memory;
    for (int s = 0; s < self->slot_count; s++) ISO_TRY(create_slot(self, largest, &self->slots[s]));
    return ISO_OK;
}

// Allocates what the preparation of a sample needs.
static iso_status create_room(iso_loader *self) {
    size_t count = (size_t)self->tensors;
    void *memory;
    ISO_TRY(iso__alloc(count * sizeof(size_t), &memory));
    self->bytes = memory;
    for (int t = 0; t < self->tensors; t++)
        self->bytes[t] = self->dataset->columns[t].bytes /
                         iso_dtype_size(self->dataset->info.tensors[t].dtype) *
                         iso_dtype_size(spec_of(self, t).dtype);
    ISO_TRY(iso__alloc(4 * count * sizeof(void *), &memory));
    self->batch = memory;
    self->to = (void **)memory + count;
    self->room = self->to + count;
    self->from = (const void **)self->room + count;
    if (self->dataset->read && self->transform.on)
        ISO_TRY(iso__alloc(self->dataset->columns[0].bytes, &self->first));
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

static iso_status set_up(iso_loader *self, const iso_sampler_config *order,
                         const iso_loader_config *config) {
    ISO_CHECK(config->prefetch >= 0 && config->prefetch <= 1024, ISO_ERR_ARG,
              "%d batches cannot be prepared ahead: give 0 to 1024", config->prefetch);
    self->slot_count = config->prefetch + 1;
    self->tensors = self->dataset->info.inputs + self->dataset->info.targets;
    self->own_transform = config->transform;
    self->user = config->user;
    ISO_TRY(iso__transform_init(&self->transform, self->dataset, config, order->seed));
    ISO_TRY(create_sampler(self, order));
    ISO_TRY(create_room(self));
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
    pthread_cond_init(&self->changed, NULL);
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
    end_epoch(self);
    for (int s = 0; self->slots && s < self->slot_count; s++) destroy_slot(self, &self->slots[s]);
    iso__free(self->slots);
    iso__free(self->bytes);
    iso__free(self->batch);
    iso__free(self->first);
    iso__transform_free(&self->transform);
    iso_sampler_destroy(&self->sampler);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    iso_dataset_destroy(&self->dataset);
    iso_device_destroy(&self->device);
    iso__free(self);
}

int64_t iso_loader_batches(const iso_loader *self) { return iso_sampler_batches(self->sampler); }

const iso_dataset_info *iso_loader_info(const iso_loader *self) { return &self->dataset->info; }

// What the caller had is free again, as soon as what was launched is done.
static iso_status give_back(iso_loader *self) {
    slot *held = self->held;
    self->held = NULL;
    for (int t = 0; held && t < self->tensors; t++)
        if (held->tensors[t]) ISO_TRY(iso__upload_give_back(&held->uploads[t]));
    return ISO_OK;
}

iso_status iso_loader_start(iso_loader *self, int64_t epoch, int64_t first) {
    ISO_CHECK(first >= 0 && first <= iso_sampler_batches(self->sampler), ISO_ERR_ARG,
              "an epoch cannot start at batch %lld of %lld", (long long)first,
              (long long)iso_sampler_batches(self->sampler));
    end_epoch(self); // before the sampler changes, which the thread reads
    ISO_TRY(give_back(self));
    ISO_TRY(iso_sampler_set_epoch(self->sampler, epoch));
    iso__transform_set_epoch(&self->transform, epoch);
    self->epoch = epoch;
    self->next = self->ready = self->freed = self->sent = first;
    self->stop = false;
    self->status = ISO_OK;
    if (self->slot_count > 1) ISO_TRY(start_thread(self));
    self->started = true;
    return ISO_OK;
}

// Gives the batch before k back to the thread and waits for batch k; *ready: batches below are
// prepared.
static iso_status wait_for_batch(iso_loader *self, int64_t k, int64_t *ready) {
    pthread_mutex_lock(&self->lock);
    self->freed = k;
    pthread_cond_signal(&self->changed);
    while (self->ready <= k && self->status == ISO_OK)
        pthread_cond_wait(&self->changed, &self->lock);
    bool failed = self->ready <= k;
    *ready = self->ready;
    pthread_mutex_unlock(&self->lock);
    // The record of an error belongs to the thread that made it.
    ISO_CHECK(!failed, self->status, "%s", self->message);
    return ISO_OK;
}

// Batches that are prepared set out for the device, later ones too.
static iso_status send_batches(iso_loader *self, int64_t ready) {
    for (; self->sent < ready; self->sent++) {
        slot *s = &self->slots[self->sent % self->slot_count];
        for (int t = 0; t < self->tensors; t++)
            if (s->tensors[t]) ISO_TRY(iso__upload_send(&s->uploads[t], s->n));
    }
    return ISO_OK;
}

iso_status iso_loader_next(iso_loader *self, iso_batch *out) {
    ISO_CHECK(self->started, ISO_ERR_STATE, "no epoch was started: call iso_loader_start first");
    int64_t k = self->next, ready = k + 1;
    ISO_TRY(give_back(self));
    if (k >= iso_sampler_batches(self->sampler)) {
        *out = (iso_batch){.index = k};
        return ISO_PENDING;
    }
    ISO_TRY(self->threaded ? wait_for_batch(self, k, &ready) : prepare_batch(self, k));
    ISO_TRY(send_batches(self, ready));
    slot *from = &self->slots[k % self->slot_count];
    for (int t = 0; t < self->tensors; t++)
        if (from->tensors[t]) ISO_TRY(iso__upload_take(&from->uploads[t]));
    *out = (iso_batch){.images = from->tensors[0],
                       .labels = from->labels,
                       .n = from->n,
                       .index = k,
                       .inputs = from->tensors,
                       .targets = from->tensors + self->dataset->info.inputs};
    self->held = from;
    self->next = k + 1;
    return ISO_OK;
}

// ---- State --------------------------------------------------------------------------------------

void iso_loader_get_state(const iso_loader *self, iso_loader_state *out) {
    const iso_sampler_config *order = &self->sampler->config;
    *out = (iso_loader_state){.count = order->count,
                              .batch = order->batch,
                              .ranks = order->ranks,
                              .seed = (int64_t)order->seed,
                              .shuffle = order->shuffle,
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
