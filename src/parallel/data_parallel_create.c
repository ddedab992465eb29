// SPDX-License-Identifier: MIT
// Creates a DataParallel: compares the settings of the ranks, creates the reducer, and moves
// gradients into its memory.
#include "parallel/data_parallel_impl.h"
#include "parallel/param_list.h"

#include "comm/comm_calls.h"

#include <string.h>

const iso_data_parallel_config iso_data_parallel_default = ISO_DATA_PARALLEL_DEFAULT;

static uint64_t shape_id(const iso_tensor *t) {
    return iso__hash(ISO_HASH_START, t->shape, (size_t)t->ndim * sizeof(t->shape[0]));
}

// Elements of a row; 0: the parameter has no rows.
static size_t row_of(const iso_parameter *p) {
    return p->value->ndim > 1 ? (size_t)(p->value->count / p->value->shape[0]) : 0;
}

// Lists all parameters; those of one owner are one layer.
static void describe_parameters(const iso_parameter_list *list, iso_reducer_param *params,
                                char (*text)[64]) {
    int layer = -1;
    for (int i = 0; i < list->count; i++) {
        const iso_parameter *p = list->item[i];
        char shape[48];
        if (i == 0 || list->owner[i] != list->owner[i - 1]) layer++;
        iso__shape_text(p->value->ndim, p->value->shape, shape, sizeof(shape));
        snprintf(text[i], sizeof(text[i]), "%s%s", shape, p->requires_grad ? "" : " frozen");
        params[i] = (iso_reducer_param){.name = list->name[i],
                                        .value = p->value->data,
                                        .count = (size_t)p->value->count,
                                        .dtype = p->value->dtype,
                                        .row = row_of(p),
                                        .sparse_rows = (size_t)p->sparse_rows,
                                        .whole = p->references > 1, // written by several layers
                                        .layer = layer,
                                        .shape_id = shape_id(p->value),
                                        .shape_text = text[i]};
    }
}

static bool is_among(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static bool is_ignored(const iso_data_parallel_config *config, const char *name) {
    return is_among(config->ignore, config->ignore_count, name);
}

static size_t bytes_of(double mb) { return (size_t)(mb * 1048576.0); }

static iso_status choose_settings(iso__data_parallel *self,
                                  const iso_data_parallel_config *config) {
    size_t room = (size_t)config->bucket_list_count * sizeof(*self->bucket_list);
    if (room > 0) ISO_TRY(iso__alloc_zero(room, (void **)&self->bucket_list));
    for (int i = 0; i < config->bucket_list_count; i++)
        self->bucket_list[i] = bytes_of(config->bucket_list_mb[i]);
    self->settings = (iso_reducer_config){
        .device = self->base.device,
        .sync = config->sync,
        .scope = config->scope,
        .order = config->order,
        .unused = self->unused,
        .average = config->average,
        .split_factor = config->split_factor,
        .hook = config->hook,
        .bucket_bytes = self->bucket_list ? 0 : bytes_of(config->bucket_mb),
        .first_bucket_bytes = bytes_of(config->first_bucket_mb),
        .last_bucket_bytes = bytes_of(config->last_bucket_mb),
        .bucket_list = self->bucket_list,
        .bucket_list_count = config->bucket_list_count,
        // On a single rank no exchange needs hiding.
        .piece_bytes = iso_comm_size(self->comm) > 1 ? bytes_of(config->piece_mb) : 0,
        .zero = config->zero,
        .zero_scope = config->zero_scope,
        .keep_values = config->keep_values,
        .by_weight = config->by_weight,
    };
    return ISO_OK;
}

iso_status iso__data_parallel_make_reducer(iso__data_parallel *self, const int *key,
                                           iso_reducer **out) {
    return iso__reducer_create_sorted(self->comm, self->param, self->trainable_count,
                                      &self->settings, key, out);
}

// The reducer gets only trainable parameters, so the whole list is compared here.
static iso_status create_reducer(iso__data_parallel *self, const iso_data_parallel_config *config) {
    iso_reducer_param *params = self->param;
    char *settings = NULL;
    describe_parameters(&self->list, params, self->text);
    iso_status status =
        iso_comm_agree(self->comm, iso__buffers_describe(&self->buffers, &settings));
    if (status == ISO_OK)
        status = iso__params_check_ranks(self->comm, params, self->list.count, settings,
                                         iso__buffers_fingerprint(&self->buffers));
    iso__free(settings);
    ISO_TRY(status);
    for (int i = 0; i < self->list.count; i++) {
        if (!self->list.item[i]->requires_grad) continue;
        params[self->trainable_count] = params[i];
        params[self->trainable_count].local = is_ignored(config, self->list.name[i]);
        params[self->trainable_count].delayed =
            is_among(config->delay, config->delay_count, self->list.name[i]);
        self->trainable[self->trainable_count++] = self->list.item[i];
    }
    ISO_CHECK(self->trainable_count > 0, ISO_ERR_ARG,
              "data_parallel was given a module in which nothing requires a gradient");
    return iso__data_parallel_make_reducer(self, NULL, &self->reducer);
}

static iso_status broadcast_frozen(iso__data_parallel *self) {
    iso__tensor_batch batch = {.comm = self->comm};
    for (int i = 0; i < self->list.count; i++)
        if (!self->list.item[i]->requires_grad)
            ISO_TRY(iso__tensor_batch_add(&batch, self->list.item[i]->value));
    return iso__tensor_batch_end(&batch);
}

iso_status iso__data_parallel_check_mb(const char *field, double mb) {
    ISO_CHECK(mb >= 0 && mb < 1e6, ISO_ERR_ARG, "%s %g MiB: give a number from 0 to 1e6", field,
              mb);
    return ISO_OK;
}

static iso_status check_sizes(const iso_data_parallel_config *config) {
    ISO_TRY(iso__data_parallel_check_mb("bucket_mb", config->bucket_mb));
    ISO_TRY(iso__data_parallel_check_mb("first_bucket_mb", config->first_bucket_mb));
    ISO_TRY(iso__data_parallel_check_mb("last_bucket_mb", config->last_bucket_mb));
    ISO_TRY(iso__data_parallel_check_mb("piece_mb", config->piece_mb));
    ISO_CHECK(config->bucket_list_count >= 0 &&
                  (config->bucket_list_mb || config->bucket_list_count == 0),
              ISO_ERR_ARG, "a list of %d bucket sizes%s: give the sizes and how many there are",
              config->bucket_list_count, config->bucket_list_mb ? "" : " that is NULL");
    for (int i = 0; i < config->bucket_list_count; i++)
        ISO_TRY(iso__data_parallel_check_mb("bucket_list_mb has an entry of",
                                            config->bucket_list_mb[i]));
    return ISO_OK;
}

static bool has_parameter(const iso__data_parallel *self, const char *name) {
    for (int i = 0; i < self->list.count; i++)
        if (strcmp(self->list.name[i], name) == 0) return true;
    return false;
}

static bool has_name(const iso__data_parallel *self, const char *name) {
    if (has_parameter(self, name)) return true;
    for (int i = 0; i < self->buffers.count; i++)
        if (strcmp(self->buffers.name[i], name) == 0) return true;
    return false;
}

static iso_status check_ignored(const iso__data_parallel *self,
                                const iso_data_parallel_config *config) {
    for (int i = 0; i < config->ignore_count; i++)
        ISO_CHECK(has_name(self, config->ignore[i]), ISO_ERR_ARG,
                  "data_parallel is told to ignore \"%s\", but the module has no such parameter or "
                  "buffer",
                  config->ignore[i]);
    return ISO_OK;
}

static iso_status check_delayed(const iso__data_parallel *self,
                                const iso_data_parallel_config *config) {
    for (int i = 0; i < config->delay_count; i++) {
        const char *name = config->delay[i];
        ISO_CHECK(has_parameter(self, name), ISO_ERR_ARG,
                  "data_parallel is told to delay \"%s\", but the module has no such parameter (a "
                  "tied parameter has the name of its first place)",
                  name);
        ISO_CHECK(
            !is_ignored(config, name), ISO_ERR_ARG,
            "data_parallel is told to delay and to ignore \"%s\": an ignored parameter is not "
            "exchanged at all, so name it in one of the two",
            name);
    }
    return ISO_OK;
}

// Empties the list of buffers if they are to be ignored.
static void drop_ignored_buffers(iso__data_parallel *self, const iso_data_parallel_config *config) {
    iso_buffer_list *list = &self->buffers;
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        if (is_ignored(config, list->name[i])) {
            iso__free(list->name[i]);
            continue;
        }
        list->name[kept] = list->name[i];
        list->item[kept++] = list->item[i];
    }
    list->count = kept;
}

static iso_status check_unwrapped(const iso__data_parallel *self) {
    for (int i = 0; i < self->list.count; i++)
        ISO_CHECK(
            !self->list.item[i]->complete, ISO_ERR_STATE,
            "\"%s\" is data-parallel already: wrap a module once, and outside all other wrappers",
            self->list.name[i]);
    return ISO_OK;
}

static iso_status check_sparse(const iso_parameter *p, const char *name) {
    char shape[48];
    iso__shape_text(p->value->ndim, p->value->shape, shape, sizeof(shape));
    ISO_CHECK(
        p->sparse_rows >= 0, ISO_ERR_ARG,
        "parameter \"%s\" has sparse_rows %lld: give the largest number of non-zero rows of its "
        "gradient, or 0",
        name, (long long)p->sparse_rows);
    ISO_CHECK(
        p->sparse_rows == 0 || row_of(p) > 0, ISO_ERR_ARG,
        "parameter \"%s\" has sparse_rows %lld, but its shape is %s: only a parameter of two or "
        "more dimensions has rows; set sparse_rows to 0",
        name, (long long)p->sparse_rows, shape);
    return ISO_OK;
}

static iso_status check_trainable(const iso__data_parallel *self) {
    for (int i = 0; i < self->list.count; i++) {
        const iso_parameter *p = self->list.item[i];
        iso_dtype type = p->value->dtype;
        ISO_CHECK(!p->requires_grad || iso__is_real(type), ISO_ERR_TYPE,
                  "parameter \"%s\" is %s: modules train f32, f64, bf16 and f16",
                  self->list.name[i], iso_dtype_name(type));
        ISO_CHECK(!p->requires_grad || p->grad->dtype == iso__gradient_type(type), ISO_ERR_TYPE,
                  "parameter \"%s\" is %s and its gradient %s: give it one of %s",
                  self->list.name[i], iso_dtype_name(type), iso_dtype_name(p->grad->dtype),
                  iso_dtype_name(iso__gradient_type(type)));
        ISO_TRY(check_sparse(p, self->list.name[i]));
    }
    return ISO_OK;
}

static iso_status check_names(const char *const *names, int count, const char *what) {
    ISO_CHECK(count >= 0 && (names || count == 0), ISO_ERR_ARG,
              "%d names of parameters to %s%s: give the names and how many there are, or 0", count,
              what, names ? "" : " in a list that is NULL");
    return ISO_OK;
}

static int count_places(const iso_module *module) {
    int n = module->parameter_count;
    for (int i = 0; i < module->child_count; i++) n += count_places(module->child[i]);
    return n;
}

static iso_status make_links(iso__data_parallel *self, const iso_module *module) {
    size_t modules = (size_t)iso__module_count(module), places = (size_t)count_places(module);
    ISO_TRY(iso__alloc_zero(modules * sizeof(*self->link), (void **)&self->link));
    ISO_TRY(iso__alloc_zero((places + 1) * sizeof(*self->link_slots), (void **)&self->link_slots));
    return ISO_OK;
}

// Allocates the lists that have an entry for each parameter.
static iso_status make_lists(iso__data_parallel *self) {
    size_t count = (size_t)self->list.count;
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->param), (void **)&self->param));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->text), (void **)&self->text));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->trainable), (void **)&self->trainable));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->gradient), (void **)&self->gradient));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->old), (void **)&self->old));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->asked), (void **)&self->asked));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->reported), (void **)&self->reported));
    return iso__alloc_zero(count * sizeof(*self->used), (void **)&self->used);
}

static iso_status prepare_lists(iso__data_parallel *self, iso_module *module,
                                const iso_data_parallel_config *config) {
    ISO_TRY(check_sizes(config));
    ISO_TRY(check_names(config->ignore, config->ignore_count, "ignore"));
    ISO_TRY(check_names(config->delay, config->delay_count, "delay"));
    ISO_TRY(iso__module_check_tied(module, "wrapped"));
    ISO_TRY(iso_module_parameters(module, &self->list));
    ISO_TRY(check_unwrapped(self));
    ISO_TRY(check_trainable(self));
    if (config->zero > 2) ISO_TRY(iso__data_parallel_check_values(self));
    ISO_TRY(iso_module_buffers(module, &self->buffers));
    ISO_TRY(make_lists(self));
    ISO_TRY(check_ignored(self, config));
    ISO_TRY(check_delayed(self, config));
    ISO_CHECK(!config->by_weight || !config->reduce, ISO_ERR_ARG,
              "by_weight divides the sums of the library's reduction, and a reduce function leaves "
              "averages: choose one");
    ISO_TRY(choose_settings(self, config));
    return make_links(self, module);
}

static iso_status place_gradients(iso__data_parallel *self) {
    iso__views views;
    iso_status status = iso__data_parallel_make_views(self, self->reducer, &views);
    if (status == ISO_OK) {
        iso__data_parallel_take_views(self, &views);
        for (int i = 0; i < self->trainable_count; i++) self->trainable[i]->grad_valid = false;
    }
    iso__data_parallel_drop_views(self, &views);
    ISO_TRY(status);
    return ISO_OK;
}

// Numbers this DataParallel, one above the largest number on any rank: ranks may have created
// different numbers of them on other communicators. Also compares by_name, because it decides how
// the lists of the ranks are compared.
static iso_status take_number(iso__data_parallel *self, bool by_name) {
    static int64_t last;
    int64_t all[3] = {__atomic_load_n(&last, __ATOMIC_RELAXED) + 1, by_name, !by_name};
    ISO_TRY(iso_comm_allreduce_i64(self->comm, all, 3, ISO_MAX));
    __atomic_store_n(&last, all[0], __ATOMIC_RELAXED);
    self->number = all[0];
    if (!all[1] || !all[2]) return ISO_OK;
    return iso__comm_check_equal(self->comm, by_name, "by_name of iso_data_parallel_config");
}

static iso_status set_up(iso__data_parallel *self, iso_module *module,
                         const iso_data_parallel_config *config) {
    // The ranks agree: a rank that left alone would make the others wait.
    ISO_TRY(iso_comm_agree(self->comm, prepare_lists(self, module, config)));
    ISO_TRY(take_number(self, config->by_name));
    if (config->by_name) ISO_TRY(iso__data_parallel_take_order(self));
    ISO_TRY(create_reducer(self, config));
    if (!config->keep_values) ISO_TRY(broadcast_frozen(self));
    ISO_TRY(iso__comm_locate(self->comm));
    if (!config->keep_values) ISO_TRY(iso__buffers_broadcast(self->comm, &self->buffers));
    drop_ignored_buffers(self, config);
    ISO_TRY(
        iso__buffer_sync_create(self->comm, &self->buffers, &config->buffers, &self->buffer_sync));
    iso__reducer_set_owner(self->reducer);
    iso_status mine = place_gradients(self);
    if (mine == ISO_OK) mine = iso__data_parallel_link(self, module);
    if (mine == ISO_OK) mine = iso__data_parallel_make_uses(self);
    ISO_TRY(iso_comm_agree(self->comm, mine));
    iso__data_parallel_place_values(self);
    return ISO_OK;
}

iso_status iso_data_parallel_create_take(iso_module *module, iso_comm *comm,
                                         const iso_data_parallel_config *config, iso_module **out) {
    iso_data_parallel_config chosen = config ? *config : ISO_DATA_PARALLEL_DEFAULT;
    iso_status status;
    iso_module *base = NULL;
    // The ranks agree before the first meeting, too.
    ISO_TRY_GOTO(
        iso_comm_agree(comm, iso__module_new(sizeof(iso__data_parallel), &iso__data_parallel_ops,
                                             module->device, &base)));
    iso__data_parallel *self = iso__data_parallel_of(base);
    self->comm = iso_comm_retain(comm);
    self->sync = chosen.sync;
    self->first_row = -1;
    self->unused = chosen.static_unused            ? ISO_UNUSED_STATIC
                   : chosen.find_unused_parameters ? ISO_UNUSED_NEGOTIATE
                                                   : ISO_UNUSED_ERROR;
    self->by_weight = chosen.by_weight;
    self->reduce = chosen.reduce;
    self->reduce_user = chosen.reduce_user;
    iso_module *taken = module;
    module = NULL;
    ISO_TRY_GOTO(iso_comm_agree(comm, iso__module_add_wrapped_take(base, taken)));
    ISO_TRY_GOTO(set_up(self, taken, &chosen));
    *out = base;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    iso_module_destroy(&base);
    *out = NULL; // it may be the caller's pointer to the freed module
    return status;
}
