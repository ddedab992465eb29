// SPDX-License-Identifier: MIT
// The calls of a DataParallel besides forward and backward.
#include "parallel/data_parallel_impl.h"

#include <math.h>

iso_status iso_data_parallel_sync_buffers(iso_module *module) {
    ISO_TRY(iso__data_parallel_check(module));
    return iso__buffer_sync_run(&iso__data_parallel_of(module)->buffer_sync);
}

iso__buffer_sync *iso__data_parallel_buffers(iso_module *module) {
    return &iso__data_parallel_of(module)->buffer_sync;
}

iso_reducer *iso__data_parallel_of_parameter(const iso_parameter *p, int *index) {
    if (p->complete != iso__data_parallel_complete) return NULL;
    const iso__data_parallel *self = p->complete_user;
    *index = p->complete_index;
    return self->reducer;
}

// ---- no_sync ----------------------------------------------------------------------------------------

iso_status iso_data_parallel_begin_no_sync(iso_module *module) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel_of(module)->no_sync++;
    return ISO_OK;
}

iso_status iso_data_parallel_end_no_sync(iso_module *module) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel *self = iso__data_parallel_of(module);
    ISO_CHECK(self->no_sync > 0, ISO_ERR_STATE,
              "iso_data_parallel_end_no_sync without iso_data_parallel_begin_no_sync");
    self->no_sync--;
    return ISO_OK;
}

// ---- Weights ----------------------------------------------------------------------------------------

iso_status iso_data_parallel_add_weight(iso_module *module, double weight) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel *self = iso__data_parallel_of(module);
    ISO_CHECK(self->by_weight, ISO_ERR_STATE,
              "the gradients are averaged over ranks: set by_weight of iso_data_parallel_config to "
              "give weights");
    iso__data_parallel_drop_weight(self);
    self->carried = false;
    return iso_reducer_add_weight(self->reducer, weight);
}

// ---- Hooks of the user ------------------------------------------------------------------------------

static iso_status add_hook(iso__user_hooks *hooks, const iso__user_hook *hook, int *handle) {
    ISO_CHECK(hook->pre_sync || hook->before_forward, ISO_ERR_ARG, "a hook needs a function");
    void *array = hooks->item;
    ISO_TRY(iso__grow(&array, hooks->count, NULL, sizeof(*hooks->item)));
    hooks->item = array;
    hooks->item[hooks->count] = *hook;
    hooks->item[hooks->count++].handle = ++hooks->handle;
    if (handle) *handle = hooks->handle;
    return ISO_OK;
}

// Returns whether there was one.
static bool drop_hook(iso__user_hooks *hooks, int handle) {
    int at = 0;
    while (at < hooks->count && hooks->item[at].handle != handle) at++;
    if (at == hooks->count) return false;
    hooks->count--;
    for (; at < hooks->count; at++) hooks->item[at] = hooks->item[at + 1];
    return true;
}

static iso_status check_dropped(bool dropped, const char *what, int handle) {
    ISO_CHECK(dropped, ISO_ERR_ARG, "there is no %s hook %d: it was removed, or never added", what,
              handle);
    return ISO_OK;
}

iso_status iso_data_parallel_add_pre_sync_hook(iso_module *module, iso_pre_sync_hook hook,
                                               void *user, int *handle) {
    ISO_TRY(iso__data_parallel_check(module));
    ISO_TRY(iso_data_parallel_finish(module));
    return add_hook(&iso__data_parallel_of(module)->pre_sync,
                    &(iso__user_hook){.pre_sync = hook, .user = user}, handle);
}

iso_status iso_data_parallel_remove_pre_sync_hook(iso_module *module, int handle) {
    ISO_TRY(iso__data_parallel_check(module));
    iso_status finished = iso_data_parallel_finish(module);
    // Even on failure, because what the hook uses may be freed.
    bool dropped = drop_hook(&iso__data_parallel_of(module)->pre_sync, handle);
    ISO_TRY(finished);
    return check_dropped(dropped, "pre-synchronisation", handle);
}

iso_status iso_data_parallel_add_before_forward(iso_module *module, iso_before_forward hook,
                                                void *user, int *handle) {
    ISO_TRY(iso__data_parallel_check(module));
    return add_hook(&iso__data_parallel_of(module)->before_forward,
                    &(iso__user_hook){.before_forward = hook, .user = user}, handle);
}

iso_status iso_data_parallel_remove_before_forward(iso_module *module, int handle) {
    ISO_TRY(iso__data_parallel_check(module));
    bool dropped = drop_hook(&iso__data_parallel_of(module)->before_forward, handle);
    return check_dropped(dropped, "before-forward", handle);
}

// ---- Bytes ------------------------------------------------------------------------------------------

// Adds the traffic of the communicators of synchronised batch norms, each one once: adding marks
// it, and a call with `to` NULL removes the marks.
static void add_norms(iso_module *module, iso_traffic *to) {
    bool norm = iso__batch_norm_features(module) > 0;
    iso_comm *comm = norm ? iso__batch_norm_user(module) : NULL;
    if (comm) iso__comm_collect(comm, to);
    for (int i = 0; i < module->child_count; i++) add_norms(module->child[i], to);
}

iso_status iso_data_parallel_get_traffic(iso_module *module, iso_traffic *out) {
    ISO_TRY(iso__data_parallel_check(module));
    const iso__data_parallel *self = iso__data_parallel_of(module);
    iso_traffic sum = iso__reducer_traffic(self->reducer);
    iso__traffic_add(&sum, &self->buffer_sync.traffic);
    add_norms(module, &sum);
    add_norms(module, NULL);
    *out = sum;
    return ISO_OK;
}

// ---- Parts ------------------------------------------------------------------------------------------

iso_module *iso_data_parallel_module(iso_module *module) {
    return iso__is_data_parallel(module) ? module->child[0] : NULL;
}

iso_reducer *iso_data_parallel_reducer(iso_module *module) {
    return iso__is_data_parallel(module) ? iso__data_parallel_of(module)->reducer : NULL;
}

iso_comm *iso_data_parallel_comm(iso_module *module) {
    return iso__is_data_parallel(module) ? iso__data_parallel_of(module)->comm : NULL;
}

iso_status iso_data_parallel_sampler(iso_module *module, iso_sampler_config *config) {
    ISO_TRY(iso__data_parallel_check(module));
    const iso_comm *comm = iso__data_parallel_of(module)->comm;
    config->rank = iso_comm_rank(comm);
    config->ranks = iso_comm_size(comm);
    return ISO_OK;
}

int iso__data_parallel_trainable(iso_module *module, iso_parameter *const **out) {
    *out = iso__data_parallel_of(module)->trainable;
    return iso__data_parallel_of(module)->trainable_count;
}

iso_status iso__data_parallel_set_scope(iso_module *module, iso_scope scope) {
    return iso__reducer_set_scope(iso__data_parallel_of(module)->reducer, scope);
}

void iso__data_parallel_set_train_hook(iso_module *module, iso__train_hook hook, void *user) {
    iso__data_parallel_of(module)->hook = hook;
    iso__data_parallel_of(module)->hook_user = user;
}

// ---- Times ----------------------------------------------------------------------------------------

static double mean_ms(const iso__clock *c) {
    return c->count > 0 ? (double)c->passed * 1e-6 / (double)c->count : 0;
}

// From the means of the buckets, which count from the first gradient.
static void add_exchange(const iso_reducer *r, iso_data_parallel_times *out) {
    double start = INFINITY, done = 0, ready = 0;
    iso_reducer_stats stats;
    iso_reducer_get_stats(r, &stats);
    for (int b = 0; b < stats.bucket_count; b++) {
        iso_bucket_stats bucket;
        if (iso_reducer_get_bucket_stats(r, b, &bucket) < 0 || bucket.exchanges == 0) continue;
        start = fmin(start, bucket.start_ms);
        done = fmax(done, bucket.done_ms);
        ready = fmax(ready, bucket.ready_ms);
    }
    if (!(start < done)) return;
    out->exchange_ms = done - start;
    out->overlap_ms = fmax(0, fmin(done, ready) - start);
}

iso_status iso_data_parallel_get_times(iso_module *module, iso_data_parallel_times *out) {
    ISO_TRY(iso__data_parallel_check(module));
    const iso__data_parallel *self = iso__data_parallel_of(module);
    *out = (iso_data_parallel_times){.forwards = self->forward.count,
                                     .backwards = self->backward.count,
                                     .forward_ms = mean_ms(&self->forward),
                                     .backward_ms = mean_ms(&self->backward)};
    add_exchange(self->reducer, out);
    return ISO_OK;
}
