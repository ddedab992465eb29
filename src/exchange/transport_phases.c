// SPDX-License-Identifier: MIT
// Buckets that travel as a communication hook has declared: by messages, in phases, with calls of
// the hook in between.
//
// Why no rank waits for ever: all phases of all buckets are items of one channel, in the order of
// their phases. In lazy mode a bucket is awaited only after phase 0 of all buckets is ready.
// Before a rank waits for phase k of a bucket, it makes everything ready that leaves earlier, phase
// by phase. channel.h proves the rest. If each bucket is awaited before the next one is posted, all
// phases of a bucket leave before those of the next.
#include "exchange/transports.h"

#include "exchange/codec.h"

#include "comm/traffic.h"

#include <string.h>

// Chunk size and window as in transport_zero.c, for the same reason.
#define CHUNK_BYTES  ((size_t)60 * 1024)
#define WINDOW_BYTES (8 * CHUNK_BYTES)

typedef struct leg {
    int item;          // of the channel
    void *data, *wire; // as the hook sees it, and as it travels; may be the same
    iso_dtype wire_dtype;
} leg;

typedef struct parcel {
    iso_comm_hook_plan plan; // no phases: the bucket is local
    leg leg[ISO_COMM_HOOK_PHASES];
    int phase; // that is under way
    bool posted, plain;
    bool failed;        // the hook failed
    bool finished;      // the gradients are the result
    double after, left; // after: the factor that makes the result an average; left: the factor not
                        // yet applied
    iso__exchange_times times; // of the latest exchange, until they are reported
} parcel;

typedef struct phases {
    iso__transport base;
    iso__transport_setup with;
    iso_comm *comm;
    iso__coder_ranks ranks;
    iso__channel *channel;
    parcel *parcel; // [buckets]
    char *memory;   // of all legs
    size_t *wire_bytes;
    int64_t computed_ns; // by the hook, between phases
    iso__coder no_coder;
    iso__transport *first; // carries the exchanges before hook.start; NULL: start is 0
} phases;

static phases *phases_of(iso__transport *t) { return iso_container_of(t, phases, base); }
static const phases *const_phases_of(const iso__transport *t) {
    return iso_container_of(t, const phases, base);
}

static const iso__bucket *bucket_of(const phases *self, int i) {
    return &self->with.buckets->item[i];
}
static void *gradient_of(const phases *self, int i) {
    return self->with.store->arena + bucket_of(self, i)->offset;
}

// ---- One phase --------------------------------------------------------------------------------------

static iso_status run_hook(phases *self, int i, int phase, double factor) {
    const iso__coder *coder = self->with.coder;
    parcel *p = &self->parcel[i];
    void *data[ISO_COMM_HOOK_PHASES] = {NULL};
    if (p->plan.plain || coder->off) return ISO_OK;
    for (int k = 0; k < p->plan.phase_count; k++) data[k] = p->leg[k].data;
    p->failed = true;
    ISO_TRY(iso__coder_run(coder, i, bucket_of(self, i), gradient_of(self, i), data, &self->ranks,
                           phase, factor));
    p->failed = false;
    return ISO_OK;
}

// Converts between data and wire: to the wire what this rank sends, from it everything that has
// arrived.
static void convert_leg(const phases *self, const parcel *p, int k, bool to_wire) {
    const leg *l = &p->leg[k];
    const iso_comm_phase *phase = &p->plan.phase[k];
    size_t blocks = phase->operation == ISO_COMM_SUM ? 1 : (size_t)self->ranks.ranks, first = 0;
    if (l->data == l->wire || self->with.coder->off) return;
    if (to_wire && phase->operation == ISO_COMM_GATHER) {
        first = (size_t)self->ranks.rank * phase->count;
        blocks = 1;
    }
    float *data = (float *)l->data + first;
    char *wire = (char *)l->wire + first * iso_dtype_size(l->wire_dtype);
    const iso__codec *codec = iso__codec_of(l->wire_dtype);
    if (to_wire)
        codec->encode(blocks * phase->count, data, 1, wire);
    else
        codec->decode(blocks * phase->count, wire, data);
}

static iso_status send_leg(phases *self, int i) {
    parcel *p = &self->parcel[i];
    int item = p->leg[p->phase].item;
    convert_leg(self, p, p->phase, true);
    ISO_TRY(iso__channel_ready(self->channel, item));
    iso__channel_count(self->channel, item, &self->with.stats->traffic);
    return ISO_OK;
}

static bool phase_is_here(const phases *self, const parcel *p) {
    return p->plan.phase_count == 0 || iso__channel_is_done(self->channel, p->leg[p->phase].item);
}

static bool is_under_way(const parcel *p) { return p->posted && !p->plain && !p->failed; }

// The result of a phase that is not the last one has arrived: begins the next phase.
static iso_status begin_next_phase(phases *self, int i) {
    parcel *p = &self->parcel[i];
    int64_t start = iso_now();
    convert_leg(self, p, p->phase, false);
    ISO_TRY(run_hook(self, i, p->phase + 1, 1));
    p->phase++;
    iso_status status = send_leg(self, i);
    self->computed_ns += iso_now() - start;
    return status;
}

// ---- Post -------------------------------------------------------------------------------------------

static bool begins_plain(const phases *self) {
    return self->first && !self->with.coder->off && iso__coder_begins_later(self->with.coder);
}

static iso_status post_first_phase(phases *self, int i, double before) {
    const iso__bucket *b = bucket_of(self, i);
    parcel *p = &self->parcel[i];
    iso__exchange_stats *stats = self->with.stats;
    if (p->plan.plain)
        iso__store_scale_arena(self->with.store, b->offset, b->bytes, b->dtype, before);
    if (p->plan.phase_count == 0) before *= p->after;
    ISO_TRY(run_hook(self, i, 0, before));
    p->posted = true; // set first: if the exchange fails to begin, some chunks may be under way
    p->phase = 0;
    p->finished = p->plan.phase_count == 0;
    p->left = p->plan.plain ? p->after : 1;
    stats->exchanges++;
    *(self->with.over_world ? &stats->bytes_world : &stats->bytes_node) +=
        (long long)self->wire_bytes[i];
    return p->plan.phase_count > 0 ? send_leg(self, i) : ISO_OK;
}

static iso_status post_bucket(iso__transport *t, int i, double before, double after) {
    phases *self = phases_of(t);
    parcel *p = &self->parcel[i];
    ISO_CHECK(!p->posted, ISO_ERR_STATE,
              "the gradients of \"%s\" were posted again while their exchange is under way",
              bucket_of(self, i)->label);
    p->failed = false;
    p->plain = begins_plain(self);
    p->after = after;
    p->times = (iso__exchange_times){.known = false};
    if (!p->plain) return post_first_phase(self, i, before);
    p->posted = true;
    return self->first->ops->post(self->first, i, before, after);
}

// ---- Between phases -----------------------------------------------------------------------------------

// Begins the next phase of every bucket whose current phase is complete. *any: there was one.
static iso_status go_on(phases *self, bool *any) {
    for (int i = 0; i < self->with.buckets->count; i++) {
        parcel *p = &self->parcel[i];
        while (is_under_way(p) && p->phase + 1 < p->plan.phase_count && phase_is_here(self, p)) {
            ISO_TRY(begin_next_phase(self, i));
            *any = true;
        }
    }
    return ISO_OK;
}

static iso_status advance_phases(iso__transport *t) {
    phases *self = phases_of(t);
    bool any = false;
    if (self->first) ISO_TRY(iso__transport_advance(self->first));
    return self->channel ? go_on(self, &any) : ISO_OK;
}

// ---- Arrive -------------------------------------------------------------------------------------------

// What a thread that waits for a phase does meanwhile.
typedef struct meanwhile {
    phases *self;
    const iso__idle *idle;
    iso_status status;
} meanwhile;

static bool do_meanwhile(void *user) {
    meanwhile *m = user;
    bool any = false;
    if (m->status == ISO_OK) m->status = go_on(m->self, &any);
    return any || (m->status == ISO_OK && m->idle && m->idle->call(m->idle->user));
}

static iso_status await_leg(phases *self, int i, int k, const iso__idle *idle) {
    meanwhile m = {self, idle, ISO_OK};
    ISO_TRY(iso__channel_wait(self->channel, self->parcel[i].leg[k].item, do_meanwhile, &m));
    return m.status;
}

// Waits until phase k of the bucket leaves, if it has one and is exchanged.
static iso_status reach_phase(phases *self, int i, int k, const iso__idle *idle) {
    parcel *p = &self->parcel[i];
    while (is_under_way(p) && k < p->plan.phase_count && p->phase < k) {
        int phase = p->phase;
        ISO_TRY(await_leg(self, i, phase, idle));
        if (is_under_way(p) && p->phase == phase) ISO_TRY(begin_next_phase(self, i));
    }
    return ISO_OK;
}

// Begins the last phase of this bucket, after all that leaves before it. After phase 0, buckets
// leave in the order in which forward needs them.
static iso_status reach_last_phase(phases *self, int i, const iso__idle *idle) {
    int last = self->parcel[i].plan.phase_count - 1;
    for (int k = 1; k <= last; k++)
        for (int j = self->with.buckets->count - 1; j >= 0; j--) {
            if (self->with.one_by_one && j != i) continue;
            ISO_TRY(reach_phase(self, j, k, idle));
            if (k == last && j == i) break;
        }
    return ISO_OK;
}

static iso_status await_bucket(phases *self, int i, const iso__idle *idle) {
    parcel *p = &self->parcel[i];
    int64_t computed = self->computed_ns;
    iso__times_begin_wait(&p->times);
    iso_status status = reach_last_phase(self, i, idle);
    if (status == ISO_OK) status = await_leg(self, i, p->plan.phase_count - 1, idle);
    p->times.wait_end_ns = iso_now();
    p->times.away_ns += self->computed_ns - computed;
    return status;
}

// Sets the padding between parameters back to 0, in case the hook has written to it.
static void clear_gaps(phases *self, int i) {
    const iso__bucket *b = bucket_of(self, i);
    size_t size = iso_dtype_size(b->dtype), at = 0;
    char *gradient = gradient_of(self, i);
    for (int k = 0; k < b->tensor_count; k++) {
        memset(gradient + at, 0, b->tensor[k].offset * size - at);
        at = (b->tensor[k].offset + b->tensor[k].count) * size;
    }
    if (b->tensor_count > 0) memset(gradient + at, 0, b->bytes - at);
}

static iso_status take_result(phases *self, int i) {
    parcel *p = &self->parcel[i];
    int last = p->plan.phase_count - 1;
    convert_leg(self, p, last, false);
    p->posted = false; // the exchange is over, also if the hook fails now
    ISO_TRY(run_hook(self, i, last + 1, p->after));
    if (!self->with.coder->off) clear_gaps(self, i);
    return ISO_OK;
}

// After this, no other rank waits for a later phase of this rank.
static iso_status settle_phases(iso__transport *t) {
    phases *self = phases_of(t);
    for (int i = self->with.buckets->count - 1; i >= 0; i--)
        if (is_under_way(&self->parcel[i])) ISO_TRY(reach_last_phase(self, i, NULL));
    return self->first ? iso__transport_settle(self->first) : ISO_OK;
}

static void tell_phases(phases *self, int i) {
    parcel *p = &self->parcel[i];
    int last = p->plan.phase_count - 1;
    if (last < 0) return;
    iso__times_of_channel(&p->times, self->channel, p->leg[0].item);
    p->times.done_ns = iso__channel_times_of(self->channel, p->leg[last].item).done_ns;
}

static iso_status arrive_phases(phases *self, int i, const iso__idle *idle) {
    parcel *p = &self->parcel[i];
    if (!p->posted) return ISO_OK;
    if (!p->finished) ISO_TRY(await_bucket(self, i, idle));
    if (!p->finished) ISO_TRY(take_result(self, i));
    p->posted = false;
    p->finished = true;
    tell_phases(self, i);
    return ISO_OK;
}

static iso_status arrive_bucket(iso__transport *t, int i, const iso__idle *idle, double *left,
                                iso__exchange_times *times) {
    phases *self = phases_of(t);
    const iso__bucket *b = bucket_of(self, i);
    parcel *p = &self->parcel[i];
    if (p->plain) {
        ISO_TRY(self->first->ops->arrive(self->first, i, idle, left, times));
        p->posted = false;
        return ISO_OK;
    }
    ISO_CHECK(!p->failed, ISO_ERR_STATE,
              "the gradients of \"%s\" are lost, as communication hook %s has failed before",
              b->label, self->with.coder->hook.name);
    ISO_TRY(arrive_phases(self, i, idle));
    iso__times_tell(&p->times, times);
    if (left) {
        *left = p->left;
        return ISO_OK;
    }
    iso__store_scale_arena(self->with.store, b->offset, b->bytes, b->dtype, p->left);
    p->left = 1;
    return ISO_OK;
}

static bool is_back(const iso__transport *t, int i) {
    const phases *self = const_phases_of(t);
    const parcel *p = &self->parcel[i];
    if (p->plain) return self->first->ops->is_back(self->first, i);
    // arrive() would report the failure to a thread that waits for a different bucket.
    if (p->failed) return false;
    bool last = p->phase + 1 >= p->plan.phase_count;
    return !p->posted || p->finished || (last && phase_is_here(self, p));
}

// ---- Life -------------------------------------------------------------------------------------------

static bool destroy_phases(iso__transport *t) {
    phases *self = phases_of(t);
    bool all = iso__channel_destroy(&self->channel);
    if (!iso__transport_destroy(&self->first)) all = false;
    if (!all) return false;
    iso_comm_destroy(&self->comm);
    iso__free(self->parcel);
    iso__free(self->memory);
    iso__free(self->wire_bytes);
    iso__free(self);
    return true;
}

static const iso__transport_ops phases_ops = {.name = "phases",
                                              .post = post_bucket,
                                              .advance = advance_phases,
                                              .is_back = is_back,
                                              .arrive = arrive_bucket,
                                              .settle = settle_phases,
                                              .destroy = destroy_phases};

// The hook's state stays where it is when the scope changes.
static iso_status declare_buckets(phases *self) {
    const iso__coder *coder = self->with.coder;
    for (int i = 0; i < self->with.buckets->count; i++) {
        const iso__bucket *b = bucket_of(self, i);
        parcel *p = &self->parcel[i];
        if (!iso__bucket_is_dense(b)) continue;
        ISO_TRY(iso__coder_declare(coder, i, b, &self->ranks, &p->plan));
        ISO_CHECK(p->plan.state_floats == coder->plan[i].state_floats, ISO_ERR_ARG,
                  "communication hook %s declared %zu floats of state for bucket %s between %d "
                  "ranks, but %zu between all: it must not depend on the number of ranks",
                  coder->hook.name, p->plan.state_floats, b->label, self->ranks.ranks,
                  coder->plan[i].state_floats);
        p->finished = true;
    }
    return ISO_OK;
}

static size_t padded_bytes(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Gives a leg its memory, and returns its size; memory NULL: only returns the size.
static size_t place_leg(const phases *self, int i, int k, char *memory) {
    parcel *p = &self->parcel[i];
    const iso_comm_phase *phase = &p->plan.phase[k];
    leg *l = &p->leg[k];
    l->wire_dtype = iso__phase_wire(self->with.coder, &p->plan, k);
    size_t data = padded_bytes(iso__phase_bytes(phase, phase->dtype, self->ranks.ranks));
    size_t wire = padded_bytes(iso__phase_bytes(phase, l->wire_dtype, self->ranks.ranks));
    if (p->plan.plain) data = wire = 0;
    if (l->wire_dtype == phase->dtype) wire = 0;
    if (!memory) return data + wire;
    l->data = p->plan.plain ? gradient_of(self, i) : memory;
    l->wire = wire > 0 ? memory + data : l->data;
    return data + wire;
}

static iso_status allocate_legs(phases *self) {
    size_t bytes = padded_bytes(1);
    for (int i = 0; i < self->with.buckets->count; i++)
        for (int k = 0; k < self->parcel[i].plan.phase_count; k++)
            bytes += place_leg(self, i, k, NULL);
    ISO_TRY(iso__alloc_zero(bytes, (void **)&self->memory));
    char *next = self->memory;
    for (int i = 0; i < self->with.buckets->count; i++)
        for (int k = 0; k < self->parcel[i].plan.phase_count; k++)
            next += place_leg(self, i, k, next);
    return ISO_OK;
}

static iso__channel_item item_of(const phases *self, int i, int k) {
    static const iso__operation operation[] = {[ISO_COMM_SUM] = ISO__SUM,
                                               [ISO_COMM_GATHER] = ISO__GATHER,
                                               [ISO_COMM_ALLTOALL] = ISO__ALLTOALL};
    const parcel *p = &self->parcel[i];
    const iso_comm_phase *phase = &p->plan.phase[k];
    const leg *l = &p->leg[k];
    return (iso__channel_item){.data = l->wire,
                               .bytes = iso__phase_block_bytes(phase, l->wire_dtype),
                               .dtype = l->wire_dtype,
                               .label = bucket_of(self, i)->label,
                               .operation = operation[phase->operation],
                               .phase = self->with.one_by_one ? i * ISO_COMM_HOOK_PHASES + k : k};
}

// In the order in which they leave: phase 0 in the order in which backward completes the buckets,
// later phases in the order in which forward needs them.
static int list_items(phases *self, iso__channel_item *item) {
    int buckets = self->with.buckets->count, count = 0;
    for (int k = 0; k < ISO_COMM_HOOK_PHASES; k++)
        for (int n = 0; n < buckets; n++) {
            int i = k == 0 ? n : buckets - 1 - n;
            if (k >= self->parcel[i].plan.phase_count) continue;
            self->parcel[i].leg[k].item = count;
            item[count++] = item_of(self, i, k);
        }
    return count;
}

static iso_status allocate_phases(const iso__transport_setup *setup, iso_comm *comm, phases **out,
                                  iso__channel_item **item, int *items) {
    size_t count = (size_t)setup->buckets->count;
    ISO_TRY(iso__alloc_zero(count * ISO_COMM_HOOK_PHASES * sizeof(**item), (void **)item));
    ISO_TRY(iso__alloc_zero(sizeof(phases), (void **)out));
    phases *self = *out;
    *self = (phases){.base = {.ops = &phases_ops, .travels = true}, .with = *setup};
    self->comm = iso_comm_retain(comm);
    self->ranks = (iso__coder_ranks){iso_comm_rank(comm), iso_comm_size(comm),
                                     setup->one_by_one ? comm : NULL};
    self->no_coder.hook = iso_hook_plain;
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->parcel), (void **)&self->parcel));
    ISO_TRY(iso__alloc_zero(count * sizeof(*self->wire_bytes), (void **)&self->wire_bytes));
    self->base.wire_bytes = self->wire_bytes;
    ISO_TRY(declare_buckets(self));
    for (int i = 0; i < setup->buckets->count; i++)
        self->wire_bytes[i] =
            iso__plan_bytes(setup->coder, &self->parcel[i].plan, self->ranks.ranks);
    ISO_TRY(allocate_legs(self));
    *items = list_items(self, *item);
    return ISO_OK;
}

// The transport before hook.start: plain sums, also by messages.
static iso_status make_first(phases *self) {
    iso__transport_setup plain = self->with;
    plain.coder = &self->no_coder;
    if (self->with.coder->hook.start == 0) return ISO_OK;
    return iso__transport_host(&plain, self->comm, &self->first);
}

iso_status iso__transport_phases(const iso__transport_setup *setup, iso_comm *comm,
                                 iso__transport **out) {
    iso_status status;
    phases *self = NULL;
    iso__channel_item *item = NULL;
    int items = 0;
    ISO_TRY_GOTO(iso_comm_agree(comm, allocate_phases(setup, comm, &self, &item, &items)));
    if (items > 0)
        ISO_TRY_GOTO(iso__channel_create(self->comm, item, items, CHUNK_BYTES, WINDOW_BYTES,
                                         &self->channel));
    ISO_TRY_GOTO(make_first(self));
    iso__free(item);
    *out = &self->base;
    return ISO_OK;
fail:
    iso__free(item);
    if (self) destroy_phases(&self->base);
    return status;
}
