// SPDX-License-Identifier: MIT
// Connects the layers below a DataParallel to its reducer: they wait for their parameters, and
// report their gradients.
#include "parallel/data_parallel_impl.h"

// Waits for the layer's parameters. The first one brings back all others that share its buckets.
static iso_status before_forward(iso_module *module, iso_tensor *in, void *user) {
    (void)in;
    iso__layer_link *link = user;
    iso_reducer *r = link->owner->reducer;
    int bucket = -1;
    if (link->count == 0) iso_reducer_poll(r);
    if (iso__data_parallel_meets(module))
        ISO_TRY(iso__reducer_publish(r, true)); // ranks that come later may wait for these
    for (int k = 0; k < link->count; k++) {
        int i = link->slot[k], first = iso__reducer_bucket_of(r, i);
        bool cut = iso_reducer_pieces(r, i) > 1;
        bool awaited = module->ops->awaits_pieces && iso__reducer_awaits_pieces(r) &&
                       !link->owner->uses.divided;
        if (cut ? awaited : first == bucket) continue;
        bucket = first;
        ISO_TRY(iso__reducer_param_needed(r, i));
    }
    return iso__data_parallel_gather_layer(link);
}

static bool is_current(const iso_module *module, void *user) {
    const iso__layer_link *link = user;
    (void)module;
    for (int k = 0; k < link->count; k++)
        if (!iso__reducer_is_current(link->owner->reducer, link->slot[k])) return false;
    return true;
}

// Whether gradients leave only at the end of the backward, because the program may change them
// before.
static bool is_delayed(const iso__data_parallel *self) {
    return iso__is_explicit(self) || self->reduce || self->pre_sync.count > 0;
}

// Whether a tied parameter is used by a layer that has yet to add to its gradient in this backward.
static bool is_awaited(const iso__data_parallel *self, int slot) {
    if (self->trainable[slot]->references == 1) return false;
    for (int l = 0; l < self->link_count; l++) {
        const iso__layer_link *link = &self->link[l];
        for (int k = 0; k < link->count && link->module->call_depth > 0; k++)
            if (link->slot[k] == slot) return true;
    }
    return false;
}

static iso_status note_refusal(iso__data_parallel *self, iso_status status) {
    if (status < 0) self->refused = true;
    return status;
}

static iso_status gradient_ready(iso_module *module, void *user) {
    (void)module;
    iso__layer_link *link = user;
    iso__data_parallel *self = link->owner;
    bool leaves = self->no_sync == 0 && !is_delayed(self);
    for (int k = link->count - 1; k >= 0; k--) {
        int i = link->slot[k];
        if (!self->trainable[i]->requires_grad) continue; // frozen since: no gradient
        self->old[i] = false;
        if (leaves && !self->reported[i] && !is_awaited(self, i))
            ISO_TRY(note_refusal(self, iso_reducer_grad_ready(self->reducer, i)));
    }
    return ISO_OK;
}

iso_status iso__data_parallel_piece_ready(const iso_pieces *pieces, int k) {
    const iso__cut *cut = iso_container_of(pieces, iso__cut, pieces);
    if (cut->owner->no_sync > 0 || is_delayed(cut->owner)) return ISO_OK;
    return note_refusal(cut->owner, iso_reducer_piece_ready(cut->owner->reducer, cut->slot, k));
}

// -1: it was frozen when the module was wrapped.
static int index_of(const iso__data_parallel *self, const iso_parameter *parameter) {
    bool ours = parameter->complete == iso__data_parallel_complete;
    return ours && parameter->complete_user == self ? parameter->complete_index : -1;
}

iso_status iso__data_parallel_other_ready(const iso_pieces *pieces, const iso_parameter *other) {
    const iso__cut *cut = iso_container_of(pieces, iso__cut, pieces);
    iso__data_parallel *self = cut->owner;
    if (self->no_sync > 0 || is_delayed(self)) return ISO_OK;
    int i = index_of(self, other);
    if (i < 0) return ISO_OK;
    ISO_TRY(note_refusal(self, iso_reducer_grad_ready(self->reducer, i)));
    self->reported[i] = true;
    return ISO_OK;
}

iso_status iso__data_parallel_piece_needed(const iso_pieces *pieces, int k) {
    const iso__cut *cut = iso_container_of(pieces, iso__cut, pieces);
    return iso__reducer_piece_needed(cut->owner->reducer, cut->slot, k);
}

// Modules without children get hooks even if they have no parameters, in order to poll.
static bool is_linked(const iso_module *module) {
    return module->child_count == 0 || module->parameter_count > 0;
}

// A module that is used in several places gets one link.
static bool has_link(const iso__data_parallel *self, const iso_module *module) {
    for (int h = 0; h < module->hooks_count; h++) {
        const iso_module_hooks *hooks = &module->hooks[h].call;
        if (hooks->before_forward == before_forward &&
            ((const iso__layer_link *)hooks->user)->owner == self)
            return true;
    }
    return false;
}

// In ascending order.
static void add_slot(iso__layer_link *link, int slot) {
    int k = link->count++;
    for (; k > 0 && link->slot[k - 1] > slot; k--) link->slot[k] = link->slot[k - 1];
    link->slot[k] = slot;
}

static iso_status link_module(iso__data_parallel *self, iso_module *module) {
    iso__layer_link *link = &self->link[self->link_count];
    int *free_slot = self->link_count > 0 ? link[-1].slot + link[-1].count : self->link_slots;
    *link = (iso__layer_link){.owner = self, .module = module, .slot = free_slot};
    for (int k = 0; k < module->parameter_count; k++) {
        int i = index_of(self, module->parameter[k]);
        if (i >= 0) add_slot(link, i);
    }
    iso_module_hooks hooks = {.before_forward = before_forward,
                              .after_forward = iso__data_parallel_after_layer,
                              .before_backward = iso__data_parallel_before_layer_backward,
                              .gradient_ready = gradient_ready,
                              .after_backward = iso__data_parallel_after_layer_backward,
                              .is_current = is_current,
                              .user = link};
    ISO_TRY(iso_module_add_hooks(module, &hooks, &link->handle));
    self->link_count++;
    return ISO_OK;
}

iso_status iso__data_parallel_link(iso__data_parallel *self, iso_module *module) {
    for (int i = 0; i < module->child_count; i++)
        ISO_TRY(iso__data_parallel_link(self, module->child[i]));
    if (is_linked(module) && !has_link(self, module)) ISO_TRY(link_module(self, module));
    return ISO_OK;
}
