// SPDX-License-Identifier: MIT
// A list of gradients comes back: buckets are awaited and updated, and with ZeRO new values go to
// the other ranks.
#include "parallel/reducer/round_impl.h"

#include <isotherm/trace.h>

// Whether the updates of a bucket may apply the factor: not if the average of a gradient must
// remain, and not for programs with gradient arrays of their own, which need not know of the
// factor.
static bool can_fold(const iso__round *r, int b) {
    const iso__layout *l = layout_of(r);
    for (int k = l->range[b].first; k <= l->range[b].last; k++) {
        if (r->slot[l->order[k]].keep && !r->zero) return false; // with ZeRO, values replace it
        if (l->slot[l->order[k]].home) return false;
    }
    return iso__appliers_fold(r->with.appliers, b);
}

// All buckets are back: prepares the next list. The hook's count must not change earlier, because
// with a device, buckets leave after they were posted, at a different time on each rank.
static void restart_list(iso__round *r) {
    if (r->uncounted) iso__coder_count(r->with.coder);
    r->uncounted = false;
    r->issued = 0;
    r->ready_count = 0;
    r->shares = false;
    r->unheld = false;
    iso__weights_restart(r->with.weights);
    iso__appliers_restart(r->with.appliers);
    for (int s = 0; s < layout_of(r)->slot_count; s++) r->ready_count += r->slot[s].ready;
}

static void open_bucket(iso__round *r, int b) {
    const iso__layout *l = layout_of(r);
    r->bucket[b].stage = OPEN;
    r->bucket[b].missing = slots_in(r, b);
    for (int k = l->range[b].first; k <= l->range[b].last; k++) {
        r->slot[l->order[k]].ready = r->slot[l->order[k]].whole = false;
        iso__usage_mark(r->usage, l->order[k], false);
    }
    iso__appliers_bucket_opens(r->with.appliers, b);
    if (--r->busy == 0) restart_list(r);
}

typedef struct look {
    iso__round *round;
    int awaited;
    iso_status status;
    int64_t spent_ns;
} look;

static iso_status go_on_with(iso__round *r, int b);

static bool is_measured(const iso__round *r, int b) {
    return r->bucket[b].stage != POSTED && r->bucket[b].stage != ARRIVED;
}

// Whether the norms of all pieces of the bucket's parameters are here. Norms of an earlier list do
// not count: is_measured is false for buckets that this list has not reached yet.
static bool norms_are_here(const iso__round *r, int b) {
    int low, high;
    iso__norms_range(r->norms, b, &low, &high);
    for (int k = low; k <= high; k++) {
        if (bucket_of(r, k)->local) continue;
        if (!is_measured(r, k) || !iso__norms_are_here(r->norms, k)) return false;
    }
    return true;
}

static bool is_shared(const iso__round *r, int b) { return r->shares && !bucket_of(r, b)->local; }

// Whether its updates come in halves.
static bool has_halves(const iso__round *r, int b) {
    return is_shared(r, b) && iso__appliers_have_halves(r->with.appliers);
}

// Whether go_on_with() can advance the bucket without waiting for other ranks. With ZeRO, new
// values may have to wait until those of other buckets are in place.
static bool is_due(const iso__round *r, int b) {
    const bucket_state *state = &r->bucket[b];
    bool room = iso__zero_has_room(r->zero, b);
    if (state->stage == PUBLISHED) return iso__zero_is_collected(r->zero, b);
    if (state->stage == MEASURED) return room && norms_are_here(r, b);
    if (state->stage == UPDATED) return room;
    if (state->stage != POSTED) return false;
    if (!r->shares && !iso__appliers_await(r->with.appliers, b)) return false;
    if (is_shared(r, b) && !has_halves(r, b) && !room) return false;
    return state->via->ops->is_back(state->via, b);
}

// The maximum number of buckets that a wait looks at each time. If there are more, they take turns,
// so that the cost of a step's waits does not grow with the square of the number of buckets.
enum { LOOKS = 64 };

// While one bucket is awaited, advances another one that has come back.
static bool complete_another(void *user) {
    look *l = user;
    iso__round *r = l->round;
    int count = layout_of(r)->bucket_count;
    for (int k = 0; l->status == ISO_OK && k < count && k < LOOKS; k++) {
        int step = k % 2 ? k / 2 + 1 : -k / 2; // 0, 1, -1, 2, -2 ...
        int b = (r->looked + step + count) % count;
        if (b == l->awaited || !is_due(r, b)) continue;
        int64_t start = iso_now();
        r->looked = b; // one of its neighbours is likely to come back next
        l->status = go_on_with(r, b);
        l->spent_ns += iso_now() - start;
        return true;
    }
    if (count > LOOKS) r->looked = (r->looked + LOOKS) % count;
    return false;
}

// Waits for the total of the weights, and computes the factor that makes the sum of a bucket an
// average. A gradient that is not exchanged becomes the average over this rank's weight.
static iso_status find_divisor(const iso__round *r, int b, double *factor) {
    double total;
    ISO_TRY(iso__weights_wait(r->with.weights, &total));
    bool alone = !r->comm || bucket_of(r, b)->local;
    bool divides = !alone && iso__coder_divides(r->with.coder, b, bucket_of(r, b));
    if (alone) total = iso__weights_own(r->with.weights);
    int ranks = alone ? 1 : iso_comm_size(r->comm);
    *factor = iso__factor_of_total(&r->average, ranks, divides, total);
    return ISO_OK;
}

// With ZeRO, changes this rank's shard only, because other ranks may still read their shards of
// this rank's bucket.
static iso_status divide_sum(iso__round *r, int b, double *left) {
    bucket_state *state = &r->bucket[b];
    const iso__bucket *bucket = bucket_of(r, b);
    iso__shard part = {bucket->offset, bucket->bytes - bucket->tail};
    double factor = 1;
    if (!state->undivided) return ISO_OK;
    ISO_TRY(find_divisor(r, b, &factor));
    if (left) {
        *left *= factor;
        return ISO_OK;
    }
    if (state->via->shards > 0) part = iso__shard_of(state->via, bucket, state->via->shard);
    ISO_TRY(iso__store_scale(r->with.store, part.offset, part.bytes, bucket->dtype, factor));
    state->undivided = false;
    return ISO_OK;
}

// For a profiler: a wait for an exchange is a range of this thread. The end of a successful wait
// also ends the range of the exchange.
static bool begin_wait(const iso__round *r, int b) {
    bucket_stage stage = r->bucket[b].stage;
    if (!iso__profiler_on() || (stage != POSTED && stage != PUBLISHED)) return false;
    iso__profiler_push(ISO_LANE_WAIT, bucket_of(r, b)->label);
    return true;
}

static void end_wait(iso__round *r, int b, iso_status status) {
    iso__profiler_pop();
    if (status >= 0) iso__profiler_end(&r->bucket[b].range);
}

// Reads the sums of the program once: afterwards stage 2 may no longer hold them.
static void note_arrival(iso__round *r, int b) {
    r->bucket[b].stage = ARRIVED;
    if (r->bucket[b].arrived) return;
    iso__sums_come(r->with.sums, r->with.store, bucket_of(r, b));
    if (r->zero && !bucket_of(r, b)->local) iso__zero_arrived(r->zero, b);
    r->bucket[b].arrived = true;
}

// left NULL: applies the factor, so that the sum becomes an average. May be called again.
iso_status iso__round_arrive(iso__round *r, int b, const iso__idle *idle, double *left) {
    bucket_state *state = &r->bucket[b];
    iso__exchange_times times = {.known = false};
    const look *meanwhile = idle ? idle->user : NULL;
    bool shown = begin_wait(r, b);
    iso_status status = state->via->ops->arrive(state->via, b, idle, left, &times);
    if (shown) end_wait(r, b, status);
    if (meanwhile) state->spent_ns += meanwhile->spent_ns;
    ISO_TRY(status);
    iso__planner_arrived(r->with.planner, b, &times, state->spent_ns);
    state->spent_ns = 0;
    ISO_TRY(divide_sum(r, b, left));
    note_arrival(r, b);
    return meanwhile ? meanwhile->status : ISO_OK; // of other buckets: this one is here
}

// Waits for a bucket and for the answer which parameters no rank used. The updates must then apply
// `left`. May be called again.
static iso_status bring_back(iso__round *r, int b, double *left) {
    look meanwhile = {.round = r, .awaited = b};
    iso__idle idle = {.call = complete_another, .user = &meanwhile};
    *left = 1;
    ISO_TRY(iso__round_arrive(r, b, &idle, can_fold(r, b) ? left : NULL));
    return iso__usage_learn(r->usage);
}

// Copies the averages that no update has used to the caller's arrays; with ZeRO, this rank's
// elements.
static iso_status return_averages(iso__round *r, int b) {
    const iso__layout *l = layout_of(r);
    for (int k = l->range[b].first; k <= l->range[b].last; k++) {
        int s = l->order[k];
        const iso__grad_slot *slot = &l->slot[s];
        bool unused = iso__usage_skipped(r->usage)[s];
        if (!slot->home || unused || iso__appliers_use(r->with.appliers, s)) continue;
        iso__own own = iso__zero_own(r->zero, l, s);
        size_t size = iso_dtype_size(slot->dtype), skip = own.first * size;
        if (iso__slot_converts(slot))
            ISO_TRY(iso__slot_narrow(slot, r->with.store, own, slot->home));
        else
            ISO_TRY(iso__store_save(r->with.store, slot->offset + skip, own.count * size,
                                    (char *)slot->home + skip));
    }
    return ISO_OK;
}

// Rounds averages for 16-bit arrays to the values that these arrays would get, even if updates use
// the averages first.
static iso_status round_averages(iso__round *r, int b) {
    const iso__layout *l = layout_of(r);
    for (int k = l->range[b].first; k <= l->range[b].last; k++) {
        const iso__grad_slot *slot = &l->slot[l->order[k]];
        if (slot->home && iso__slot_converts(slot))
            ISO_TRY(iso__slot_round(slot, r->with.store, iso__zero_own(r->zero, l, l->order[k])));
    }
    return ISO_OK;
}

static iso_status update_bucket(iso__round *r, int b) {
    double left;
    ISO_TRY(bring_back(r, b, &left));
    ISO_TRY(round_averages(r, b));
    r->updating = true;
    iso_status status =
        iso__appliers_apply(r->with.appliers, b, left, iso__usage_skipped(r->usage));
    r->updating = false;
    ISO_TRY(status);
    return return_averages(r, b);
}

// ---- Values go to the other ranks -------------------------------------------------------------------

static iso_status send_values(iso__round *r, int b) {
    if (iso__zero_divides_values(r->zero)) { // they leave when ranks need them
        iso__zero_updated(r->zero, b);
        open_bucket(r, b);
        return ISO_OK;
    }
    r->bucket[b].stage = PUBLISHED; // if sending fails, collecting reports it
    iso__round_show_exchange(r, b);
    return iso__zero_publish(r->zero, b);
}

static iso_status measure_now(iso__round *r, int b, double left, bool home) {
    r->updating = true;
    iso_status status = iso__appliers_measure(
        r->with.appliers, b, left, home, iso__usage_skipped(r->usage), iso__norms_own(r->norms, b));
    r->updating = false;
    ISO_TRY(status);
    r->bucket[b].stage = MEASURED; // if sending fails, waiting reports it
    return iso__norms_send(r->norms, b);
}

static iso_status measure_bucket(iso__round *r, int b) {
    double left;
    if (is_measured(r, b) || !has_halves(r, b)) return ISO_OK;
    ISO_TRY(bring_back(r, b, &left));
    if (is_measured(r, b)) return ISO_OK; // measured during the wait
    ISO_TRY(round_averages(r, b));
    return measure_now(r, b, left, false);
}

static bool is_unshared(const iso__round *r, int b) {
    bucket_stage stage = r->bucket[b].stage;
    return stage == POSTED || stage == ARRIVED || stage == MEASURED || stage == UPDATED;
}

// The last bucket that waits to be published; -1: there is none.
static int find_unshared(iso__round *r) {
    while (r->unshared >= 0 && !is_unshared(r, r->unshared)) r->unshared--;
    return r->unshared;
}

// Measures buckets from the last one down to `first`, the order in which forward needs them.
static iso_status measure_from(iso__round *r, int first) {
    if (!r->shares || !iso__appliers_have_halves(r->with.appliers)) return ISO_OK;
    for (int b = find_unshared(r); b >= first; b--) ISO_TRY(measure_bucket(r, b));
    return ISO_OK;
}

static iso_status await_norms(iso__round *r, int b) {
    int low, high;
    iso__norms_range(r->norms, b, &low, &high);
    ISO_TRY(measure_from(r, low));
    for (int k = high; k >= low; k--) {
        look meanwhile = {.round = r, .awaited = b};
        if (bucket_of(r, k)->local) continue;
        ISO_TRY(iso__norms_wait(r->norms, k, complete_another, &meanwhile));
        ISO_TRY(meanwhile.status);
    }
    return ISO_OK;
}

static iso_status finish_measured(iso__round *r, int b) {
    ISO_TRY(await_norms(r, b));
    if (r->bucket[b].stage != MEASURED) return ISO_OK; // finished during the wait
    r->updating = true;
    iso_status status =
        iso__appliers_finish(r->with.appliers, b, iso__usage_skipped(r->usage), r->norms);
    r->updating = false;
    ISO_TRY(status);
    ISO_TRY(return_averages(r, b));
    return send_values(r, b);
}

static iso_status publish_bucket(iso__round *r, int b) {
    bool there = r->bucket[b].stage == POSTED || r->bucket[b].stage == ARRIVED;
    if (r->bucket[b].stage == UPDATED) return send_values(r, b);
    if (has_halves(r, b)) {
        ISO_TRY(measure_bucket(r, b));
        return r->bucket[b].stage == MEASURED ? finish_measured(r, b) : ISO_OK;
    }
    if (!there || !is_shared(r, b)) return ISO_OK;
    ISO_TRY(update_bucket(r, b));
    return send_values(r, b);
}

// Publishes buckets that are back. Publishes nothing until the rank knows which parameters no rank
// used, and the total of the weights, because that requires a wait.
iso_status iso__round_publish_back(iso__round *r) {
    if (!iso__weights_are_here(r->with.weights)) return ISO_OK;
    for (int b = find_unshared(r); b >= 0 && !iso__usage_is_asked(r->usage); b--)
        if (r->bucket[b].stage == POSTED && is_due(r, b))
            ISO_TRY(has_halves(r, b) ? measure_bucket(r, b) : publish_bucket(r, b));
        else if (r->bucket[b].stage == MEASURED && is_due(r, b))
            ISO_TRY(finish_measured(r, b));
        else if (r->bucket[b].stage == UPDATED && is_due(r, b))
            ISO_TRY(send_values(r, b));
    return ISO_OK;
}

static iso_status collect_bucket(iso__round *r, int b) {
    bucket_state *state = &r->bucket[b];
    look meanwhile = {.round = r, .awaited = b};
    iso__idle idle = {.call = complete_another, .user = &meanwhile};
    iso__exchange_times times = {.known = false};
    bool shown = begin_wait(r, b);
    iso_status status = iso__zero_collect(r->zero, b, &idle, &times);
    if (shown) end_wait(r, b, status);
    state->spent_ns += meanwhile.spent_ns;
    ISO_TRY(status);
    iso__planner_collected(r->with.planner, b, &times, state->spent_ns);
    state->spent_ns = 0;
    open_bucket(r, b);
    return meanwhile.status; // of other buckets: this one is complete
}

// In stage 2, puts the values of later buckets in place, the last ones first, until there is room
// for the values of bucket b. The caller has published all these later buckets. Other ranks publish
// them before they get here, and need nothing from this rank's program for that.
static iso_status make_room(iso__round *r, int b, bool waits) {
    for (int k = layout_of(r)->bucket_count - 1; k > b; k--) {
        if (iso__zero_has_room(r->zero, b)) return ISO_OK;
        if (r->bucket[k].stage == PUBLISHED && (waits || iso__zero_is_collected(r->zero, k)))
            ISO_TRY(collect_bucket(r, k));
    }
    return ISO_OK;
}

// Publishes the buckets from the last one down to bucket `first`, the order in which they leave.
// waits: in stage 2, few at a time.
static iso_status publish_down(iso__round *r, int first, bool waits) {
    for (int b = find_unshared(r); b >= first; b--) {
        if (is_shared(r, b) && is_unshared(r, b)) ISO_TRY(make_room(r, b, waits));
        ISO_TRY(publish_bucket(r, b));
    }
    return ISO_OK;
}

iso_status iso__round_publish(iso__round *r, bool waits) {
    bool posted = r->issued == layout_of(r)->bucket_count && r->busy > 0;
    if (posted) ISO_TRY(iso__transport_settle(r->transport));
    ISO_TRY(measure_from(r, 0));
    ISO_TRY(publish_down(r, 0, waits));
    return r->zero ? iso__transport_flush(r->transport) : ISO_OK; // values may be leaving a device
}

iso_status iso__round_share(iso__round *r) {
    if (!r->zero) return ISO_OK;
    r->shares = true;
    if (r->busy > 0) return iso__round_publish_back(r);
    r->issued = layout_of(r)->bucket_count; // the next list waits for these
    for (int b = r->issued - 1; b >= 0; b--) {
        if (bucket_of(r, b)->local) continue;
        r->busy++;
        iso__round_note_unshared(r, b);
        if (iso__appliers_have_halves(r->with.appliers)) {
            r->bucket[b].stage = ARRIVED; // and stays so if measuring fails
            ISO_TRY(measure_now(r, b, 1, true));
            continue;
        }
        r->bucket[b].stage = UPDATED;
    }
    if (r->busy == 0) restart_list(r);
    for (int b = layout_of(r)->bucket_count - 1; b >= 0; b--)
        if (r->bucket[b].stage == UPDATED && iso__zero_has_room(r->zero, b))
            ISO_TRY(send_values(r, b));
    return ISO_OK;
}

// ---- Buckets are complete ---------------------------------------------------------------------------

// Advances a bucket to its next stage.
static iso_status go_on_with(iso__round *r, int b) {
    if (r->bucket[b].stage == PUBLISHED) return collect_bucket(r, b);
    if (r->bucket[b].stage == MEASURED) return finish_measured(r, b);
    if (r->bucket[b].stage == UPDATED) return send_values(r, b);
    if (has_halves(r, b)) return measure_bucket(r, b);
    if (is_shared(r, b)) return publish_bucket(r, b);
    ISO_TRY(update_bucket(r, b));
    open_bucket(r, b);
    return ISO_OK;
}

// With ZeRO, publishes all later buckets first, because buckets leave in this order. Afterwards
// there may be room for buckets that stage 2 has held back.
iso_status iso__round_complete(iso__round *r, int b) {
    if (r->bucket[b].stage == OPEN) return ISO_OK;
    ISO_TRY(measure_from(r, b));
    if (is_shared(r, b)) ISO_TRY(publish_down(r, b, true));
    while (r->bucket[b].stage != OPEN) ISO_TRY(go_on_with(r, b));
    bool makes_room = r->shares && iso__zero_divides_gradients(r->zero);
    return makes_room ? iso__round_publish_back(r) : ISO_OK;
}

// A wait between updates would split the updates that a device launches together. With ZeRO later
// buckets are published first.
iso_status iso__round_arrive_first(iso__round *r, int b) {
    double left;
    bool there = r->bucket[b].stage == POSTED || r->bucket[b].stage == ARRIVED;
    if (!there || is_shared(r, b) || !r->bucket[b].via->launches) return ISO_OK;
    return bring_back(r, b, &left);
}
