// SPDX-License-Identifier: MIT
// Gives a DataParallel other buckets by replacing its reducer.
#include "parallel/data_parallel_impl.h"

#include "comm/comm_calls.h"

#include <string.h>

static iso_status check_rebuild(const iso__data_parallel *self, const iso_bucket_sizes *sizes) {
    ISO_CHECK(!self->joined, ISO_ERR_STATE,
              "buckets cannot be rebuilt while an iso_join exists, whose ranks without a batch "
              "would not take part: do it before or after");
    if (sizes) {
        ISO_TRY(iso__data_parallel_check_mb("bucket_mb", sizes->bucket_mb));
        ISO_TRY(iso__data_parallel_check_mb("first_bucket_mb", sizes->first_bucket_mb));
        ISO_TRY(iso__data_parallel_check_mb("last_bucket_mb", sizes->last_bucket_mb));
    }
    return iso__reducer_check_place(self->reducer);
}

// The order of rank 0, for all ranks.
static iso_status share_order(iso__data_parallel *self, int **key) {
    size_t bytes = (size_t)self->trainable_count * sizeof(**key);
    iso_status mine = iso__alloc_zero(bytes, (void **)key);
    if (mine == ISO_OK)
        mine = iso__reducer_ready_keys(self->reducer, self->param, self->trainable_count, *key);
    ISO_TRY(iso_comm_agree(self->comm, mine));
    return iso_comm_bcast(self->comm, *key, bytes, 0);
}

static void choose_sizes(iso__data_parallel *self, const iso_bucket_sizes *sizes) {
    iso_reducer_config *c = &self->settings;
    c->hook = iso__reducer_hook(self->reducer); // the program may have freed its own
    c->keep_values = true;
    if (!sizes) return;
    c->bucket_bytes = (size_t)(sizes->bucket_mb * 1048576.0);
    c->first_bucket_bytes = (size_t)(sizes->first_bucket_mb * 1048576.0);
    c->last_bucket_bytes = (size_t)(sizes->last_bucket_mb * 1048576.0);
    c->bucket_list = NULL;
    c->bucket_list_count = 0;
}

// Gradients stay, as the next backward may add to them.
static void move_in(iso__data_parallel *self, iso_reducer **made, iso__views *views) {
    for (int i = 0; i < self->trainable_count; i++) {
        const iso_tensor *grad = self->trainable[i]->grad;
        size_t bytes = (size_t)grad->count * iso_dtype_size(grad->dtype);
        if (self->trainable[i]->grad_valid) memcpy(views->grad[i]->data, grad->data, bytes);
    }
    iso__data_parallel_take_views(self, views);
    iso_reducer *before = self->reducer;
    self->reducer = *made;
    *made = before;
}

static iso_status take_place(iso__data_parallel *self, const int *key) {
    iso_reducer *made = NULL;
    iso__views views = {0};
    ISO_TRY(iso__data_parallel_make_reducer(self, key, &made));
    iso_status status = iso__reducer_go_on(made, self->reducer);
    if (status == ISO_OK)
        status = iso_comm_agree(self->comm, iso__data_parallel_make_views(self, made, &views));
    if (status == ISO_OK) move_in(self, &made, &views);
    iso__data_parallel_drop_views(self, &views);
    iso_reducer_destroy(&made); // the old reducer, or the new one after a failure
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_data_parallel_rebuild(iso_module *module, const iso_bucket_sizes *sizes) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel *self = iso__data_parallel_of(module);
    iso_reducer_config before = self->settings;
    int *key = NULL;
    ISO_TRY(iso_comm_agree(self->comm, check_rebuild(self, sizes)));
    ISO_TRY(iso_comm_agree(self->comm, iso_data_parallel_finish(module)));
    iso_status status = share_order(self, &key);
    choose_sizes(self, sizes);
    if (status == ISO_OK) status = take_place(self, key);
    if (status < 0) self->settings = before;
    self->settings.hook = iso__reducer_hook(self->reducer); // of the reducer in use now
    iso__free(key);
    ISO_TRY(status);
    return ISO_OK;
}
