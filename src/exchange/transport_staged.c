// SPDX-License-Identifier: MIT
// Gradients of a device with its own memory: they are copied to host memory, travel from there by
// another transport, and are copied back. The host does not wait for the device before the next
// forward.
#include "base/recording.h"
#include "exchange/transports.h"

#include <isotherm/trace.h>
#include <sched.h>

// Where a bucket is: LEAVING the device; SENT by the inner transport; FETCHED, on its way back to
// the device until its event; or HOME, in the gradients of the store.
typedef enum place { HOME, LEAVING, SENT, FETCHED } place;

typedef struct cargo {
    place place;
    bool failed;          // posting failed
    double before, after; // of post, until it is sent
    double left;
    iso__exchange_times times; // of the exchange between ranks, until reported
    iso__device_event *event;  // when its latest copy is complete
} cargo;

typedef struct staged {
    iso__transport base;
    iso__transport_setup with;
    iso__staged_config config;
    iso__transport *inner;
    cargo *cargo; // [buckets]
    int leaving;  // buckets that are LEAVING
} staged;

static staged *staged_of(iso__transport *t) { return iso_container_of(t, staged, base); }
static const staged *const_staged_of(const iso__transport *t) {
    return iso_container_of(t, const staged, base);
}

static const iso__remote_ops *remote_of(const staged *self) {
    return iso__store_remote(self->with.store);
}

// ---- Out --------------------------------------------------------------------------------------------

iso__device_event *iso__staged_event(const iso__transport *t, int i) {
    return const_staged_of(t)->cargo[i].event;
}

iso_status iso__staged_post_behind(iso__transport *t, int i, double before, double after) {
    staged *self = staged_of(t);
    iso__store *store = self->with.store;
    const iso__bucket *b = &self->with.buckets->item[i];
    cargo *c = &self->cargo[i];
    ISO_CHECK(c->place != LEAVING && c->place != SENT, ISO_ERR_STATE,
              "the gradients of \"%s\" were posted again while their exchange is under way",
              b->label);
    c->failed = true;
    ISO_TRY(remote_of(self)->follow(store->device, ISO__QUEUE_OUT, c->event));
    ISO_TRY(remote_of(self)->copy(store->device, ISO__QUEUE_OUT, store->gradients + b->offset,
                                  store->arena + b->offset, b->bytes));
    ISO_TRY(remote_of(self)->record(store->device, ISO__QUEUE_OUT, c->event));
    c->failed = false;
    c->before = before;
    c->after = after;
    c->times.known = false;
    c->place = LEAVING;
    self->leaving++;
    return ISO_OK;
}

static iso_status post_out(iso__transport *t, int i, double before, double after) {
    staged *self = staged_of(t);
    iso_device *device = self->with.store->device;
    self->cargo[i].failed = true;
    ISO_TRY(remote_of(self)->record(device, ISO__QUEUE_COMPUTE, self->cargo[i].event));
    return iso__staged_post_behind(t, i, before, after);
}

static iso_status check_device(const staged *self) {
    return self->config.check ? self->config.check(self->config.user) : ISO_OK;
}

// Posts buckets that have arrived in the arena to the inner transport.
static iso_status send_arrived(staged *self, bool *any) {
    for (int i = 0; i < self->with.buckets->count && self->leaving > 0; i++) {
        cargo *c = &self->cargo[i];
        if (c->place != LEAVING) continue;
        iso_status status = remote_of(self)->test(self->with.store->device, c->event);
        ISO_TRY(status);
        if (status == ISO_PENDING) continue;
        ISO_TRY(check_device(self));
        self->leaving--;
        c->place = SENT;
        ISO_TRY(self->inner->ops->post(self->inner, i, c->before, c->after));
        *any = true;
    }
    return ISO_OK;
}

static iso_status advance_out(iso__transport *t) {
    staged *self = staged_of(t);
    bool any = false;
    if (self->leaving > 0) ISO_TRY(send_arrived(self, &any));
    return iso__transport_advance(self->inner);
}

static iso_status give_up(const staged *self, double seconds) {
    int i = 0;
    while (self->cargo[i].place != LEAVING) i++;
    return ISO_FAIL(ISO_ERR_TIMEOUT,
                    "rank %d has waited %.0f s for the gradients of \"%s\" from device %s "
                    "(ISO_TIMEOUT)",
                    iso_comm_rank(self->with.world), seconds, self->with.buckets->item[i].label,
                    iso_device_name(self->with.store->device));
}

static iso_status flush_out(iso__transport *t) {
    staged *self = staged_of(t);
    int64_t last = iso_now();
    while (self->leaving > 0) {
        bool any = false;
        ISO_TRY(send_arrived(self, &any));
        double seconds = (double)(iso_now() - last) * 1e-9;
        if (any) last = iso_now();
        if (any) continue;
        ISO_TRY(check_device(self));
        iso__alive("a wait for a copy from the device"); // ISO_TIMEOUT limits it
        if (self->config.limit_s > 0 && seconds > self->config.limit_s)
            return give_up(self, seconds);
        iso_comm_poll(self->with.world);
        sched_yield();
    }
    return ISO_OK;
}

static iso_status settle_inner(iso__transport *t) {
    ISO_TRY(flush_out(t));
    return iso__transport_settle(staged_of(t)->inner);
}

// ---- In ---------------------------------------------------------------------------------------------

static bool is_back(const iso__transport *t, int i) {
    const staged *self = const_staged_of(t);
    place where = self->cargo[i].place;
    if (self->cargo[i].failed || where == LEAVING) return false;
    return where != SENT || self->inner->ops->is_back(self->inner, i);
}

static iso_status copy_in(staged *self, int i) {
    iso__store *store = self->with.store;
    const iso__bucket *b = &self->with.buckets->item[i];
    ISO_TRY(remote_of(self)->copy(store->device, ISO__QUEUE_IN, store->arena + b->offset,
                                  store->gradients + b->offset, b->bytes));
    return remote_of(self)->record(store->device, ISO__QUEUE_IN, self->cargo[i].event);
}

static iso_status fetch_bucket(staged *self, int i, const iso__idle *idle, double *left) {
    cargo *c = &self->cargo[i];
    iso__exchange_times learnt;
    if (c->place == LEAVING) ISO_TRY(flush_out(&self->base));
    c->left = 1;
    ISO_TRY(self->inner->ops->arrive(self->inner, i, idle, left ? &c->left : NULL, &learnt));
    learnt.left_device = true;
    iso__times_keep(&c->times, &learnt);
    ISO_TRY(copy_in(self, i));
    c->place = FETCHED;
    if (left) *left = c->left;
    return ISO_OK;
}

iso_status iso__staged_fetch(iso__transport *t, int i, double *left, iso__exchange_times *times) {
    staged *self = staged_of(t);
    ISO_TRY(fetch_bucket(self, i, NULL, left));
    iso__times_tell(&self->cargo[i].times, times);
    return ISO_OK;
}

static iso_status arrive_in(iso__transport *t, int i, const iso__idle *idle, double *left,
                            iso__exchange_times *times) {
    staged *self = staged_of(t);
    const iso__bucket *b = &self->with.buckets->item[i];
    iso_device *device = self->with.store->device;
    cargo *c = &self->cargo[i];
    ISO_CHECK(!c->failed, ISO_ERR_STATE, ISO__NEVER_EXCHANGED, b->label);
    if (c->place == LEAVING || c->place == SENT) ISO_TRY(fetch_bucket(self, i, idle, left));
    if (c->place == FETCHED) ISO_TRY(remote_of(self)->follow(device, ISO__QUEUE_COMPUTE, c->event));
    c->place = HOME;
    ISO_TRY(iso__settle_factor(self->with.store, b, &c->left, left)); // the device multiplies
    iso__times_tell(&c->times, times);
    return ISO_OK;
}

static iso__channel *plan_of_inner(const iso__transport *t, int *bucket, int *count) {
    const iso__transport *inner = const_staged_of(t)->inner;
    *count = 0;
    return inner->ops->plan ? inner->ops->plan(inner, bucket, count) : NULL;
}

// ---- Life -------------------------------------------------------------------------------------------

static bool destroy_staged(iso__transport *t) {
    staged *self = staged_of(t);
    if (!iso__transport_destroy(&self->inner)) return false;
    for (int i = 0; self->cargo && i < self->with.buckets->count; i++)
        remote_of(self)->event_destroy(self->with.store->device, &self->cargo[i].event);
    iso__free(self->cargo);
    iso__free(self);
    return true;
}

static const iso__transport_ops staged_ops = {.name = "staged",
                                              .post = post_out,
                                              .advance = advance_out,
                                              .is_back = is_back,
                                              .arrive = arrive_in,
                                              .flush = flush_out,
                                              .settle = settle_inner,
                                              .plan = plan_of_inner,
                                              .destroy = destroy_staged};

static iso_status make_events(staged *self) {
    iso_device *device = self->with.store->device;
    for (int i = 0; i < self->with.buckets->count; i++)
        ISO_TRY(remote_of(self)->event_create(device, &self->cargo[i].event));
    return ISO_OK;
}

iso_status iso__transport_staged(const iso__transport_setup *setup,
                                 const iso__staged_config *config, iso__transport *inner,
                                 iso__transport **out) {
    iso_status status;
    staged *self = NULL;
    size_t count = (size_t)setup->buckets->count;
    ISO_TRY_GOTO(iso__alloc_zero(sizeof(*self), (void **)&self));
    *self = (staged){.with = *setup, .config = *config};
    self->base = (iso__transport){.ops = &staged_ops,
                                  .launches = true,
                                  .travels = true,
                                  .shared_memory = inner->shared_memory,
                                  .two_levels = inner->two_levels,
                                  .pairwise = inner->pairwise,
                                  .wire_bytes = inner->wire_bytes};
    ISO_TRY_GOTO(iso__alloc_zero(count * sizeof(*self->cargo), (void **)&self->cargo));
    ISO_TRY_GOTO(make_events(self));
    self->inner = inner;
    *out = &self->base;
    return ISO_OK;
fail:
    if (self) destroy_staged(&self->base); // without inner
    return status;
}
