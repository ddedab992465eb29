// SPDX-License-Identifier: MIT
// Turns samples into one batch.
#include "base/recording.h"
#include "data/loader_impl.h"

#include <isotherm/trace.h>
#include <string.h>

enum { AHEAD = 2 };

iso_status iso__worker_init(iso_loader *loader, iso__worker *out) {
    size_t count = (size_t)loader->tensors;
    void *memory;
    out->loader = loader;
    ISO_TRY(iso__alloc(4 * count * sizeof(void *), &memory));
    out->batch = memory;
    out->to = (void **)memory + count;
    out->room = out->to + count;
    out->from = (const void **)out->room + count;
    size_t samples = 1;
    if (loader->dataset->reader) {
        samples = (size_t)iso__loader_largest(loader);
        ISO_TRY(iso__alloc(samples * sizeof(iso__pick), &memory));
        out->picks = memory;
    }
    if (loader->dataset->read && loader->transform.on)
        ISO_TRY(iso__alloc(samples * loader->dataset->columns[0].bytes, &out->first));
    return iso__make_worker(loader, out);
}

void iso__worker_free(iso__worker *self) {
    iso__free(self->batch);
    iso__free(self->first);
    iso__free(self->picks);
    iso__free(self->made);
    iso__free(self->specs);
    iso__free(self->samples);
}

// Sets `from`, of sample i of the batch.
static iso_status find_sample(iso__worker *self, int64_t i, int64_t index) {
    const iso_dataset *dataset = self->loader->dataset;
    if (!dataset->reader) return iso__dataset_read(dataset, index, self->room, self->from);
    for (int t = 0; t < self->loader->tensors; t++) self->from[t] = self->to[t];
    if (self->first)
        self->from[0] = (const char *)self->first + (size_t)i * dataset->columns[0].bytes;
    return ISO_OK;
}

static iso_status fill_sample(iso__worker *self, int64_t i, int64_t index) {
    const iso_loader *loader = self->loader;
    for (int t = 0; t < loader->tensors; t++) {
        self->to[t] = self->batch[t] + (size_t)i * loader->bytes[t];
        self->room[t] = t == 0 && self->first ? self->first : self->to[t];
    }
    ISO_TRY(find_sample(self, i, index));
    for (int t = 0; t < loader->tensors; t++)
        if (t == 0 && loader->transform.on)
            iso__transform_sample(&loader->transform, index, self->from[0], self->to[0]);
        else if (self->from[t] != self->to[t])
            memcpy(self->to[t], self->from[t], loader->dataset->columns[t].bytes);
    if (!loader->own_transform) return ISO_OK;
    iso_sample sample = {index, loader->epoch, iso__transform_random(&loader->transform, index),
                         self->to};
    ISO_TRY(loader->own_transform(&sample, loader->user));
    return ISO_OK;
}

// A reader reads all samples of the batch before they are changed one by one.
static iso_status read_samples(iso__worker *self, int64_t n, const int64_t *indices) {
    const iso_loader *loader = self->loader;
    if (!loader->dataset->reader || n == 0) return ISO_OK;
    for (int t = 0; t < loader->tensors; t++)
        self->room[t] = t == 0 && self->first ? self->first : self->batch[t];
    return iso__dataset_read_batch(loader->dataset, &loader->transform, indices, n, self->picks,
                                   self->room);
}

// Fetches samples ahead: in random order each is a cache miss, slower than the work on it.
static iso_status fill_samples(iso__worker *self, int64_t n, const int64_t *indices) {
    ISO_TRY(read_samples(self, n, indices));
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) iso__dataset_fetch_ahead(self->loader->dataset, indices[i + AHEAD]);
        ISO_TRY(fill_sample(self, i, indices[i]));
    }
    return ISO_OK;
}

static iso_status check_collated(const iso_loader *self, const iso_tensor_spec *specs) {
    for (int t = 0; t < self->tensors; t++) {
        iso_tensor_spec full = iso__loader_spec(self, t);
        const iso_tensor_spec *now = &specs[t];
        ISO_CHECK(now->dtype == full.dtype && now->ndim == full.ndim, ISO_ERR_ARG,
                  "the collate function of a loader changed type or number of dimensions of tensor "
                  "%d: it may only make dimensions smaller",
                  t);
        for (int d = 0; d < full.ndim; d++)
            ISO_CHECK(now->shape[d] >= 1 && now->shape[d] <= full.shape[d], ISO_ERR_ARG,
                      "the collate function of a loader made dimension %d of tensor %d %lld: it "
                      "may be 1 to %lld",
                      d, t, (long long)now->shape[d], (long long)full.shape[d]);
    }
    return ISO_OK;
}

static iso_status collate_samples(const iso_loader *loader, const iso_collate_batch *batch) {
    if (!loader->collate) return ISO_OK;
    iso_status status = loader->collate(batch, loader->user);
    ISO_CHECK(status >= 0 || iso_last_error()->code == status, status,
              "the collate function of a loader failed: %s", iso_status_string(status));
    ISO_TRY(status);
    ISO_TRY(check_collated(loader, batch->specs));
    return ISO_OK;
}

static iso_status make_tensors(iso__worker *self, iso__slot *slot,
                               const iso_collate_batch *samples) {
    const iso_loader *loader = self->loader;
    iso_made_batch made = {.tensors = self->made, .specs = slot->specs, .rows = slot->rows};
    if (!loader->make.function) return ISO_OK;
    for (int t = 0; t < loader->outputs; t++) slot->specs[t] = iso__loader_output(loader, t);
    return iso__make_batch(loader, samples, &made);
}

// Reads the samples, and makes the tensors of the batch.
static iso_status fill_tensors(iso__worker *self, iso__slot *slot, int64_t k,
                               const int64_t *indices) {
    const iso_loader *loader = self->loader;
    iso_collate_batch batch = {.n = slot->n,
                               .samples = indices,
                               .index = k,
                               .epoch = loader->epoch,
                               .tensors = (void *const *)self->batch,
                               .specs = self->specs ? self->specs : slot->specs};
    ISO_TRY(fill_samples(self, slot->n, indices));
    for (int t = 0; t < loader->tensors; t++) batch.specs[t] = iso__loader_spec(loader, t);
    if (slot->n > 0) batch.random = iso__transform_random_batch(&loader->transform, indices[0]);
    ISO_TRY(collate_samples(loader, &batch));
    return make_tensors(self, slot, &batch);
}

// Closes the tensors also on failure, because another epoch may begin.
static iso_status fill_slot(iso__worker *self, iso__slot *to, int64_t k, const int64_t *indices) {
    const iso_loader *loader = self->loader;
    iso_status status = ISO_OK;
    int opened = 0, labels = iso__loader_labels(loader);
    int64_t room = self->made && to->n > 0 ? iso__loader_rows(loader) : to->n;
    for (; opened < loader->outputs && status >= 0; opened++) {
        void *memory = to->labels;
        if (opened != labels) status = iso__upload_open(&to->uploads[opened], room, &memory);
        if (status < 0) break;
        to->rows[opened] = to->n;
        if (self->made)
            self->made[opened] = memory;
        else
            self->batch[opened] = memory;
    }
    if (status >= 0) status = fill_tensors(self, to, k, indices);
    for (int t = 0; t < opened; t++) {
        iso_status closed = t == labels ? ISO_OK : iso__upload_close(&to->uploads[t]);
        if (status >= 0) status = closed;
    }
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__worker_prepare(iso__worker *self, int64_t k) {
    const iso_loader *loader = self->loader;
    iso__slot *to = &loader->slots[k % loader->slot_count];
    char name[32] = "";
    const int64_t *indices;
    iso__alive("the preparation of a batch");
    bool traced = iso_trace_on();
    if (traced) snprintf(name, sizeof(name), "batch %lld", (long long)k);
    int64_t start = traced ? iso_trace_begin(ISO_LANE_DATA, name) : 0;
    to->n = iso_sampler_batch(loader->sampler, k, &indices);
    iso_status status = fill_slot(self, to, k, indices);
    iso_trace_end(ISO_LANE_DATA, name, start);
    ISO_TRY(status);
    return ISO_OK;
}
