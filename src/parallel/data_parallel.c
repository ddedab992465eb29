// SPDX-License-Identifier: MIT
// DataParallel: forward, backward and evaluation of a module whose gradients a reducer exchanges.
// Completes pending work before the program reads parameters or gradients.
#include "parallel/data_parallel_impl.h"

// ---- Completing -----------------------------------------------------------------------------------

// Gradients that are back are averages, even if only some ranks used the parameter. A parameter
// that no rank used has no gradient.
static iso_status finish_gradients(iso__data_parallel *self) {
    ISO_TRY(iso__reducer_finish(self->reducer));
    for (int i = 0; self->any_asked && i < self->trainable_count; i++) {
        if (!self->asked[i]) continue;
        if (iso__reducer_was_unused(self->reducer, i)) self->trainable[i]->grad_valid = false;
        self->asked[i] = false;
    }
    self->any_asked = false;
    return ISO_OK;
}

static iso_status finish_all(iso__data_parallel *self) {
    ISO_TRY(finish_gradients(self));
    return iso__buffer_sync_finish(&self->buffer_sync);
}

// Does nothing inside a backward: only its own exchanges are pending, and closing it now would
// leave out the gradients to come.
iso_status iso__data_parallel_complete(void *user, iso_parameter *parameter) {
    iso__data_parallel *self = user;
    (void)parameter;
    return iso__reducer_in_backward(self->reducer) ? ISO_OK : finish_all(self);
}

iso_status iso_data_parallel_finish(iso_module *module) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel *self = iso__data_parallel_of(module);
    ISO_CHECK(
        !iso__reducer_in_backward(self->reducer) || !iso__reducer_has_open_list(self->reducer),
        ISO_ERR_STATE,
        "iso_data_parallel_finish inside a backward would leave out the gradients that it has "
        "not reached: call it after iso_data_parallel_end_backward");
    return finish_all(self);
}

// ---- Weights ------------------------------------------------------------------------------------

static bool has_gradients(const iso__data_parallel *self) {
    for (int i = 0; i < self->trainable_count; i++)
        if (self->trainable[i]->grad_valid) return true;
    return false;
}

void iso__data_parallel_drop_weight(iso__data_parallel *self) {
    if (!self->carried || has_gradients(self)) return;
    iso__reducer_drop_weight(self->reducer);
    self->carried = false;
}

// ---- The end of a backward --------------------------------------------------------------------------

static iso_status run_pre_sync_hooks(iso__data_parallel *self) {
    for (int i = 0; i < self->pre_sync.count; i++)
        ISO_TRY(self->pre_sync.item[i].pre_sync(&self->base, self->pre_sync.item[i].user));
    return ISO_OK;
}

// Reports gradients of this backward, and of earlier ones if they are still valid; clears the
// memory of the others. A gradient that is already an average counts only if unused parameters are
// allowed.
static iso_status report_gradients(iso__data_parallel *self) {
    for (int i = self->trainable_count - 1; i >= 0; i--) {
        iso_parameter *p = self->trainable[i];
        if (iso__reducer_is_ready(self->reducer, i)) continue;
        bool enough = !self->old[i] || self->unused != ISO_UNUSED_ERROR || iso__is_explicit(self);
        iso_status status = p->grad_valid && enough ? iso_reducer_grad_ready(self->reducer, i)
                                                    : iso_tensor_fill(p->grad, 0);
        self->refused = self->refused || status < 0;
        ISO_TRY(status);
    }
    return ISO_OK;
}

// Marks all gradients as valid. finish_gradients corrects this for parameters that no rank used.
static void mark_valid(iso__data_parallel *self) {
    for (int i = 0; i < self->trainable_count; i++) {
        iso_parameter *p = self->trainable[i];
        self->asked[i] = iso__reducer_negotiates(self->reducer) && !p->grad_valid;
        self->any_asked = self->any_asked || self->asked[i];
        self->old[i] = p->grad_valid = true;
    }
}

static iso_status reduce_by_user(iso__data_parallel *self) {
    for (int i = 0; i < self->trainable_count; i++) {
        iso_parameter *p = self->trainable[i];
        self->used[i] = p->grad_valid;
        if (!p->grad_valid) ISO_TRY(iso_tensor_fill(p->grad, 0));
        self->gradient[i].data = p->grad->data;
    }
    ISO_TRY(self->reduce(self->gradient, self->trainable_count, self->comm, self->reduce_user));
    ISO_TRY(iso__reducer_adopt(self->reducer, self->used));
    mark_valid(self);
    return ISO_OK;
}

static iso_status send_gradients(iso__data_parallel *self) {
    if (self->reduce) return reduce_by_user(self);
    ISO_TRY(report_gradients(self));
    iso_status status = iso__reducer_close(self->reducer);
    mark_valid(self); // even after an error: the whole list was issued
    ISO_TRY(status);
    return ISO_OK;
}

// Of two errors the first one counts, with its record.
static iso_status first_error(iso_status first, const iso_error *record, iso_status second) {
    if (first < 0) iso__error_restore(record);
    return first < 0 ? first : second;
}

// Sends even if a hook fails, as other ranks wait for these gradients.
static iso_status send_after_hooks(iso__data_parallel *self,
                                   iso_status (*send)(iso__data_parallel *self)) {
    iso_status hooked = run_pre_sync_hooks(self);
    iso_error record = *iso_last_error();
    iso_status sent = send(self);
    ISO_TRY(first_error(hooked, &record, sent));
    return ISO_OK;
}

static iso_status close_backward(iso__data_parallel *self) {
    return send_after_hooks(self, send_gradients);
}

// After a failed exchange another one would only wait.
static bool is_lost(iso_status status) {
    return status == ISO_ERR_TIMEOUT || status == ISO_ERR_MPI;
}

static iso_status sync_buffers(iso__data_parallel *self, iso_status status) {
    iso_error record = *iso_last_error();
    if (is_lost(status)) return status;
    return first_error(status, &record,
                       iso__buffer_sync_at(&self->buffer_sync, ISO_BUFFERS_AFTER_BACKWARD));
}

static iso_status exchange_all(iso__data_parallel *self) {
    if (self->reduce) return reduce_by_user(self);
    ISO_TRY(report_gradients(self));
    ISO_TRY(iso_reducer_all_reduce(self->reducer));
    mark_valid(self);
    return finish_gradients(self);
}

static iso_status all_reduce(iso__data_parallel *self) {
    iso__data_parallel_drop_weight(self);
    return send_after_hooks(self, exchange_all);
}

iso_status iso_data_parallel_all_reduce_gradients(iso_module *module) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel *self = iso__data_parallel_of(module);
    ISO_CHECK(
        self->sync == ISO_SYNC_EXPLICIT, ISO_ERR_STATE,
        "gradients are exchanged automatically in this sync mode: all_reduce_gradients is for "
        "ISO_SYNC_EXPLICIT");
    if (self->no_sync > 0) return ISO_OK;
    self->refused = false;
    iso_status status = all_reduce(self);
    if (!self->refused) status = sync_buffers(self, status);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status begin_backward(iso__data_parallel *self) {
    // Updates of layers that this forward did not use are still pending.
    ISO_TRY(finish_gradients(self));
    iso__data_parallel_drop_weight(self);
    for (int i = 0; i < self->trainable_count; i++) {
        self->old[i] &= self->trainable[i]->grad_valid;
        if (!self->trainable[i]->grad_valid) iso__reducer_drop(self->reducer, i);
        self->reported[i] = false;
    }
    self->refused = false;
    ISO_TRY(iso__data_parallel_begin_uses(self, ISO__BACKWARD));
    iso__reducer_enter_backward(self->reducer, self->no_sync == 0);
    return ISO_OK;
}

// Averages cannot be added to sums, nor sums over all ranks to those of one.
static iso_status check_sums(const iso__data_parallel *self) {
    bool sums = self->settings.average == ISO_AVERAGE_SUM;
    for (int i = 0; sums && i < self->trainable_count; i++)
        ISO_CHECK(!self->old[i] || !self->trainable[i]->grad_valid, ISO_ERR_STATE,
                  "this backward would add to the gradient of \"%s\", which is a sum over all "
                  "ranks, and they would be summed again (ISO_AVERAGE_SUM): call "
                  "iso_module_zero_grad first",
                  iso__reducer_name(self->reducer, i));
    for (int i = 0; self->by_weight && i < self->trainable_count; i++)
        ISO_CHECK(!self->old[i] || !self->trainable[i]->grad_valid, ISO_ERR_STATE,
                  "this backward would add sums to the gradient of \"%s\", which is an average "
                  "(by_weight): call iso_optimizer_zero_grad first",
                  iso__reducer_name(self->reducer, i));
    return ISO_OK;
}

iso_status iso_data_parallel_begin_backward(iso_module *module) {
    ISO_TRY(iso__data_parallel_check(module));
    ISO_TRY(check_sums(iso__data_parallel_of(module)));
    iso__clock_start(&iso__data_parallel_of(module)->backward);
    return begin_backward(iso__data_parallel_of(module));
}

iso_status iso_data_parallel_end_backward(iso_module *module) {
    ISO_TRY(iso__data_parallel_check(module));
    iso__data_parallel *self = iso__data_parallel_of(module);
    ISO_CHECK(iso__reducer_in_backward(self->reducer), ISO_ERR_STATE,
              "iso_data_parallel_end_backward without iso_data_parallel_begin_backward");
    iso__data_parallel_note_backward(self, self->no_sync == 0);
    iso_status status = ISO_OK;
    bool leaves = self->no_sync == 0 && !iso__is_explicit(self);
    self->carried = !leaves;
    status = iso__data_parallel_end_uses(self, ISO_OK);
    if (leaves) {
        iso_status closed = close_backward(self); // in any case: other ranks wait for these
        if (status == ISO_OK) status = closed;
    }
    status = iso__data_parallel_end_pass(self, status);
    iso__reducer_leave_backward(self->reducer);
    if (status == ISO_OK) iso__clock_stop(&self->backward);
    if (leaves && !self->refused) status = sync_buffers(self, status);
    ISO_TRY(status);
    return ISO_OK;
}

// Whether a list of gradients that lack some, or are zeros, does no harm: not if other ranks may
// wait inside a layer, and not if it decides once which parameters are used.
static bool may_end_early(const iso__data_parallel *self) {
    if (self->unused == ISO_UNUSED_STATIC) return false;
    for (int l = 0; l < self->link_count; l++)
        if (iso__data_parallel_meets(self->link[l].module)) return false;
    return true;
}

// A layer has failed here. Ranks on which it has not wait for this rank's gradients: they get those
// that it has, and zeros. So all ranks may go on with another batch.
static iso_status end_failed_backward(iso__data_parallel *self, iso_status status) {
    iso_error record = *iso_last_error();
    bool leaves = self->no_sync == 0 && !iso__is_explicit(self);
    bool sends = leaves && !self->refused && !is_lost(status) && may_end_early(self);
    iso__data_parallel_note_backward(self, self->no_sync == 0);
    iso__data_parallel_end_uses(self, status);
    self->carried = !sends;
    if (sends) {
        iso__reducer_excuse(self->reducer, true);
        iso_status sent = send_gradients(self);
        iso__reducer_excuse(self->reducer, false);
        if (sent >= 0) (void)sync_buffers(self, ISO_OK);
    }
    iso__reducer_leave_backward(self->reducer);
    iso__error_restore(&record);
    return status;
}

// ---- Without a batch ----------------------------------------------------------------------------

static iso_status shadow_backward(iso__data_parallel *self, bool leftover) {
    iso_module *module = &self->base;
    ISO_TRY(begin_backward(self));
    iso__reducer_leave_backward(self->reducer);
    if (!leftover) {
        iso__reducer_drop_weight(self->reducer);
        iso_module_zero_grad(module);
        iso_reducer_zero_grad(self->reducer);
    }
    iso_status status = iso__data_parallel_end_uses(self, ISO_OK);
    iso_status closed = iso__is_explicit(self) ? all_reduce(self) : close_backward(self);
    ISO_TRY(iso__data_parallel_end_pass(self, status < 0 ? status : closed));
    // Parameters that are not exchanged, such as this rank's experts, do not change without data.
    if (!leftover) iso__reducer_skip_local(self->reducer);
    return iso__buffer_sync_at(&self->buffer_sync, ISO_BUFFERS_AFTER_BACKWARD);
}

iso_status iso__data_parallel_shadow(iso_module *module, bool leftover) {
    iso__data_parallel *self = iso__data_parallel_of(module);
    iso_reducer *r = self->reducer;
    int no_sync = self->no_sync; // it applies to the caller's own batches only
    self->no_sync = 0;
    iso__reducer_excuse(r, true);
    iso_status status = shadow_backward(self, leftover);
    iso__reducer_excuse(r, false);
    self->no_sync = no_sync;
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Joins ------------------------------------------------------------------------------------------

void iso__data_parallel_set_joined(iso__data_parallel *self, bool joined) { self->joined = joined; }

void iso__data_parallel_place_batch(iso__data_parallel *self, double weight, double total, int root,
                                    int64_t first_row) {
    iso__buffer_sync_weigh(&self->buffer_sync, weight, total, root);
    self->first_row = first_row;
}

void iso__data_parallel_note_backward(iso__data_parallel *self, bool syncs) {
    self->buffer_sync.due = syncs;
}

iso_status iso__data_parallel_after_forward(iso__data_parallel *self) {
    if (!self->base.training || !self->buffer_sync.due) return ISO_OK;
    return iso__buffer_sync_at(&self->buffer_sync, ISO_BUFFERS_AFTER_FORWARD);
}

// ---- Module ---------------------------------------------------------------------------------------

iso_status iso__data_parallel_before_forward(iso__data_parallel *self) {
    ISO_TRY(iso__buffer_sync_finish(&self->buffer_sync));
    if (!self->base.training || !self->buffer_sync.due) return ISO_OK;
    // Ranks that come later may wait for these.
    if (self->buffer_sync.config.when == ISO_BUFFERS_BEFORE_FORWARD)
        ISO_TRY(iso__reducer_publish(self->reducer, true));
    return iso__buffer_sync_at(&self->buffer_sync, ISO_BUFFERS_BEFORE_FORWARD);
}

static iso_status forward_wrapped(iso_module *module, iso_call *call, const iso_tensors *given,
                                  iso_tensors *out) {
    iso__data_parallel *self = iso__data_parallel_of(module);
    (void)given;
    iso__clock_start(&self->forward);
    iso_tensors *in = &call->many->in; // backward returns the gradients of what hooks put there
    for (int i = 0; i < self->before_forward.count; i++) {
        const iso__user_hook *hook = &self->before_forward.item[i];
        ISO_TRY(hook->before_forward(module, &in->item[0], hook->user));
    }
    ISO_TRY(iso__data_parallel_move_inputs(module, call));
    ISO_TRY(iso__data_parallel_before_forward(self));
    // If all batches have n rows, row r of this rank's batch is row rank * n + r of the global
    // batch.
    int64_t even = iso_comm_rank(self->comm) * iso_tensor_shape(in->item[0])[0];
    iso_module_set_first_row(module->child[0], self->first_row >= 0 ? self->first_row : even);
    if (module->training) ISO_TRY(iso__data_parallel_begin_uses(self, ISO__FORWARD));
    iso_status status = iso_module_call_many(module->child[0], ISO_ACT_NONE, in, out);
    if (module->training) {
        status = iso__data_parallel_end_uses(self, status);
        status = iso__data_parallel_end_pass(self, status);
    }
    ISO_TRY(status);
    if (module->training) iso__clock_stop(&self->forward);
    return iso__data_parallel_after_forward(self);
}

static iso_status backward_wrapped(iso_module *module, iso_call *call, const iso_tensors *grad_out,
                                   unsigned wanted, iso_tensors *grad_in) {
    (void)call;
    iso__data_parallel *self = iso__data_parallel_of(module);
    ISO_TRY(iso_data_parallel_begin_backward(module));
    iso_status status = iso_module_call_backward_many(module->child[0], grad_out, wanted, grad_in);
    if (status < 0) status = end_failed_backward(self, status);
    ISO_TRY(status);
    return iso_data_parallel_end_backward(module);
}

static iso_status change_mode(iso_module *module, bool training) {
    iso__data_parallel *self = iso__data_parallel_of(module);
    if (training && !self->evaluating) return ISO_OK;
    bool inside = iso__reducer_in_backward(self->reducer);
    if (inside) module->training = !self->evaluating; // restore it
    ISO_CHECK(!inside, ISO_ERR_STATE,
              "the mode of a DataParallel was changed inside a backward: call "
              "iso_data_parallel_end_backward first");
    ISO_TRY(finish_gradients(self));
    if (!training) ISO_TRY(iso__reducer_gather_values(self->reducer));
    if (training == self->evaluating && self->hook) ISO_TRY(self->hook(training, self->hook_user));
    if (!training && !self->evaluating)
        ISO_TRY(iso__buffer_sync_at(&self->buffer_sync, ISO_BUFFERS_AT_EVALUATION));
    self->evaluating = !training;
    return ISO_OK;
}

static void remove_links(const iso__data_parallel *self) {
    for (int l = 0; l < self->link_count; l++)
        iso_module_remove_hooks(self->link[l].module, self->link[l].handle);
}

// Parameters outlive the wrapper if the caller kept a reference to the module. So this moves their
// gradients back to separate memory.
static void take_back_gradients(iso__data_parallel *self) {
    for (int i = 0; i < self->trainable_count; i++) {
        iso_parameter *p = self->trainable[i];
        p->complete = NULL;
        p->pieces = NULL;
        iso_tensor *own;
        if (!p->grad || p->grad->capacity > 0) continue;
        if (iso_tensor_create(p->grad->device, p->grad->dtype, p->grad->ndim, p->grad->shape,
                              &own) < 0)
            continue;
        iso_tensor_destroy(&p->grad);
        p->grad = own;
        p->grad_valid = false;
    }
}

static void destroy_wrapper(iso_module *module) {
    iso__data_parallel *self = iso__data_parallel_of(module);
    iso__data_parallel_take_back_values(self);
    iso_reducer_destroy(&self->reducer); // completes pending work
    take_back_gradients(self);
    remove_links(self);
    iso__data_parallel_drop_order(self);
    bool over = iso__buffer_sync_destroy(&self->buffer_sync);
    iso_parameter_list_destroy(&self->list);
    iso_buffer_list_destroy(&self->buffers);
    iso__data_parallel_drop_views(self, &(iso__views){.cut = self->cut});
    iso__data_parallel_drop_uses(self);
    iso__free(self->bucket_list);
    iso__free(self->param);
    iso__free(self->text);
    iso__free(self->trainable);
    iso__free(self->gradient);
    iso__free(self->old);
    iso__free(self->reported);
    iso__free(self->used);
    iso__free(self->asked);
    iso__free(self->link);
    iso__free(self->link_slots);
    iso__free(self->pre_sync.item);
    iso__free(self->before_forward.item);
    if (over) iso_comm_destroy(&self->comm);
}

const iso_module_ops iso__data_parallel_ops = {
    .type = "DataParallel",
    .forward_many = forward_wrapped,
    .backward_many = backward_wrapped,
    .train = change_mode,
    .destroy = destroy_wrapper,
    .takes_half = true,
    .moves_inputs = true,
};

iso_status iso__data_parallel_check(const iso_module *module) {
    ISO_CHECK(iso__is_data_parallel(module), ISO_ERR_ARG, "the module is a %s, not a DataParallel",
              module->ops->type);
    return ISO_OK;
}
