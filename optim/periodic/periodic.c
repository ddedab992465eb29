// SPDX-License-Identifier: MIT
// The engine of periodic synchronisation: carries out plans on the parameters of a data_parallel
// module and its optimizer.
#include "optim/periodic/periodic.h"

#include "parallel/parallel_impl.h"

#include <isotherm/trace.h>
#include <math.h>
#include <string.h>

// ---- The exchange under way -----------------------------------------------------------------------

static iso_status start_exchange(iso__periodic *p, iso__payload payload, int group) {
    if (!p->average[payload]) payload = ISO__PAYLOAD_EXACT; // a full average that nothing shortens
    iso__average *average;
    ISO_TRY(iso__periodic_average_of(p, payload, &average));
    double count = (double)p->step_ms_count;
    double metrics[ISO__METRICS] = {[ISO__STEP_MS] = count > 0 ? p->step_ms_sum / count : 0,
                                    [ISO__WAIT_MS] = p->last_wait_ms,
                                    [ISO__DIVERGENCE] = p->own_divergence};
    p->step_ms_sum = 0;
    p->step_ms_count = 0;
    ISO_TRY(iso__average_start(average, p->sent, group, metrics));
    p->pending = true;
    p->held = false;
    p->payload = payload;
    return ISO_OK;
}

// The parameters of now. While an earlier exchange is under way they wait until it is merged.
static iso_status send_parameters(iso__periodic *p, iso__payload payload, int group) {
    p->queued = p->pending;
    p->queued_payload = payload;
    p->queued_group = group;
    bool state = iso__periodic_elements(p, payload) > p->parameter_elements;
    if (state) ISO_TRY(iso__periodic_mean_buffers(p, p->node));
    ISO_TRY(iso__periodic_pack(p, iso__periodic_elements(p, payload),
                               p->queued ? p->queued_sent : p->sent));
    return p->queued ? ISO_OK : start_exchange(p, payload, group);
}

static iso_status send_queued(iso__periodic *p) {
    if (!p->queued) return ISO_OK;
    float *sent = p->sent;
    p->sent = p->queued_sent;
    p->queued_sent = sent;
    p->queued = false;
    return start_exchange(p, p->queued_payload, p->queued_group);
}

// *mean is NULL on ranks that take no part.
static iso_status collect_mean(iso__periodic *p, const float **mean) {
    ISO_CHECK(p->pending, ISO_ERR_STATE, "there is no exchange to merge");
    *mean = p->member ? p->mean : NULL;
    bool held = p->held; // it was waited for already, and that was counted
    p->pending = p->held = false;
    if (held) return ISO_OK;
    int64_t began = iso_now();
    iso_status status = iso__average_finish(p->average[p->payload], mean, p->metrics);
    p->last_wait_ms = (double)(iso_now() - began) * 1e-6;
    p->stats.wait_ms += p->last_wait_ms;
    ISO_TRY(status);
    iso_trace_span(ISO_LANE_WAIT, "global sync", began, iso_now());
    return ISO_OK;
}

iso_status iso__periodic_hold(iso__periodic *p) {
    if (!p->pending || p->held) return ISO_OK;
    const float *mean;
    size_t bytes = iso__periodic_elements(p, ISO__PAYLOAD_WIRE) * sizeof(float);
    if (!p->mean) ISO_TRY(iso__alloc_zero(bytes, (void **)&p->mean));
    p->last_step_ns = 0; // this wait is not part of a step
    iso_status status = collect_mean(p, &mean);
    p->dropped = status < 0;
    ISO_TRY(status);
    p->member = mean != NULL;
    if (mean) memcpy(p->mean, mean, iso__periodic_elements(p, p->payload) * sizeof(float));
    p->pending = p->held = true;
    return ISO_OK;
}

iso_status iso__periodic_drop(iso__periodic *p) {
    const float *mean;
    p->queued = p->dropped = false;
    if (p->pending) ISO_TRY(collect_mean(p, &mean));
    return ISO_OK;
}

iso_status iso__periodic_set_reference(iso__periodic *p) {
    iso__average *wire = p->average[ISO__PAYLOAD_WIRE];
    ISO_TRY(iso__periodic_pack(p, iso__periodic_elements(p, ISO__PAYLOAD_WIRE), p->queued_sent));
    ISO_TRY(iso__average_set_reference(wire, p->queued_sent));
    return ISO_OK;
}

// ---- Actions --------------------------------------------------------------------------------------

static iso_status reset_state(iso__periodic *p) {
    if (p->config.state != ISO_STATE_RESET) return ISO_OK;
    int buffers_end = p->parameter_count + p->buffer_count;
    if (p->buffer_count > 0)
        ISO_TRY(iso__periodic_put(p, p->parameter_count, buffers_end, p->first_buffers));
    ISO_TRY(iso__periodic_clear(p, buffers_end, p->span_count));
    if (p->steps) return ISO_OK; // which were not reset
    p->equal_state = p->node_equal_state = true;
    return ISO_OK;
}

static iso_status merge_mean(iso__periodic *p, const iso__action *action, const float *mean) {
    double distance = 0, norm = 0, ignored = 0;
    iso__merge_args args = {p->sent, mean, p->topology->nodes, action->weight};
    if (p->config.merge == ISO_MERGE_PROGRESS) args.age = action->age;
    int last = iso__periodic_spans(p, iso__periodic_elements(p, p->payload));
    ISO_TRY(iso__periodic_map(p, last));
    for (int i = 0; i < last; i++) {
        bool state = i >= p->parameter_count;
        iso__merge(state ? ISO_MERGE_HEAT : p->config.merge, p->span[i].count, p->span[i].host,
                   &args, state ? &ignored : &distance, state ? &ignored : &norm);
        args.sent += p->span[i].count;
        args.mean += p->span[i].count;
    }
    ISO_TRY(iso__periodic_unmap(p, last));
    p->own_divergence = norm > 0 ? sqrt(distance / norm) : 0;
    return reset_state(p);
}

// waited: what all waits took when the sync began.
static void count_sync(iso__periodic *p, int64_t age, int64_t began, double waited) {
    p->stats.syncs++;
    p->stats.last_age = age;
    p->stats.last_wait_ms = p->last_wait_ms;
    p->stats.work_ms += (double)(iso_now() - began) * 1e-6 - (p->stats.wait_ms - waited);
}

// Of one that failed in iso__periodic_hold, which told of it, there is nothing to merge.
static iso_status merge_exchange(iso__periodic *p, const iso__action *action) {
    const float *mean;
    if (p->dropped) {
        p->dropped = false;
        return send_queued(p);
    }
    int64_t began = iso_now();
    double waited = p->stats.wait_ms;
    ISO_TRY(collect_mean(p, &mean));
    if (mean) ISO_TRY(merge_mean(p, action, mean));
    ISO_TRY(send_queued(p));
    count_sync(p, action->age, began, waited);
    return ISO_OK;
}

static void measure_divergence(iso__periodic *p, const float *mean) {
    double distance = 0, norm = 0;
    iso__merge_args args = {.sent = p->sent, .mean = mean};
    iso__merge_measure(p->parameter_elements, &args, &distance, &norm);
    p->own_divergence = norm > 0 ? sqrt(distance / norm) : 0;
}

static iso_status average_fully(iso__periodic *p, const iso__action *action, bool sent) {
    const float *mean;
    int64_t began = iso_now();
    double waited = p->stats.wait_ms;
    iso__payload payload = action->state ? ISO__PAYLOAD_STATE : ISO__PAYLOAD_EXACT;
    if (sent) {
        payload = p->payload;
        ISO_TRY(collect_mean(p, &mean));
    } else {
        ISO_TRY(iso__periodic_exact_mean(p, payload, &mean));
        p->last_wait_ms = (double)(iso_now() - began) * 1e-6;
        p->stats.wait_ms += p->last_wait_ms;
    }
    if (mean) ISO_TRY(iso__periodic_unpack(p, iso__periodic_elements(p, payload), mean));
    if (mean && sent) measure_divergence(p, mean);
    if (action->state)
        ISO_TRY(iso__periodic_agree_on_steps(p, p->comm));
    else
        ISO_TRY(reset_state(p));
    // Of a group that takes its turn the other ranks of a node know nothing yet.
    p->equal = !sent || action->group == ISO__ALL_GROUPS || p->topology->largest == 1;
    p->node_equal = p->node_equal || p->equal;
    p->equal_state = p->equal_state || action->state;
    p->node_equal_state = p->node_equal_state || action->state;
    count_sync(p, 0, began, waited);
    return ISO_OK;
}

static iso_status carry_out(iso__periodic *p, const iso__action *action, iso__payload payload,
                            bool *sent) {
    switch (action->kind) {
    case ISO__SEND: *sent = true; return send_parameters(p, payload, action->group);
    case ISO__MERGE: return merge_exchange(p, action);
    case ISO__FULL: return average_fully(p, action, *sent);
    case ISO__NODE_AVERAGE: return iso__periodic_node_average(p);
    case ISO__NODE_COPY: return iso__periodic_node_copy(p, action->group);
    case ISO__MEASURE: break; // the owner's
    }
    return ISO_OK;
}

iso_status iso__periodic_run(iso__periodic *p, const iso__sync_plan *plan, iso__payload payload) {
    bool sent = false;
    // Merging needs the parameters of now, with the update of this step.
    if (plan->count > 0) ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    for (int i = 0; i < plan->count; i++) ISO_TRY(carry_out(p, &plan->action[i], payload, &sent));
    if (p->pending && !p->held) ISO_TRY(iso__average_poll(p->average[p->payload]));
    ISO_TRY(iso__periodic_set_scope(p, plan->next));
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

static void measure_step(iso__periodic *p, int64_t now) {
    iso_reducer_stats reducer;
    iso_reducer_get_stats(iso_data_parallel_reducer(p->data_parallel), &reducer);
    double waited = reducer.wait_ms - p->reducer_wait_ms;
    p->reducer_wait_ms = reducer.wait_ms;
    if (p->last_step_ns == 0) return;
    p->step_ms_sum += (double)(now - p->last_step_ns) * 1e-6 - waited;
    p->step_ms_count++;
}

// Parameters stay equal where they are updated by the same gradients and from the same state.
static void note_update(iso__periodic *p) {
    bool alone = p->scope == ISO_SCOPE_RANK && iso_comm_size(p->node) > 1;
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
    ISO_TRY(iso_optimizer_step(p->inner));
    note_update(p);
    p->stats.steps++;
    measure_step(p, iso_now());
    return ISO_OK;
}

iso_status iso__periodic_measure(iso__periodic *p, double *exchange_ms, double *step_ms) {
    double step = p->step_ms_count > 0 ? p->step_ms_sum / (double)p->step_ms_count : 0;
    ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    ISO_TRY(iso__average_measure(p->average[ISO__PAYLOAD_WIRE], 3, exchange_ms));
    ISO_TRY(iso_comm_allreduce_f64(p->comm, &step, 1, ISO_MAX));
    *step_ms = step;
    p->metrics[ISO__EXCHANGE_MS] = *exchange_ms;
    p->metrics[ISO__STEP_MS] = step;
    return ISO_OK;
}

iso_status iso__periodic_mean_number(iso__periodic *p, double *value) {
    ISO_TRY(iso_comm_allreduce_f64(p->comm, value, 1, ISO_SUM));
    *value /= iso_comm_size(p->comm);
    return ISO_OK;
}

void iso__periodic_stats(const iso__periodic *p, iso_daso_stats *out) {
    *out = p->stats;
    out->pending = p->pending;
    out->exchange_ms = p->metrics[ISO__EXCHANGE_MS];
    out->step_ms = p->metrics[ISO__STEP_MS];
    out->divergence = p->metrics[ISO__DIVERGENCE];
    for (int i = 0; i < ISO__PAYLOADS; i++) {
        iso__average_stats average;
        if (!p->average[i]) continue;
        iso__average_get_stats(p->average[i], &average);
        out->bytes_sent += average.bytes_sent;
        out->bytes_between_nodes += average.bytes_between_nodes;
        out->work_ms += i == ISO__PAYLOAD_WIRE ? average.work_ms : 0;
    }
}

// ---- Evaluation -----------------------------------------------------------------------------------

// The mean that evaluation sees is not training: what it moves does not count.
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

iso_status iso__periodic_show(bool training, void *periodic) {
    iso__periodic *p = periodic;
    const float *mean;
    p->last_step_ns = 0; // evaluation is not part of a step
    if (training == !p->shown) return ISO_OK;
    if (training) {
        ISO_TRY(iso__periodic_unpack(p, p->parameter_elements, p->own));
    } else {
        if (p->equal) return ISO_OK;
        ISO_TRY(iso__periodic_hold(p));
        size_t bytes = p->parameter_elements * sizeof(float);
        if (!p->own) ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->own));
        ISO_TRY(iso__periodic_pack(p, p->parameter_elements, p->own));
        ISO_TRY(mean_to_show(p, &mean));
        ISO_TRY(iso__periodic_unpack(p, p->parameter_elements, mean));
    }
    p->shown = !training;
    return ISO_OK;
}

iso_status iso__periodic_finish(iso__periodic *p, bool state) {
    iso__action exact = {.kind = ISO__FULL, .group = ISO__ALL_GROUPS, .state = state};
    ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    ISO_TRY(iso__periodic_show(true, p));
    ISO_TRY(iso__periodic_drop(p));
    if (!state) ISO_TRY(iso__periodic_mean_buffers(p, p->comm));
    if (p->equal && !state) return ISO_OK;
    return average_fully(p, &exact, false);
}
