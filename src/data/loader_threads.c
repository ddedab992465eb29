// SPDX-License-Identifier: MIT
// The threads of an epoch. Each claims the next batch in order, prepares it, and claims another
// one; what a batch holds does not depend on the thread.
#include "data/loader_impl.h"

#include <signal.h>
#include <string.h>

// ---- The threads --------------------------------------------------------------------------------

// Waits for a slot and claims the next batch for it; false: there is nothing left to do. Batches
// are claimed in order, so all batches before one that failed are complete or on their way.
static bool claim_batch(iso_loader *self, int64_t batches, int64_t *k) {
    pthread_mutex_lock(&self->lock);
    while (!self->stop && self->status == ISO_OK && self->claimed < batches &&
           self->claimed - self->freed >= self->slot_count)
        pthread_cond_wait(&self->room, &self->lock);
    bool go = !self->stop && self->status == ISO_OK && self->claimed < batches;
    if (go) *k = self->claimed++;
    pthread_mutex_unlock(&self->lock);
    return go;
}

// The record of an error belongs to the thread that made it, so the message is copied. The caller
// gets the error of the first batch that has one, whichever thread is the first to fail.
void iso__loader_keep_error(iso_loader *self, int64_t k, iso_status status) {
    if (self->status == ISO_OK || k < self->failed) {
        self->status = status;
        self->failed = k;
        memcpy(self->message, iso_last_error()->message, sizeof(self->message));
    }
    pthread_cond_broadcast(&self->room);
}

static void finish_batch(iso_loader *self, int64_t k, iso_status status) {
    pthread_mutex_lock(&self->lock);
    if (status < 0)
        iso__loader_keep_error(self, k, status);
    else
        self->slots[k % self->slot_count].prepared = true;
    for (iso__slot *next; (next = &self->slots[self->ready % self->slot_count])->prepared;) {
        next->prepared = false;
        self->ready++;
    }
    pthread_cond_signal(&self->prepared);
    pthread_mutex_unlock(&self->lock);
}

static void *run_epoch(void *argument) {
    iso__worker *worker = argument;
    iso_loader *self = worker->loader;
    int64_t batches = iso_sampler_batches(self->sampler), k;
    while (claim_batch(self, batches, &k)) finish_batch(self, k, iso__worker_prepare(worker, k));
    return NULL;
}

// ---- The caller ---------------------------------------------------------------------------------

static int create_threads(iso_loader *self, int64_t count) {
    int error = 0;
    while (self->running < count && error == 0) {
        iso__worker *worker = &self->workers[self->running];
        error = pthread_create(&worker->thread, NULL, run_epoch, worker);
        if (error == 0) self->running++, self->dataset->readers++;
    }
    return error;
}

iso_status iso__loader_start_threads(iso_loader *self) {
    int64_t left = iso_sampler_batches(self->sampler) - self->ready;
    if (self->slot_count == 1) return ISO_OK;
    for (int s = 0; s < self->slot_count; s++) self->slots[s].prepared = false;
    // The threads take no signals, so that they reach the program as they would without them.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = create_threads(self, left < self->worker_count ? left : self->worker_count);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    int started = self->running;
    if (error) iso__loader_end_threads(self);
    ISO_CHECK(error == 0, ISO_ERR_NOMEM, "the loader could not start thread %d of %d: %s",
              started + 1, self->worker_count, strerror(error));
    return ISO_OK;
}

void iso__loader_end_threads(iso_loader *self) {
    pthread_mutex_lock(&self->lock);
    self->stop = true;
    pthread_cond_broadcast(&self->room);
    pthread_mutex_unlock(&self->lock);
    for (; self->running > 0; self->running--, self->dataset->readers--)
        pthread_join(self->workers[self->running - 1].thread, NULL);
}

iso_status iso__loader_wait(iso_loader *self, int64_t k, int64_t *ready) {
    pthread_mutex_lock(&self->lock);
    self->freed = k;
    pthread_cond_signal(&self->room); // one slot is free, so one thread can go on
    while (self->ready <= k && (self->status == ISO_OK || self->failed > k))
        pthread_cond_wait(&self->prepared, &self->lock);
    bool failed = self->ready <= k;
    *ready = self->ready;
    pthread_mutex_unlock(&self->lock);
    ISO_CHECK(!failed, self->status, "%s", self->message);
    return ISO_OK;
}
