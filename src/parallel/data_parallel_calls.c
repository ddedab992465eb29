// SPDX-License-Identifier: MIT
// What callers ask of a DataParallel besides running it.
#include "parallel/data_parallel_impl.h"

iso_status iso_data_parallel_sync_buffers(iso_module *module) {
    ISO_TRY(iso__data_parallel_check(module));
    return iso__buffer_sync_run(&iso__data_parallel_of(module)->buffer_sync);
}

iso_reducer *iso__data_parallel_of_parameter(const iso_parameter *p, int *index) {
    if (p->complete != iso__data_parallel_complete) return NULL;
    const iso__data_parallel *self = p->complete_user;
    for (*index = 0; *index < self->trainable_count; ++*index)
        if (self->trainable[*index] == p) return self->reducer;
    return NULL;
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

// ---- Hooks of the user ------------------------------------------------------------------------------

iso_status iso_data_parallel_add_pre_sync_hook(iso_module *module, iso_pre_sync_hook hook,
                                               void *user, int *handle) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel *self = iso__data_parallel_of(module);
    ISO_CHECK(hook, ISO_ERR_ARG, "a pre-synchronisation hook needs a function");
    ISO_TRY(iso_data_parallel_finish(module));
    size_t old = (size_t)self->pre_sync_count * sizeof(*self->pre_sync);
    ISO_TRY(iso__realloc((void **)&self->pre_sync, old, old + sizeof(*self->pre_sync)));
    int id = self->pre_sync_ids++;
    self->pre_sync[self->pre_sync_count++] =
        (iso__pre_sync_hook){.id = id, .call = hook, .user = user};
    if (handle) *handle = id;
    return ISO_OK;
}

iso_status iso_data_parallel_remove_pre_sync_hook(iso_module *module, int handle) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel *self = iso__data_parallel_of(module);
    int at = 0;
    while (at < self->pre_sync_count && self->pre_sync[at].id != handle) at++;
    ISO_CHECK(at < self->pre_sync_count, ISO_ERR_ARG,
              "there is no pre-synchronisation hook %d: it was removed, or never added", handle);
    ISO_TRY(iso_data_parallel_finish(module));
    self->pre_sync_count--;
    for (; at < self->pre_sync_count; at++) self->pre_sync[at] = self->pre_sync[at + 1];
    return ISO_OK;
}

iso_status iso_data_parallel_set_before_forward(iso_module *module, iso_before_forward hook,
                                                void *user) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel_of(module)->before_forward = hook;
    iso__data_parallel_of(module)->before_forward_user = user;
    return ISO_OK;
}

// ---- Bytes ------------------------------------------------------------------------------------------

// What the communicators of synchronised batch norms have counted, each of them once: it is marked
// when it was added, and the mark is taken away later (NULL).
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
