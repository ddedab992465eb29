// SPDX-License-Identifier: MIT
// The engine of periodic synchronisation: carries out plans on the parameters of a data_parallel
// module and its optimizer.
#include "optim/periodic/periodic.h"

#include "parallel/parallel_impl.h"

#include <isotherm/trace.h>
#include <math.h>
#include <string.h>

// ---- Exchanges under way --------------------------------------------------------------------------

static iso_status choose_average(iso__periodic *p, iso__periodic_exchange *x,
                                 iso__payload payload) {
    // A full average without compression is an exact one.
    if (payload == ISO__PAYLOAD_FULL && !p->average[payload]) payload = ISO__PAYLOAD_EXACT;
    x->payload = payload;
    if (payload == ISO__PAYLOAD_WIRE) return ISO_OK;
    iso__average *made;
    return iso__periodic_average_of(p, payload, &made);
}

static iso__average *average_of(const iso__periodic *p, const iso__periodic_exchange *x) {
    if (x->payload != ISO__PAYLOAD_WIRE) return p->average[x->payload];
    return x->level < p->config.lower_count ? x->lower[x->level] : x->average;
}

// The ranks, or nodes, that take part in the pending exchange.
static const iso_topology *layout_of(const iso__periodic *p, const iso__periodic_exchange *x) {
    return x->level < p->config.lower_count ? iso__routes_layout(p->lower[x->level]) : p->layout;
}

static iso_status start_exchange(iso__periodic *p, iso__periodic_exchange *x, iso__payload payload,
                                 int group, int level) {
    ISO_TRY(choose_average(p, x, payload));
    x->level = level;
    double count = (double)p->step_ms_count;
    double metrics[ISO__METRICS] = {[ISO__STEP_MS] = count > 0 ? p->step_ms_sum / count : 0,
                                    [ISO__WAIT_MS] = p->last_wait_ms,
                                    [ISO__DIVERGENCE] = p->own_divergence};
    p->step_ms_sum = 0;
    p->step_ms_count = 0;
    iso__average_set_turn(average_of(p, x), x->turns);
    if (iso__periodic_gossips(p, level)) x->turns++;
    if (p->config.tournament)
        iso__average_set_peer(average_of(p, x), iso__match_partner(p, x->turns));
    ISO_TRY(iso__average_start(average_of(p, x), p->sent + x->offset, group, metrics));
    x->pending = true;
    x->held = false;
    x->starts++;
    return ISO_OK;
}

// Sends the current parameters. If an earlier exchange is under way, they wait for its merge.
static iso_status send_parameters(iso__periodic *p, iso__periodic_exchange *x, iso__payload payload,
                                  const iso__action *action) {
    x->queued = x->pending;
    x->queued_payload = payload;
    x->queued_group = action->group;
    x->queued_level = action->level;
    bool state = iso__periodic_last(p, payload) > p->parameter_count;
    if (state) ISO_TRY(iso__periodic_mean_buffers(p, p->node));
    float *to = x->queued ? p->room : p->sent;
    if (iso__periodic_outer_ends(p, action->level))
        ISO_TRY(iso__periodic_outer_send(p, x, to + x->offset));
    else
        ISO_TRY(iso__periodic_fetch(p, x->first, x->last, to + x->offset));
    return x->queued ? ISO_OK : start_exchange(p, x, payload, action->group, action->level);
}

static iso_status send_queued(iso__periodic *p, iso__periodic_exchange *x) {
    if (!x->queued) return ISO_OK;
    memcpy(p->sent + x->offset, p->room + x->offset, iso__flat_bytes(x->size));
    x->queued = false;
    return start_exchange(p, x, x->queued_payload, x->queued_group, x->queued_level);
}

// *mean is NULL on ranks that take no part.
static iso_status collect_mean(iso__periodic *p, iso__periodic_exchange *x, const float **mean) {
    ISO_CHECK(x->pending, ISO_ERR_STATE, "there is no exchange to merge");
    *mean = x->member ? p->mean + x->offset : NULL;
    bool held = x->held; // it was waited for already, and that was counted
    x->pending = x->held = false;
    if (held) return ISO_OK;
    int64_t began = iso_now(), span = iso_trace_begin(ISO_LANE_WAIT, "global sync");
    iso_status status = iso__average_finish(average_of(p, x), mean, p->metrics);
    iso_trace_end(ISO_LANE_WAIT, "global sync", span);
    p->last_wait_ms = (double)(iso_now() - began) * 1e-6;
    p->stats.wait_ms += p->last_wait_ms;
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__periodic_reserve_mean(iso__periodic *p) {
    size_t bytes = p->wire_floats * sizeof(float);
    return p->mean ? ISO_OK : iso__alloc_zero(bytes, (void **)&p->mean);
}

static iso_status hold_mean(iso__periodic *p, iso__periodic_exchange *x) {
    if (!x->pending || x->held) return ISO_OK;
    const float *mean;
    int64_t began = iso_now();
    // A rank that failed alone would leave the others waiting for the mean.
    ISO_TRY(iso_comm_agree(p->comm, iso__periodic_reserve_mean(p)));
    double agreed_ms = (double)(iso_now() - began) * 1e-6; // waited for the latest rank, too
    p->last_step_ns = 0;                                   // this wait is not part of a step
    iso_status status = collect_mean(p, x, &mean);
    p->last_wait_ms += agreed_ms;
    p->stats.wait_ms += agreed_ms;
    x->dropped = status < 0;
    ISO_TRY(status);
    x->member = mean != NULL;
    if (mean) memcpy(p->mean + x->offset, mean, iso__flat_bytes(x->size));
    x->pending = x->held = true;
    return ISO_OK;
}

// All ranks agree on which exchange failed; the others are complete all the same.
iso_status iso__periodic_hold(iso__periodic *p) {
    iso_status status = ISO_OK;
    if (p->async.meet) ISO_TRY(p->async.meet(p));
    for (int i = 0; i < p->exchange_count; i++) {
        iso_status one = hold_mean(p, &p->exchange[i]);
        if (one < 0) status = one;
    }
    return iso__periodic_agree(p, status);
}

iso_status iso__periodic_drop(iso__periodic *p) {
    const float *mean;
    iso_status status = ISO_OK;
    if (p->async.meet) ISO_TRY(p->async.meet(p));
    for (int i = 0; i < p->exchange_count; i++) {
        iso__periodic_exchange *x = &p->exchange[i];
        x->queued = x->dropped = false;
        iso_status one = x->pending ? collect_mean(p, x, &mean) : ISO_OK;
        if (one < 0) status = one;
    }
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status poll_exchanges(iso__periodic *p) {
    for (int i = 0; i < p->exchange_count; i++) {
        iso__periodic_exchange *x = &p->exchange[i];
        if (x->pending && !x->held) ISO_TRY(iso__average_poll(average_of(p, x)));
    }
    return ISO_OK;
}

// ---- Actions --------------------------------------------------------------------------------------

static iso_status reset_state(iso__periodic *p) {
    if (p->config.state != ISO_STATE_SYNC_RESET) return ISO_OK;
    int buffers_end = p->parameter_count + p->buffer_count;
    if (p->buffer_count > 0)
        ISO_TRY(iso__periodic_put(p, p->parameter_count, buffers_end, p->first_buffers));
    ISO_TRY(iso__periodic_clear(p, buffers_end, p->span_count));
    if (p->steps) return ISO_OK; // which were not reset
    p->equal_state = p->node_equal_state = true;
    return ISO_OK;
}

// Measures parameters only: they are the first spans.
static void measure_divergence(iso__periodic *p, const iso__periodic_exchange *x,
                               const float *mean) {
    double distance = 0, norm = 0;
    int last = x->last < p->parameter_count ? x->last : p->parameter_count;
    iso__flat size = iso__periodic_flat(p, x->first, last);
    size_t f64 = iso__flat_f64(x->size);
    iso__merge_args args = {.sent = p->sent + x->offset, .mean = mean};
    iso__merge_measure(size.f32, &args, &distance, &norm);
    args = (iso__merge_args){
        .sent = (const char *)args.sent + f64, .mean = (const char *)mean + f64, .f64 = true};
    iso__merge_measure(size.f64, &args, &distance, &norm);
    p->own_divergence = norm > 0 ? sqrt(distance / norm) : 0;
}

static iso_status merge_outer(iso__periodic *p, iso__periodic_exchange *x, int64_t age,
                              const float *mean) {
    measure_divergence(p, x, mean);
    return iso__periodic_outer_merge(p, x, age, mean);
}

static iso_status merge_mean(iso__periodic *p, iso__periodic_exchange *x, const iso__action *action,
                             const float *mean) {
    if (iso__periodic_outer_ends(p, x->level)) return merge_outer(p, x, action->age, mean);
    if (p->config.tournament) return iso__match_merge(p, x, mean);
    double distance = 0, norm = 0, ignored = 0;
    iso__merge_args args = {.nodes = layout_of(p, x)->nodes, .age = action->weight};
    if (p->config.merge == ISO_MERGE_PROGRESS) args.age = action->age;
    iso__flat_cursor next = iso__flat_begin(x->size);
    ISO_TRY(iso__periodic_map(p, x->first, x->last));
    for (int i = x->first; i < x->last; i++) {
        bool state = i >= p->parameter_count;
        size_t at = iso__flat_next(&next, &p->span[i]);
        args.f64 = p->span[i].f64;
        args.sent = (const char *)(p->sent + x->offset) + at;
        args.mean = (const char *)mean + at;
        iso__merge(state ? ISO_MERGE_HEAT : p->config.merge, p->span[i].count, p->span[i].host,
                   &args, state ? &ignored : &distance, state ? &ignored : &norm);
        iso__periodic_lift(&p->span[i]);
    }
    ISO_TRY(iso__periodic_unmap(p, x->first, x->last));
    p->own_divergence = norm > 0 ? sqrt(distance / norm) : 0;
    return ISO_OK;
}

// waited: stats.wait_ms at the beginning of the sync.
static void count_sync(iso__periodic *p, int64_t age, int64_t began, double waited) {
    p->stats.syncs++;
    p->stats.last_age = age;
    p->stats.last_wait_ms = p->last_wait_ms;
    p->stats.work_ms += (double)(iso_now() - began) * 1e-6 - (p->stats.wait_ms - waited);
}

// An exchange that failed in iso__periodic_hold, which returned the error, has nothing to merge.
static iso_status merge_exchange(iso__periodic *p, const iso__action *action) {
    const float *mean;
    iso__periodic_exchange *x = &p->exchange[action->exchange];
    if (x->dropped) {
        x->dropped = false;
        return send_queued(p, x);
    }
    int64_t began = iso_now();
    double waited = p->stats.wait_ms;
    iso__match_score_own(p);
    iso_status status = collect_mean(p, x, &mean);
    if (status == ISO_OK && mean) status = merge_mean(p, x, action, mean);
    if (status == ISO_OK && mean) status = reset_state(p);
    // The schedule counts on what is queued, also after an error.
    iso_status next = status != ISO_ERR_TIMEOUT ? send_queued(p, x) : ISO_OK;
    ISO_TRY(status);
    ISO_TRY(next);
    count_sync(p, action->age, began, waited);
    return ISO_OK;
}

// The mean that replaces the parameters: of the exchange that a SEND of this plan has started, else
// an exact one. In tournaments, the model that takes its place.
static iso_status full_mean(iso__periodic *p, const iso__action *action,
                            iso__periodic_exchange *sent, const float **mean) {
    if (sent) {
        iso__match_score_own(p);
        return collect_mean(p, sent, mean);
    }
    int64_t began = iso_now();
    ISO_TRY(
        iso__periodic_exact_mean(p, action->state ? ISO__PAYLOAD_STATE : ISO__PAYLOAD_EXACT, mean));
    p->last_wait_ms = (double)(iso_now() - began) * 1e-6;
    p->stats.wait_ms += p->last_wait_ms;
    return ISO_OK;
}

static iso_status lift_state(iso__periodic *p, const iso__periodic_exchange *sent) {
    int first = sent->first > p->parameter_count ? sent->first : p->parameter_count;
    if (first >= sent->last) return ISO_OK;
    ISO_TRY(iso__periodic_map(p, first, sent->last));
    for (int i = first; i < sent->last; i++) iso__periodic_lift(&p->span[i]);
    return iso__periodic_unmap(p, first, sent->last);
}

// Sets the parameters to the mean, or as the outer optimizer of an exchange says.
static iso_status replace_by_mean(iso__periodic *p, iso__periodic_exchange *sent, int last,
                                  const float *mean) {
    if (!sent) return iso__periodic_put(p, 0, last, mean);
    if (iso__periodic_outer_ends(p, sent->level)) return merge_outer(p, sent, 0, mean);
    if (p->config.tournament) return iso__match_merge(p, sent, mean);
    ISO_TRY(iso__periodic_put(p, sent->first, sent->last, mean));
    ISO_TRY(lift_state(p, sent));
    measure_divergence(p, sent, mean);
    return ISO_OK;
}

// Whether all ranks are equal now. Not if one leader group took its turn, whose mean others of a
// node lack; not at a lower level, where groups have different means; not with gossip.
static bool equal_after(const iso__periodic *p, const iso__periodic_exchange *sent,
                        const iso__action *action) {
    bool turn = action->group != ISO__ALL_GROUPS && p->layout->largest > 1;
    bool all = sent->level == p->config.lower_count && p->exchange_count == 1;
    return !turn && all && !iso__periodic_gossips(p, sent->level) && !p->config.tournament &&
           (!p->config.outer || iso__outer_equalises(p->config.outer));
}

static iso_status average_fully(iso__periodic *p, const iso__action *action,
                                iso__periodic_exchange *sent) {
    const float *mean;
    int64_t began = iso_now();
    double waited = p->stats.wait_ms;
    int last = iso__periodic_last(p, action->state ? ISO__PAYLOAD_STATE : ISO__PAYLOAD_EXACT);
    ISO_TRY(full_mean(p, action, sent, &mean));
    if (mean) ISO_TRY(replace_by_mean(p, sent, last, mean));
    if (action->state) ISO_TRY(iso__periodic_mean_shards(p));
    if (action->state)
        ISO_TRY(iso__periodic_agree_on_steps(p, p->comm));
    else
        ISO_TRY(reset_state(p));
    p->equal = !sent || equal_after(p, sent, action);
    p->node_equal = p->node_equal || p->equal;
    p->equal_state = p->equal_state || action->state;
    p->node_equal_state = p->node_equal_state || action->state;
    count_sync(p, 0, began, waited);
    return ISO_OK;
}

// *sent: the exchange that the last SEND of the plan has started.
static iso_status carry_out(iso__periodic *p, const iso__action *action, iso__payload payload,
                            iso__periodic_exchange **sent) {
    iso__periodic_exchange *merged = *sent; // by FULL
    switch (action->kind) {
    case ISO__SEND:
        ISO_TRY(send_parameters(p, &p->exchange[action->exchange], payload, action));
        *sent = &p->exchange[action->exchange];
        return ISO_OK;
    case ISO__MERGE: return merge_exchange(p, action);
    case ISO__FULL: *sent = NULL; return average_fully(p, action, merged);
    case ISO__NODE_AVERAGE: return iso__periodic_node_average(p);
    case ISO__NODE_COPY: return iso__periodic_node_copy(p, action->group);
    case ISO__MEASURE: return ISO_OK; // the owner measures
    }
    return ISO_OK;
}

static double reducer_wait_ms(const iso__periodic *p) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(p->data_parallel), &stats);
    return stats.wait_ms;
}

// An action has failed on all ranks. The schedule counts on the exchanges and full averages behind
// it, and on the scope. What is in a node may not be finite, and is not spread there. After a
// time-out no rank waits again. Keeps the record of that error.
static void finish_failed(iso__periodic *p, const iso__sync_plan *plan, int next,
                          iso__payload payload, iso__periodic_exchange *sent, iso_status status) {
    iso_error record = *iso_last_error();
    bool whole = false;
    for (int i = next; i < plan->count && status != ISO_ERR_TIMEOUT; i++) {
        iso__action_kind kind = plan->action[i].kind;
        bool exchanges = kind == ISO__SEND || kind == ISO__MERGE || kind == ISO__FULL;
        if (!exchanges && !whole) continue;
        status = carry_out(p, &plan->action[i], payload, &sent);
        whole = whole || (kind == ISO__FULL && status == ISO_OK);
    }
    if (status != ISO_ERR_TIMEOUT) (void)iso__periodic_set_scope(p, plan->next);
    iso__error_restore(&record);
}

iso_status iso__periodic_run(iso__periodic *p, const iso__sync_plan *plan, iso__payload payload) {
    iso__periodic_exchange *sent = NULL;
    // Merging needs the parameters of now, with the update of this step.
    if (plan->count > 0) ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    for (int i = 0; i < plan->count; i++) {
        iso_status status = carry_out(p, &plan->action[i], payload, &sent);
        if (status < 0) finish_failed(p, plan, i + 1, payload, sent, status);
        ISO_TRY(status);
    }
    ISO_TRY(poll_exchanges(p));
    ISO_TRY(iso__periodic_set_scope(p, plan->next));
    p->reducer_wait_ms = reducer_wait_ms(p); // waits so far belong to earlier steps
    p->last_step_ns = iso_now();
    return ISO_OK;
}

iso_status iso__periodic_set_scope(iso__periodic *p, iso_scope scope) {
    if (scope == ISO_SCOPE_NODE && p->config.topology.unit == ISO_SCOPE_RANK)
        scope = ISO_SCOPE_RANK;
    if (scope == p->scope) return ISO_OK;
    ISO_TRY(iso__data_parallel_set_scope(p->data_parallel, scope));
    if (p->scope == ISO_SCOPE_WORLD && p->equal) ISO_TRY(iso__periodic_set_reference(p));
    p->scope = scope;
    return ISO_OK;
}

// ---- Steps ----------------------------------------------------------------------------------------

// A step without its waits.
static void measure_step(iso__periodic *p, int64_t now) {
    double waited = reducer_wait_ms(p) - p->reducer_wait_ms;
    if (p->last_step_ns == 0) return;
    double ms = (double)(now - p->last_step_ns) * 1e-6 - waited;
    p->step_ms_sum += ms;
    p->step_ms_count++;
    p->recent_ms[p->recent_count++ % ISO__RECENT_STEPS] = ms;
}

// The first steps of a run, and those of warm-up with their exchanges, take longer than the others.
static double recent_step_ms(const iso__periodic *p) {
    double ms[ISO__RECENT_STEPS];
    int count = (int)iso__smaller(p->recent_count, ISO__RECENT_STEPS);
    memcpy(ms, p->recent_ms, sizeof(ms));
    return count > 0 ? iso__median(ms, count) : 0;
}

// Parameters stay equal where they are updated by the same gradients and from the same state.
static void note_update(iso__periodic *p) {
    bool alone = p->scope == ISO_SCOPE_RANK && iso_comm_size(p->node) > 1;
    p->match.chosen = false;
    p->equal_state = p->equal_state && p->scope == ISO_SCOPE_WORLD;
    p->equal = p->equal && p->equal_state;
    p->node_equal_state = p->node_equal_state && !alone;
    p->node_equal = p->node_equal && p->node_equal_state;
}

iso_status iso__periodic_check_training(const iso__periodic *p) {
    ISO_CHECK(!p->shown, ISO_ERR_STATE,
              "step() in evaluation mode, where parameters are the mean of all ranks: call "
              "iso_module_train(model, true) before the forward");
    return ISO_OK;
}

iso_status iso__periodic_step(iso__periodic *p) {
    ISO_TRY(iso__periodic_check_training(p));
    ISO_TRY(p->serves ? ISO_OK : iso_optimizer_step(p->inner));
    note_update(p);
    p->stats.steps++;
    measure_step(p, iso_now());
    return ISO_OK;
}

iso_status iso__periodic_measure(iso__periodic *p, double *exchange_ms, double *step_ms) {
    double step = recent_step_ms(p);
    ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    ISO_TRY(iso__average_measure(p->exchange[0].average, 3, exchange_ms));
    ISO_TRY(iso_comm_allreduce_f64(p->comm, &step, 1, ISO_MAX));
    *step_ms = step;
    p->metrics[ISO__EXCHANGE_MS] = *exchange_ms;
    p->metrics[ISO__STEP_MS] = step;
    p->reducer_wait_ms = reducer_wait_ms(p);
    p->last_step_ns = iso_now(); // measuring is not part of a step
    return ISO_OK;
}

// ---- Evaluation -----------------------------------------------------------------------------------

// Evaluation needs a mean that is not part of training: its bytes do not count.
static iso_status mean_to_show(iso__periodic *p, const float **mean) {
    iso_daso_stats before, after;
    iso__periodic_stats(p, &before);
    iso_status status = iso__periodic_exact_mean(p, ISO__PAYLOAD_EXACT, mean);
    iso__periodic_stats(p, &after);
    p->stats.bytes_sent -= after.bytes_sent - before.bytes_sent;
    p->stats.bytes_between_nodes -= after.bytes_between_nodes - before.bytes_between_nodes;
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status reserve_own(iso__periodic *p) {
    int last = iso__periodic_last(p, ISO__PAYLOAD_EXACT);
    size_t bytes = iso__flat_bytes(iso__periodic_flat(p, 0, last));
    return p->own ? ISO_OK : iso__pinned_alloc(p->device, bytes, (void **)&p->own);
}

iso_status iso__periodic_show(bool training, void *periodic) {
    iso__periodic *p = periodic;
    const float *mean;
    int last = iso__periodic_last(p, ISO__PAYLOAD_EXACT);
    p->last_step_ns = 0; // evaluation is not part of a step
    if (training == !p->shown) return ISO_OK;
    if (training) {
        ISO_TRY(iso__periodic_put(p, 0, last, p->own));
    } else {
        if (p->equal) return ISO_OK;
        ISO_TRY(iso__periodic_hold(p));
        if (p->equal) return ISO_OK; // since ranks have met
        ISO_TRY(iso_comm_agree(p->comm, reserve_own(p)));
        ISO_TRY(iso__periodic_fetch(p, 0, last, p->own));
        ISO_TRY(mean_to_show(p, &mean));
        ISO_TRY(iso__periodic_put(p, 0, last, mean));
    }
    p->shown = !training;
    return ISO_OK;
}

iso_status iso__periodic_finish(iso__periodic *p, bool state) {
    iso__action exact = {.kind = ISO__FULL, .group = ISO__ALL_GROUPS, .state = state};
    ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    ISO_TRY(iso__periodic_show(true, p));
    ISO_TRY(iso__periodic_agree(p, iso__periodic_drop(p)));
    bool wins = p->config.tournament && (p->match.chosen || !p->equal); // with the winner's buffers
    if (!state && !wins) ISO_TRY(iso__periodic_mean_buffers(p, p->comm));
    if (p->equal && !state) return ISO_OK;
    return average_fully(p, &exact, NULL);
}
