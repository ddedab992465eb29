// SPDX-License-Identifier: MIT
// The asynchronous gradient engine: its public calls, which forward to round, appliers, planner and
// sums.
#include "parallel/reducer/reducer_impl.h"

#include <isotherm/trace.h>
#include <string.h>

enum { NOBODY = -1 };

// ---- Gradients --------------------------------------------------------------------------------------

iso_status iso_reducer_shadow(iso_reducer *r) {
    ISO_TRY(iso__round_shadow(r->round));
    r->alone = false;
    return ISO_OK;
}

iso_status iso_reducer_all_reduce(iso_reducer *r) {
    iso_unused unused = iso__round_unused(r->round);
    ISO_CHECK(r->sync == ISO_SYNC_EXPLICIT, ISO_ERR_STATE,
              "gradients are exchanged automatically in this sync mode: iso_reducer_all_reduce is "
              "for ISO_SYNC_EXPLICIT");
    if (unused == ISO_UNUSED_ERROR) unused = ISO_UNUSED_ZERO;
    ISO_TRY(iso__round_close(r->round, unused));
    r->alone = false;
    return iso_reducer_finish(r);
}

void iso_reducer_zero_grad(iso_reducer *r) { iso__round_zero_grad(r->round, NOBODY); }

void iso__reducer_zero_grad_of(iso_reducer *r, int id) { iso__round_zero_grad(r->round, id); }

void iso_reducer_poll(iso_reducer *r) {
    iso__round_advance(r->round); // a later call returns the error again
}

iso_status iso_reducer_set_weight(iso_reducer *r, double weight, double total) {
    ISO_CHECK(weight >= 0 && total >= 0, ISO_ERR_ARG,
              "a weight of %g of a total of %g: give numbers of at least 0", weight, total);
    ISO_CHECK(!r->weights, ISO_ERR_STATE,
              "the reducer divides by the weights of iso_reducer_add_weight (by_weight): call that "
              "function, and iso_reducer_shadow on a rank without a batch");
    iso__round_set_weight(r->round, weight, total);
    return ISO_OK;
}

iso_status iso_reducer_add_weight(iso_reducer *r, double weight) {
    ISO_CHECK(r->weights, ISO_ERR_STATE,
              "the reducer averages over ranks: set by_weight of iso_reducer_config to give "
              "weights");
    return iso__weights_add(r->weights, weight, iso__round_is_open(r->round));
}

bool iso__reducer_weighs(const iso_reducer *r) { return r->weights != NULL; }

void iso__reducer_drop_weight(iso_reducer *r) { iso__weights_drop(r->weights); }

// ---- Sums that ride ---------------------------------------------------------------------------------

static iso_status check_sum(const iso_reducer *r, int k) {
    int count = iso__sums_count(r->sums);
    ISO_CHECK(k >= 0 && k < count, ISO_ERR_ARG,
              "the reducer has no sum %d: it was made with %d (iso_reducer_config.sums)", k, count);
    return ISO_OK;
}

iso_status iso_reducer_add_sum(iso_reducer *r, int k, double value) {
    ISO_TRY(check_sum(r, k));
    iso__sums_add(r->sums, k, value);
    return ISO_OK;
}

// Does not wait in an open backward, because all earlier lists are back.
iso_status iso_reducer_get_sum(iso_reducer *r, int k, double *sum) {
    ISO_TRY(check_sum(r, k));
    const iso__layout *l = &r->layout;
    const iso__grad_slot *s = &l->slot[l->order[l->range[iso__layout_last(l)].last]];
    if (!iso__round_is_open(r->round))
        ISO_TRY(iso__round_piece_needed(r->round, s->param, s->piece));
    ISO_TRY(iso__sums_wait(r->sums));
    *sum = iso__sums_get(r->sums, k);
    return ISO_OK;
}

// ---- Who updates ------------------------------------------------------------------------------------

iso_status iso_reducer_add_apply(iso_reducer *r, const int *params, int count,
                                 iso_reducer_apply apply, size_t hyper_bytes, void *user, int *id) {
    ISO_CHECK(apply, ISO_ERR_ARG, "an optimizer needs a function that updates");
    ISO_TRY(iso__reducer_finish(r));
    return iso__appliers_add(r->appliers, params, count, apply, hyper_bytes, user, id);
}

iso_status iso_reducer_set_apply_piece(iso_reducer *r, int id, iso_reducer_apply_piece apply) {
    ISO_TRY(iso__appliers_find(r->appliers, &id));
    ISO_TRY(iso__reducer_finish(r));
    iso__appliers_set_piece(r->appliers, id, apply);
    return ISO_OK;
}

iso_status iso__reducer_set_halves(iso_reducer *r, int id, const iso__reducer_halves *halves) {
    ISO_TRY(iso__appliers_find(r->appliers, &id));
    ISO_TRY(iso__reducer_finish(r));
    iso__appliers_set_halves(r->appliers, id, halves);
    return ISO_OK;
}

iso_status iso_reducer_remove_apply(iso_reducer *r, int id) {
    ISO_TRY(iso__appliers_find(r->appliers, &id));
    iso_status status = iso__reducer_finish(r);
    iso__appliers_remove(r->appliers, id); // even on failure, because its owner may be freed
    if (r->only == id) r->only = NOBODY;
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_reducer_set_apply(iso_reducer *r, iso_reducer_apply apply, size_t hyper_bytes,
                                 void *user) {
    if (!apply) return r->only == NOBODY ? ISO_OK : iso_reducer_remove_apply(r, r->only);
    ISO_CHECK(iso__appliers_count(r->appliers) == 0, ISO_ERR_STATE,
              "these gradients have an optimizer already: destroy it before tying another, or "
              "list the parameters of each with iso_reducer_add_apply");
    return iso_reducer_add_apply(r, NULL, 0, apply, hyper_bytes, user, &r->only);
}

// ---- The report of every 100 steps ------------------------------------------------------------------

enum { REPORT_STEPS = 100 };

// The time from the first to the last ready gradient of a backward, in ms; the mean since the
// start.
static double backward_ms(const iso_reducer *r) {
    double latest = 0;
    for (int b = 0; b < r->layout.bucket_count; b++) {
        iso_bucket_stats bucket;
        if (iso_reducer_get_bucket_stats(r, b, &bucket) < 0) continue;
        if (bucket.ready_ms > latest) latest = bucket.ready_ms;
    }
    return latest;
}

// Logs a report with ISO_DEBUG, on rank 0.
static void report_steps(iso_reducer *r) {
    if (r->steps % REPORT_STEPS != 1 || iso__debug_level() < ISO__DEBUG_INFO) return;
    iso_reducer_stats now;
    iso_reducer_get_stats(r, &now);
    int64_t now_ns = iso_now();
    double steps = (double)(now.steps - r->reported.steps);
    double step_ms = (double)(now_ns - r->reported_ns) * 1e-6 / steps;
    double wait_ms = (now.wait_ms - r->reported.wait_ms) / steps;
    double exchange_ms = (now.exchange_ms - r->reported.exchange_ms) / steps;
    double hidden = exchange_ms > 0 ? 100 * (1 - wait_ms / exchange_ms) : 100;
    if (r->reported_ns != 0 && iso_comm_rank(r->world) == 0)
        iso__log(ISO_LOG_INFO,
                 "steps %lld to %lld: %.3f ms each; the last gradient is ready %.3f ms after the "
                 "first; exchanges take %.3f ms in all, waits %.3f ms (%.0f %% hidden); %.0f bytes "
                 "sent a step",
                 r->reported.steps, now.steps - 1, step_ms, backward_ms(r), exchange_ms, wait_ms,
                 hidden > 0 ? hidden : 0.0,
                 (double)(now.bytes_sent - r->reported.bytes_sent) / steps);
    r->reported = now;
    r->reported_ns = now_ns;
}

// ---- step() -----------------------------------------------------------------------------------------

// Ensures that there is a whole list of gradients for this step; closes an open backward.
static iso_status have_gradients(iso_reducer *r, int id) {
    ISO_CHECK(iso__appliers_can_share(r->appliers, id), ISO_ERR_STATE,
              "with ZeRO each rank updates some elements of a parameter: set a function that does "
              "so with iso_reducer_set_apply_piece");
    ISO_CHECK(r->unsynced == 0, ISO_ERR_STATE,
              "step() after %d backwards inside no_sync, whose gradients were not exchanged: run "
              "the last backward before step() outside no_sync",
              r->unsynced);
    bool there = iso__appliers_have_list(r->appliers, id);
    ISO_CHECK(
        r->sync != ISO_SYNC_EXPLICIT || (there && !r->alone), ISO_ERR_STATE,
        "step() before the gradients were averaged: call all_reduce_gradients after backward");
    if (there) return ISO_OK;
    // Without an owner, this rank may have reported no gradient at all, unless unused parameters
    // are an error.
    iso_unused unused = iso__round_unused(r->round);
    bool may_close = unused != ISO_UNUSED_ERROR && !r->owned;
    bool first = iso__round_lists(r->round) == 0 && r->steps == 0;
    ISO_CHECK(first || iso__round_is_open(r->round) ||
                  (may_close && iso__appliers_count(r->appliers) == 1),
              ISO_ERR_STATE,
              "an optimizer made a second step on the same gradients: run a backward in between");
    return iso__round_close(r->round, unused);
}

// Whether lazy updates can hide an exchange. If nothing travels, a device gets all updates at once,
// which it then launches together.
static bool gains_by_waiting(const iso_reducer *r) {
    bool at_once = r->transport->launches && !iso__round_travels(r->round);
    return r->sync == ISO_SYNC_LAZY && !at_once;
}

static iso_status make_step(iso_reducer *r, int id, const void *hyper) {
    iso__appliers *a = r->appliers;
    ISO_CHECK(!r->in_backward, ISO_ERR_STATE,
              "step() inside a backward: call iso_data_parallel_end_backward first");
    // Pending updates of the previous step need its hyperparameters, so complete them first. Also
    // complete a list of which some buckets are already back.
    bool partly = iso__appliers_have_list(a, id) && !iso__round_is_whole(r->round);
    if (iso__appliers_have_stepped(a, id) || partly) ISO_TRY(iso__reducer_finish(r));
    ISO_TRY(have_gradients(r, id));
    if (r->values) ISO_TRY(iso__value_shards_expire(r->values));
    if (iso__appliers_are_direct(a)) ISO_TRY(iso__reducer_finish(r));
    iso__appliers_freeze(a, id, hyper);
    iso__round_list_used(r->round);
    r->steps++;
    bool back = iso__round_is_back(r->round);
    iso_status updated = ISO_OK;
    if (back) updated = iso__appliers_update_all(a, id, iso__round_skipped(r->round));
    if (back && !r->zero) return updated;
    if (back)
        iso__appliers_have_made(a, id);
    else
        iso__appliers_mark(a, id);
    ISO_TRY(iso__round_share(r->round)); // even after an error: other ranks wait for these values
    ISO_TRY(updated);
    if (!gains_by_waiting(r)) return iso__reducer_finish(r);
    // With a device, wait until the gradients can travel without this rank's program. The next
    // forward would wait for the same.
    return iso__round_flush(r->round);
}

// Makes the plan once, when enough has been measured; that call is collective.
static iso_status plan_order(iso_reducer *r, iso_status mine) {
    if (r->scope != ISO_SCOPE_WORLD) return ISO_OK;
    if (!iso__planner_is_due(r->planner, r->transport, iso__round_lists(r->round))) return ISO_OK;
    iso_status finished = iso__reducer_finish(r);
    return iso__planner_plan(r->planner, r->transport, mine < 0 ? mine : finished);
}

iso_status iso_reducer_step_of(iso_reducer *r, int id, const void *hyper) {
    ISO_TRY(iso__appliers_find(r->appliers, &id));
    iso_status status = make_step(r, id, hyper);
    iso_status planned = plan_order(r, status); // other ranks do not know of an error here
    ISO_TRY(status);
    report_steps(r);
    return planned;
}

iso_status iso_reducer_step(iso_reducer *r, const void *hyper) {
    return iso_reducer_step_of(r, ISO_REDUCER_ONLY, hyper);
}

// ---- Scope ------------------------------------------------------------------------------------------

iso_scope iso__reducer_scope(const iso_reducer *r) { return r->scope; }

iso_status iso__reducer_choose_scope(iso_reducer *r, iso_scope scope) {
    ISO_TRY(iso__scopes_choose(r->scopes, scope, &r->setup, &r->transport));
    iso__round_set_transport(r->round, r->transport, iso__scopes_comm(r->scopes, scope));
    r->scope = scope;
    if (r->zero) iso__zero_set_transport(r->zero, r->transport);
    return ISO_OK;
}

// Ranks that share updates have the same averages.
static iso_status check_shares(const iso_reducer *r, iso_scope scope) {
    if (!r->shares_updates || scope == r->scope) return ISO_OK;
    ISO_CHECK(r->shares_in_nodes, ISO_ERR_UNSUPPORTED,
              "with ZeRO among all ranks gradients are averaged over all ranks, not over a %s: "
              "divide updates among the ranks of a node (zero_scope)",
              iso__scope_name(scope));
    ISO_CHECK(!r->values, ISO_ERR_UNSUPPORTED,
              "ZeRO stage 3 divides values, and periodic modes exchange whole ones: use stage 1 or "
              "2");
    ISO_CHECK(!r->zero || scope != ISO_SCOPE_RANK, ISO_ERR_UNSUPPORTED,
              "with ZeRO the ranks of a node train one model, and cannot train apart: use the "
              "unit node and local_skip 1, or no ZeRO");
    return ISO_OK;
}

iso_status iso__reducer_set_scope(iso_reducer *r, iso_scope scope) {
    ISO_TRY(iso__scope_check(scope));
    ISO_TRY(check_shares(r, scope));
    ISO_TRY(iso__reducer_finish(r));
    if (!r->scopes_made) ISO_TRY(iso__scopes_make_all(r->scopes, &r->setup));
    r->scopes_made = true;
    return iso__reducer_choose_scope(r, scope);
}

// ---- A backward whose owner says where it begins and ends -------------------------------------------

void iso__reducer_set_owner(iso_reducer *r) {
    r->owned = true;
    iso__round_set_owner(r->round);
}

void iso__reducer_enter_backward(iso_reducer *r, bool exchanged) {
    r->alone = r->sync == ISO_SYNC_EXPLICIT;
    if (!r->alone) r->unsynced = exchanged ? 0 : r->unsynced + 1;
    r->in_backward = true;
}

void iso__reducer_leave_backward(iso_reducer *r) { r->in_backward = false; }

bool iso__reducer_in_backward(const iso_reducer *r) { return r->in_backward; }

bool iso__reducer_has_open_list(const iso_reducer *r) { return iso__round_is_open(r->round); }

bool iso__reducer_is_current(const iso_reducer *r, int i) {
    for (int k = 0; r->values && k < r->layout.place[i].pieces; k++)
        if (!iso__value_shards_is_here(r->values, iso__layout_piece(&r->layout, i, k)->bucket))
            return false;
    return iso__round_param_is_current(r->round, i);
}

bool iso__reducer_is_ready(const iso_reducer *r, int i) {
    return iso__round_param_is_ready(r->round, i);
}

iso_status iso__reducer_close(iso_reducer *r) {
    return iso__round_close(r->round, iso__round_unused(r->round));
}

iso_status iso__reducer_adopt(iso_reducer *r, const bool *used) {
    r->alone = false;
    return iso__round_adopt(r->round, used);
}

bool iso__reducer_was_unused(const iso_reducer *r, int i) {
    return iso__round_skipped(r->round)[iso__layout_at(&r->layout, i, 0)];
}

// ---- Ranks without data -----------------------------------------------------------------------------

void iso__reducer_excuse(iso_reducer *r, bool excused) { iso__round_excuse(r->round, excused); }

void iso__reducer_skip_local(iso_reducer *r) { iso__round_skip_local(r->round, true); }

void iso__reducer_end_join(iso_reducer *r) {
    iso__round_set_weight(r->round, 1, 0);
    // If ranks negotiate, the next backward sets it.
    if (!iso__reducer_negotiates(r)) iso__round_skip_local(r->round, false);
}

// ---- What it is -------------------------------------------------------------------------------------

void *iso_reducer_grad(iso_reducer *r, int i) {
    if (!iso__layout_has(&r->layout, i, 0)) return NULL;
    const iso__grad_slot *s = iso__layout_piece(&r->layout, i, 0);
    return s->home ? s->home : r->store.gradients + s->offset;
}

int iso_reducer_pieces(const iso_reducer *r, int i) {
    return iso__layout_has(&r->layout, i, 0) ? r->layout.place[i].pieces : 0;
}

void iso_reducer_piece(const iso_reducer *r, int i, int k, size_t *first, size_t *count) {
    bool there = iso__layout_has(&r->layout, i, k);
    *first = there ? iso__layout_piece(&r->layout, i, k)->first : 0;
    *count = there ? iso__layout_piece(&r->layout, i, k)->count : 0;
}

void iso_reducer_own(const iso_reducer *r, int i, int k, size_t *first, size_t *count) {
    iso__own own = {0, 0};
    size_t start = 0;
    if (iso__layout_has(&r->layout, i, k)) {
        own = iso__zero_own(r->zero, &r->layout, iso__layout_at(&r->layout, i, k));
        start = iso__layout_piece(&r->layout, i, k)->first;
    }
    *first = start + own.first;
    *count = own.count;
}

void iso__reducer_drop(iso_reducer *r, int i) { iso__round_drop(r->round, i); }

iso_status iso__reducer_publish(iso_reducer *r, bool waits) {
    return iso__round_publish(r->round, waits);
}

iso_comm *iso__reducer_comm(const iso_reducer *r) { return r->world; }

long long iso__reducer_steps(const iso_reducer *r) { return r->steps; }

iso_comm *iso__reducer_owners(const iso_reducer *r) { return iso__scopes_owners(r->scopes); }

bool iso__reducer_shares_in_nodes(const iso_reducer *r) { return r->shares_in_nodes; }

bool iso__reducer_shares_updates(const iso_reducer *r) { return r->shares_updates; }

bool iso__reducer_is_spread(const iso_reducer *r, int i) {
    return r->zero && !iso__layout_piece(&r->layout, i, 0)->local;
}

// Gathers the elements of one piece, each from the rank that updates it.
static iso_status gather_piece(const iso_reducer *r, int slot, char *array) {
    const iso__grad_slot *s = &r->layout.slot[slot];
    size_t size = iso_dtype_size(s->dtype);
    for (int k = 0; k < r->transport->shards; k++) {
        iso__own own = iso__zero_shard(r->zero, &r->layout, slot, k);
        if (own.count == 0) continue;
        char *from = array + (s->first + own.first) * size;
        ISO_TRY(iso_comm_bcast(iso__reducer_owners(r), from, own.count * size, k));
    }
    return ISO_OK;
}

iso_status iso__reducer_gather(iso_reducer *r, int i, void *array) {
    if (!iso__reducer_is_spread(r, i)) return ISO_OK;
    for (int k = 0; k < r->layout.place[i].pieces; k++)
        ISO_TRY(gather_piece(r, iso__layout_at(&r->layout, i, k), array));
    return ISO_OK;
}

iso_status iso_reducer_bucket_text(const iso_reducer *r, char **out) {
    return iso__layout_text(&r->layout, out);
}

const char *iso__reducer_name(const iso_reducer *r, int i) {
    return iso__layout_piece(&r->layout, i, 0)->name;
}

int iso__reducer_bucket_of(const iso_reducer *r, int i) {
    return iso__layout_piece(&r->layout, i, 0)->bucket;
}

bool iso__reducer_awaits_pieces(const iso_reducer *r) { return !r->transport->launches; }

bool iso__reducer_negotiates(const iso_reducer *r) {
    iso_unused unused = iso__round_unused(r->round);
    return unused == ISO_UNUSED_NEGOTIATE || unused == ISO_UNUSED_STATIC;
}

bool iso__reducer_keeps_ranks_equal(const iso_reducer *r) {
    bool exchanges = r->scope == ISO_SCOPE_WORLD && r->transport->travels;
    return exchanges || iso_comm_size(r->world) == 1;
}

int iso__reducer_appliers(const iso_reducer *r) { return iso__appliers_count(r->appliers); }

float *iso__reducer_hook_state(const iso_reducer *r, size_t *count) {
    *count = r->coder.state_count;
    return r->coder.state;
}

size_t iso__reducer_hook_counts(const iso_reducer *r) { return iso__coder_counts(&r->coder); }

// ---- What happened ----------------------------------------------------------------------------------

iso_traffic iso__reducer_traffic(const iso_reducer *r) { return r->exchanged.traffic; }

void iso_reducer_watch_gradients(iso_reducer *r) { iso__zero_watch(r->zero); }

void iso_reducer_get_stats(const iso_reducer *r, iso_reducer_stats *out) {
    iso_reducer_stats stats = {.steps = r->steps,
                               .bucket_count = r->layout.bucket_count,
                               .bytes_world = r->exchanged.bytes_world,
                               .bytes_node = r->exchanged.bytes_node,
                               .shared_memory = r->transport->shared_memory,
                               .nccl = r->transport->nccl,
                               .two_levels = r->transport->two_levels,
                               .pairwise = r->transport->pairwise,
                               .exchanges = r->exchanged.exchanges,
                               .bytes_sent = r->exchanged.traffic.bytes_sent,
                               .bytes_between_nodes = r->exchanged.traffic.bytes_between_nodes,
                               .gradient_peak = iso__zero_peak(r->zero)};
    for (int b = 0; r->exchanges && b < r->layout.bucket_count; b++)
        if (!r->layout.bucket[b].local)
            stats.bytes_per_step += iso__coder_wire_bytes(&r->coder, b, &r->layout.bucket[b]);
    iso__planner_add_stats(r->planner, &stats);
    *out = stats;
}

iso_status iso_reducer_get_bucket_stats(const iso_reducer *r, int bucket, iso_bucket_stats *out) {
    ISO_CHECK(bucket >= 0 && bucket < r->layout.bucket_count, ISO_ERR_ARG,
              "the reducer has no bucket %d: they are 0 to %d", bucket, r->layout.bucket_count - 1);
    *out = (iso_bucket_stats){.name = r->layout.bucket[bucket].label,
                              .bytes = r->layout.bucket[bucket].bytes,
                              .wire_bytes = r->transport->wire_bytes[bucket]};
    iso__planner_bucket_stats(r->planner, bucket, out);
    return ISO_OK;
}
