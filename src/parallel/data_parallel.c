// DataParallel: connects the hooks of a module to the reducer, and completes pending work before
// anyone looks.
#include "parallel/parallel_impl.h"
#include "parallel/reducer_impl.h"

#include "nn/nn_impl.h"
#include "tensor/tensor_impl.h"

// What a hooked module needs to find its parameters in the reducer: trainable ones are adjacent.
typedef struct layer_link {
    struct data_parallel *owner;
    int first, count;
} layer_link;

typedef struct data_parallel {
    iso_module base; // its one child is the wrapped module
    iso_comm *comm;
    iso_reducer *reducer;
    iso_parameter_list list;
    iso_buffer_list buffers;
    iso_parameter **trainable; // index = the reducer's
    int trainable_count;
    layer_link *link;
    int link_count;
    iso__train_hook hook;
    void *hook_user;
    bool evaluating;
    int no_sync; // how deep
} data_parallel;

static const iso_module_ops data_parallel_ops;

static data_parallel *self_of(iso_module *module) {
    return iso_container_of(module, data_parallel, base);
}

static bool is_data_parallel(const iso_module *module) { return module->ops == &data_parallel_ops; }

// ---- Hooks ----------------------------------------------------------------------------------------

// The first parameter brings in the rest of its layer, but for those of another element type.
static iso_status before_forward(iso_module *module, void *user) {
    (void)module;
    layer_link *link = user;
    if (link->count == 0) {
        iso_reducer_poll(link->owner->reducer);
        return ISO_OK;
    }
    const iso_reducer *r = link->owner->reducer;
    int bucket = -1;
    for (int i = link->first; i < link->first + link->count; i++) {
        if (r->slot[i].bucket == bucket) continue;
        bucket = r->slot[i].bucket;
        ISO_TRY(iso_reducer_param_needed(link->owner->reducer, i));
    }
    return ISO_OK;
}

static iso_status gradient_ready(iso_module *module, void *user) {
    (void)module;
    layer_link *link = user;
    if (link->owner->no_sync > 0) return ISO_OK;
    for (int i = link->first + link->count - 1; i >= link->first; i--)
        ISO_TRY(iso_reducer_grad_ready(link->owner->reducer, i));
    return ISO_OK;
}

// Someone looks at a parameter or its gradient from outside.
static iso_status complete(void *user, iso_parameter *parameter) {
    (void)parameter;
    data_parallel *self = user;
    return iso_reducer_finish(self->reducer);
}

// ---- Module ---------------------------------------------------------------------------------------

// A layer that this rank did not reach contributes what earlier backwards left there, or zeros. All
// ranks hold the average from here on, whichever of them used the layer.
static iso_status close_backward(data_parallel *self) {
    for (int i = self->trainable_count - 1; i >= 0; i--) {
        iso_parameter *p = self->trainable[i];
        if (!iso__reducer_is_ready(self->reducer, i)) {
            if (!p->grad_valid) ISO_TRY(iso_tensor_fill(p->grad, 0));
            ISO_TRY(iso_reducer_grad_ready(self->reducer, i));
        }
        p->grad_valid = true;
    }
    return ISO_OK;
}

static iso_status forward(iso_module *module, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)call;
    data_parallel *self = self_of(module);
    // Row r of this rank's batch is row rank * n + r of the global one.
    iso_module_set_first_row(module->child[0], iso_comm_rank(self->comm) * iso_tensor_shape(in)[0]);
    return iso_module_call(module->child[0], ISO_ACT_NONE, in, out);
}

static iso_status backward(iso_module *module, iso_call *call, iso_tensor *grad_out,
                           iso_tensor **grad_in) {
    (void)call;
    data_parallel *self = self_of(module);
    // Layers that this forward did not use still have their update pending.
    ISO_TRY(iso_reducer_finish(self->reducer));
    bool local = self->no_sync > 0; // its gradients stay on this rank
    self->reducer->unsynced = local ? self->reducer->unsynced + 1 : 0;
    ISO_TRY(iso_module_call_backward(module->child[0], grad_out, grad_in));
    return local ? ISO_OK : close_backward(self);
}

static iso_status train(iso_module *module, bool training) {
    data_parallel *self = self_of(module);
    if (training && !self->evaluating) return ISO_OK;
    ISO_TRY(iso_reducer_finish(self->reducer));
    if (training == self->evaluating && self->hook) ISO_TRY(self->hook(training, self->hook_user));
    if (!training && !self->evaluating) ISO_TRY(iso__buffers_average(self->comm, &self->buffers));
    self->evaluating = !training;
    return ISO_OK;
}

static void unhook(iso_module *module) {
    iso_module_set_hooks(module, NULL);
    for (int i = 0; i < module->child_count; i++) unhook(module->child[i]);
}

// Parameters outlive the wrapper if the caller kept a reference of the module: give their gradients
// memory of their own again.
static void take_back_gradients(data_parallel *self) {
    for (int i = 0; i < self->trainable_count; i++) {
        iso_parameter *p = self->trainable[i];
        p->complete = NULL;
        iso_tensor *own;
        if (!p->grad || p->grad->capacity > 0) continue;
        if (iso_tensor_create(p->value->device, p->value->dtype, p->value->ndim, p->value->shape,
                              &own) < 0)
            continue;
        iso_tensor_destroy(&p->grad);
        p->grad = own;
        p->grad_valid = false;
    }
}

static void destroy(iso_module *module) {
    data_parallel *self = self_of(module);
    iso_reducer_destroy(&self->reducer); // completes what is pending
    take_back_gradients(self);
    if (module->child_count > 0) unhook(module->child[0]);
    iso_parameter_list_destroy(&self->list);
    iso_buffer_list_destroy(&self->buffers);
    iso__free(self->trainable);
    iso__free(self->link);
    iso_comm_destroy(&self->comm);
}

static const iso_module_ops data_parallel_ops = {
    .type = "DataParallel",
    .forward = forward,
    .backward = backward,
    .train = train,
    .destroy = destroy,
};

// ---- Construction ---------------------------------------------------------------------------------

static uint64_t shape_id(const iso_tensor *t) {
    return iso__hash(ISO_HASH_START, t->shape, (size_t)t->ndim * sizeof(t->shape[0]));
}

// Lists all parameters; those of one owner are one layer.
static void describe(const iso_parameter_list *list, iso_reducer_param *params, char (*text)[64]) {
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
                                        .layer = layer,
                                        .shape_id = shape_id(p->value),
                                        .shape_text = text[i]};
    }
}

// The reducer sees the trainable ones only, so the whole list is compared here.
static iso_status match_and_create(data_parallel *self, iso_reducer_param *params,
                                   const iso_data_parallel_config *config) {
    char settings[96];
    snprintf(settings, sizeof(settings), "%d parameters, %d buffers (names and shapes %016llx)",
             self->list.count, self->buffers.count,
             (unsigned long long)iso__buffers_fingerprint(&self->buffers));
    ISO_TRY(iso__match(self->comm, params, self->list.count, settings));
    for (int i = 0; i < self->list.count; i++) {
        if (!self->list.item[i]->requires_grad) continue;
        params[self->trainable_count] = params[i];
        self->trainable[self->trainable_count++] = self->list.item[i];
    }
    ISO_CHECK(self->trainable_count > 0, ISO_ERR_ARG,
              "data_parallel was given a module in which nothing requires a gradient");
    iso_reducer_config reducer_config = {.sync = config->sync,
                                         .scope = config->scope,
                                         .bucket_bytes = (size_t)(config->bucket_mb * 1048576.0)};
    return iso_reducer_create(self->comm, params, self->trainable_count, &reducer_config,
                              &self->reducer);
}

static iso_status create_reducer(data_parallel *self, const iso_data_parallel_config *config) {
    size_t count = (size_t)self->list.count;
    iso_reducer_param *params = NULL;
    char(*text)[64] = NULL;
    iso_status status = iso__alloc_zero(count * sizeof(*params), (void **)&params);
    if (status == ISO_OK) status = iso__alloc_zero(count * sizeof(*text), (void **)&text);
    if (status == ISO_OK) {
        describe(&self->list, params, text);
        status = match_and_create(self, params, config);
    }
    iso__free(params);
    iso__free(text);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status move_gradients(data_parallel *self) {
    for (int i = 0; i < self->trainable_count; i++) {
        iso_parameter *p = self->trainable[i];
        iso_tensor *view;
        ISO_TRY(iso_tensor_borrow(p->value->device, p->value->dtype, p->value->ndim,
                                  p->value->shape, iso_reducer_grad(self->reducer, i), &view));
        iso_tensor_destroy(&p->grad);
        p->grad = view;
        p->grad_valid = false;
        p->complete = complete;
        p->complete_user = self;
    }
    return ISO_OK;
}

static iso_status broadcast_frozen(data_parallel *self) {
    for (int i = 0; i < self->list.count; i++) {
        iso_tensor *value = self->list.item[i]->value;
        if (self->list.item[i]->requires_grad) continue;
        ISO_TRY(iso_comm_bcast(self->comm, value->data,
                               (size_t)value->count * iso_dtype_size(value->dtype), 0));
    }
    return ISO_OK;
}

// Leaves get hooks even without parameters: a chance to poll.
static bool is_linked(const iso_module *module) {
    return module->child_count == 0 || module->parameter_count > 0;
}

static int count_links(const iso_module *module) {
    int n = is_linked(module);
    for (int i = 0; i < module->child_count; i++) n += count_links(module->child[i]);
    return n;
}

static void link_leaves(data_parallel *self, iso_module *module) {
    for (int i = 0; i < module->child_count; i++) link_leaves(self, module->child[i]);
    if (!is_linked(module)) return;
    layer_link *link = &self->link[self->link_count++];
    *link = (layer_link){.owner = self};
    for (int i = 0; i < self->trainable_count; i++) {
        bool mine = false;
        for (int k = 0; k < module->parameter_count; k++)
            mine = mine || module->parameter[k] == self->trainable[i];
        if (!mine) continue;
        if (link->count++ == 0) link->first = i;
    }
    iso_module_hooks hooks = {
        .before_forward = before_forward, .gradient_ready = gradient_ready, .user = link};
    iso_module_set_hooks(module, &hooks);
}

static iso_status prepare(data_parallel *self, iso_module *module,
                          const iso_data_parallel_config *config) {
    ISO_CHECK(config->bucket_mb >= 0 && config->bucket_mb < 1e6, ISO_ERR_ARG,
              "bucket size %g MB: give a number from 0 (one bucket per layer) to 1e6",
              config->bucket_mb);
    ISO_TRY(iso_module_parameters(module, &self->list));
    ISO_TRY(iso_module_buffers(module, &self->buffers));
    ISO_TRY(iso__alloc_zero((size_t)self->list.count * sizeof(*self->trainable),
                            (void **)&self->trainable));
    return ISO_OK;
}

static iso_status setup(data_parallel *self, iso_module *module,
                        const iso_data_parallel_config *config) {
    // A rank that failed alone would leave the others waiting in what follows.
    ISO_TRY(iso_comm_agree(self->comm, prepare(self, module, config)));
    ISO_TRY(create_reducer(self, config));
    ISO_TRY(broadcast_frozen(self));
    ISO_TRY(iso__buffers_broadcast(self->comm, &self->buffers));
    ISO_TRY(move_gradients(self));
    ISO_TRY(
        iso__alloc_zero((size_t)count_links(module) * sizeof(*self->link), (void **)&self->link));
    link_leaves(self, module);
    return ISO_OK;
}

iso_status iso_data_parallel_create_take(iso_module *module, iso_comm *comm,
                                         const iso_data_parallel_config *config, iso_module **out) {
    iso_data_parallel_config chosen = config ? *config : ISO_DATA_PARALLEL_DEFAULT;
    iso_status status;
    iso_module *base = NULL;
    ISO_TRY_GOTO(iso__module_new(sizeof(data_parallel), &data_parallel_ops, module->device, &base));
    data_parallel *self = self_of(base);
    self->comm = iso_comm_retain(comm);
    iso_module *taken = module;
    module = NULL;
    ISO_TRY_GOTO(iso__module_add_wrapped_take(base, taken));
    ISO_TRY_GOTO(setup(self, taken, &chosen));
    *out = base;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    iso_module_destroy(&base);
    *out = NULL; // often the caller's pointer to the module that is gone
    return status;
}

// ---- Queries --------------------------------------------------------------------------------------

static iso_status check_wrapper(const iso_module *module) {
    ISO_CHECK(is_data_parallel(module), ISO_ERR_ARG, "the module is a %s, not a DataParallel",
              module->ops->type);
    return ISO_OK;
}

iso_status iso_data_parallel_finish(iso_module *module) {
    ISO_TRY(check_wrapper(module));
    return complete(self_of(module), NULL);
}

iso_status iso_data_parallel_begin_no_sync(iso_module *module) {
    ISO_TRY(check_wrapper(module));
    self_of(module)->no_sync++;
    return ISO_OK;
}

iso_status iso_data_parallel_end_no_sync(iso_module *module) {
    ISO_TRY(check_wrapper(module));
    ISO_CHECK(self_of(module)->no_sync > 0, ISO_ERR_STATE,
              "end of no_sync without a beginning: each end belongs to one begin");
    self_of(module)->no_sync--;
    return ISO_OK;
}

iso_module *iso_data_parallel_module(iso_module *module) {
    return is_data_parallel(module) ? module->child[0] : NULL;
}

iso_reducer *iso_data_parallel_reducer(iso_module *module) {
    return is_data_parallel(module) ? self_of(module)->reducer : NULL;
}

iso_comm *iso__data_parallel_comm(iso_module *module) { return self_of(module)->comm; }

int iso__data_parallel_trainable(iso_module *module, iso_parameter *const **out) {
    *out = self_of(module)->trainable;
    return self_of(module)->trainable_count;
}

iso_status iso__data_parallel_set_scope(iso_module *module, iso_scope scope) {
    data_parallel *self = self_of(module);
    ISO_TRY(iso__reducer_set_scope(self->reducer, scope));
    for (int i = 0; i < self->trainable_count; i++) // tensors stay, their memory may have moved
        self->trainable[i]->grad->data = iso_reducer_grad(self->reducer, i);
    return ISO_OK;
}

void iso__data_parallel_set_train_hook(iso_module *module, iso__train_hook hook, void *user) {
    self_of(module)->hook = hook;
    self_of(module)->hook_user = user;
}
