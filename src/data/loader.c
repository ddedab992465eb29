// SPDX-License-Identifier: MIT
// Turns samples into normalised batches, a thread preparing the next ones while the program
// computes.
#include "data/data_impl.h"
#include "data/loader_upload.h"

#include <isotherm/trace.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

const iso_loader_config iso_loader_default = ISO_LOADER_DEFAULT;

typedef struct slot {
    iso__upload upload;
    int32_t *labels;
    int64_t n;
} slot;

struct iso_loader {
    iso_dataset *dataset;
    iso_sampler *sampler;
    iso_device *device;
    iso__transform transform;
    int slot_count; // prefetch + 1: the caller holds one batch while the others are prepared
    slot *slots;    // batch k is in slot k % slot_count
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

enum { AHEAD = 2, CACHE_LINE = 64 };

// Images in random order are all cache misses, which cost more than the work on them.
static void fetch_ahead(const iso_dataset *from, int64_t index) {
    const uint8_t *image = iso_dataset_image(from, index, NULL);
    for (int64_t at = 0; at < from->image_bytes; at += CACHE_LINE) __builtin_prefetch(image + at);
    __builtin_prefetch(&from->labels[index]);
}

static void shape_of(const iso_loader *self, int64_t n, int64_t shape[4]) {
    const iso_dataset_info *info = &self->dataset->info;
    const int64_t all[4] = {n, info->channels, info->height, info->width};
    memcpy(shape, all, sizeof(all));
}

static iso_status fill_images(iso_loader *self, slot *to, const int64_t *indices) {
    void *memory;
    int64_t shape[4];
    shape_of(self, to->n, shape);
    ISO_TRY(iso__upload_open(&to->upload, shape, &memory));
    size_t bytes = (size_t)self->dataset->image_bytes * iso_dtype_size(self->transform.dtype);
    for (int64_t i = 0; i < to->n; i++) {
        if (i + AHEAD < to->n) fetch_ahead(self->dataset, indices[i + AHEAD]);
        const uint8_t *image = iso_dataset_image(self->dataset, indices[i], &to->labels[i]);
        iso__transform_image(&self->transform, indices[i], image,
                             (char *)memory + (size_t)i * bytes);
    }
    ISO_TRY(iso__upload_close(&to->upload));
    return ISO_OK;
}

static iso_status prepare_batch(iso_loader *self, int64_t k) {
    slot *to = &self->slots[k % self->slot_count];
    int64_t start = iso_now();
    const int64_t *indices;
    to->n = iso_sampler_batch(self->sampler, k, &indices);
    ISO_TRY(fill_images(self, to, indices));
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

static iso_status create_slots(iso_loader *self) {
    int64_t largest = 1; // no batch is larger than the first, where there is one
    const int64_t *indices;
    if (iso_loader_batches(self) > 0) largest = iso_sampler_batch(self->sampler, 0, &indices);
    int64_t shape[4];
    void *memory;
    shape_of(self, largest, shape);
    ISO_TRY(iso__alloc_zero((size_t)self->slot_count * sizeof(slot), &memory));
    self->slots = memory;
    for (int s = 0; s < self->slot_count; s++) {
        ISO_TRY(
            iso__upload_create(self->device, self->transform.dtype, shape, &self->slots[s].upload));
        ISO_TRY(iso__alloc((size_t)largest * sizeof(int32_t), &memory));
        self->slots[s].labels = memory;
    }
    return ISO_OK;
}

static iso_status create_sampler(iso_loader *self, const iso_sampler_config *order) {
    iso_sampler_config config = *order;
    int64_t count = self->dataset->info.count;
    if (config.count == 0) config.count = count;
    ISO_CHECK(config.count <= count, ISO_ERR_ARG,
              "the sampler is to draw from %lld samples but the data set has %lld",
              (long long)config.count, (long long)count);
    return iso_sampler_create(&config, &self->sampler);
}

static iso_status set_up(iso_loader *self, const iso_sampler_config *order,
                         const iso_loader_config *config) {
    ISO_CHECK(config->prefetch >= 0 && config->prefetch <= 1024, ISO_ERR_ARG,
              "%d batches cannot be prepared ahead: give 0 to 1024", config->prefetch);
    self->slot_count = config->prefetch + 1;
    ISO_TRY(iso__transform_init(&self->transform, &self->dataset->info, config, order->seed));
    ISO_TRY(create_sampler(self, order));
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
    for (int s = 0; self->slots && s < self->slot_count; s++) {
        iso__upload_destroy(&self->slots[s].upload);
        iso__free(self->slots[s].labels);
    }
    iso__free(self->slots);
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
    return held ? iso__upload_give_back(&held->upload) : ISO_OK;
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
    int64_t shape[4];
    for (; self->sent < ready; self->sent++) {
        slot *s = &self->slots[self->sent % self->slot_count];
        shape_of(self, s->n, shape);
        ISO_TRY(iso__upload_send(&s->upload, shape));
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
    ISO_TRY(iso__upload_take(&from->upload));
    *out = (iso_batch){from->upload.images, from->labels, from->n, k};
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
