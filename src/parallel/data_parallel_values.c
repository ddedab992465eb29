// SPDX-License-Identifier: MIT
// ZeRO stage 3 of a DataParallel: its layers gather the values that they use, and drop them when
// the last layer of a bucket has used it.
#include "parallel/data_parallel_impl.h"

#include <string.h>

// ---- Which buckets a layer uses ---------------------------------------------------------------------

static int count_pieces(const iso__data_parallel *self, const iso__layer_link *link) {
    int n = 0;
    for (int k = 0; k < link->count; k++) n += iso_reducer_pieces(self->reducer, link->slot[k]);
    return n;
}

static void add_bucket(iso__layer_link *link, int bucket) {
    for (int k = 0; k < link->bucket_count; k++)
        if (link->bucket[k] == bucket) return;
    link->bucket[link->bucket_count++] = bucket;
}

static void list_buckets(const iso__data_parallel *self, iso__layer_link *link) {
    const iso_reducer *r = self->reducer;
    for (int k = 0; k < link->count; k++)
        for (int piece = 0; piece < iso_reducer_pieces(r, link->slot[k]); piece++)
            add_bucket(link, iso__reducer_bucket_of_piece(r, link->slot[k], piece));
}

iso_status iso__data_parallel_make_uses(iso__data_parallel *self) {
    size_t buckets = (size_t)iso__reducer_bucket_count(self->reducer), pieces = 0;
    if (!iso__reducer_divides_values(self->reducer)) return ISO_OK;
    for (int l = 0; l < self->link_count; l++) pieces += (size_t)count_pieces(self, &self->link[l]);
    ISO_TRY(iso__alloc_zero(buckets * sizeof(*self->uses.left), (void **)&self->uses.left));
    ISO_TRY(iso__alloc_zero(buckets * sizeof(*self->uses.held), (void **)&self->uses.held));
    ISO_TRY(iso__alloc_zero((pieces + 1) * sizeof(*self->uses.lists), (void **)&self->uses.lists));
    int *list = self->uses.lists;
    for (int l = 0; l < self->link_count; l++) {
        iso__layer_link *link = &self->link[l];
        link->bucket = list;
        list_buckets(self, link);
        list += link->bucket_count;
    }
    self->uses.divided = true;
    return ISO_OK;
}

void iso__data_parallel_drop_uses(iso__data_parallel *self) {
    iso__free(self->uses.left);
    iso__free(self->uses.held);
    iso__free(self->uses.lists);
}

// ---- Where values are -------------------------------------------------------------------------------

iso_status iso__data_parallel_check_values(const iso__data_parallel *self) {
    for (int i = 0; i < self->list.count; i++) {
        const iso_tensor *value = self->list.item[i]->value;
        ISO_CHECK(value->capacity > 0 && !value->mapped, ISO_ERR_UNSUPPORTED,
                  "parameter \"%s\" is in %s: ZeRO stage 3 moves the values of parameters into its "
                  "own memory; use stage 2",
                  self->list.name[i],
                  value->mapped ? "a mapping of the host" : "an array of the program");
    }
    return ISO_OK;
}

static iso_status gather_value(void *user, iso_parameter *parameter) {
    iso__data_parallel *self = user;
    (void)parameter;
    return iso__reducer_gather_values(self->reducer);
}

void iso__data_parallel_place_values(iso__data_parallel *self) {
    if (!self->uses.divided) return;
    for (int i = 0; i < self->trainable_count; i++) {
        iso_tensor *value = self->trainable[i]->value;
        void *place = iso__reducer_take_value(self->reducer, i, value->data);
        value->device->ops->free(value->device, value->data);
        value->data = place;
        value->capacity = 0;
        self->trainable[i]->gather = gather_value;
    }
    self->uses.placed = true;
}

static bool is_held_elsewhere(const iso_module *module) {
    if (module->references > 1) return true;
    for (int i = 0; i < module->child_count; i++)
        if (is_held_elsewhere(module->child[i])) return true;
    return false;
}

static iso_status take_back_value(iso_parameter *p) {
    iso_tensor *value = p->value;
    const iso_device_ops *ops = value->device->ops;
    size_t bytes = ops->storage_bytes(value->device, value->dtype, value->ndim, value->shape,
                                      ISO_LAYOUT_LOGICAL);
    void *own;
    ISO_TRY(ops->alloc(value->device, bytes, &own));
    memcpy(own, value->data, iso__tensor_bytes(value));
    value->data = own;
    value->capacity = bytes;
    return ISO_OK;
}

void iso__data_parallel_take_back_values(iso__data_parallel *self) {
    if (!self->uses.placed) return;
    iso_error before = *iso_last_error();
    iso_status status = ISO_OK;
    bool needed = self->base.child_count > 0 && is_held_elsewhere(self->base.child[0]);
    if (needed) status = iso__reducer_gather_values(self->reducer);
    for (int i = 0; i < self->trainable_count; i++) {
        self->trainable[i]->gather = NULL;
        iso_status taken = needed ? take_back_value(self->trainable[i]) : ISO_OK;
        if (taken < 0) iso__reducer_leave_values(self->reducer); // its value must stay there
        if (status == ISO_OK) status = taken;
    }
    if (status < 0) iso__log_new_error(&before, "while values return to their parameters");
}

// ---- A layer ----------------------------------------------------------------------------------------

// Waits for the layer's values. If all ranks meet in the layer, also sends the values that another
// rank may need to get there.
iso_status iso__data_parallel_gather_layer(const iso__layer_link *link) {
    const iso__data_parallel *self = link->owner;
    if (!self->uses.divided) return ISO_OK;
    for (int k = 0; k < link->bucket_count; k++)
        ISO_TRY(iso__reducer_need_values(self->reducer, link->bucket[k]));
    bool differ = iso__reducer_negotiates(self->reducer);
    bool meets = differ && iso__data_parallel_meets(link->module);
    return meets ? iso__reducer_end_uses(self->reducer) : ISO_OK;
}

static void release_layer(iso__data_parallel *self, const iso__layer_link *link) {
    for (int k = 0; k < link->bucket_count; k++) {
        int b = link->bucket[k];
        if (--self->uses.left[b] == 0 && !self->uses.held[b])
            iso__reducer_release_values(self->reducer, b);
    }
}

iso_status iso__data_parallel_after_layer(iso_module *module, iso_tensor *in, iso_tensor *out,
                                          void *user) {
    iso__layer_link *link = user;
    iso__data_parallel *self = link->owner;
    (void)module, (void)in, (void)out;
    if (!self->uses.divided || iso__reducer_pass(self->reducer) != ISO__FORWARD) return ISO_OK;
    if (++link->uses == 1)
        release_layer(self, link);
    else
        link->repeats = true;
    return ISO_OK;
}

iso_status iso__data_parallel_before_layer_backward(iso_module *module, iso_tensor *grad_out,
                                                    void *user) {
    (void)module, (void)grad_out;
    return iso__data_parallel_gather_layer(user);
}

iso_status iso__data_parallel_after_layer_backward(iso_module *module, iso_tensor *grad_in,
                                                   void *user) {
    iso__layer_link *link = user;
    iso__data_parallel *self = link->owner;
    (void)grad_in;
    if (!self->uses.divided || iso__reducer_pass(self->reducer) != ISO__BACKWARD) return ISO_OK;
    if (module->call_depth > 0 || link->uses == 0 || link->finished) return ISO_OK;
    link->finished = true;
    release_layer(self, link);
    return ISO_OK;
}

// ---- A pass -----------------------------------------------------------------------------------------

// A layer that a forward uses several times needs its values until the end of the pass. This is
// known only after its second use, so the first forward drops nothing.
static void count_uses(iso__data_parallel *self, iso__pass pass) {
    iso__value_uses *uses = &self->uses;
    bool whole = iso__reducer_has_whole_values(self->reducer);
    bool hold = pass == ISO__FORWARD ? !uses->learnt : whole;
    for (int b = 0; b < iso__reducer_bucket_count(self->reducer); b++) {
        uses->left[b] = 0;
        uses->held[b] = hold;
    }
    for (int l = 0; l < self->link_count; l++) {
        iso__layer_link *link = &self->link[l];
        if (pass == ISO__FORWARD) link->uses = 0;
        link->finished = false;
        for (int k = 0; k < link->bucket_count; k++) {
            uses->left[link->bucket[k]] += pass == ISO__FORWARD || link->uses > 0;
            if (link->repeats) uses->held[link->bucket[k]] = true;
        }
    }
}

iso_status iso__data_parallel_begin_uses(iso__data_parallel *self, iso__pass pass) {
    if (!self->uses.divided) return ISO_OK;
    ISO_TRY(iso__reducer_begin_pass(self->reducer, pass));
    count_uses(self, pass);
    // If ranks use different layers, a rank that waits for a sum may wait for the end of another
    // rank's backward, and that backward may wait for the values of any bucket.
    bool waits = pass == ISO__BACKWARD && self->sync == ISO_SYNC_BLOCKING;
    bool all = waits && iso__reducer_negotiates(self->reducer);
    return all ? iso__reducer_end_uses(self->reducer) : ISO_OK;
}

iso_status iso__data_parallel_end_uses(iso__data_parallel *self, iso_status status) {
    if (!self->uses.divided || iso__reducer_pass(self->reducer) == ISO__NO_PASS) return status;
    if (status == ISO_OK) status = iso__reducer_end_uses(self->reducer);
    if (status < 0) iso__reducer_fail_pass(self->reducer, status);
    return status;
}

iso_status iso__data_parallel_end_pass(iso__data_parallel *self, iso_status status) {
    if (!self->uses.divided) return status;
    bool forward = iso__reducer_pass(self->reducer) == ISO__FORWARD;
    if (status == ISO_OK) status = iso__reducer_end_pass(self->reducer);
    if (status < 0) iso__reducer_fail_pass(self->reducer, status);
    if (forward && status == ISO_OK) self->uses.learnt = true;
    return status;
}

static iso_status send_all(iso_reducer *r, iso__pass pass) {
    int last = iso__reducer_bucket_count(r) - 1;
    for (int k = 0; k <= last; k++) {
        int b = pass == ISO__BACKWARD ? k : last - k;
        ISO_TRY(iso__reducer_need_values(r, b));
        iso__reducer_release_values(r, b);
    }
    return ISO_OK;
}

iso_status iso__data_parallel_shadow_pass(iso__data_parallel *self, iso__pass pass) {
    if (!self->uses.divided) return ISO_OK;
    ISO_TRY(iso__reducer_begin_pass(self->reducer, pass));
    iso_status status = send_all(self->reducer, pass);
    if (status == ISO_OK) status = iso__reducer_end_pass(self->reducer);
    if (status < 0) iso__reducer_fail_pass(self->reducer, status);
    ISO_TRY(status);
    return ISO_OK;
}
