// SPDX-License-Identifier: MIT
// A list of gradients: gradients become ready, their buckets leave, and parameters are needed
// again.
#include "parallel/reducer/round_impl.h"

#include <isotherm/trace.h>
#include <limits.h>

// ---- Buckets leave ----------------------------------------------------------------------------------

static bool is_blocking(const iso__round *r) { return r->with.sync != ISO_SYNC_LAZY; }

static iso__factors factors_of(const iso__round *r, int b) {
    if (!r->comm || bucket_of(r, b)->local) return (iso__factors){1, 1};
    bool divides = iso__coder_divides(r->with.coder, b, bucket_of(r, b));
    if (r->with.weights) return iso__factors_ahead(&r->average, iso_comm_size(r->comm), divides);
    return iso__factors_of(&r->average, iso_comm_size(r->comm), divides);
}

static iso_status finish_transport(iso__round *r) {
    int64_t start = iso_now();
    ISO_TRY(iso__transport_finish(r->transport));
    if (r->transport->ops->finish) iso__planner_waited(r->with.planner, start);
    return ISO_OK;
}

static iso_status post_bucket(iso__round *r, int b) {
    bucket_state *state = &r->bucket[b];
    ISO_TRY(iso__weights_leave(r->with.weights, r->comm));
    if (b == iso__layout_last(layout_of(r)))
        iso__sums_leave(r->with.sums, r->with.store, bucket_of(r, b));
    state->via = bucket_of(r, b)->local ? r->with.alone : r->transport;
    state->stage = state->via->travels ? POSTED : ARRIVED;
    iso__round_note_unshared(r, b);
    r->issued++;
    r->busy++;
    state->undivided = r->with.weights != NULL;
    state->arrived = false;
    iso__factors factor = factors_of(r, b);
    if (state->via->travels) iso__round_show_exchange(r, b);
    if (r->zero) iso__zero_leaves(r->zero, b);
    ISO_TRY(state->via->ops->post(state->via, b, factor.before, factor.after));
    if (!state->via->travels || !is_blocking(r)) return ISO_OK;
    ISO_TRY(iso__round_arrive(r, b, NULL, NULL)); // applies the factor before the device gets it
    return finish_transport(r);
}

static iso_status list_is_out(iso__round *r) {
    if (r->comm)
        ISO_TRY(iso__debug_match(r->comm, "a list of %d buckets of gradients (number %lld)",
                                 layout_of(r)->bucket_count, r->lists + 1));
    r->fresh = true;
    r->ready_count = 0; // what becomes ready from here on is of the next list
    for (int s = 0; s < layout_of(r)->slot_count; s++) r->slot[s].keep = true;
    iso__appliers_list_is_out(r->with.appliers);
    r->lists++;
    r->uncounted = true;
    ISO_TRY(iso__sums_send(r->with.sums, r->comm));
    if (r->with.unused == ISO_UNUSED_STATIC)
        return iso__usage_keep(r->usage, r->comm, r->excused, iso_comm_rank(r->with.world));
    bool negotiate = r->with.unused == ISO_UNUSED_NEGOTIATE;
    return negotiate ? iso__usage_ask(r->usage, r->comm) : ISO_OK;
}

// A delayed bucket leaves once all buckets before it have left, which include all that are not
// delayed.
static bool may_leave(const iso__round *r, int b) {
    return b < layout_of(r)->first_delayed || b == r->issued;
}

static void forget_complete(iso__round *r) {
    r->complete_first = INT_MAX;
    r->complete_last = -1;
}

static bool is_ready(const iso__round *r, int b) {
    return r->bucket[b].stage == OPEN && r->bucket[b].missing == 0 && may_leave(r, b);
}

static iso_status post_next(iso__round *r, int b) {
    ISO_TRY(post_bucket(r, b));
    return r->issued == layout_of(r)->bucket_count ? list_is_out(r) : ISO_OK;
}

// Channels keep the order of all ranks, in whatever order buckets become ready here. In blocking
// mode a rank waits for each bucket, so all ranks must post them in the same order. Looks only at
// buckets that have become complete, and then at the next delayed ones.
static iso_status issue_ready(iso__round *r) {
    int count = layout_of(r)->bucket_count, first_delayed = layout_of(r)->first_delayed;
    bool in_order = is_blocking(r) || r->transport->in_order;
    if (r->issued == count) return ISO_OK; // ready gradients belong to the next list
    for (int b = r->complete_first; !in_order && b <= r->complete_last; b++)
        if (is_ready(r, b)) ISO_TRY(post_next(r, b));
    while (r->issued < count && (in_order || r->issued >= first_delayed) && is_ready(r, r->issued))
        ISO_TRY(post_next(r, r->issued));
    forget_complete(r);
    return ISO_OK;
}

// ---- Gradients become ready -------------------------------------------------------------------------

bool iso__round_param_is_ready(const iso__round *r, int i) {
    const iso__layout *l = layout_of(r);
    for (int k = 0; k < l->place[i].pieces; k++)
        if (!r->slot[iso__layout_at(l, i, k)].ready) return false;
    return true;
}

bool iso__round_param_is_current(const iso__round *r, int i) {
    const iso__layout *l = layout_of(r);
    for (int k = 0; k < l->place[i].pieces; k++)
        if (r->bucket[iso__layout_piece(l, i, k)->bucket].stage != OPEN) return false;
    return true;
}

bool iso__round_bucket_is_open(const iso__round *r, int b) { return r->bucket[b].stage == OPEN; }

// Copies a gradient from the caller's array, if it is there.
static iso_status take_gradient(iso__round *r, int s) {
    const iso__grad_slot *slot = &layout_of(r)->slot[s];
    if (!slot->home) return ISO_OK;
    if (iso__slot_converts(slot))
        return iso__slot_widen(slot, r->with.store, (iso__own){0, slot->count}, slot->home);
    return iso__store_load(r->with.store, slot->offset, slot->count * iso_dtype_size(slot->dtype),
                           slot->home);
}

// Marks a slot as ready, and notes its bucket if that is now complete.
static void mark_ready(iso__round *r, int s) {
    int b = layout_of(r)->slot[s].bucket;
    if (r->ready_count++ == 0) iso__planner_begin(r->with.planner);
    r->slot[s].ready = true;
    r->slot[s].turn = ++r->turns;
    if (--r->bucket[b].missing > 0) return;
    iso__planner_ready(r->with.planner, b, r->lists);
    if (b < r->complete_first) r->complete_first = b;
    if (b > r->complete_last) r->complete_last = b;
}

static iso_status report_slot(iso__round *r, int s) {
    const iso__grad_slot *slot = &layout_of(r)->slot[s];
    bool open = r->bucket[slot->bucket].stage == OPEN,
         whole = r->issued == layout_of(r)->bucket_count;
    ISO_CHECK(open || !whole, ISO_ERR_STATE,
              "the gradient of \"%s\" was reported ready again before its last exchange was waited "
              "for: call iso_reducer_param_needed before the next backward writes the gradient, or "
              "iso_reducer_finish for all parameters",
              slot->name);
    ISO_CHECK(open && !r->slot[s].ready, ISO_ERR_STATE,
              "the gradient of \"%s\" was reported ready twice in one backward: report it once, "
              "when nothing in this backward adds to it any more",
              slot->name);
    ISO_CHECK(
        !r->zero || slot->local || !r->fresh || !r->slot[s].keep, ISO_ERR_STATE,
        "a second backward would add to the gradient of \"%s\" before a step has used it, but "
        "with ZeRO a rank has the average of its own shard only: run all backwards of a step "
        "except the last inside no_sync, or call zero_grad first",
        slot->name);
    ISO_CHECK(!r->with.weights || !r->fresh || !r->slot[s].keep, ISO_ERR_STATE,
              "a second backward would add to the gradient of \"%s\" before a step has used it, "
              "but it is an average, and by_weight takes sums: report the last backward of a step "
              "only, or call zero_grad first",
              slot->name);
    ISO_TRY(iso__weights_check(r->with.weights, whole, slot->name));
    ISO_TRY(take_gradient(r, s));
    iso__usage_mark(r->usage, s, true);
    mark_ready(r, s);
    return ISO_OK;
}

iso_status iso__round_advance(iso__round *r) {
    iso_comm_poll(r->with.world);
    if (r->zero) iso__zero_trim(r->zero);
    if (r->shares) ISO_TRY(iso__round_publish_back(r));
    return iso__transport_advance(r->transport);
}

// Whether all ranks post this bucket without waiting for this rank. This is not certain for buckets
// behind one that has yet to leave. It is never certain if ranks may use different parameters,
// because buckets may then leave only when a backward ends.
static bool may_await(const iso__round *r, int b) {
    if (is_blocking(r) || r->with.unused != ISO_UNUSED_ERROR) return false;
    for (int k = 0; k < b; k++)
        if (r->bucket[k].stage == OPEN && !bucket_of(r, k)->local) return false;
    return true;
}

// With ZeRO stage 2: holds the backward until the buckets under way have room. This only limits the
// memory, and a backward cannot be resumed. So a time-out is no error here, and this list is not
// held again. The wait and its error then come where stage 1 has them.
static iso_status await_room(iso__round *r) {
    iso_status status = ISO_OK;
    int64_t start = iso_now();
    int b = iso__zero_crowded_by(r->zero);
    if (r->unheld || b < 0 || !may_await(r, b)) return ISO_OK;
    while (status == ISO_OK && b >= 0 && may_await(r, b)) {
        status = iso__zero_await_back(r->zero, b);
        b = iso__zero_crowded_by(r->zero);
    }
    iso__planner_waited(r->with.planner, start);
    r->unheld = status == ISO_ERR_TIMEOUT;
    return r->unheld ? ISO_OK : status;
}

static iso_status go_on(iso__round *r) {
    ISO_TRY(iso__round_advance(r));
    if (r->complete_last < 0 || r->with.sync == ISO_SYNC_EXPLICIT) return ISO_OK;
    ISO_TRY(issue_ready(r));
    return await_room(r);
}

iso_status iso__round_piece_ready(iso__round *r, int i, int k) {
    ISO_TRY(report_slot(r, iso__layout_at(layout_of(r), i, k)));
    return go_on(r);
}

// Whether the whole list is out, and a piece of the parameter is back: a report would be of the
// next list. If no piece is back, all were reported one by one.
static bool is_partly_back(const iso__round *r, int i) {
    const iso__layout *l = layout_of(r);
    bool back = false;
    for (int k = 0; k < l->place[i].pieces; k++)
        back = back || r->bucket[iso__layout_piece(l, i, k)->bucket].stage == OPEN;
    return back && r->issued == l->bucket_count;
}

iso_status iso__round_grad_ready(iso__round *r, int i) {
    const iso__layout *l = layout_of(r);
    int pieces = l->place[i].pieces;
    bool next = is_partly_back(r, i);
    for (int k = 0; k < pieces; k++) {
        int s = iso__layout_at(l, i, k);
        bool travels = r->bucket[l->slot[s].bucket].stage != OPEN;
        if (r->slot[s].whole || (next && travels)) return report_slot(r, s); // the error
    }
    // Its pieces may have been reported one by one.
    for (int k = 0; k < pieces; k++) {
        int s = iso__layout_at(l, i, k);
        if (pieces == 1 || !r->slot[s].ready) ISO_TRY(report_slot(r, s));
        r->slot[s].whole = true;
    }
    return go_on(r);
}

static iso_status missing_error(const iso__round *r, int first, int count) {
    const iso__grad_slot *s = &layout_of(r)->slot[first];
    char piece[48] = "";
    if (s->cut) snprintf(piece, sizeof(piece), "piece %d of ", s->piece);
    return ISO_FAIL(
        ISO_ERR_STATE,
        "%s\"%s\"%s got no gradient on rank %d in this backward: every parameter must take "
        "part in every step; freeze it before wrapping, or ask for unused parameters to "
        "be negotiated (find_unused_parameters, ISO_UNUSED_NEGOTIATE)",
        piece, s->name, count > 1 ? " (and others)" : "", iso_comm_rank(r->with.world));
}

// For gradients that this backward did not reach, sends those accumulated by earlier backwards if
// they are still needed, else zeros. Every rank issues the whole list even if it reports an error,
// so no rank waits for missing sums.
iso_status iso__round_close(iso__round *r, iso_unused unused) {
    const iso__layout *l = layout_of(r);
    int first = -1, count = 0;
    for (int s = l->slot_count - 1; s >= 0; s--) {
        const iso__grad_slot *slot = &l->slot[s];
        if (r->slot[s].ready || r->bucket[slot->bucket].stage != OPEN) continue;
        if (!r->fresh || !r->slot[s].keep)
            ISO_TRY(iso__store_zero(r->with.store, slot->offset,
                                    slot->count * iso_dtype_size(slot->dtype)));
        else
            ISO_TRY(take_gradient(r, s));
        mark_ready(r, s);
        first = s;
        count++;
    }
    ISO_TRY(issue_ready(r));
    bool wrong = count > 0 && unused == ISO_UNUSED_ERROR && !r->excused;
    return wrong ? missing_error(r, first, count) : ISO_OK;
}

iso_status iso__round_shadow(iso__round *r) {
    ISO_TRY(iso__round_finish(r));
    ISO_TRY(iso__store_zero(r->with.store, 0, layout_of(r)->bytes));
    iso__weights_drop(r->with.weights);
    r->fresh = false; // nothing that was accumulated is sent
    r->excused = true;
    iso_status status = iso__round_close(r, ISO_UNUSED_ZERO);
    r->excused = false;
    return status;
}

iso_status iso__round_adopt(iso__round *r, const bool *used) {
    const iso__layout *l = layout_of(r);
    ISO_TRY(iso__round_finish(r));
    for (int s = 0; s < l->slot_count; s++) iso__usage_mark(r->usage, s, used[l->slot[s].param]);
    for (int b = 0; b < l->bucket_count; b++) {
        ISO_TRY(r->with.alone->ops->post(r->with.alone, b, 1, 1));
        r->bucket[b].via = r->with.alone;
        r->bucket[b].undivided = r->bucket[b].arrived = false;
        r->bucket[b].stage = ARRIVED;
        iso__round_note_unshared(r, b);
        r->issued++;
        r->busy++;
    }
    ISO_TRY(list_is_out(r));
    return iso__round_finish(r);
}

// ---- Gradients are needed ---------------------------------------------------------------------------

bool iso__round_is_open(const iso__round *r) {
    return r->issued < layout_of(r)->bucket_count && r->ready_count > 0 &&
           r->with.sync != ISO_SYNC_EXPLICIT;
}

// Whether the open backward needs the parameter before its gradient is final, to recompute
// activations. All earlier lists are back, so its value is current. If the owner closes every
// backward, parameters whose gradients have been reported are current, too.
static bool is_recomputed(const iso__round *r, int s) {
    return iso__round_is_open(r) && (r->always_closed || !r->slot[s].ready);
}

static bool whole_is_recomputed(const iso__round *r, int i) {
    const iso__layout *l = layout_of(r);
    for (int k = 0; k < l->place[i].pieces; k++)
        if (!is_recomputed(r, iso__layout_at(l, i, k))) return false;
    return true;
}

static iso_status check_caller(const iso__round *r) {
    ISO_CHECK(!r->updating, ISO_ERR_STATE,
              "the update function of a parameter called the reducer: return from it first");
    return ISO_OK;
}

static iso_status begin_forward(iso__round *r) {
    ISO_TRY(check_caller(r));
    ISO_TRY(iso__round_advance(r));
    if (iso__round_is_open(r)) ISO_TRY(iso__round_close(r, r->with.unused));
    return iso__round_flush(r); // costs nothing: the device runs the forward after these copies
}

iso_status iso__round_param_needed(iso__round *r, int i) {
    const iso__layout *l = layout_of(r);
    int pieces = l->place[i].pieces;
    if (whole_is_recomputed(r, i)) return iso__round_advance(r);
    ISO_TRY(begin_forward(r));
    for (int k = 0; k < pieces; k++)
        iso__planner_need(r->with.planner, iso__layout_piece(l, i, k)->bucket);
    for (int k = 0; k < pieces; k++)
        ISO_TRY(iso__round_arrive_first(r, iso__layout_piece(l, i, k)->bucket));
    for (int k = 0; k < pieces; k++)
        ISO_TRY(iso__round_complete(r, iso__layout_piece(l, i, k)->bucket));
    return ISO_OK;
}

iso_status iso__round_piece_needed(iso__round *r, int i, int k) {
    const iso__layout *l = layout_of(r);
    int s = iso__layout_at(l, i, k), b = l->slot[s].bucket;
    if (is_recomputed(r, s)) return iso__round_advance(r);
    ISO_TRY(begin_forward(r));
    if (!iso__appliers_take_pieces(r->with.appliers, s)) return iso__round_param_needed(r, i);
    iso__planner_need(r->with.planner, b);
    return iso__round_complete(r, b);
}

iso_status iso__round_flush(iso__round *r) { return iso__transport_flush(r->transport); }

iso_status iso__round_finish(iso__round *r) {
    int count = layout_of(r)->bucket_count;
    ISO_TRY(check_caller(r));
    if (r->busy == 0 && !iso__round_is_open(r)) return finish_transport(r);
    do {
        if (iso__round_is_open(r)) ISO_TRY(iso__round_close(r, r->with.unused));
        for (int b = 0; b < count; b++) ISO_TRY(iso__round_arrive_first(r, b));
        // In the order of issue, in which they complete; new values in the order of the forward, so
        // that few buckets hold them at once.
        bool down = r->shares && iso__zero_divides_gradients(r->zero);
        for (int b = 0; b < count; b++) ISO_TRY(iso__round_complete(r, down ? count - 1 - b : b));
    } while (iso__round_is_open(r)); // reported while earlier exchanges were under way
    return finish_transport(r);
}

// ---- Life -------------------------------------------------------------------------------------------

static iso_status allocate_round(iso__round *r) {
    const iso__layout *l = layout_of(r);
    size_t slots = (size_t)l->slot_count, buckets = (size_t)l->bucket_count;
    ISO_TRY(iso__alloc_zero(buckets * sizeof(*r->bucket), (void **)&r->bucket));
    ISO_TRY(iso__alloc_zero(slots * sizeof(*r->slot), (void **)&r->slot));
    for (int b = 0; b < l->bucket_count; b++) r->bucket[b].missing = slots_in(r, b);
    return iso__usage_create(r->with.world, l, &r->usage);
}

iso_status iso__round_create(const iso__round_config *config, iso__round **out) {
    iso__round *r;
    ISO_TRY(iso__alloc_zero(sizeof(*r), (void **)&r));
    *r = (iso__round){.with = *config, .average = config->average, .unshared = -1};
    forget_complete(r);
    iso__round_set_transport(r, config->alone, NULL);
    iso_status status = allocate_round(r);
    if (status < 0) iso__round_destroy(&r);
    ISO_TRY(status);
    *out = r;
    return ISO_OK;
}

bool iso__round_destroy(iso__round **pointer) {
    iso__round *r = *pointer;
    *pointer = NULL;
    if (!r) return true;
    if (!iso__usage_destroy(&r->usage)) return false;
    iso__free(r->bucket);
    iso__free(r->slot);
    iso__free(r);
    return true;
}

void iso__round_set_zero(iso__round *r, iso__zero *zero, iso__norms *norms) {
    r->zero = zero;
    r->norms = norms;
}

void iso__round_set_transport(iso__round *r, iso__transport *transport, iso_comm *comm) {
    r->transport = transport;
    r->comm = comm;
}

// ---- Asking and setting -----------------------------------------------------------------------------

bool iso__round_is_idle(const iso__round *r) { return r->busy == 0 && r->ready_count == 0; }
bool iso__round_is_back(const iso__round *r) { return r->busy == 0; }
bool iso__round_is_whole(const iso__round *r) { return r->busy == layout_of(r)->bucket_count; }

bool iso__round_travels(const iso__round *r) {
    const iso__layout *l = layout_of(r);
    for (int b = 0; r->transport->travels && b < l->bucket_count; b++)
        if (!l->bucket[b].local) return true;
    return false;
}

long long iso__round_lists(const iso__round *r) { return r->lists; }
const bool *iso__round_skipped(const iso__round *r) { return iso__usage_skipped(r->usage); }
void iso__round_list_used(iso__round *r) { r->fresh = false; }

iso_unused iso__round_unused(const iso__round *r) { return r->with.unused; }
void iso__round_excuse(iso__round *r, bool excused) { r->excused = excused; }
void iso__round_set_owner(iso__round *r) { r->always_closed = true; }

void iso__round_set_weight(iso__round *r, double weight, double total) {
    r->average.weight = weight;
    r->average.total = total;
}

void iso__round_skip_local(iso__round *r, bool skip) { iso__usage_skip_local(r->usage, skip); }

void iso__round_zero_grad(iso__round *r, int applier) {
    for (int s = 0; s < layout_of(r)->slot_count; s++)
        if (applier < 0 || iso__appliers_updates(r->with.appliers, applier, s))
            r->slot[s].keep = false;
}

bool iso__round_awaits_step(const iso__round *r, int s) {
    return r->slot[s].keep && iso__appliers_expect_step(r->with.appliers, s);
}

int64_t iso__round_turn(const iso__round *r, int i) {
    const iso__layout *l = layout_of(r);
    int64_t latest = 0;
    for (int k = 0; k < l->place[i].pieces; k++) {
        int64_t turn = r->slot[iso__layout_at(l, i, k)].turn;
        if (turn > latest) latest = turn;
    }
    return latest;
}

void iso__round_go_on(iso__round *r, const iso__round *from) { r->average = from->average; }

void iso__round_drop(iso__round *r, int i) {
    const iso__layout *l = layout_of(r);
    for (int k = 0; k < l->place[i].pieces; k++) r->slot[iso__layout_at(l, i, k)].keep = false;
}
