// SPDX-License-Identifier: MIT
// Gradients of a device with its own memory: they are copied to host memory, travel from there by
// another transport, and are copied back. The host does not wait for the device before the next
// forward.
//
// With ZeRO only this rank's shard comes back. The values that the device makes of it go the same
// way: the shard is copied out, the inner transport gathers those of all ranks, and the whole
// bucket is copied back. No rank waits for ever: before a rank waits for values, all that it has
// published is with the inner transport. While it waits for gradients, it posts and publishes what
// the device has copied out by then.
#include "base/recording.h"
#include "exchange/transports.h"

#include <isotherm/trace.h>
#include <sched.h>

// Where a bucket is: LEAVING the device; SENT by the inner transport; FETCHED, on its way back to
// the device until its event; or HOME, in the gradients of the store. With ZeRO its values are
// PUBLISHING while they leave the device, and then PUBLISHED by the inner transport.
typedef enum place { HOME, LEAVING, SENT, FETCHED, PUBLISHING, PUBLISHED } place;

typedef struct cargo {
    place place;
    bool failed;          // posting or publishing failed
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
    cargo *cargo;            // [buckets]
    int leaving, publishing; // the number of such buckets
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

// Copies bytes out after the latest record of the bucket's event.
static iso_status copy_out(const staged *self, int i, size_t offset, size_t bytes) {
    const iso__store *store = self->with.store;
    const cargo *c = &self->cargo[i];
    ISO_TRY(remote_of(self)->follow(store->device, ISO__QUEUE_OUT, c->event));
    ISO_TRY(remote_of(self)->copy(store->device, ISO__QUEUE_OUT, store->gradients + offset,
                                  store->arena + offset, bytes));
    return remote_of(self)->record(store->device, ISO__QUEUE_OUT, c->event);
}

iso_status iso__staged_post_behind(iso__transport *t, int i, double before, double after) {
    staged *self = staged_of(t);
    const iso__bucket *b = &self->with.buckets->item[i];
    cargo *c = &self->cargo[i];
    ISO_CHECK(c->place == HOME || c->place == FETCHED, ISO_ERR_STATE,
              "the gradients of \"%s\" were posted again while their exchange is under way",
              b->label);
    c->failed = true;
    ISO_TRY(copy_out(self, i, b->offset, b->bytes));
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

static bool is_copying(const staged *self) { return self->leaving + self->publishing > 0; }
static bool is_leaving(const cargo *c) { return c->place == LEAVING || c->place == PUBLISHING; }

static iso_status send_bucket(staged *self, int i) {
    cargo *c = &self->cargo[i];
    if (c->place == PUBLISHING) {
        self->publishing--;
        c->place = PUBLISHED;
        return self->inner->ops->publish(self->inner, i);
    }
    self->leaving--;
    c->place = SENT;
    return self->inner->ops->post(self->inner, i, c->before, c->after);
}

// Gives buckets that have arrived in the arena to the inner transport.
static iso_status send_arrived(staged *self, bool *any) {
    for (int i = 0; i < self->with.buckets->count && is_copying(self); i++) {
        if (!is_leaving(&self->cargo[i])) continue;
        iso_status status = remote_of(self)->test(self->with.store->device, self->cargo[i].event);
        ISO_TRY(status);
        if (status == ISO_PENDING) continue;
        ISO_TRY(check_device(self));
        ISO_TRY(send_bucket(self, i));
        *any = true;
    }
    return ISO_OK;
}

static iso_status advance_out(iso__transport *t) {
    staged *self = staged_of(t);
    bool any = false;
    if (is_copying(self)) ISO_TRY(send_arrived(self, &any));
    return iso__transport_advance(self->inner);
}

static iso_status give_up(const staged *self, double seconds) {
    int i = 0;
    place missing = self->leaving > 0 ? LEAVING : PUBLISHING;
    while (self->cargo[i].place != missing) i++;
    return ISO_FAIL(ISO_ERR_TIMEOUT,
                    "rank %d has waited %.0f s for the %s of \"%s\" from device %s (ISO_TIMEOUT)",
                    iso_comm_rank(self->with.world), seconds,
                    missing == LEAVING ? "gradients" : "values", self->with.buckets->item[i].label,
                    iso_device_name(self->with.store->device));
}

// Waits until the inner transport has all gradients. all: also waits until it has all values.
static iso_status flush_copies(staged *self, bool all) {
    int64_t last = iso_now();
    while (self->leaving > 0 || (all && self->publishing > 0)) {
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

static iso_status flush_out(iso__transport *t) { return flush_copies(staged_of(t), true); }

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

static iso_status copy_in(staged *self, int i, iso__shard part) {
    iso__store *store = self->with.store;
    ISO_TRY(remote_of(self)->copy(store->device, ISO__QUEUE_IN, store->arena + part.offset,
                                  store->gradients + part.offset, part.bytes));
    return remote_of(self)->record(store->device, ISO__QUEUE_IN, self->cargo[i].event);
}

static iso__shard whole_of(const staged *self, int i) {
    const iso__bucket *b = &self->with.buckets->item[i];
    return (iso__shard){b->offset, b->bytes};
}

// The part of a bucket's result that is copied back to the device.
static iso__shard result_of(const staged *self, int i) {
    const iso__transport *t = &self->base;
    if (t->shards == 0) return whole_of(self, i);
    return iso__shard_of(t, &self->with.buckets->item[i], t->shard);
}

// What a thread that waits with ZeRO does meanwhile.
typedef struct meanwhile {
    staged *self;
    const iso__idle *idle;
    iso_status status;
} meanwhile;

static bool do_meanwhile(void *user) {
    meanwhile *m = user;
    bool any = false;
    if (m->status == ISO_OK && is_copying(m->self)) m->status = send_arrived(m->self, &any);
    if (m->status == ISO_OK && m->idle && m->idle->call(m->idle->user)) any = true;
    return any || (m->status == ISO_OK && is_copying(m->self)); // true: it is called again soon
}

static iso_status arrive_inside(staged *self, int i, const iso__idle *idle, double *left,
                                iso__exchange_times *learnt) {
    meanwhile m = {self, idle, ISO_OK};
    const iso__idle both = {.call = do_meanwhile, .user = &m};
    bool divides = self->base.shards > 0;
    ISO_TRY(self->inner->ops->arrive(self->inner, i, divides ? &both : idle, left, learnt));
    return m.status;
}

static iso_status fetch_bucket(staged *self, int i, const iso__idle *idle, double *left) {
    cargo *c = &self->cargo[i];
    iso__exchange_times learnt;
    ISO_TRY(flush_copies(self,
                         false)); // the inner transport may need buckets that leave before this one
    c->left = 1;
    ISO_TRY(arrive_inside(self, i, idle, left ? &c->left : NULL, &learnt));
    learnt.left_device = true;
    iso__times_keep(&c->times, &learnt);
    ISO_TRY(copy_in(self, i, result_of(self, i)));
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
    if (c->place == FETCHED) {
        ISO_TRY(remote_of(self)->follow(device, ISO__QUEUE_COMPUTE, c->event));
        c->place = HOME;
    }
    ISO_TRY(iso__settle_factor(self->with.store, b, &c->left, left)); // the device multiplies
    iso__times_tell(&c->times, times);
    return ISO_OK;
}

// ---- Values, with ZeRO ------------------------------------------------------------------------------

static iso_status publish_values(iso__transport *t, int i) {
    staged *self = staged_of(t);
    cargo *c = &self->cargo[i];
    iso__shard own = result_of(self, i);
    ISO_CHECK(c->place == HOME, ISO_ERR_STATE,
              "the values of \"%s\" were published while its exchange is under way",
              self->with.buckets->item[i].label);
    c->failed = true;
    ISO_TRY(remote_of(self)->record(self->with.store->device, ISO__QUEUE_COMPUTE, c->event));
    ISO_TRY(copy_out(self, i, own.offset, own.bytes));
    c->failed = false;
    c->times.known = false;
    c->place = PUBLISHING;
    self->publishing++;
    return ISO_OK;
}

static iso_status collect_values(iso__transport *t, int i, const iso__idle *idle,
                                 iso__exchange_times *times) {
    staged *self = staged_of(t);
    cargo *c = &self->cargo[i];
    iso__exchange_times learnt;
    meanwhile m = {self, idle, ISO_OK};
    const iso__idle both = {.call = do_meanwhile, .user = &m};
    ISO_TRY(flush_copies(self, true)); // another rank may wait for later buckets
    ISO_CHECK(!c->failed && c->place == PUBLISHED, ISO_ERR_STATE,
              "the values of \"%s\" were never exchanged: copying them from the device failed",
              self->with.buckets->item[i].label);
    ISO_TRY(self->inner->ops->collect(self->inner, i, &both, &learnt));
    ISO_TRY(m.status);
    learnt.left_device = true;
    iso__times_keep(&c->times, &learnt);
    ISO_TRY(copy_in(self, i, whole_of(self, i)));
    ISO_TRY(remote_of(self)->follow(self->with.store->device, ISO__QUEUE_COMPUTE, c->event));
    c->place = HOME;
    iso__times_tell(&c->times, times);
    return ISO_OK;
}

static bool is_collected(const iso__transport *t, int i) {
    const staged *self = const_staged_of(t);
    const cargo *c = &self->cargo[i];
    return c->place == PUBLISHED && !c->failed && self->inner->ops->is_collected(self->inner, i);
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
                                              .publish = publish_values,
                                              .collect = collect_values,
                                              .is_collected = is_collected,
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
                                  .shards = inner->shards,
                                  .shard = inner->shard,
                                  .whole = inner->whole,
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
