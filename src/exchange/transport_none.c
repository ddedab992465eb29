// SPDX-License-Identifier: MIT
// The transport of a rank alone, and of buckets that are not exchanged: nothing travels.
#include "exchange/transports.h"

typedef struct none {
    iso__transport base;
    iso__store *store;
    const iso__buckets *buckets;
    double *left;       // [buckets]
    size_t *wire_bytes; // [buckets]
} none;

static none *none_of(iso__transport *t) { return iso_container_of(t, none, base); }

static iso_status post_nothing(iso__transport *t, int i, double before, double after) {
    none_of(t)->left[i] = before * after;
    return ISO_OK;
}

static bool is_here(const iso__transport *t, int i) {
    (void)t;
    (void)i;
    return true;
}

static iso_status arrive_here(iso__transport *t, int i, const iso__idle *idle, double *left,
                              iso__exchange_times *times) {
    none *self = none_of(t);
    const iso__bucket *b = &self->buckets->item[i];
    (void)idle;
    if (times) times->known = false;
    return iso__settle_factor(self->store, b, &self->left[i], left);
}

static bool destroy_none(iso__transport *t) {
    none *self = none_of(t);
    iso__free(self->left);
    iso__free(self->wire_bytes);
    iso__free(self);
    return true;
}

static const iso__transport_ops none_ops = {.name = "none",
                                            .post = post_nothing,
                                            .is_back = is_here,
                                            .arrive = arrive_here,
                                            .destroy = destroy_none};

iso_status iso__transport_none(const iso__transport_setup *setup, iso__transport **out) {
    iso_status status;
    size_t count = (size_t)setup->buckets->count;
    none *self;
    ISO_TRY(iso__alloc_zero(sizeof(*self), (void **)&self));
    self->base = (iso__transport){.ops = &none_ops, .launches = setup->store->device != NULL};
    self->store = setup->store;
    self->buckets = setup->buckets;
    ISO_TRY_GOTO(iso__alloc_zero(count * sizeof(*self->left), (void **)&self->left));
    ISO_TRY_GOTO(iso__alloc_zero(count * sizeof(*self->wire_bytes), (void **)&self->wire_bytes));
    for (size_t i = 0; i < count; i++)
        self->wire_bytes[i] = iso__coder_wire_bytes(setup->coder, (int)i, &setup->buckets->item[i]);
    self->base.wire_bytes = self->wire_bytes;
    *out = &self->base;
    return ISO_OK;
fail:
    destroy_none(&self->base);
    return status;
}
